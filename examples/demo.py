"""What tabfeed does, on generated data: make, open, inspect, shuffle, read back, prove.

make demo
python examples/demo.py --rows 2_000_000 --folder demo_data
"""

from __future__ import annotations

import argparse
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

import tabfeed
from tabfeed import Dataset, datagen
from tabfeed.cli.inspect import inspect_command
from tabfeed.hashing import hash_columns

console = Console()


class Account:
    """What was done and how long it took, told at the end."""

    def __init__(self) -> None:
        self.lines: list[tuple[str, float, int]] = []

    @contextmanager
    def step(self, what: str, rows: int) -> Iterator[None]:
        """Time a step that handles `rows` rows."""
        console.print(f"[bold cyan]{what}[/] ...")
        start = time.perf_counter()
        yield
        self.lines.append((what, time.perf_counter() - start, rows))

    def show(self) -> None:
        """Print the account."""
        table = Table(title="What happened", title_justify="left", header_style="bold")
        table.add_column("step")
        table.add_column("seconds", justify="right")
        table.add_column("rows a second", justify="right")
        for what, seconds, rows in self.lines:
            table.add_row(what, f"{seconds:.2f}", f"{rows / seconds:,.0f}")
        console.print(table)


def fingerprint(dataset: Dataset) -> tuple[int, int]:
    """Rows, and the sum of all rows' hashes: the same for the same rows in any order."""
    rows = total = 0
    for table in dataset.iter_tables():
        rows += table.num_rows
        total += int(hash_columns(table, dataset.column_names).sum(dtype=np.uint64))
    return rows, total % 2**64


def main() -> None:
    """Run every step and tell what it did."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=2_000_000)
    parser.add_argument("--folder", type=Path, default=Path("demo_data"))
    args = parser.parse_args()
    made, shuffled = args.folder / "criteo", args.folder / "shuffled"
    shutil.rmtree(args.folder, ignore_errors=True)
    account = Account()
    console.rule(f"tabfeed {tabfeed.__version__}")

    with account.step("Make Criteo-shaped click data", args.rows):
        data = datagen.criteo(made, args.rows)
    with account.step("Open it and look inside", args.rows):
        opened = Dataset(made)
        inspect_command([str(made)])
    with account.step("Write it in one random order of all rows", args.rows):
        written = opened.to_parquet(shuffled, shuffle=tabfeed.Shuffle.FULL, memory_limit="1GB")
    with account.step("Read both back and compare every row", 2 * args.rows):
        before, after = fingerprint(data), fingerprint(written)

    console.print("\nThe first rows, before and after the shuffle:")
    for dataset in (opened, written):
        console.print(dataset.select(["label", "I1", "I2", "C1", "C6", "C20"]).head(3))
    account.show()
    if before != after:
        raise SystemExit(f"rows were lost or changed: {before} before, {after} after")
    console.print(
        f"[bold green]No row was lost:[/] {after[0]:,} rows before and after, and the sum of all "
        f"row hashes is {after[1]:016x} both times."
    )
    console.print(f"The files are in {args.folder.resolve()}. Look at them again:")
    console.print(f"  .venv/bin/tabfeed inspect {shuffled}")


if __name__ == "__main__":
    main()
