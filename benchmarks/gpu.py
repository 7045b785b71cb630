"""How fast batches reach a GPU, and whether a model there ever waits for them.

Makes its own data (click logs, processed: 26 categories, 13 numbers, a label), measures, prints a
table and writes JSON. Needs one NVIDIA GPU, torch, and for the GPU's own reader
what ``tabfeed[gpu]`` brings.

- load: batches of 65,536, shuffled, delivered on the GPU, by each reader; beside it the decoders
  alone, a loader written by hand with 8 worker processes, and torch's own, item by item.
- train: two models over an epoch, against the same steps over many different batches that already
  lie on the GPU (the ceiling), and fed by the other loaders.
- bounded: the same rate within a limit on the process's memory below the data's size, turn by turn
  with a process without one; and what it and the processes that decode for it have together.

    python benchmarks/gpu.py --data DIR --json OUT [--rows 64000000] [--sections load train bounded]

Row groups are of 250,000 rows; with ``--group-rows 1000000`` as large as many tools make them.
Ids have 32 bits; with ``--wide`` they have 64, and labels are whole numbers, as a `Workflow` writes
them.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor
from datetime import date
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow.parquet as pq
import torch
from gpu_bounded import bounded_section
from gpu_models import Step, captured, make_adam, make_sgd, stepper
from gpu_ours import drain, ours
from gpu_peers import by_hand, cudf_alone, pyarrow_alone, stock
from gpu_tables import tables
from loader import CARDINALITIES, CATS, make_file

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import tabfeed
from benchmarks.harness.about import code_digest, versions
from benchmarks.harness.busy import Busy
from benchmarks.harness.cores import Cores
from benchmarks.harness.gpu_about import gpu_about
from benchmarks.harness.medians import medians
from tabfeed.loader.torch import TorchAsyncItr

FILE_ROWS = 1_000_000
GROUP = 250_000
CEILING_BYTES = 8 * 10**9
SOME = 2.5  # seconds: of what is slow not the whole epoch
READERS = {"arrow": 60.0, "cudf": SOME, "auto": SOME}  # and at most so many seconds of an epoch
BY_HAND, STOCK = "by hand, 8 workers", "stock, item by item"
LIMIT_GB = 6.0  # of memory, in which the data may not be
FEW = 2  # rounds: of what is a thousand times slower they tell enough
PACKAGES = [
    "torch",
    "pyarrow",
    "numpy",
    "pylibcudf-cu13",
    "rmm-cu13",
    "nvidia-libnvcomp-cu13",
    "triton",
]
SORTED_SIZES = [size for _, size in sorted(zip(CATS, CARDINALITIES, strict=True))]


def make_data(folder: Path, rows: int, group: int = GROUP, *, wide: bool = False) -> None:
    """Files of a million rows, made side by side; read once, so that they are in memory."""
    folder.mkdir(parents=True, exist_ok=True)
    files = [folder / f"part_{n:04}.parquet" for n in range(rows // FILE_ROWS)]
    todo = [(f, FILE_ROWS, group, n, wide) for n, f in enumerate(files) if not f.exists()]
    if todo:
        with ProcessPoolExecutor(os.cpu_count()) as workers:
            list(workers.map(make_file, *zip(*todo, strict=True)))
    for file in files:
        file.read_bytes()
        first = pq.read_metadata(file).row_group(0)
        if first.num_rows != group or (first.column(0).physical_type == "INT64") != wide:
            raise SystemExit(f"{file} is of other data; give another --data")


def hardware() -> dict[str, Any]:
    """What it ran on."""
    return {
        "date": date.today().isoformat(),
        **gpu_about(),
        "CUDA": torch.version.cuda,
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "packages": {"tabfeed": tabfeed.__version__, **versions(PACKAGES)},
        "code": code_digest(),
    }


# -- load --------------------------------------------------------------------------------------


def some(batches: Iterable[Any], limit: float = SOME) -> dict[str, float]:
    """Batches of a slow loader for some seconds; rows a second from the first batch on."""
    start, first, rows, seconds = time.perf_counter(), 0.0, 0, 0.0
    for batch in batches:
        torch.cuda.synchronize()
        seconds = time.perf_counter() - start
        if not first:
            first = seconds
            continue
        rows += len(batch[2])
        if seconds - first > limit:
            break
    return {"rate": rows / max(seconds - first, 1e-9) / 1e6, "first": first, "rows": rows}


def held_on_gpu(loader: TorchAsyncItr) -> float:
    """Most MB the loader held: torch's, and the pool that pylibcudf decodes into.

    What was given back counts as long as the GPU has not come by the last use of it.
    """
    nbytes = torch.cuda.memory_stats()["active_bytes.all.peak"]
    reader = loader.pipeline.stages.reader
    pool = getattr(getattr(reader, "reader", reader), "pool_bytes", 0)  # "auto" has it measured
    return (nbytes + pool) / 1e6


def settle(loader: TorchAsyncItr, limit: float = 20.0) -> None:
    """With ``reader="auto"``: epochs until it has chosen."""
    choice = getattr(loader.state, "choice", None)
    end = time.perf_counter() + limit
    while choice is not None and not choice.settled and time.perf_counter() < end:
        drain(loader)


def load_section(folder: Path, rounds: int) -> dict[str, Any]:
    """Batches of 65,536 on the GPU."""
    settings: dict[str, dict[str, Any]] = {
        "tabfeed, cudf, 6 GB": {"reader": "cudf", "device_memory": "6GB"},
        "tabfeed, cudf, 3 GB": {"reader": "cudf", "device_memory": "3GB"},
        "tabfeed, cudf, 1 GB": {"reader": "cudf", "device_memory": "1GB"},
        "tabfeed, arrow, 1 GB": {"reader": "arrow"},
        "tabfeed, auto, 1 GB": {"reader": "auto"},
    }
    out: dict[str, Any] = {}
    for name, options in settings.items():
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        loader = ours(folder, 65_536, **options)
        begin = drain(loader)["rate"]
        settle(loader)
        runs = [drain(loader) for _ in range(rounds)]
        out[name] = medians(runs) | {
            "rate of the first epoch": begin,
            "MB on the GPU": held_on_gpu(loader),
            "reader": loader.reader_choice,
        }
        del loader
        say(name, out[name])
    alone: dict[str, Callable[[], int]] = {
        "pyarrow alone": lambda: pyarrow_alone(folder),
        "pylibcudf alone": lambda: cudf_alone(folder),
    }
    for name, function in alone.items():
        function()
        out[name] = {"rate": statistics.median(_rate(function) for _ in range(rounds))}
        say(name, out[name])
    others: dict[str, tuple[Callable[[], Iterable[Any]], int]] = {
        BY_HAND: (partial(by_hand, folder, 65_536), rounds),
        STOCK: (partial(stock, folder, 65_536, 196_608), min(FEW, rounds)),
    }
    for name, (other, times) in others.items():
        out[name] = medians([some(other()) for _ in range(times)])
        say(name, out[name])
    return out


def _rate(function: Callable[[], int]) -> float:
    start = time.perf_counter()
    return function() / (time.perf_counter() - start) / 1e6


def say(name: str, figures: Any) -> None:
    """One line, as it comes."""
    print(f"{name}: {json.dumps(figures, default=str)}", file=sys.stderr, flush=True)


# -- train -------------------------------------------------------------------------------------


def train(batches: Iterable[Any], step: Step, limit: float) -> dict[str, Any]:
    """Rows a second after the first step; the first batch's time apart. Busy from the beginning."""
    torch.cuda.synchronize()
    begin, rows, first = time.perf_counter(), 0, 0.0
    start = begin
    with Busy() as busy, Cores() as cores:
        for batch in batches:
            if not first:
                torch.cuda.synchronize()
                first = time.perf_counter() - begin
                step(batch)
                torch.cuda.synchronize()
                start = time.perf_counter()
                continue
            step(batch)
            rows += len(batch[2])
            if time.perf_counter() - start > limit:
                break
        torch.cuda.synchronize()
        seconds = time.perf_counter() - start
    rate = rows / seconds / 1e6
    took = {"first": first, "busy": busy.percent, "seconds": seconds}
    return {"rate": rate, **took, **cores.figures}


