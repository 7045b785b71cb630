"""How often does each value occur, for more values than memory holds.

Each partition contributes a short table (value, count). Tables are kept as they come and
grouped together only when they have grown to twice what is grouped already, so that every
row is grouped a few times at most. Past the memory limit tables go to disk as Parquet runs,
and DuckDB, which keeps to a limit of its own, groups and sorts the runs.

Values that fit 64-bit keys (`tabfeed.ops.keys`) are counted as keys, in sorted tables that a
merge sort joins; the first that does not fit turns the counter to counting the values
themselves. Combinations of several columns
are always counted as values, nulls included.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tabfeed.ops.keys import Keys, flatten, normalise, pack, unpack
from tabfeed.ops.memory import Memory

__all__ = ["Counter", "Ranked", "count_values"]

Counts = npt.NDArray[np.int64]
KEY = "__key__"
COUNT = "__count__"


@dataclass(frozen=True)
class Ranked:
    """Values by count descending, ties by value ascending; in memory or in a Parquet file.

    In memory they are a table, or keys and counts that have not been made one yet.
    """

    rows: int
    table: pa.Table | None = None
    path: Path | None = None
    keys: Keys | None = None
    counts: Counts | None = None
    dtype: pa.DataType | None = None


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
    return [_count_chunk(flatten(chunk), dtype) for chunk in chunks if len(chunk)]


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
        The limit it shares with others.
    """

    def __init__(self, dtypes: list[pa.DataType], memory: Memory) -> None:
        self.dtypes = dtypes
        self.memory = memory
        self.packed = len(dtypes) == 1
        self._parts: list[pl.DataFrame] = []
        self._grouped = 0
        self._runs: list[Path] = []
        memory.hold(self)

    @property
    def columns(self) -> list[str]:
        """Names of the value columns inside."""
        return [KEY] if len(self.dtypes) == 1 else [f"{KEY}{i}" for i in range(len(self.dtypes))]

    @property
    def spilled(self) -> bool:
        """Whether some of it lies on disk."""
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
        self.memory.settle()
        return self

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
        return self._to_table(self.frame())

    def _to_table(self, frame: pl.DataFrame) -> pa.Table:
        if self.packed:
            values = [unpack(frame[KEY].to_numpy(), self.dtypes[0])]
        else:
            values = [_arrow(frame[c], t) for c, t in zip(self.columns, self.dtypes, strict=True)]
        names = [*(f"v{i}" for i in range(len(values))), "count"]
        return pa.table([*values, pa.array(frame[COUNT].to_numpy())], names=names)

    def distinct(self) -> int:
        """How many different values there are."""
        if not self._runs:
            return len(self.frame())
        self.spill()
        names = ", ".join(f'"{c}"' for c in self.columns)
        runs = ", ".join(_quote(r) for r in self._runs)
        query = f"SELECT count(*) FROM (SELECT DISTINCT {names} FROM read_parquet([{runs}]))"
        with _database(self.memory) as connection:
            return int(connection.execute(query).fetchone()[0])

    def small_table(self, most: int = 1_000_000) -> pa.Table | None:
        """All counts as `to_table` gives them, unless they are many."""
        return None if self._runs or len(self.frame()) > most else self.to_table()

    def ranked(self, *, at_least: int = 0, at_most: int | None = None) -> Ranked:
        """The values by rank, those too rare or past the limit left out."""
        if self._runs:
            self.spill()
            return self._rank_on_disk(at_least, at_most)
        frame = self.frame()
        if at_least > 1:
            frame = frame.filter(pl.col(COUNT) >= at_least)
        if self.packed:
            keys, counts = _rank_sorted(frame[KEY].to_numpy(), frame[COUNT].to_numpy())
            keys, counts = keys[:at_most], counts[:at_most]
            return Ranked(len(keys), keys=keys, counts=counts, dtype=self.dtypes[0])
        falling = [True, *[False] * len(self.columns)]
        frame = frame.sort([COUNT, *self.columns], descending=falling, nulls_last=False)
        frame = frame if at_most is None else frame.head(at_most)
        return Ranked(len(frame), table=self._to_table(frame))

    def _rank_on_disk(self, at_least: int, at_most: int | None) -> Ranked:
        """Group and sort the runs with DuckDB, into one Parquet file."""
        out = self.memory.new_file()
        names = ", ".join(f'"{c}"' for c in self.columns)
        order = ", ".join(f'"{c}" ASC NULLS FIRST' for c in self.columns)
        runs = ", ".join(_quote(r) for r in self._runs)
        limit = "" if at_most is None else f"LIMIT {at_most}"
        query = (
            f"SELECT {names}, sum({COUNT})::BIGINT AS {COUNT} FROM read_parquet([{runs}]) "
            f"GROUP BY {names} HAVING sum({COUNT}) >= {at_least} "
            f"ORDER BY {COUNT} DESC, {order} {limit}"
        )
        pa.default_memory_pool().release_unused()
        with _database(self.memory) as connection:
            connection.execute(f"COPY ({query}) TO {_quote(out)} (FORMAT parquet, COMPRESSION lz4)")
        for run in self._runs:
            run.unlink()
        self._runs = []
        return Ranked(pq.ParquetFile(out).metadata.num_rows, path=self._rewrite(out))

    def _rewrite(self, path: Path) -> Path:
        """The sorted file with the columns that a vocabulary has, a piece at a time."""
        out = self.memory.new_file()
        writer: pq.ParquetWriter | None = None
        for batch in pq.ParquetFile(path).iter_batches(batch_size=500_000):
            frame = pl.from_arrow(pa.Table.from_batches([batch]))
            assert isinstance(frame, pl.DataFrame)
            table = self._to_table(frame)
            writer = writer or pq.ParquetWriter(out, table.schema, use_dictionary=False)
            writer.write_table(table)
        if writer is not None:
            writer.close()
        path.unlink()
        return out

    def __getstate__(self) -> dict[str, Any]:
        return {"dtypes": self.dtypes, "packed": self.packed, "frame": self.frame()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["dtypes"], Memory())  # type: ignore[misc]
        self.packed, self._parts = state["packed"], [state["frame"]]


