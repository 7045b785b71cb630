"""The one dataset maker: processed click logs of any length and width, in any codec.

Categories are int32, drawn log-uniformly with the cardinalities of the Criteo click logs; numbers
are float32; one label. With other widths the same kinds of columns are repeated in the same
proportion (two categories to a number). Lists have 0 to 9 int32 values a row. A row group is drawn
by itself, from a seed and its first row, so that making files takes the memory of one row group a
core. Raw rows, with strings and nulls, are `benchmarks.criteo_raw`'s.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.criteo_raw import CARDINALITIES, CATS, CONTS

from .sums import of_files, written

__all__ = ["CARDINALITIES", "CATS", "COLUMNS", "CONTS", "Spec", "make", "make_file", "make_files"]

COLUMNS = [*CATS, *CONTS, "label"]
FILES = 4
_CODECS: dict[str, dict[str, Any]] = {
    "plain": {"compression": "none", "use_dictionary": False},
    "snappy": {"compression": "snappy"},
    "zstd": {"compression": "zstd"},
    "lz4": {"compression": "lz4"},
}


@dataclass(frozen=True)
class Spec:
    """Which data: as many columns as asked for, the label among them.

    If `wide`, ids have 64 bits and labels are whole numbers, as a `Workflow` writes them.
    """

    rows: int
    columns: int = 40
    lists: int = 0
    codec: str = "snappy"
    group: int = 250_000
    wide: bool = False

    @property
    def name(self) -> str:
        """A folder's name."""
        end = "-wide" if self.wide else ""
        return f"{self.rows}x{self.columns}-{self.lists}lists-{self.codec}-{self.group}{end}"

    @property
    def cats(self) -> tuple[str, ...]:
        """Categories: two thirds of the features."""
        return tuple(f"C{i}" for i in range(1, round((self.columns - 1) * 2 / 3) + 1))

    @property
    def conts(self) -> tuple[str, ...]:
        """Numbers: the rest."""
        return tuple(f"I{i}" for i in range(1, self.columns - len(self.cats)))

    @property
    def multi_hot(self) -> tuple[str, ...]:
        """Lists."""
        return tuple(f"L{i}" for i in range(1, self.lists + 1))


def make(spec: Spec, folder: Path) -> Path:
    """Write the files below `folder`, unless they are there, whole."""
    out = folder / spec.name
    if written(out) is not None:
        return out
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    make_files(spec, out)
    (out / "_done").write_text(json.dumps(of_files(out)), "utf-8")
    return out


def make_files(spec: Spec, folder: Path, files: int = FILES) -> None:
    """All files of a dataset, side by side: NumPy and Arrow release the interpreter."""
    ends = [spec.rows * number // files for number in range(files + 1)]
    paths = [folder / f"part_{number:04}.parquet" for number in range(files)]
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as threads:
        list(threads.map(_write, [spec] * files, paths, ends, ends[1:], [0] * files))


def make_file(path: Path, rows: int, group: int, seed: int, wide: bool = False) -> None:
    """One file of 40 columns."""
    _write(Spec(rows, group=group, wide=wide), path, 0, rows, seed)


def _write(spec: Spec, path: Path, low: int, high: int, seed: int) -> None:
    """Rows `low` to `high` of a dataset."""
    tables = _tables(spec, low, high, seed)
    first = next(tables, None)
    if first is None:
        return
    with pq.ParquetWriter(path, first.schema, **_CODECS[spec.codec]) as writer:
        writer.write_table(first, row_group_size=spec.group)
        for table in tables:
            writer.write_table(table, row_group_size=spec.group)


def _tables(spec: Spec, low: int, high: int, seed: int) -> Iterator[pa.Table]:
    """Row group by row group."""
    for start in range(low, high, spec.group):
        random = np.random.default_rng([seed, start])
        yield _table(spec, min(spec.group, high - start), random)


def _table(spec: Spec, rows: int, random: np.random.Generator) -> pa.Table:
    table: dict[str, Any] = {}
    ids, labels = (np.int64, np.int32) if spec.wide else (np.int32, np.float32)
    for i, name in enumerate(spec.cats):
        size = CARDINALITIES[i % len(CARDINALITIES)]
        table[name] = np.exp(random.random(rows) * np.log(size)).astype(ids)
    for name in spec.conts:
        table[name] = random.standard_normal(rows, dtype=np.float32)
    table["label"] = (random.random(rows) < 0.03).astype(labels)
    for name in spec.multi_hot:
        offsets = np.append(0, np.cumsum(random.integers(0, 10, rows))).astype(np.int32)
        values = random.integers(1, 100_000, offsets[-1]).astype(np.int32)
        table[name] = pa.ListArray.from_arrays(offsets, values)
    return pa.table(table)
