"""How fast batches come: ours, the decoder alone, and what people write by hand. Prints JSON.

Every contender runs once a round, in turn, so that a noisy machine disturbs all alike; the figures
are medians over rounds. Rates are in million rows a second, over whole epochs of loaders that
exist already, the first of which is not counted. "cpu" is processor seconds per million rows: it
hardly changes when others use the machine, so it tells more there than the rates.

    python benchmarks/loader.py --rows 4000000 --rounds 5
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import torch
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from tabfeed import Dataset
from tabfeed.budget import cpu_count
from tabfeed.loader.torch import Loader, TorchAsyncItr

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.harness.data import (
    CARDINALITIES,
    CATS,
    COLUMNS,
    CONTS,
    Spec,
    make_file,
    make_files,
)

__all__ = ["CARDINALITIES", "CATS", "COLUMNS", "CONTS", "make_file"]

# -- contenders: each goes over the data once and returns how many rows it delivered -----------


def decode_only(folder: Path) -> int:
    """The decoder alone, as many threads as cores, nothing delivered, each footer read once."""
    footers = {f: pq.read_metadata(f) for f in sorted(folder.glob("*.parquet"))}
    units = [(f, m, g) for f, m in footers.items() for g in range(m.num_row_groups)]

    def read(unit: tuple[Path, pq.FileMetaData, int]) -> int:
        # A reader of its own for each unit: readers must not be shared between threads.
        file, footer, group = unit
        with pq.ParquetFile(file, metadata=footer, pre_buffer=False) as reader:
            return int(reader.read_row_group(group, columns=COLUMNS, use_threads=False).num_rows)

    with ThreadPoolExecutor(cpu_count()) as threads:
        return sum(threads.map(read, units))


def drain(batches: Iterator[Any], rows_of: Callable[[Any], int]) -> int:
    """Take every batch."""
    total = 0
    for batch in batches:
        total += rows_of(batch)
    return total


def ours_tuples(folder: Path, batch: int, shuffle: bool) -> Callable[[], int]:
    """`TorchAsyncItr`: int64 categories."""
    loader = TorchAsyncItr(
        Dataset(str(folder)), CATS, CONTS, ["label"], batch_size=batch, shuffle=shuffle
    )
    return lambda: drain(iter(loader), lambda b: len(b[2]))


def ours_dicts(folder: Path, batch: int, shuffle: bool) -> Callable[[], int]:
    """`Loader`: the file's dtypes."""
    loader = Loader(Dataset(str(folder)), batch, shuffle, targets=["label"])
    return lambda: drain(iter(loader), lambda b: len(b[1]))


class ByHand(IterableDataset[Any]):
    """What one writes in an afternoon: `iter_batches`, rows shuffled within each."""

    def __init__(self, folder: Path, batch: int, shuffle: bool) -> None:
        self.files = sorted(folder.glob("*.parquet"))
        self.batch, self.shuffle = batch, shuffle

    def __iter__(self) -> Iterator[Any]:
        for file in self.files:
            for batch in pq.ParquetFile(file).iter_batches(self.batch, columns=COLUMNS):
                x = np.stack([batch.column(c).to_numpy() for c in CATS], axis=1).astype(np.int64)
                z = np.stack([batch.column(c).to_numpy() for c in CONTS], axis=1)
                y = batch.column("label").to_numpy()
                if self.shuffle:
                    order = np.random.permutation(len(y))
                    x, z, y = x[order], z[order], y[order]
                yield torch.from_numpy(x), torch.from_numpy(z), torch.tensor(y)


def by_hand(folder: Path, batch: int, shuffle: bool) -> int:
    """The above in a torch DataLoader."""
    loader = DataLoader(ByHand(folder, batch, shuffle), batch_size=None)
    return drain(iter(loader), lambda b: len(b[2]))


def by_hand_polars(folder: Path, batch: int) -> int:
    """Polars reads a file, shuffles it, and gives tensors."""
    import polars as pl  # not on every GPU machine where this file is imported

    total = 0
    for file in sorted(folder.glob("*.parquet")):
        frame = pl.read_parquet(file, columns=COLUMNS).sample(fraction=1.0, shuffle=True)
        x = frame.select(CATS).to_torch().to(torch.int64)
        z, y = frame.select(CONTS).to_torch(), frame["label"].to_torch()
        for start in range(0, len(frame), batch):
            total += len(
                (x[start : start + batch], z[start : start + batch], y[start : start + batch])[2]
            )
    return total


def stock(folder: Path, batch: int, rows: int) -> int:
    """Torch's DataLoader over tensors in memory, item by item; a part of the data is enough."""
    table = pq.ParquetFile(sorted(folder.glob("*.parquet"))[0]).read_row_group(0).slice(0, rows)
    x = torch.from_numpy(np.stack([table.column(c).to_numpy() for c in CATS], axis=1))
    y = torch.from_numpy(table.column("label").to_numpy().copy())
    loader = DataLoader(TensorDataset(x, y), batch_size=batch, shuffle=True)
    return drain(iter(loader), lambda b: len(b[1]))


