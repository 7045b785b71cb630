"""Statistics of groups: how many rows, and of each value column count, sums and range.

Joined across partitions like everything that is learned: exactly, in any order. Sums, of values and
of squares, are kept in two and three floats (`tabfeed.ops.state.exact`); for whole numbers of
ordinary size plain sums are exact, and are used. A null key
is a key like any other. Past the memory limit, tables of groups go to disk, each in hash partitions
of the key; then one partition after the other is read from all files, joined and written, so that
the table of all groups is never held whole.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa

from tabfeed.hashing import hash_columns
from tabfeed.ops.state.counting import split_rows
from tabfeed.ops.state.exact import (
    Places,
    Words,
    group_squares,
    group_squares_of_halves,
    group_sums,
    halves,
)
from tabfeed.ops.state.keys import base_type
from tabfeed.ops.state.memory import MemoryManager, SpilledTable

ROWS = "rows"
# The sum and what rounding took; the sum of squares and, in two words, what rounding took of it.
SUMS = ("sum", "low", "squares", "rest", "last")
_OF_VALUE = ("n", *SUMS, "min", "max")
_ROW = "__row__"
PARTITIONS = 256
_LEAST_ROOM = 4 << 20
_OLD = pl.CompatLevel.oldest()


def key_names(group: Sequence[str]) -> list[str]:
    """Names of the key columns inside a table of groups."""
    return [f"k{i}" for i in range(len(group))]


class GroupStats:
    """A growing table: keys, ``rows``, and for value column ``i``: n, min, max and `SUMS`.

    Parameters
    ----------
    keys
        How many key columns.
    values
        How many value columns.
    memory
        The memory limit of the fit.
    apart
        How many of the last keys only divide a group, such as a fold: rows that agree in the others
        are next to each other in the end.
    """

    def __init__(self, keys: int, values: int, memory: MemoryManager, *, apart: int = 0) -> None:
        self.keys = [f"k{i}" for i in range(keys)]
        self.apart = apart
        self.values = values
        self._columns = [*self.keys, ROWS, *(f"{k}{i}" for i in range(values) for k in _OF_VALUE)]
        self.memory = memory
        self._parts: list[pl.DataFrame] = []
        self._grouped = 0
        self._runs: list[Path] = []

    def add(self, keys: Sequence[pl.Series], values: Sequence[pl.Series]) -> None:
        """Add the rows of a partition."""
        columns = {k: clean_key(s) for k, s in zip(self.keys, keys, strict=True)}
        columns |= {f"v{i}": s for i, s in enumerate(values)}
        frame = pl.DataFrame(columns)
        counts = [pl.len().cast(pl.Int64).alias(ROWS)]
        ranges = [e for i in range(self.values) for e in _ranges(i)]
        if all(_adds_up(s) for s in values):
            sums = [e for i in range(self.values) for e in _plain_sums(i)]
            self._append(frame.group_by(self.keys).agg(counts + ranges + sums))
            return
        groups, order, starts = self._places(frame, counts + ranges)
        for i, series in enumerate(values):
            if series.dtype.is_integer() and not _fits_float(series):
                high, low = halves(series.fill_null(0).to_numpy()[order])
                pairs = group_sums([high, low], starts), group_squares_of_halves(high, low, starts)
            else:
                x = series.cast(pl.Float64).fill_nan(None).fill_null(0.0).to_numpy()[order]
                pairs = group_sums([x], starts), group_squares(x, starts)
            groups = _with_sums(groups, i, *pairs)
        self._append(groups)

    def _places(
        self, frame: pl.DataFrame, aggregates: list[pl.Expr]
    ) -> tuple[pl.DataFrame, Places, Places]:
        """The groups, the rows in the order of their groups, and where each group starts."""
        groups = frame.with_row_index(_ROW).group_by(self.keys).agg(*aggregates, pl.col(_ROW))
        order = groups[_ROW].explode().to_numpy()
        lengths = groups[_ROW].list.len().to_numpy().astype(np.int64)
        return groups.drop(_ROW), order, np.cumsum(lengths) - lengths

    def _append(self, frame: pl.DataFrame) -> None:
        self._parts.append(frame.select(self._columns))
        if sum(len(p) for p in self._parts) > 2 * max(self._grouped, 200_000):
            if self.memory.allows_grouping(self.nbytes()):
                self._group()
            else:
                self.spill()

    def _group(self) -> None:
        if len(self._parts) > 1:
            self._parts = [self._joined(self._parts)]
        self._grouped = sum(len(p) for p in self._parts)

    def _joined(self, parts: list[pl.DataFrame]) -> pl.DataFrame:
        frame = pl.concat(parts, how="vertical_relaxed")
        merges: list[pl.Expr] = [pl.col(ROWS).sum()]
        for i in range(self.values):
            merges += [pl.col(f"n{i}").sum(), pl.col(f"min{i}").min(), pl.col(f"max{i}").max()]
        names = [f"{kind}{i}" for i in range(self.values) for kind in SUMS]
        if all(_adds_up(frame[n], squared=True) for n in names):
            merges += [pl.col(n).sum() for n in names]
            return frame.group_by(self.keys).agg(merges).select(self._columns)
        groups, order, starts = self._places(frame, merges)
        for i in range(self.values):
            total, low, *squares = (frame[f"{k}{i}"].to_numpy()[order] for k in SUMS)
            sums = group_sums([total, low], starts), group_sums(squares, starts, words=3)
            groups = _with_sums(groups, i, *sums)
        return groups.select(self._columns)

    def join(self, other: GroupStats) -> GroupStats:
        """Take over what another holds."""
        self._runs += other._runs
        for part in other._parts:
            self._append(part)
        return self

    def split(self, count: int) -> list[GroupStats]:
        """The groups by hash of their keys: a key has the same number in every split."""
        table = self.stored().read()
        parts = [table.slice(0, 0)] * count
        if table.num_rows:
            frame = pl.DataFrame(pl.from_arrow(table))
            parts = split_rows(frame, hash_columns(table, self.keys), count)
        stats = [self._like(self.memory) for _ in parts]
        for new, part in zip(stats, parts, strict=True):
            if len(part):
                new._append(part)
        return stats

    def nbytes(self) -> int:
        """Bytes held in memory."""
        return int(sum(p.estimated_size() for p in self._parts))

    def spill(self) -> None:
        """Write what is held to a file, in hash partitions."""
        while self._parts:
            path = self.memory.new_file(".arrow")
            _write_partitions(self._parts.pop(0), self.keys[: len(self.keys) - self.apart], path)
            self._runs.append(path)
        self._grouped = 0

    def stored(self) -> SpilledTable:
        """All groups, by key or by hash partition of the keys."""
        if not self._runs:
            self._group()
            return SpilledTable.within(self._finished(self._parts), self.memory)
        self.spill()
        stored = SpilledTable.write(self._join_runs(), self.memory)
        for run in self._runs:
            run.unlink()
        self._runs = []
        return stored

    def _finished(self, parts: list[pl.DataFrame]) -> pa.Table:
        """Groups joined already, by key, in the types that keys are compared as."""
        if not parts:
            return pa.table({k: pa.nulls(0) for k in self.keys})
        table = parts[0].sort(self.keys, nulls_last=False).to_arrow(compat_level=_OLD)
        types = [pa.field(f.name, base_type(f.type)) for f in table.schema]
        return table.cast(pa.schema(types)).combine_chunks()

    def _join_runs(self) -> Iterator[pa.Table]:
        """The groups of all files, some hash partitions at a time, within a part of the limit."""
        files = [pa.ipc.open_file(pa.OSFile(str(run))) for run in self._runs]
        empty = [pl.DataFrame(pl.from_arrow(f.schema.empty_table())) for f in files]
        schema = pl.concat(empty, how="vertical_relaxed").schema
        held = 4 * sum(run.stat().st_size for run in self._runs)  # they are compressed
        room = held if self.memory.limit is None else max(_LEAST_ROOM, self.memory.limit // 16)
        step = max(1, min(PARTITIONS, PARTITIONS * room // max(1, held)))
        for start in range(0, PARTITIONS, step):
            numbers = range(start, min(PARTITIONS, start + step))
            read = [pa.Table.from_batches([f.get_batch(i) for i in numbers]) for f in files]
            parts = [pl.DataFrame(pl.from_arrow(t)) for t in read]
            yield self._finished([self._joined(parts).cast(schema)])

    def _like(self, memory: MemoryManager) -> GroupStats:
        return GroupStats(len(self.keys), self.values, memory, apart=self.apart)

    def refilled(self, stored: SpilledTable, memory: MemoryManager) -> GroupStats:
        """Statistics like these, of groups that were kept."""
        stats = self._like(memory)
        memory.hold(stats)
        for piece in stored.pieces():
            if piece.num_rows:
                stats._append(pl.DataFrame(pl.from_arrow(piece)))
                memory.settle()
        return stats

    def __getstate__(self) -> dict[str, Any]:
        known = {"keys": len(self.keys), "values": self.values, "apart": self.apart}
        return {"stored": self.stored(), **known}

    def __setstate__(self, state: dict[str, Any]) -> None:
        stored = state.pop("stored")
        new = GroupStats(**state, memory=MemoryManager()).refilled(stored, MemoryManager())
        vars(self).update(vars(new))


def clean_key(series: pl.Series) -> pl.Series:
    """NaN as null, categories as text: keys that compare alike everywhere."""
    if series.dtype in (pl.Float32, pl.Float64):
        return series.cast(pl.Float64).fill_nan(None)
    if series.dtype in (pl.Categorical, pl.Enum):
        return series.cast(pl.String)
    if series.dtype.is_integer() and series.dtype != pl.UInt64:
        return series.cast(pl.Int64)
    return series


def _write_partitions(frame: pl.DataFrame, keys: list[str], path: Path) -> None:
    """A file of `PARTITIONS` record batches; equal keys are in the same batch of every file."""
    table = frame.to_arrow(compat_level=_OLD)
    numbers = (hash_columns(table, keys) % np.uint64(PARTITIONS)).astype(np.int64)
    table = table.take(pa.array(np.argsort(numbers, kind="stable"))).combine_chunks()
    ends = np.cumsum(np.bincount(numbers, minlength=PARTITIONS))
    options = pa.ipc.IpcWriteOptions(compression="lz4")
    with pa.ipc.new_file(str(path), table.schema, options=options) as writer:
        for start, end in zip([0, *ends[:-1].tolist()], ends.tolist(), strict=True):
            batches = table.slice(start, end - start).to_batches()
            empty = pa.RecordBatch.from_pylist([], schema=table.schema)
            writer.write_batch(batches[0] if batches else empty)


def _adds_up(series: pl.Series, *, squared: bool = False) -> bool:
    """Whether plain sums of these numbers, and of their squares, are exact in any order.

    They are if the numbers are whole and few or small enough; `squared` says they are sums already.
    """
    x = series.cast(pl.Float64).fill_nan(None).drop_nulls()
    if not len(x):
        return True
    if series.dtype.is_float() and not (x == x.floor()).all():
        return False
    most = float(np.abs(x.to_numpy()).max())
    return (most if squared else most * most) * len(x) < 2**53


def _fits_float(series: pl.Series) -> bool:
    """Whether each of these integers is a float exactly."""
    low, high = series.min(), series.max()
    return low is None or -(2**53) <= int(low) <= int(high) <= 2**53  # type: ignore[arg-type]


def _ranges(i: int) -> list[pl.Expr]:
    raw = pl.col(f"v{i}")
    count = raw.cast(pl.Float64).fill_nan(None).count()
    return [
        count.cast(pl.Int64).alias(f"n{i}"), raw.min().alias(f"min{i}"), raw.max().alias(f"max{i}"),
    ]  # fmt: skip


def _plain_sums(i: int) -> list[pl.Expr]:
    x = pl.col(f"v{i}").cast(pl.Float64).fill_nan(None)
    total, low, squares, *rest = (f"{kind}{i}" for kind in SUMS)
    nothing = [pl.lit(0.0).alias(name) for name in (low, *rest)]
    return [x.sum().alias(total), (x * x).sum().alias(squares), *nothing]


def _with_sums(groups: pl.DataFrame, i: int, total: Words, squares: Words) -> pl.DataFrame:
    columns = zip(SUMS, (*total, *squares), strict=True)
    return groups.with_columns(pl.Series(f"{kind}{i}", values) for kind, values in columns)
