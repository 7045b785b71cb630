"""What tabfeed does, on generated data: raw files to features to a trained model.

Run ``make demo``, or ``python examples/demo.py --rows 800_000 --folder demo_data``.
"""

from __future__ import annotations

import argparse
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from demo_model import Trained, stock_loader_rate, train
from rich.console import Console
from rich.table import Table

import tabfeed
from tabfeed import Dataset, Workflow, datagen, ops
from tabfeed.cli.inspect import inspect_command
from tabfeed.hashing import hash_columns

CATS = [f"C{i}" for i in range(1, 27)]
CONTS = [f"I{i}" for i in range(1, 14)]
BATCH = 8_192

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


def features() -> Workflow:
    """Ids for the categories; filled, clipped, logged and normalised numbers."""
    cats = CATS >> ops.Categorify(freq_threshold=5)
    conts = CONTS >> ops.FillMissing() >> ops.Clip(min_value=0) >> ops.LogOp() >> ops.Normalize()
    return Workflow(cats + conts + ["label"])


def show_training(trained: Trained, stock: float) -> None:
    """Loss, AUC, speed, and what the stock loader would have given."""
    table = Table(title="Training", title_justify="left", header_style="bold")
    for name in ("epoch", "loss", "AUC on rows not trained on", "rows a second"):
        table.add_column(name, justify="right")
    for number, epoch in enumerate(trained.epochs, 1):
        table.add_row(str(number), f"{epoch.loss:.4f}", f"{epoch.auc:.4f}", f"{epoch.rate:,.0f}")
    console.print(table)
    console.print(
        f"The loader alone gives {trained.loader_rate:,.0f} rows a second; torch's own, item by "
        f"item from memory, {stock:,.0f}: {trained.loader_rate / stock:,.0f} times less. "
        f"The model waited for data {trained.waited:.1%} of the time."
    )


def main() -> None:
    """Run every step and tell what it did."""
    parser = argparse.ArgumentParser(description="From raw files to a trained model.")
    parser.add_argument("--rows", type=int, default=800_000)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--folder", type=Path, default=Path("demo_data"))
    args = parser.parse_args()
    folder, rows, held_out = args.folder, args.rows, args.rows // 8
    shutil.rmtree(folder, ignore_errors=True)
    account = Account()
    console.rule(f"tabfeed {tabfeed.__version__}")

    with account.step("Make Criteo-shaped click data", rows + held_out):
        raw = datagen.criteo(folder / "raw", rows, raw=True, seed=1)
        raw_held_out = datagen.criteo(folder / "raw_valid", held_out, raw=True, seed=2)
    with account.step("Open it and look inside", rows):
        inspect_command([str(folder / "raw")])
    with account.step("Write it in one random order of all rows", rows):
        mixed = Dataset(folder / "raw").to_parquet(
            folder / "shuffled", shuffle=tabfeed.Shuffle.FULL, memory_limit="1GB"
        )
    with account.step("Read both back and compare every row", 2 * rows):
        before, after = fingerprint(raw), fingerprint(mixed)
    if before != after:
        raise SystemExit(f"rows were lost or changed: {before} before, {after} after")
    with account.step("Learn the features", rows):
        workflow = features().fit(mixed)
        workflow.save(folder / "workflow")
    with account.step("Make the features", rows + held_out):
        ready = workflow.transform(mixed).to_parquet(folder / "train")
        valid = workflow.transform(raw_held_out).to_parquet(folder / "valid")
    with account.step("Train a model with PyTorch", args.epochs * rows):
        sizes = ops.get_embedding_sizes(Workflow.load(folder / "workflow"))
        trained = train(ready, valid, CATS, CONTS, sizes, batch_size=BATCH, epochs=args.epochs)

    account.show()
    show_training(trained, stock_loader_rate(ready, CATS, CONTS, batch_size=BATCH))
    console.print(
        f"[bold green]No row was lost:[/] {after[0]:,} rows before and after the shuffle, and the "
        f"sum of all row hashes is {after[1]:016x} both times."
    )
    console.print(f"The files are in {folder.resolve()}. Look at them again:")
    console.print(f"  .venv/bin/tabfeed inspect {folder / 'train'}")


if __name__ == "__main__":
    main()
