"""How often does each value occur, for more values than memory holds.

Each partition contributes a short table (value, count). Tables are kept as they come and
grouped together only when they have grown to twice what is grouped already, so that every
row is grouped a few times at most. Past the memory limit tables go to disk as Parquet runs,
and DuckDB, which keeps to a limit of its own, groups and sorts the runs.

Values that fit 64-bit keys (`tabfeed.ops.state.keys`) are counted as keys, in sorted tables that a
merge sort joins; the first that does not fit turns the counter to counting the values
themselves. Combinations of several columns
are always counted as values, nulls included.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tabfeed.errors import OperatorError
from tabfeed.hashing import hash_columns
from tabfeed.ops.state.keys import Keys, base_type, flatten, normalise, pack, plain_array, unpack
from tabfeed.ops.state.memory import (
    COUNT,
    MemoryManager,
    SpilledTable,
    group_on_disk,
    parquet_files,
)
from tabfeed.schema.dtypes import is_list_type

Counts = npt.NDArray[np.int64]
KEY = "__key__"


def count_values(
    array: pa.Array | pa.ChunkedArray, dtype: pa.DataType
) -> list[tuple[Keys | pa.Array, Counts]]:
    """Distinct values of each chunk with their counts, nulls left out.

    Examples
    --------
    >>> array = pa.array(["a long text", "b", "a long text"])
    >>> [(values, counts)] = count_values(array, pa.string())
    >>> dict(zip(values.to_pylist(), counts.tolist()))
    {'a long text': 2, 'b': 1}
    """
    chunks = array.chunks if isinstance(array, pa.ChunkedArray) else [array]
    if is_list_type(array.type):
        chunks = [flatten(chunk) for chunk in chunks]
    return [_count_chunk(chunk, dtype) for chunk in chunks if len(chunk)]


def _count_chunk(array: pa.Array, dtype: pa.DataType) -> tuple[Keys | pa.Array, Counts]:
    if not pa.types.is_dictionary(array.type):
        values = normalise(array, dtype).drop_null()
        if not (pa.types.is_string(dtype) or pa.types.is_binary(dtype)):
            keys, counts = np.unique(pack(values)[0], return_counts=True)
            return keys, counts.astype(np.int64)
        array = values.dictionary_encode()
    codes = array.indices.drop_null().to_numpy(zero_copy_only=False)
    counts = np.bincount(codes, minlength=len(array.dictionary)).astype(np.int64)
    values = normalise(array.dictionary, dtype)
    used = (counts > 0) & pc.is_valid(values).to_numpy(zero_copy_only=False)
    if not used.all():
        values, counts = values.filter(pa.array(used)), counts[used]
    keys, good = pack(values)
    if good is not None:
        return values, counts
    order = np.argsort(keys)
    return keys[order], counts[order]


class Counter:
    """Counts of values, or of combinations of values, joined across partitions.

    Parameters
    ----------
    dtypes
        Base type of each column of a value.
    memory
        The memory limit of the fit.
    """

    def __init__(self, dtypes: list[pa.DataType], memory: MemoryManager) -> None:
        self.dtypes = dtypes
        self.memory = memory
        self.packed = len(dtypes) == 1
        self._parts: list[pl.DataFrame] = []
        self._grouped = 0
        self._runs: list[Path] = []
        self._collapsed: Path | None = None

    @property
    def columns(self) -> list[str]:
        """Names of the value columns inside."""
        return [KEY] if len(self.dtypes) == 1 else [f"{KEY}{i}" for i in range(len(self.dtypes))]

    @property
    def spilled(self) -> bool:
        """Whether some of it is on disk."""
        return bool(self._runs)

    @property
    def runs(self) -> list[Path]:
        """The files on disk."""
        return list(self._runs)

    def add(self, values: Keys | pa.Array, counts: Counts) -> None:
        """Add counts of single values."""
        if isinstance(values, np.ndarray) and self.packed:
            self.add_frame(pl.DataFrame({KEY: values, COUNT: counts}))
        elif isinstance(values, np.ndarray):
            self.add_frame(self._as_values(pl.DataFrame({KEY: values, COUNT: counts})))
        else:
            self.unpack()
            self.add_frame(pl.DataFrame({KEY: pl.Series(values), COUNT: counts}))

    def add_frame(self, frame: pl.DataFrame) -> None:
        """Add a table of this counter's columns and counts."""
        self._parts.append(frame)
        rows = sum(len(p) for p in self._parts)
        if rows > 2 * max(self._grouped, 500_000):
            if self.memory.allows_grouping(self.nbytes()):
                self._group()
            else:
                self.spill()

    def join(self, other: Counter) -> Counter:
        """Take over what another counter holds."""
        if other.packed != self.packed:
            self.unpack()
            other.unpack()
        self._runs += other._runs
        for part in other._parts:
            self.add_frame(part)
        return self

    def split(self, count: int) -> list[Counter]:
        """The counts by hash of the value: a value has the same number in every split."""
        frame = self.frame()
        values = self._as_values(frame) if self.packed else frame
        table = _as_arrow(values.select(self.columns))
        out = []
        for rows in split_rows(frame, hash_columns(table, self.columns), count):
            part = Counter(self.dtypes, self.memory)
            part.packed, part._parts = self.packed, [rows]
            out.append(part)
        return out

    def unpack(self) -> None:
        """Turn keys into the values they stand for."""
        if not self.packed:
            return
        self.packed = False
        self._parts = [self._as_values(p) for p in self._parts]
        for run in self._runs:
            self._as_values(pl.read_parquet(run)).write_parquet(run)

    def _as_values(self, frame: pl.DataFrame) -> pl.DataFrame:
        values = unpack(frame[KEY].to_numpy(), self.dtypes[0])
        return frame.with_columns(pl.Series(values).alias(KEY))

    def _group(self) -> None:
        if len(self._parts) > 1 and self.packed:
            self._parts = [_merge_sorted(self._parts)]
        elif len(self._parts) > 1:
            whole = pl.concat(self._parts, how="vertical_relaxed")
            self._parts = [whole.group_by(self.columns).agg(pl.col(COUNT).sum())]
        self._grouped = sum(len(p) for p in self._parts)

    def nbytes(self) -> int:
        """Bytes held in memory."""
        return int(sum(p.estimated_size() for p in self._parts))

    def spill(self) -> None:
        """Write what is held to a run on disk."""
        while self._parts:
            path = self.memory.new_file()
            self._parts.pop().write_parquet(path, compression="lz4")
            self._runs.append(path)
        self._grouped = 0

    def frame(self) -> pl.DataFrame:
        """All counts in memory, in no particular order."""
        if self._runs:  # runs are not grouped; an empty part makes sure that they will be
            self._parts = [*(pl.read_parquet(r) for r in self._runs), *self._parts]
            self._parts.append(self._parts[0].clear())
            self._runs = []
        self._group()
        if not self._parts:
            columns = {n: pl.Series(n, [], dtype=pl.UInt64) for n in self.columns}
            return pl.DataFrame({**columns, COUNT: pl.Series([], dtype=pl.Int64)})
        return self._parts[0]

    def to_table(self) -> pa.Table:
        """All counts as an Arrow table of values (``v0``, ``v1``, ...) and ``count``."""
        return self.as_table(self.frame())

    def as_table(self, frame: pl.DataFrame) -> pa.Table:
        """A table of this counter's columns as one of values and ``count``."""
        if self.packed:
            values = [unpack(frame[KEY].to_numpy(), self.dtypes[0])]
        else:
            values = [
                _as_arrow(frame[c]).cast(t) for c, t in zip(self.columns, self.dtypes, strict=True)
            ]
        names = [*(f"v{i}" for i in range(len(values))), "count"]
        return pa.table([*values, pa.array(frame[COUNT].to_numpy())], names=names)

    def as_frame(self, table: pa.Table) -> pl.DataFrame:
        """The way back; values that have no key turn the counter to counting values."""
        counts = pl.Series(COUNT, table.column("count").to_numpy(), dtype=pl.Int64)
        values = [c.combine_chunks() for c in table.columns[:-1]]
        if self.packed:
            keys, good = pack(values[0])
            if good is None:
                return pl.DataFrame({KEY: keys, COUNT: counts})
            self.unpack()
        series = {c: pl.Series(v) for c, v in zip(self.columns, values, strict=True)}
        return pl.DataFrame({**series, COUNT: counts})

    def add_table(self, table: pa.Table) -> None:
        """Add what `to_table` gave."""
        if table.num_rows:
            frame = self.as_frame(table)
            self.add_frame(frame.sort(KEY) if self.packed else frame)

    def with_types(self, dtypes: list[pa.DataType]) -> Counter:
        """The same counts of values of other types: whole floats as integers, say."""
        if self.dtypes == dtypes:
            return self
        new = Counter(dtypes, self.memory)
        for piece in self.stored().pieces():
            columns = [c.combine_chunks() for c in piece.columns]
            cast = [normalise(c, t) for c, t in zip(columns[:-1], dtypes, strict=True)]
            new.add_table(pa.table([*cast, columns[-1]], names=piece.column_names))
        return new

    def with_stored(self, kept: SpilledTable | None, what: str) -> Counter:
        """With counts that were kept before; `what` was counted, for the message."""
        if kept is None:
            raise OperatorError(
                f"{what}: the counts that an update needs were not saved; save with "
                "updatable=True, or fit again on all data"
            )
        if not kept.num_rows:
            return self
        new = self.with_types(_wider(kept.schema.types[:-1], self))
        new.memory.hold(new)
        for piece in kept.pieces():
            columns = [
                normalise(c.combine_chunks(), t)
                for c, t in zip(piece.columns, new.dtypes, strict=False)
            ]
            new.add_table(pa.table([*columns, piece.column("count")], names=piece.column_names))
            new.memory.settle()
        return new

    def distinct(self) -> int:
        """How many different values there are."""
        return int(self.collapse().metadata.num_rows) if self._runs else len(self.frame())

    def collapse(self, *, ordered: bool = False) -> pq.ParquetFile:
        """All counts as one run on disk, each value once; by value if `ordered`."""
        if self._collapsed is not None and self._runs == [self._collapsed] and not self._parts:
            return pq.ParquetFile(self._collapsed, pre_buffer=False)  # which would keep all it read
        self.spill()
        names = ", ".join(f'"{c}"' for c in self.columns)
        rows = parquet_files(self._runs)
        out = group_on_disk(self.memory, self.columns, rows, names if ordered else "")
        self.drop_runs()
        self._runs, self._collapsed = [out], out
        return pq.ParquetFile(out, pre_buffer=False)

    def drop_runs(self) -> None:
        """Remove the files."""
        for run in self._runs:
            run.unlink()
        self._runs = []

    def stored(self) -> SpilledTable:
        """All counts as `to_table` gives them, on disk if they are many; the counter is done."""
        if not self._runs:
            return SpilledTable.within(self.to_table(), self.memory)
        run = self.collapse()
        batches = (pa.Table.from_batches([b]) for b in run.iter_batches(batch_size=250_000))
        tables = chain([run.schema_arrow.empty_table()], batches)
        frames = (pl.DataFrame(pl.from_arrow(t)) for t in tables)
        counts = (self.as_table(f) for f in frames)
        stored = SpilledTable.write(counts, self.memory, distinct=True)
        self.drop_runs()
        return stored

    def __getstate__(self) -> dict[str, Any]:
        return {"dtypes": self.dtypes, "packed": self.packed, "frame": self.frame()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["dtypes"], MemoryManager())  # type: ignore[misc]
        self.packed, self._parts = state["packed"], [state["frame"]]


