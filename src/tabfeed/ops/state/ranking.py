"""Counted values in the order of their ids, and those left out.

A vocabulary is the counts sorted: by count descending, ties by value ascending. What is too rare,
or comes after the last id allowed, is left out of it but kept, as a `SpilledTable`: an update adds
to its counts.

When a vocabulary grows, the values it has keep their positions, whatever their counts are now;
new ones come behind them in the same order as ever.

Counts that lie on disk are sorted there, by DuckDB, and cut in two while they are written.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from tabfeed.ops.state.counting import KEY, Counter, Counts
from tabfeed.ops.state.keys import Keys, pack
from tabfeed.ops.state.memory import (
    COUNT,
    MemoryManager,
    SpilledTable,
    TableFile,
    group_on_disk,
    parquet_files,
)

if TYPE_CHECKING:
    from tabfeed.ops.state.vocabulary import Vocabulary


POSITION = "__position__"
_ALL = 1 << 62


@dataclass(frozen=True)
class Cut:
    """Which values get an id: those counted `at_least` so often, `at_most` so many in all."""

    at_least: int = 0
    at_most: int | None = None

    def kept(self, counts: Counts, start: int = 0) -> int:
        """How many of these descending counts stay, the first being number `start` in all."""
        often = int(np.searchsorted(-counts, -self.at_least, "right"))
        return often if self.at_most is None else max(0, min(often, self.at_most - start))


@dataclass(frozen=True)
class Ranked:
    """Values in the order of their ids; in memory or in a Parquet file.

    In memory they are a table, or keys and counts that have not been made one yet. `rest` are
    the values that were left out.
    """

    rows: int
    table: pa.Table | None = None
    path: Path | None = None
    keys: Keys | None = None
    counts: Counts | None = None
    dtype: pa.DataType | None = None
    rest: SpilledTable | None = None


def rank(counter: Counter, cut: Cut) -> Ranked:
    """The values by count descending, ties by value ascending."""
    if counter.spilled:
        counter.spill()
        ordered = _sort_on_disk(counter, _all_runs(counter), f"{COUNT} DESC")
        return _cut_file(ordered, counter, cut, known=0)
    frame = counter.frame()
    rare = frame.filter(pl.col(COUNT) < cut.at_least) if cut.at_least > 1 else frame.clear()
    if len(rare):
        frame = frame.filter(pl.col(COUNT) >= cut.at_least)
    if counter.packed:
        keys, counts = _rank_sorted(frame[KEY].to_numpy(), frame[COUNT].to_numpy())
        past = pl.DataFrame({KEY: keys[_end(cut) :], COUNT: counts[_end(cut) :]})
        rest = _left_out([past, rare], counter)
        keys, counts = keys[: _end(cut)], counts[: _end(cut)]
        return Ranked(len(keys), keys=keys, counts=counts, dtype=counter.dtypes[0], rest=rest)
    falling = [True, *[False] * len(counter.columns)]
    frame = frame.sort([COUNT, *counter.columns], descending=falling, nulls_last=False)
    rest = _left_out([frame[_end(cut) :], rare], counter)
    table = counter.as_table(frame[: _end(cut)])
    return Ranked(table.num_rows, table=table, rest=rest)


def _end(cut: Cut) -> int:
    return _ALL if cut.at_most is None else cut.at_most


def _left_out(frames: list[pl.DataFrame], counter: Counter) -> SpilledTable | None:
    some = [counter.as_table(f) for f in frames if len(f)]
    return (
        SpilledTable.within(pa.concat_tables(some).combine_chunks(), counter.memory)
        if some
        else None
    )


def _rank_sorted(keys: Keys, counts: Counts) -> tuple[Keys, Counts]:
    """By count descending. Keys ascend already; most occur once, and those are in place."""
    once = counts == 1
    often_keys, often = keys[~once], counts[~once]
    order = np.argsort(-often, kind="stable")
    ones = np.ones(int(once.sum()), np.int64)
    return np.concatenate([often_keys[order], keys[once]]), np.concatenate([often[order], ones])


def _sorted(table: pa.Table) -> pa.Table:
    """By count descending, ties by value ascending."""
    frame = pl.from_arrow(table)
    assert isinstance(frame, pl.DataFrame)
    names = [n for n in frame.columns if n != "count"]
    falling = [True, *[False] * len(names)]
    order = frame.select(
        pl.arg_sort_by(["count", *names], descending=falling, nulls_last=False).alias("at")
    )
    return table.take(order["at"].to_arrow())


def _cut_table(table: pa.Table, memory: MemoryManager, cut: Cut, *, known: int) -> Ranked:
    """A sorted table cut in two; its first `known` rows stay whatever their counts."""
    fresh = table.column("count").to_numpy()[known:]
    end = known + cut.kept(fresh, known)
    rest = (
        SpilledTable.within(table.slice(end).combine_chunks(), memory) if end < len(table) else None
    )
    return Ranked(end, table=table.slice(0, end).combine_chunks(), rest=rest)


# -- growing ------------------------------------------------------------------------


def grow(old: Vocabulary, counter: Counter, cut: Cut) -> Ranked:
    """A vocabulary with new counts: its values keep their positions, others come behind."""
    if not old.size and old.rest is None:
        return rank(counter, cut)
    counter = counter.with_types(old.dtypes)
    if old.rest is not None:
        counter = counter.with_stored(old.rest, "what was left out")
    if counter.spilled or old.path is not None:
        return _grow_on_disk(old, counter, cut)
    table = counter.to_table()
    names = table.column_names[:-1]
    at = old.find([table.column(n).combine_chunks() for n in names])
    counts = old.table.column("count").to_numpy().copy()
    np.add.at(counts, at[at >= 0], table.column("count").to_numpy()[at >= 0])
    known = old.table.drop_columns(["count"]).append_column("count", pa.array(counts))
    fresh = _sorted(table.filter(pa.array(at < 0)).cast(known.schema))
    return _cut_table(pa.concat_tables([known, fresh]), counter.memory, cut, known=old.size)


def _grow_on_disk(old: Vocabulary, counter: Counter, cut: Cut) -> Ranked:
    pieces = old.stored()
    values = (piece.column(0).combine_chunks() for piece in pieces.pieces(["v0"]))
    if counter.packed and any(pack(v)[1] is not None for v in values):
        counter.unpack()
    counter.spill()
    known = _write_positions(pieces, counter)
    names = ", ".join(f'"{c}"' for c in counter.columns)
    query = (
        f"{_all_runs(counter)} UNION ALL SELECT {names}, {COUNT}, {POSITION} "
        f"FROM {parquet_files([known])}"
    )
    order = f"{POSITION} ASC NULLS LAST, {COUNT} DESC"
    return _cut_file(_sort_on_disk(counter, query, order), counter, cut, known=old.size)


def _write_positions(pieces: SpilledTable, counter: Counter) -> Path:
    """The known values as the counter has them, with their positions."""
    with TableFile(counter.memory, distinct=True) as file:
        for piece in pieces.pieces():
            frame = counter.as_frame(piece)
            positions = pl.Series(POSITION, np.arange(file.rows, file.rows + len(frame)))
            frame = frame.with_columns(positions)
            file.append(frame.to_arrow(compat_level=pl.CompatLevel.oldest()))
    return file.path


# -- on disk ------------------------------------------------------------------------


def _all_runs(counter: Counter) -> str:
    names = ", ".join(f'"{c}"' for c in counter.columns)
    runs = parquet_files(counter.runs)
    return f"SELECT {names}, {COUNT}, NULL::BIGINT AS {POSITION} FROM {runs}"


def _sort_on_disk(counter: Counter, rows: str, order: str) -> Path:
    """Group and sort with DuckDB, into one Parquet file; the runs go."""
    values = ", ".join(f'"{c}" ASC NULLS FIRST' for c in counter.columns)
    first = POSITION if POSITION in order else None
    order = f"{order}, {values}"
    out = group_on_disk(counter.memory, counter.columns, f"({rows})", order, first=first)
    counter.drop_runs()
    return out


def _cut_file(path: Path, counter: Counter, cut: Cut, *, known: int) -> Ranked:
    """A sorted file cut in two, a piece at a time, with the columns that a vocabulary has."""
    start = 0
    memory = counter.memory
    with TableFile(memory, distinct=True) as kept, TableFile(memory, distinct=True) as left:
        for table in _tables(path, counter):
            counts = table.column("count").to_numpy()
            fixed = min(max(0, known - start), len(counts))
            end = fixed + cut.kept(counts[fixed:], start + fixed)
            kept.append(table.slice(0, end))
            left.append(table.slice(end))
            start += len(counts)
    path.unlink()
    rest = SpilledTable.settled(left.path, memory) if left.rows else None
    return Ranked(kept.rows, path=kept.path, rest=rest)


def _tables(path: Path, counter: Counter) -> Iterator[pa.Table]:
    """The file in pieces, at least one, which may be empty."""
    file = pq.ParquetFile(path, pre_buffer=False)  # which would keep all that was read
    batches = (pa.Table.from_batches([b]) for b in file.iter_batches(batch_size=500_000))
    for table in chain([file.schema_arrow.empty_table()], batches):
        yield counter.as_table(pl.DataFrame(pl.from_arrow(table)))
