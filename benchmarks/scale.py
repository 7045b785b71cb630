"""How much faster two Dask workers are than one, and what moves between them. Prints JSON.

    python benchmarks/scale.py [--rows 1000000] [--rounds 3]

The README's Criteo workflow on one and on two worker processes of one thread each (Polars and
Arrow are held to one thread too), on the same data and with all files in the page cache. Each
number of workers runs `--rounds` times, in turn, after a run on one file that nobody times; the
figures are the best of each, since on a shared machine the rest is other people's work. The bytes
moved are those that Dask counted. Object storage is measured by `benchmarks/remote.py`.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from distributed import Client, LocalCluster

from tabfeed import Dataset, Workflow, ops

sys.path.insert(0, str(Path(__file__).parent))
import criteo_raw
from criteo_raw import CATS, CONTS

STEPS = ("fit", "transform", "full_shuffle")
ONE = {"POLARS_MAX_THREADS": "1", "TABFEED_THREADS": "1", "OMP_NUM_THREADS": "1"}


@contextmanager
def cluster(workers: int) -> Iterator[Client]:
    """Worker processes of one thread."""
    with (
        LocalCluster(
            n_workers=workers,
            threads_per_worker=1,
            processes=True,
            dashboard_address=":0",
            silence_logs=50,
            env=ONE,
        ) as local,
        Client(local, set_as_default=False) as client,
    ):
        yield client


def graph() -> Any:
    """The workflow of the README."""
    cats = CATS >> ops.Categorify(max_size=10_000_000)
    conts = CONTS >> ops.FillMissing() >> ops.Clip(min_value=0) >> ops.LogOp() >> ops.Normalize()
    return cats + conts + ["label"]


def moved(client: Client) -> int:
    """Bytes the workers have sent, to each other and to the client, so far."""

    def sent(dask_worker: Any) -> int:
        return int(dask_worker.transfer_outgoing_bytes_total)

    return sum(client.run(sent).values())


def measure(
    client: Client, files: list[Path], out: Path, steps: Sequence[str] = STEPS
) -> dict[str, float]:
    """Seconds of a fit, of a transform and of a full shuffle, and the bytes that moved."""
    shutil.rmtree(out, ignore_errors=True)
    data = Dataset(files, part_size="32MB")
    workflow = Workflow(graph(), client=client)
    found: dict[str, float] = {"partitions": data.npartitions}
    work = {
        "fit": lambda: workflow.fit(data),
        "transform": lambda: workflow.transform(data).to_parquet(out / "plain"),
        "full_shuffle": lambda: workflow.transform(data).to_parquet(out / "mixed", shuffle="FULL"),
    }
    for name in steps:
        before, start = moved(client), time.perf_counter()
        work[name]()
        found[f"{name}_s"] = time.perf_counter() - start
        found[f"{name}_moved_mb"] = (moved(client) - before) / 1e6
    return found


def best(runs: list[dict[str, float]]) -> dict[str, float]:
    """The least of each figure."""
    return {name: round(min(run[name] for run in runs), 2) for name in runs[0]}


def main() -> None:
    """Parse the arguments, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", nargs="+", default=STEPS, choices=STEPS)
    parser.add_argument("--raw", type=Path, help="where the data is, or is to be kept")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, cluster(1) as one, cluster(2) as two:
        raw, out = options.raw or Path(folder) / "raw", Path(folder) / "out"
        criteo_raw.write(raw, options.rows)
        files = sorted(raw.glob("*.parquet"))
        clients = {1: one, 2: two}
        for client in clients.values():
            measure(client, files[:1], out, options.steps)
        runs: dict[int, list[dict[str, float]]] = {1: [], 2: []}
        for workers in [*clients] * options.rounds:
            runs[workers].append(measure(clients[workers], files, out, options.steps))
    figures = {workers: best(found) for workers, found in runs.items()}
    speedup = {
        name: round(figures[1][f"{name}_s"] / figures[2][f"{name}_s"], 2) for name in options.steps
    }
    print(json.dumps({"rows": options.rows, "workers": figures, "speedup": speedup}))


if __name__ == "__main__":
    main()