class Model(NamedTuple):
    """What is trained.

    Attributes
    ----------
    batch
        Rows of a batch.
    make
        Gives the model and its optimiser.
    graph
        Whether its step is captured as a CUDA graph.
    """

    batch: int
    make: Callable[[], Any]
    graph: bool = False


MODELS = {
    "512-256, Adam, batch 400,000": Model(400_000, lambda: make_adam(SORTED_SIZES, "cuda")),
    "three of 128, SGD, dense, batch 65,536": Model(
        65_536, lambda: make_sgd(SORTED_SIZES, "cuda", sparse=False)
    ),
    "three of 128, SGD, sparse, batch 65,536": Model(
        65_536, lambda: make_sgd(SORTED_SIZES, "cuda", sparse=True)
    ),
    "three of 128, SGD, sparse, graph, batch 65,536": Model(
        65_536, lambda: make_sgd(SORTED_SIZES, "cuda", sparse=True), graph=True
    ),
}


def many_batches(folder: Path, batch: int) -> list[Any]:
    """As many different batches as fit, on the GPU."""
    each = batch * (26 * 8 + 13 * 4 + 4)
    loader = ours(folder, batch, drop_last=True)
    taken = list(itertools.islice(loader, max(1, CEILING_BYTES // each)))
    loader.close()
    return [tuple(t.clone() for t in b) for b in taken]


def train_section(folder: Path, rounds: int) -> dict[str, Any]:
    """Each model: its ceiling and what it gets from files, turn by turn."""
    out: dict[str, Any] = {}
    for name, (batch, make, graph) in MODELS.items():
        torch.cuda.empty_cache()
        step = stepper(*make())
        still = many_batches(folder, batch)
        loaders = {r: ours(folder, batch, reader=r, drop_last=True) for r in READERS}
        others: dict[str, Callable[[], Iterable[Any]]] = {BY_HAND: partial(by_hand, folder, batch)}
        if graph:
            step = captured(step, still[0])
        else:
            others[STOCK] = partial(stock, folder, min(batch, 65_536), 131_072)
        figures: dict[str, list[Any]] = {n: [] for n in ("ceiling", *loaders, *others)}
        train(still[:20], step, 5)
        for number in range(rounds):
            figures["ceiling"].append(train(itertools.cycle(still), step, SOME))
            for reader, limit in READERS.items():
                figures[reader].append(train(loaders[reader], step, limit))
            for other, begin in others.items():
                if other != STOCK or number < FEW:
                    figures[other].append(train(begin(), step, SOME))
        found: dict[str, Any] = {key: medians(runs) for key, runs in figures.items()}
        for reader in loaders:
            pairs = zip(figures[reader], figures["ceiling"], strict=True)
            shares = [got["rate"] / best["rate"] for got, best in pairs]
            found[f"{reader}, share of the ceiling"] = statistics.median(shares)
            found[f"{reader}, round by round"] = shares
            found[f"{reader}, choice"] = loaders[reader].reader_choice
        del loaders, still
        out[name] = found
        say(name, found)
    return out


def main() -> None:
    """Run, print a table, write JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=64_000_000)
    parser.add_argument("--group-rows", type=int, default=GROUP)
    parser.add_argument("--wide", action="store_true")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--train-rounds", type=int, default=5)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--sections", nargs="*", default=["load", "train", "bounded"])
    args = parser.parse_args()
    make_data(args.data, args.rows, args.group_rows, wide=args.wide)
    result: dict[str, Any] = {
        "hardware": hardware(),
        "rows": args.rows,
        "rows of a row group": args.group_rows,
        "wide": args.wide,
        "rounds": args.rounds,
        "rounds of training": args.train_rounds,
        "rounds, item by item": FEW,
    }
    sections: dict[str, Callable[[], Any]] = {
        "load": lambda: load_section(args.data, args.rounds),
        "train": lambda: train_section(args.data, args.train_rounds),
        "bounded": lambda: bounded_section(args.data, LIMIT_GB, args.rounds),
    }
    for name in args.sections:
        result[name] = sections[name]()
        if args.json:
            args.json.write_text(json.dumps(result, indent=2))
    print(tables(result))


if __name__ == "__main__":
    main()
