"""Partitions: where a table is cut, how many rows each has, and reading them.

This half of `Dataset` is all that touches data: files are decoded, rows filtered, functions of
`map` applied, in this order. The other half, in `dataset.py`, opens, derives and writes.

Functions applied to partitions as they are read: what `Dataset.map` keeps of one.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import accumulate, groupby
from typing import TYPE_CHECKING, Any

import numpy.typing as npt
import pyarrow as pa

from tabfeed.errors import ArgumentError, SchemaError
from tabfeed.execute import Executor, LocalExecutor
from tabfeed.execute.tasks import Titled
from tabfeed.io.align import cast_table, combine
from tabfeed.io.open import select_columns
from tabfeed.io.partition import (
    DEFAULT_PART_SIZE,
    Partition,
    Piece,
    cut_by_count,
    cut_by_size,
    runs,
)
from tabfeed.schema import Schema
from tabfeed.trace import span
from tabfeed.user_functions import add_note, call

if TYPE_CHECKING:
    from tabfeed.io.fileset import FileSet
    from tabfeed.io.filters import Filter
    from tabfeed.io.storage.fetch import Fetch

__all__ = ["Partitioned", "SelectThen", "TableMap", "as_declared"]


@dataclass(frozen=True)
class TableMap:
    """A function applied to each partition as it is read.

    ``dictionary`` are text columns it would rather have dictionary-encoded. A ``numbered`` function
    is also given the number of the partition's first row.
    """

    fn: Callable[..., pa.Table]
    columns: tuple[str, ...]
    keeps_rows: bool
    dictionary: tuple[str, ...] = ()
    numbered: bool = False

    def apply(self, table: pa.Table, first_row: Callable[[], int]) -> pa.Table:
        """What it makes of a partition; `first_row` is asked only by a numbered function."""
        with span("transform", rows=table.num_rows):
            return call(self.fn, table, first_row()) if self.numbered else call(self.fn, table)


@dataclass(frozen=True)
class SelectThen:
    """A map that looks at some columns of the map before it."""

    columns: tuple[str, ...]
    fn: Callable[..., pa.Table]

    def __call__(self, table: pa.Table, *number: int) -> pa.Table:
        """What the function makes of the columns it asked for."""
        return self.fn(table.select(list(self.columns)), *number)


def as_declared(table: pa.Table, columns: Sequence[str], schema: Schema) -> pa.Table:
    """What a map gave, as its schema says: a partition of nulls must fit the others."""
    fields = []
    for name in columns:
        index = table.schema.get_field_index(name)
        if index < 0:
            raise SchemaError(
                f"the function given to map returned no column {name!r}, which its schema "
                f"promises; it returned {table.column_names}"
            )
        column, real = schema[name], table.schema.field(index)
        fields.append(real if column.dtype is None else real.with_type(column.dtype))
    return cast_table(table, pa.schema(fields), where="what map returned")


class Partitioned:
    """A table in partitions, each read on its own.

    Attributes
    ----------
    schema
        The columns that come out.
    """

    schema: Schema
    _files: FileSet
    _filter: Filter | None
    _maps: tuple[TableMap, ...]
    _part_size: int
    _npartitions: int | None
    _cut_columns: tuple[str, ...]  # those whose size partitions are cut by
    _executor: Executor | None = None

    @property
    def column_names(self) -> list[str]:
        """Names of the columns, in order."""
        return self.schema.column_names

    # -- where it is cut ---------------------------------------------------------------

    @cached_property
    def partitions(self) -> tuple[Partition, ...]:
        """The runs of rows that one task reads at once; `select` and `map` keep them."""
        pieces: Sequence[Piece] = self._files.units()
        if self._filter is not None:
            pieces = self._files.prune(pieces, self._filter)
        if self._npartitions is not None:
            return tuple(cut_by_count(self._files.counted(pieces), self._npartitions))
        sized = ((p, self._files.nbytes(p, self._cut_columns)) for p in pieces)
        return tuple(cut_by_size(sized, self._part_size, self._row_bytes))

    def _row_bytes(self, piece: Piece) -> npt.NDArray[Any] | None:
        return self._files.row_bytes(piece, self._cut_columns)

    @property
    def cut_by_default(self) -> bool:
        """Whether nobody has said how large partitions shall be, or how many."""
        return self._npartitions is None and self._part_size == DEFAULT_PART_SIZE

    @property
    def npartitions(self) -> int:
        """How many partitions there are."""
        return len(self.partitions)

    @cached_property
    def partition_lens(self) -> list[int]:
        """Rows of each partition, exactly. Free for Parquet; text is counted once, filters run."""
        if all(m.keeps_rows for m in self._maps):
            return self._lens_in_files
        count = Titled("count", self._count_mapped)
        return list(self._work().map(self.partitions, count))

    def _count_mapped(self, partition: Partition) -> int:
        return int(self.read(partition).num_rows)

    @cached_property
    def _lens_in_files(self) -> list[int]:
        """Rows of each partition as they come out of the files, before any map."""
        if self._lens_are_free:
            return [p.rows or 0 for p in self.partitions]
        return list(self._work().map(self.partitions, Titled("count", self._count)))

    @property
    def _lens_are_free(self) -> bool:
        sure = self._filter is None and not self._files.skips.allowed
        return sure and all(p.rows is not None for p in self.partitions)

    def _count(self, partition: Partition) -> int:
        if self._files.skips.allowed:  # what cannot be read in any column does not count
            columns = self._with_filter(self._source_columns)
        elif self._filter is not None:
            columns = list(self._filter.columns)
        else:
            return sum(p.rows or 0 for p in self._files.counted(partition.pieces))
        table = self._files.read(partition, columns)
        return int((self._filter.apply(table) if self._filter else table).num_rows)

    @property
    def num_rows(self) -> int:
        """Rows in all."""
        return sum(self.partition_lens)

    # -- reading one ---------------------------------------------------------------------

    def read(
        self,
        partition: int | Partition,
        columns: Sequence[str] | None = None,
        *,
        dictionary: Sequence[str] = (),
    ) -> pa.Table:
        """One partition, read on the calling thread.

        Parameters
        ----------
        partition
            Its number, or the partition itself.
        columns
            Only these, in this order; all by default.
        dictionary
            Text columns to leave dictionary-encoded where the file has them so.
        """
        part, wanted = self._partition(partition), self._wanted(columns)
        encoded = self._maps[0].dictionary if self._maps else dictionary
        table = self._files.read(part, self._needed(wanted), encoded)
        return self._finish(table, wanted, part)

    def read_by_column(
        self,
        partition: int | Partition,
        columns: Sequence[str] | None = None,
        *,
        at_once: int = 2**20,
    ) -> Iterator[pa.Table]:
        """One partition as tables of a few columns each, together those that were asked for.

        For whoever copies columns elsewhere: local Parquet files are decoded faster so. In other
        cases there is one table with all columns.

        Parameters
        ----------
        partition
            Its number, or the partition itself.
        columns
            Only these, in this order; all by default.
        at_once
            About how many decoded bytes a table may have; one column at least.

        Examples
        --------
        >>> from tabfeed import Dataset
        >>> ds = Dataset({"a": [1, 2], "b": [3, 4]})
        >>> [table.column_names for table in ds.read_by_column(0)]
        [['a', 'b']]
        """
        part, wanted = self._partition(partition), self._wanted(columns)
        if self._maps or self._filter is not None or not wanted:
            yield self.read(part, wanted)
            return
        yield from self._files.read_by_column(part, wanted, at_once)

    def begin_read(
        self, partition: int | Partition, columns: Sequence[str] | None = None
    ) -> list[Fetch]:
        """Begin to fetch what `read` of the same will need, as long as the result is held.

        Nothing, and the list is empty, where the files are on this machine.
        """
        part, wanted = self._partition(partition), self._wanted(columns)
        return self._files.begin(part, self._needed(wanted))

    def _partition(self, index: int | Partition) -> Partition:
        if isinstance(index, Partition):
            return index
        try:
            return self.partitions[operator.index(index)]
        except IndexError:
            raise ArgumentError(
                f"there is no partition {index}: the dataset has {self.npartitions}, from 0 on"
            ) from None
        except TypeError as e:
            raise ArgumentError(f"a partition is given by its number, not by {index!r}") from e

    # -- which columns, and what becomes of them -----------------------------------------

    def _finish(self, table: pa.Table, columns: Sequence[str], part: Partition) -> pa.Table:
        """What happens to a partition after it is decoded: filter, maps, choice of columns."""
        if self._filter is not None:
            table = combine(self._filter.apply(table))
        if not self._maps:
            return table if table.column_names == list(columns) else table.select(list(columns))
        table = table.select(self._source_columns)
        try:
            for step in self._maps:
                table = step.apply(table, partial(self._first_row, part))
        except Exception as e:
            add_note(e, f"on {self._where(part)}")
            raise
        return as_declared(table, columns, self.schema)

    def _where(self, part: Partition) -> str:
        """Files and units of a partition, for messages."""
        shown = [f"{self._files.names[p.file]}, row group {p.unit}" for p in part.pieces[:3]]
        more = len(part.pieces) - len(shown)
        return " and ".join(shown) + (f" and {more} more" if more else "")

    def _first_row(self, part: Partition) -> int:
        """Rows of the partitions before this one, as they come out of the files."""
        return self._first_rows_of[part]

    @cached_property
    def _first_rows_of(self) -> dict[Partition, int]:
        starts = accumulate(self._lens_in_files, initial=0)
        return dict(zip(self.partitions, starts, strict=False))

    @property
    def _source_columns(self) -> list[str]:
        """The columns that must be read from the files."""
        if not self._maps:
            return self.column_names
        return list(self._maps[0].columns)

    def _with_filter(self, columns: Sequence[str]) -> list[str]:
        """These columns and the ones the filter looks at."""
        looked_at = self._filter.columns if self._filter else ()
        return list(dict.fromkeys([*columns, *looked_at]))

    def _wanted(self, columns: Sequence[str] | None) -> list[str]:
        """The columns that were asked for: all, or these, checked."""
        if columns is None:
            return self.column_names
        return select_columns(self.schema, columns).column_names

    def columns_read(self, columns: Sequence[str] | None = None) -> list[str]:
        """The columns that are read from the files if these are to come out; all by default."""
        return self._needed(self._wanted(columns))

    def _needed(self, wanted: Sequence[str]) -> list[str]:
        """The columns to read from the files if these are to come out."""
        return self._with_filter(self._source_columns if self._maps else wanted)

    # -- reading all ---------------------------------------------------------------------

    def iter_tables(
        self, columns: Sequence[str] | None = None, *, executor: Executor | None = None
    ) -> Iterator[pa.Table]:
        """Every partition in order, a few read ahead on threads, memory bounded."""
        wanted = self._wanted(columns)
        work = self._work(executor)
        for sliced, group in groupby(runs(self.partitions), key=lambda run: len(run) > 1):
            group_runs = list(group)
            if sliced:  # slices of one unit follow each other: decode it once, from start to end
                for run in group_runs:
                    yield from self._stream(run, wanted)
            else:
                read = Titled("read", partial(self.read, columns=wanted))
                yield from work.map([r[0] for r in group_runs], read)

    def _stream(self, run: Sequence[Partition], wanted: list[str]) -> Iterator[pa.Table]:
        tables = self._files.stream(run, self._needed(wanted))
        for part, table in zip(run, tables, strict=True):
            yield self._finish(table, wanted, part)

    def _work(self, executor: Executor | None = None) -> Executor:
        return executor or self._executor or LocalExecutor()
