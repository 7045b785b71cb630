"""Kill Dask workers while a workflow is fitted and its output written, and compare the results.

    .venv/bin/python benchmarks/chaos.py --rows 4000000 --repetitions 10

Three worker processes do the work. Every few seconds, and soon after each step begins, one of them,
drawn at random, is killed with SIGKILL, if it is not the only one left; now and then one is stopped
for a moment instead, which makes it a slow worker. What was learned and what was written must be,
byte for byte, what the threads of this machine make of the same data in peace. Prints one JSON
object; the exit status is 1 if anything differed.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import logging
import os
import random
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from distributed import Client, LocalCluster

from tabfeed import Dataset, Workflow, ops
from tabfeed.execute import Executor, LocalExecutor, as_executor
from tabfeed.execute.dask_cluster import disconnect, start_local
from tabfeed.testing.executor import content

_SOON = 1.0  # seconds from the beginning of a step to its first kill


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


def fit_and_write(
    data: Dataset, folder: Path, executor: Executor, begin: Callable[[str], None] = lambda _: None
) -> dict[str, str]:
    """Fit, save, transform, write; what every file holds. `begin` is told of each step."""
    shutil.rmtree(folder, ignore_errors=True)
    begin("fit")
    workflow = Workflow(graph(), executor=executor).fit(data)
    workflow.save(folder / "workflow")
    begin("transform")
    workflow.transform(data).to_parquet(folder / "plain", executor=executor)
    begin("full_shuffle")
    workflow.transform(data).to_parquet(folder / "mixed", shuffle="FULL", executor=executor)
    begin("compare")
    return {
        str(path.relative_to(folder)): hashlib.sha256(content(path)).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


class Killer:
    """Kills or stops one of a cluster's workers every `every` seconds."""

    def __init__(self, cluster: LocalCluster, every: float, seed: int) -> None:
        self.kills: Counter[str] = Counter()
        self.stops: Counter[str] = Counter()
        self._step = ""
        self._cluster, self._every = cluster, every
        self._rng = random.Random(seed)
        self._end, self._begun = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="killer")

    def __enter__(self) -> Killer:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._end.set()
        self._begun.set()
        self._thread.join()

    def begin(self, step: str) -> None:
        """What is going on from now on; if that is work, somebody is killed soon after."""
        self._step = step
        if step != "compare":
            self._begun.set()

    def _run(self) -> None:
        count = len(self._cluster.workers)
        while not self._end.is_set():
            new = self._begun.wait(self._every * self._rng.uniform(0.7, 1.3))
            self._begun.clear()
            if self._end.wait(_SOON if new else 0):
                return
            self._cluster.scale(count)  # a worker that died while it started is given up otherwise
            there = set(self._cluster.scheduler.workers)
            nannies = [n for n in list(self._cluster.workers.values()) if n.pid]
            pids = [n.pid for n in nannies if n.worker_address in there]
            if len(pids) > 1:  # on a slow machine a dead worker takes its time to come back
                self._strike(self._rng.choice(pids), kill=new or self._rng.random() < 0.8)

    def _strike(self, pid: int, *, kill: bool) -> None:
        with suppress(ProcessLookupError):
            if kill:
                os.kill(pid, signal.SIGKILL)
                self.kills[self._step] += 1
            else:
                os.kill(pid, signal.SIGSTOP)
                self._end.wait(self._every / 2)
                os.kill(pid, signal.SIGCONT)
                self.stops[self._step] += 1


@contextmanager
def workers(count: int) -> Iterator[tuple[LocalCluster, Client]]:
    """Processes of one thread each, as `tabfeed.Distributed` starts them, anew when they die."""
    os.environ["DASK_LOGGING__DISTRIBUTED"] = "critical"  # for them: they will have much to say
    logging.getLogger("distributed").setLevel(logging.CRITICAL)
    client = start_local(count, 1, "4GB")
    try:
        yield client.cluster, client
    finally:
        disconnect(client)


def repetition(
    client: Client, data: Dataset, folder: Path, killer: Killer
) -> tuple[dict[str, str], dict[str, Any]]:
    """What a cluster that is losing its workers makes of the data, and what it went through."""
    start = time.perf_counter()
    with killer:
        result = fit_and_write(data, folder, as_executor(client), killer.begin)
    seconds = round(time.perf_counter() - start, 1)
    return result, {"seconds": seconds, "kills": dict(killer.kills), "stops": dict(killer.stops)}


def run(options: argparse.Namespace, found: dict[str, Any], folder: Path) -> None:
    """A calm run on threads, then the repetitions that are missing."""
    write_data(folder / "raw", options.rows)
    data = Dataset(folder / "raw", part_size=max(20_000, 48 * options.rows // 40))
    start = time.perf_counter()
    calm = fit_and_write(data, folder / "out", LocalExecutor())
    found["calm_seconds"] = round(time.perf_counter() - start, 1)
    found |= {"partitions": data.npartitions, "files": len(calm)}
    while len(found["runs"]) < options.repetitions:
        with workers(3) as (cluster, client):  # of the last one some may not have come back
            killer = Killer(cluster, options.every, seed=len(found["runs"]))
            result, facts = repetition(client, data, folder / "out", killer)
        other = sorted(k for k in calm | result if calm.get(k) != result.get(k))
        found["runs"].append({**facts, "equal": not other, "differs": other[:5]})
        add_up(found)
        print(json.dumps(found["runs"][-1]), file=sys.stderr, flush=True)
        if options.keep:
            options.keep.write_text(json.dumps(found, indent=1) + "\n")


def add_up(found: dict[str, Any]) -> None:
    """All repetitions together."""
    for name in ("kills", "stops"):
        found[name] = sum((Counter(r[name]) for r in found["runs"]), Counter())
    found["equal"] = all(r["equal"] for r in found["runs"])


def main() -> None:
    """Parse the arguments, run, print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=4_000_000)
    parser.add_argument("--repetitions", type=int, default=10)
    parser.add_argument("--every", type=float, default=4.0, help="seconds between two kills")
    parser.add_argument("--keep", type=Path, help="where to keep the result, and go on from it")
    options = parser.parse_args()
    found = {"rows": options.rows, "seconds_between_kills": options.every, "runs": []}
    if options.keep and options.keep.exists():
        kept = json.loads(options.keep.read_text())
        if any(kept[name] != found[name] for name in ("rows", "seconds_between_kills")):
            parser.error(f"{options.keep} has a result with other settings")
        found = kept
    with tempfile.TemporaryDirectory() as folder:
        run(options, found, Path(folder))
    print(json.dumps(found, indent=1))
    raise SystemExit(not found["equal"])


if __name__ == "__main__":
    main()
