"""What all values of a dataset add up to, so that nobody is fast by leaving values out.

Integers and floating-point numbers are added up apart: the first are exact. While a contender warms
up, every value it delivers is read and added; the clock that counts does not run meanwhile.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

__all__ = ["Sums", "arrays", "of_files", "written"]

CLOSE = 1e-5
"""Of the sum of absolute values: float32 added up in another order."""


class Sums:
    """Adds up batches, and compares with what the files hold.

    Examples
    --------
    >>> sums = Sums()
    >>> sums.add(({"a": np.array([1, 2])}, np.array([0.5, 0.5])))
    >>> sums.check({"whole": 3, "real": 1.0, "size": 1.0}, times=1)
    >>> sums.check({"whole": 4, "real": 1.0, "size": 1.0}, times=1)
    Traceback (most recent call last):
    ValueError: all integers delivered add up to 3 instead of 4
    """

    def __init__(self) -> None:
        self.whole, self.real = 0, 0.0

    def add(self, batch: Any) -> None:
        """Read every value of a batch."""
        for array in arrays(batch):
            if array.dtype.kind in "iu":
                self.whole += int(array.sum(dtype=np.int64))
            else:
                self.real += float(array.sum(dtype=np.float64))

    def check(self, wanted: dict[str, Any], times: int) -> None:
        """Raise unless the data came `times` times, all of them."""
        if self.whole != wanted["whole"] * times:
            expected = wanted["whole"] * times
            raise ValueError(f"all integers delivered add up to {self.whole} instead of {expected}")
        real = wanted["real"] * times
        if not math.isclose(self.real, real, rel_tol=0.0, abs_tol=CLOSE * wanted["size"] * times):
            raise ValueError(f"all numbers delivered add up to {self.real} instead of {real}")


def arrays(batch: Any) -> Iterator[Any]:
    """The arrays of a batch as NumPy's, however nested."""
    if isinstance(batch, dict):
        batch = tuple(batch.values())
    if isinstance(batch, (tuple, list)):
        for part in batch:
            yield from arrays(part)
    elif hasattr(batch, "shape"):
        yield np.asarray(batch)


def of_files(folder: Path) -> dict[str, Any]:
    """Of all columns but lists, a row group at a time; files side by side."""
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as threads:
        found = list(threads.map(_of_file, sorted(folder.glob("*.parquet"))))
    rows, whole, real, size = (sum(each) for each in zip(*found, strict=True))
    return {"rows": rows, "whole": whole, "real": real, "size": size}


def _of_file(path: Path) -> tuple[int, int, float, float]:
    """Rows, the sum of all integers, of all other numbers, and of their absolute values."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows, whole, real, size = 0, 0, 0.0, 0.0
    with pq.ParquetFile(path) as file:
        for batch in file.iter_batches(250_000, use_threads=False):
            rows += batch.num_rows
            for column in batch.columns:
                if pa.types.is_integer(column.type):
                    whole += int(column.to_numpy().sum(dtype=np.int64))
                elif pa.types.is_floating(column.type):
                    values = column.to_numpy()
                    real += float(values.sum(dtype=np.float64))
                    size += float(np.abs(values).sum(dtype=np.float64))
    return rows, whole, real, size


def written(folder: Path) -> dict[str, Any] | None:
    """What the maker of the files noted; None if it noted nothing."""
    note = folder / "_done"
    text = note.read_text("utf-8") if note.exists() else ""
    return dict(json.loads(text)) if text else None