def contenders(folder: Path) -> dict[str, Callable[[], int]]:
    """By name."""
    out: dict[str, Callable[[], int]] = {"decode only": lambda: decode_only(folder)}
    for batch in (65_536, 4_096, 256):
        for shuffle in (True, False):
            how = f"{'shuffled' if shuffle else 'in order'}, batch {batch}"
            out[f"TorchAsyncItr, {how}"] = ours_tuples(folder, batch, shuffle)
            out[f"Loader, {how}"] = ours_dicts(folder, batch, shuffle)
    for shuffle in (True, False):
        how = "shuffled" if shuffle else "in order"
        out[f"by hand, IterableDataset, {how}"] = lambda s=shuffle: by_hand(folder, 65_536, s)
    out["by hand, Polars, shuffled"] = lambda: by_hand_polars(folder, 65_536)
    out["stock DataLoader, shuffled"] = lambda: stock(folder, 65_536, 50_000)
    return out


def processor_seconds() -> float:
    """Of this process, all threads, system calls included."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def run(work: dict[str, Callable[[], int]], rounds: int) -> dict[str, dict[str, list[float]]]:
    """Rates and processor time of each contender, lists over rounds."""
    out: dict[str, dict[str, list[float]]] = {n: {"rate": [], "cpu": []} for n in work}
    for number in range(-1, rounds):  # the first round only warms up
        for name, function in work.items():
            start, before = time.perf_counter(), processor_seconds()
            rows = function()
            spent, used = time.perf_counter() - start, processor_seconds() - before
            if number >= 0:
                out[name]["rate"].append(rows / spent / 1e6)
                out[name]["cpu"].append(used / rows * 1e6)
    return out


def cached_epochs(folder: Path) -> dict[str, float]:
    """First and second epoch with ``cache="memory"``, in million rows a second."""
    loader = TorchAsyncItr(
        Dataset(str(folder)),
        *(CATS, CONTS, ["label"]),
        batch_size=65_536,
        shuffle=True,
        cache="memory",
        host_memory="4GB",
    )
    out = {}
    for epoch in ("first", "second", "third"):
        start = time.perf_counter()
        rows = drain(iter(loader), lambda b: len(b[2]))
        out[epoch] = rows / (time.perf_counter() - start) / 1e6
    return out


def first_batch(files: int) -> dict[str, float]:
    """Seconds until the first batch of a dataset of many files: opening it, and in all."""
    with tempfile.TemporaryDirectory() as folder:
        make_files(Spec(files * 1000, group=1000), Path(folder), files)
        times = []
        for _ in range(3):
            start = time.perf_counter()
            dataset = Dataset(folder)
            opened = time.perf_counter() - start
            loader = TorchAsyncItr(dataset, CATS, CONTS, ["label"], batch_size=4096, shuffle=True)
            batches = iter(loader)
            next(batches)
            times.append((time.perf_counter() - start, opened))
            batches.close()
    total, opened = sorted(times)[1]
    return {"files": files, "seconds": total, "of which opening the dataset": opened}


def verdicts(median: dict[str, float]) -> dict[str, Any]:
    """What was to be reached, and what was."""
    decode = median["decode only"]
    shuffled = median["TorchAsyncItr, shuffled, batch 65536"]
    hand = max(median["by hand, Polars, shuffled"], median["by hand, IterableDataset, shuffled"])
    in_order = median["Loader, in order, batch 65536"]
    small = {n: m * 1e6 / 256 for n, m in median.items() if n.endswith("batch 256")}
    return {
        "shuffled, int64, share of decode only (at least 0.55)": shuffled / decode,
        "shuffled, int64, times the best by hand (at least 2.5)": shuffled / hand,
        "in order, file dtypes, share of decode only (at least 0.9)": in_order / decode,
        "batches a second at 256 (at least 10000)": small,
    }


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=4_000_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--data", type=Path, help="folder to keep the generated files in")
    parser.add_argument("--only", nargs="*", help="contenders whose names contain one of these")
    parser.add_argument("--quick", action="store_true", help="leave out cache and first batch")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = args.data or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        if not any(folder.glob("*.parquet")):
            make_files(Spec(args.rows), folder)
        work = contenders(folder)
        if args.only:
            work = {n: f for n, f in work.items() if any(o in n for o in args.only)}
        rounds = run(work, args.rounds)
        median = {name: statistics.median(r["rate"]) for name, r in rounds.items()}
        result: dict[str, Any] = {
            "rows": args.rows,
            "cores": cpu_count(),
            "load": os.getloadavg(),
            "million rows a second": median,
            "cpu": {name: statistics.median(r["cpu"]) for name, r in rounds.items()},
            "all rounds": rounds,
        }
        if not args.only:
            result["verdicts"] = verdicts(median)
        if not args.quick:
            result["cache=memory"] = cached_epochs(folder)
            result["first batch"] = first_batch(1000)
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