def count_combinations(columns: Sequence[pa.ChunkedArray], memory: MemoryManager) -> Counter:
    """Counts of the values of several columns together; all null is left out."""
    dtypes = [base_type(column.type) for column in columns]
    counter = Counter(dtypes, memory)
    plain = [plain_array(column, t) for column, t in zip(columns, dtypes, strict=True)]
    frame = pl.DataFrame({c: pl.Series(p) for c, p in zip(counter.columns, plain, strict=True)})
    counts = frame.group_by(counter.columns).agg(pl.len().cast(pl.Int64).alias(COUNT))
    counter.add_frame(counts.filter(~pl.all_horizontal(pl.col(counter.columns).is_null())))
    return counter


def split_rows(frame: pl.DataFrame, hashes: Keys, count: int) -> list[pl.DataFrame]:
    """The rows of each hash partition, in the order they had."""
    numbers = hashes % np.uint64(count)
    ordered = frame[np.argsort(numbers, kind="stable")]
    ends = np.cumsum(np.bincount(numbers.astype(np.int64), minlength=count)).tolist()
    return [ordered.slice(a, b - a) for a, b in zip([0, *ends[:-1]], ends, strict=True)]


def _merge_sorted(parts: list[pl.DataFrame]) -> pl.DataFrame:
    """Sorted tables joined into one: a stable sort of sorted runs is a merge."""
    keys = np.concatenate([p[KEY].to_numpy() for p in parts])
    counts = np.concatenate([p[COUNT].to_numpy() for p in parts])
    order = np.argsort(keys, kind="stable")
    keys = np.take(keys, order)
    first = np.flatnonzero(np.concatenate([[True], keys[1:] != keys[:-1]])) if len(keys) else order
    totals = np.add.reduceat(np.take(counts, order), first) if len(keys) else counts
    return pl.DataFrame({KEY: np.take(keys, first), COUNT: totals})


def _wider(kept: list[pa.DataType], counter: Counter) -> list[pa.DataType]:
    """Types that hold the kept values and the new ones: numbers that differ become floats."""
    if counter.dtypes == kept or not (counter.spilled or counter.nbytes()):
        return kept
    numbers = {pa.int64(), pa.uint64(), pa.float64()}
    pairs = zip(kept, counter.dtypes, strict=True)
    return [pa.float64() if a != b and {a, b} <= numbers else a for a, b in pairs]


def _as_arrow(values: pl.Series | pl.DataFrame) -> Any:
    return values.to_arrow(compat_level=pl.CompatLevel.oldest())
