"""Kill Dask workers while a workflow is fitted and its output written, and compare the results.

    .venv/bin/python benchmarks/chaos.py --rows 4000000 --repetitions 10

Three worker processes do the work. Every few seconds one of them, drawn at random, is killed with
SIGKILL; now and then one is stopped for a moment instead, which makes it a slow worker. What was
learned and what was written must be, byte for byte, what the threads of this machine make of the
same data in peace. Prints one JSON object; the exit status is 1 if anything differed.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from distributed import Client, LocalCluster

from tabfeed import Dataset, Workflow, ops
from tabfeed.execute import Executor, LocalExecutor, as_executor
from tabfeed.testing.executor import content


def write_data(folder: Path, rows: int, files: int = 8) -> None:
    """Ids, texts and numbers of the usual kinds."""
    folder.mkdir(parents=True)
    for i in range(files):
        rng = np.random.default_rng([1, i])
        n = rows // files
        words = np.array([f"item {w} of many" for w in range(5000)])
        columns = {
            "C1": rng.zipf(1.2, n) % 1_000_000,
            "C2": rng.integers(0, 200_000, n).astype(np.int32),
            "C3": words[rng.integers(0, len(words), n)],
            "I1": np.where(rng.random(n) < 0.1, np.nan, rng.exponential(3.0, n)),
            "I2": rng.normal(1e6, 1.0, n),
            "label": rng.integers(0, 2, n).astype(np.int8),
        }
        path = folder / f"{i}.parquet"
        pq.write_table(pa.table(columns), path, row_group_size=max(1, n // 5))


def graph() -> Any:
    """Vocabularies, statistics of columns and of groups, in two passes."""
    ids = ["C1", "C2", "C3"] >> ops.Categorify()
    numbers = ["I1", "I2"] >> ops.FillMedian() >> ops.Normalize()
    groups = ["C3"] >> ops.JoinGroupby("I2", stats=["count", "mean", "std"])
    return ids + numbers + groups + ["label"]


def fit_and_write(data: Dataset, folder: Path, executor: Executor) -> dict[str, str]:
    """Fit, save, transform, write; what every file holds."""
    shutil.rmtree(folder, ignore_errors=True)
    workflow = Workflow(graph(), executor=executor).fit(data)
    workflow.save(folder / "workflow")
    workflow.transform(data).to_parquet(folder / "plain", executor=executor)
    workflow.transform(data).to_parquet(folder / "mixed", shuffle="FULL", executor=executor)
    return {
        str(path.relative_to(folder)): hashlib.sha256(content(path)).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


class Killer:
    """Kills or stops one of a cluster's workers every `every` seconds."""

    def __init__(self, cluster: LocalCluster, every: float, seed: int) -> None:
        self.kills = self.stops = 0
        self._cluster, self._every = cluster, every
        self._rng = random.Random(seed)
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, name="killer")

    def __enter__(self) -> Killer:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._end.set()
        self._thread.join()

    def _run(self) -> None:
        count = len(self._cluster.workers)
        while not self._end.wait(self._every * self._rng.uniform(0.7, 1.3)):
            self._cluster.scale(count)  # a worker that died while it started is given up otherwise
            there = set(self._cluster.scheduler.workers)
            nannies = [n for n in list(self._cluster.workers.values()) if n.pid]
            pids = [n.pid for n in nannies if n.worker_address in there]
            if pids:
                self._strike(self._rng.choice(pids))

    def _strike(self, pid: int) -> None:
        with suppress(ProcessLookupError):
            if self._rng.random() < 0.8:
                os.kill(pid, signal.SIGKILL)
                self.kills += 1
            else:
                os.kill(pid, signal.SIGSTOP)
                self._end.wait(self._every / 2)
                os.kill(pid, signal.SIGCONT)
                self.stops += 1


@contextmanager
def workers(count: int) -> Iterator[tuple[LocalCluster, Client]]:
    """Processes of one thread each, started again when they die."""
    with (
        LocalCluster(
            n_workers=count,
            threads_per_worker=1,
            processes=True,
            dashboard_address=":0",
            memory_limit="4GB",
            silence_logs=50,
            env={"POLARS_MAX_THREADS": "1"},
        ) as cluster,
        Client(cluster, set_as_default=False) as client,
    ):
        yield cluster, client


def run(rows: int, repetitions: int, every: float, folder: Path) -> dict[str, Any]:
    """One calm run on threads, then `repetitions` on a cluster that is losing its workers."""
    write_data(folder / "raw", rows)
    data = Dataset(folder / "raw", part_size=max(20_000, 48 * rows // 40))
    start = time.perf_counter()
    calm = fit_and_write(data, folder / "out", LocalExecutor())
    found = {"rows": rows, "partitions": data.npartitions, "files": len(calm), "runs": []}
    found["calm_seconds"] = round(time.perf_counter() - start, 1)
    with workers(3) as (cluster, client):
        executor = as_executor(client)
        fit_and_write(data, folder / "out", executor)  # every worker has imported all it needs
        for repetition in range(repetitions):
            start = time.perf_counter()
            with Killer(cluster, every, repetition) as killer:
                result = fit_and_write(data, folder / "out", executor)
            found["runs"].append(
                {
                    "seconds": round(time.perf_counter() - start, 1),
                    "kills": killer.kills,
                    "stops": killer.stops,
                    "equal": result == calm,
                }
            )
            print(json.dumps(found["runs"][-1]), file=sys.stderr, flush=True)
    found["equal"] = all(r["equal"] for r in found["runs"])
    return found


def main() -> None:
    """Parse the arguments, run, print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=4_000_000)
    parser.add_argument("--repetitions", type=int, default=10)
    parser.add_argument("--every", type=float, default=3.0, help="seconds between two kills")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = run(options.rows, options.repetitions, options.every, Path(folder))
    print(json.dumps(found))
    raise SystemExit(not found["equal"])


if __name__ == "__main__":
    main()