def _merge_sorted(parts: list[pl.DataFrame]) -> pl.DataFrame:
    """Sorted tables joined into one: a stable sort of sorted runs is a merge."""
    keys = np.concatenate([p[KEY].to_numpy() for p in parts])
    counts = np.concatenate([p[COUNT].to_numpy() for p in parts])
    order = np.argsort(keys, kind="stable")
    keys = np.take(keys, order)
    first = np.flatnonzero(np.concatenate([[True], keys[1:] != keys[:-1]])) if len(keys) else order
    totals = np.add.reduceat(np.take(counts, order), first) if len(keys) else counts
    return pl.DataFrame({KEY: np.take(keys, first), COUNT: totals})


def _rank_sorted(keys: Keys, counts: Counts) -> tuple[Keys, Counts]:
    """By count descending. Keys ascend already; most occur once, and those are in place."""
    once = counts == 1
    often_keys, often = keys[~once], counts[~once]
    order = np.argsort(-often, kind="stable")
    ones = np.ones(int(once.sum()), np.int64)
    return np.concatenate([often_keys[order], keys[once]]), np.concatenate([often[order], ones])


def _arrow(series: pl.Series, dtype: pa.DataType) -> pa.Array:
    return series.to_arrow(compat_level=pl.CompatLevel.oldest()).cast(dtype)


def _quote(path: Path) -> str:
    return "'" + str(path).replace("'", "''") + "'"


def _database(memory: Memory) -> Any:
    """A DuckDB in memory, limited to what the fit has left, that spills beside the runs."""
    import duckdb

    config: dict[str, Any] = {"preserve_insertion_order": "false"}
    if memory.limit is not None:
        config["memory_limit"] = f"{max(64, memory.limit * 6 // 10 // 2**20)}MiB"
    connection = duckdb.connect(config=config)
    connection.execute(f"SET temp_directory = {_quote(memory.new_file('.duckdb'))}")
    return connection
