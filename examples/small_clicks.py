"""A small table of clicks for the examples that train on several ranks."""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from tabfeed import Dataset

ITEMS = 50


def options(description: str) -> argparse.ArgumentParser:
    """The arguments these examples share."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--data", help="a folder that `python examples/small_clicks.py` wrote")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch", type=int, default=64, help="rows of a batch, on each rank")
    return parser


def write(folder: Path, rows: int = 2_000) -> Dataset:
    """Clicks that follow from the item and the price; files of unequal size."""
    rng = np.random.default_rng(0)
    item = rng.integers(0, ITEMS, rows).astype(np.int32)
    price = rng.normal(size=rows).astype(np.float32)
    click = (rng.normal(size=ITEMS)[item] - price > 0).astype(np.float32)
    table = {"row": np.arange(rows, dtype=np.int32), "item": item, "price": price, "click": click}
    return Dataset(table).to_parquet(folder, output_files=3, row_group_size=150, overwrite=True)


def tell(**facts: Any) -> None:
    """Say what happened, for a person or a program."""
    print(json.dumps(facts), flush=True)


if __name__ == "__main__":
    folder = Path(tempfile.mkdtemp(prefix="clicks-"))
    write(folder)
    print(folder)
