"""A table in files, read partition by partition: the value behind a `Dataset`.

A `PartitionedTable` says which files are read, which rows and columns of them, where they are cut
into partitions, which functions are applied to each, and who does the work. It never changes; a
method such as `repartition` gives another one. What is found out once (where the cuts are, how many
rows a partition has) is kept with the value it is about, so it is never out of date.

Reading a partition decodes it, filters its rows, applies the functions, and picks the columns, in
this order.
"""

from __future__ import annotations

import copy
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import accumulate, groupby
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from tabfeed.arguments import add_note, call
from tabfeed.errors import ArgumentError, ColumnNotFoundError, SchemaError
from tabfeed.execute import Executor, LocalExecutor
from tabfeed.execute.tasks import Titled
from tabfeed.io.align import cast_table, combine
from tabfeed.io.fileset import FileSet
from tabfeed.io.partition import (
    DEFAULT_PART_SIZE,
    Partition,
    Piece,
    choose_part_size,
    cut_by_count,
    cut_by_size,
    rows_between,
    runs,
)
from tabfeed.lazy import cached_property
from tabfeed.schema import Schema
from tabfeed.trace import span

if TYPE_CHECKING:
    from tabfeed.io.filters import Filter
    from tabfeed.io.formats.memory import TemporaryFolder
    from tabfeed.io.memory_needs import MapSizes
    from tabfeed.io.storage.fetch import Fetch

__all__ = [
    "NO_LIMIT",
    "PartitionedTable",
    "Partitioning",
    "TableMap",
    "call_map",
    "select_columns",
]

NO_LIMIT = 1 << 62  # of partitions that hold whole groups of equal keys


def select_columns(schema: Schema, columns: Sequence[str]) -> Schema:
    """The named columns; an error names the nearest of those there are."""
    if isinstance(columns, str):
        raise ArgumentError(f"columns is {columns!r}; give a list of names: [{columns!r}]")
    for name in columns:
        if name not in schema:
            raise ColumnNotFoundError(name, schema.column_names)
    return schema.select(columns)


# -- where files are cut ----------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Partitioning:
    """The rows of some files that pass a filter, cut into partitions.

    Parameters
    ----------
    files
        The files.
    condition
        The filter, if there is one.
    columns
        The columns whose size decides where partitions are cut.
    part_size
        Most bytes of a partition; `NO_LIMIT` where rows that belong together are in one.
    npartitions
        Cut into this many partitions of equal rows instead.
    chosen
        These partitions instead.
    numbers
        Number of the first row of each of the chosen partitions, where they are part of a larger
        table.
    """

    files: FileSet
    condition: Filter | None
    columns: tuple[str, ...]
    part_size: int = DEFAULT_PART_SIZE
    npartitions: int | None = None
    chosen: tuple[Partition, ...] | None = None
    numbers: Mapping[Partition, int] | None = None
    _counts: dict[tuple[str, ...], tuple[int, list[int]]] = field(default_factory=dict, repr=False)

    @property
    def grouped(self) -> bool:
        """Whether partitions hold whole groups of rows, and are never cut."""
        return self.part_size >= NO_LIMIT

    @property
    def pieces(self) -> list[Piece]:
        """The units that the filter does not rule out, or what was chosen of them."""
        if self.chosen is not None:
            return [piece for partition in self.chosen for piece in partition.pieces]
        units = self.files.units()
        return units if self.condition is None else self.files.prune(units, self.condition)

    @cached_property
    def partitions(self) -> tuple[Partition, ...]:
        """The partitions, in order."""
        if self.chosen is not None:
            return self.chosen
        pieces = self.pieces
        if self.npartitions is not None:
            return tuple(cut_by_count(self.files.counted(pieces), self.npartitions))
        sized = self.files.sized(pieces, self.columns)
        row_bytes = partial(self.files.row_bytes, columns=self.columns)
        return tuple(cut_by_size(sized, self.part_size, row_bytes))

    @property
    def counted(self) -> bool:
        """Whether the rows of every partition are known without reading."""
        sure = self.condition is None and not self.files.skips.allowed
        return sure and all(p.rows is not None for p in self.partitions)

    def lens(self, columns: Sequence[str], executor: Executor) -> list[int]:
        """Rows of each partition, counted again only after more row groups were left out.

        `columns` are those that will be read: where damaged row groups are left out, one that is
        damaged in another column counts, until somebody reads that column.
        """
        if self.counted:
            return [p.rows or 0 for p in self.partitions]
        if self.files.skips.allowed:
            read = tuple(dict.fromkeys([*columns, *self.filter_columns]))
        else:
            read = self.filter_columns
        left_out, lens = self._counts.get(read, (-1, []))
        if left_out != len(self.files.skips.items):
            count = Titled("count", partial(self._count, columns=read))
            lens = list(executor.map(self.partitions, count))
            self._counts[read] = len(self.files.skips.items), lens
        return lens

    @property
    def filter_columns(self) -> tuple[str, ...]:
        """The columns the filter looks at."""
        return tuple(self.condition.columns) if self.condition else ()

    def _count(self, partition: Partition, columns: tuple[str, ...]) -> int:
        if self.condition is None and not self.files.skips.allowed:
            return sum(p.rows or 0 for p in self.files.counted(partition.pieces))
        table = self.files.read(partition, columns)
        return int((self.condition.apply(table) if self.condition else table).num_rows)


# -- functions applied to partitions ----------------------------------------------------


@dataclass(frozen=True)
class TableMap:
    """A function applied to each partition as it is read: what `Dataset.map` was given.

    ``dictionary`` are text columns that it prefers dictionary-encoded. A ``numbered`` function is
    also given the number of the partition's first row.
    """

    fn: Callable[..., pa.Table]
    columns: tuple[str, ...]
    keeps_rows: bool
    dictionary: tuple[str, ...] = ()
    numbered: bool = False

    def apply(self, table: pa.Table, first_row: Callable[[], int]) -> pa.Table:
        """The function's result; `first_row` is called only for a numbered function."""
        table = table.select(list(self.columns))
        with span("transform", rows=table.num_rows):
            return call_map(self.fn, table, *((first_row(),) if self.numbered else ()))


def call_map(function: Callable[..., pa.Table], *args: Any) -> pa.Table:
    """The result of a function given to `Dataset.map`, checked as what is read from files is."""
    from tabfeed.io.formats.memory import refuse_bad_text

    made = call(function, *args)
    name = getattr(function, "__name__", type(function).__name__)  # a repr may hold a large table
    if not isinstance(made, pa.Table):
        raise SchemaError(
            f"the function given to map must return an Arrow table; {name} returned "
            f"{type(made).__name__}"
        )
    refuse_bad_text(made, f"what {name} returned")
    return made


def _as_declared(table: pa.Table, columns: Sequence[str], schema: Schema) -> pa.Table:
    """The result of a map, cast to its schema: a partition of nulls must fit the others."""
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


# -- the table --------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class PartitionedTable:
    """A table in files, each partition of which can be read on its own.

    Parameters
    ----------
    files
        The files it is read from.
    partitioning
        Which of their rows, cut where.
    schema
        The columns that come out.
    index
        Columns of a pandas index, left out unless they are selected.
    maps
        Functions applied to each partition, in order.
    executor
        Who reads partitions and counts rows where a call does not say; threads by default.
    folder
        A temporary folder with the files, which lives as long as this.
    """

    files: FileSet
    partitioning: Partitioning
    schema: Schema
    index: Schema = field(default_factory=lambda: Schema([]))
    maps: tuple[TableMap, ...] = ()
    executor: Executor | None = None
    folder: TemporaryFolder | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "executor": None}  # a worker has an executor of its own

    # -- tables made from it ----------------------------------------------------------

    def select(self, columns: Sequence[str]) -> PartitionedTable:
        """Only these columns, in this order; columns of a pandas index among them if named."""
        known = self.schema
        if not self.maps:
            known = Schema([*known, *(c for c in self.index if c.name not in known)])
        return replace(self, schema=select_columns(known, columns))

    def repartition(
        self, npartitions: int | None = None, partition_size: int | str | None = None
    ) -> PartitionedTable:
        """The same rows cut into other partitions, by number or by size."""
        size = choose_part_size(partition_size, None, npartitions)
        if npartitions is None and partition_size is None:
            raise ArgumentError("say npartitions= or partition_size=")
        cut = self.partitioning
        columns = tuple(self.source_columns)
        new = Partitioning(cut.files, cut.condition, columns, size, npartitions)
        return replace(self, partitioning=new)

    def in_smaller_partitions(self, nbytes: int) -> PartitionedTable:
        """The same rows in partitions of at most `nbytes`, as read and as maps make them.

        Unless a map needs its partitions as they are (`cut_freely`).
        """
        if not self.cut_freely:
            return self
        most = self.bytes_to_read(nbytes)
        finer, _ = self.in_smaller_units(most)
        return finer.repartition(partition_size=most)

    def in_smaller_units(
        self, nbytes: int
    ) -> tuple[PartitionedTable, Callable[[Piece], list[Piece]]]:
        """The same table, its files in units of at most `nbytes`, and what a whole unit becomes.

        Its partitions are to be replaced by others, made of the new units.
        """
        files, divided = self.files.in_smaller_units(nbytes)
        cut = replace(self.partitioning, files=files, _counts={})
        return replace(self, files=files, partitioning=cut), divided

    def with_partitions(
        self, partitions: Sequence[Partition], numbers: Mapping[Partition, int] | None = None
    ) -> PartitionedTable:
        """These partitions alone; `numbers` says where they begin in the whole table."""
        cut = replace(self.partitioning, chosen=tuple(partitions), numbers=numbers, _counts={})
        return replace(self, partitioning=cut)

    def on(self, executor: Executor | None) -> PartitionedTable:
        """The same table, read by another executor where a call does not say."""
        return self if executor is self.executor else replace(self, executor=executor)

    def at_random(self) -> PartitionedTable:
        """The same table for partitions read in random order: no file stays open between two."""
        new = copy.copy(self)  # with what is known of its rows, which stay the same
        object.__setattr__(new, "files", self.files.at_random())
        return new

    # -- what maps make of rows ---------------------------------------------------------

    @property
    def cut_freely(self) -> bool:
        """Whether partitions may be cut as memory asks.

        A map that changes the number of rows may need its partitions whole: a group cut in two
        would become two groups. So may any map where groups were brought together.
        """
        return self.keeps_rows and not (self.maps and self.partitioning.grouped)

    @cached_property
    def map_sizes(self) -> MapSizes | None:
        """What the maps make of rows, by a few of them; None without maps, or if none can tell."""
        return self.sampled(self.schema.column_names) if self.maps else None

    def sampled(
        self, columns: Sequence[str], transforms: Sequence[Callable[[pa.Table], pa.Table]] = ()
    ) -> MapSizes | None:
        """What the maps, and more functions of these columns behind them, make of some rows.

        Examples
        --------
        >>> from tabfeed import Dataset
        >>> doubled = Dataset({"a": range(10)}).map(lambda t: t.append_column("b", t["a"]))
        >>> doubled.table.sampled(["a", "b"]).growth
        2.0
        """
        from tabfeed.io.memory_needs import sample_maps

        table = self.at_random()

        def run(piece: Piece, inside: Partition) -> tuple[pa.Table, pa.Table]:
            before = table.files.read(Partition((piece,)), table._needed(columns))
            after = table._finish(before, columns, inside)
            for transform in transforms:
                result = transform(after)
                after = result if isinstance(result, pa.Table) else result.to_arrow()
            return before, after

        return sample_maps(table.partitions, table.piece_bytes, run)

    def bytes_to_read(self, nbytes: int) -> int:
        """Most bytes to read at once so that what the maps make of them takes at most `nbytes`."""
        sizes = self.map_sizes
        return nbytes if sizes is None else max(1, int(nbytes / max(1.0, sizes.growth)))

    # -- partitions and rows ----------------------------------------------------------

    @property
    def condition(self) -> Filter | None:
        """The filter, if there is one."""
        return self.partitioning.condition

    @property
    def keeps_rows(self) -> bool:
        """Whether no map changes the number of rows."""
        return all(m.keeps_rows for m in self.maps)

    @property
    def partitions(self) -> tuple[Partition, ...]:
        """The runs of rows that one task reads at once."""
        return self.partitioning.partitions

    @property
    def npartitions(self) -> int:
        """How many partitions there are."""
        return len(self.partitions)

    @cached_property
    def partition_lens(self) -> list[int]:
        """Rows of each partition, exactly."""
        if self.keeps_rows:
            return self._lens_in_files
        self._number()
        count = Titled("count", self._count_mapped)
        return list(self._executor().map(self.partitions, count))

    def _number(self) -> None:
        """Count rows once, before threads that need their numbers would each do so."""
        if any(m.numbered for m in self.maps):
            _ = self.first_rows

    def _count_mapped(self, partition: Partition) -> int:
        return int(self.read(partition).num_rows)

    @cached_property
    def _lens_in_files(self) -> list[int]:
        """Rows of each partition as they come out of the files, before any map."""
        return self.partitioning.lens(self.source_columns, self._executor())

    @cached_property
    def first_rows(self) -> Mapping[Partition, int]:
        """The number of each partition's first row, as rows come out of the files."""
        if self.partitioning.numbers is not None:
            return self.partitioning.numbers
        starts = accumulate(self._lens_in_files, initial=0)
        return dict(zip(self.partitions, starts, strict=False))

    # -- columns ------------------------------------------------------------------------

    @property
    def source_columns(self) -> list[str]:
        """The columns read from the files if all are to come out, without the filter's."""
        return list(self.maps[0].columns) if self.maps else self.schema.column_names

    def columns_read(self, columns: Sequence[str] | None = None) -> list[str]:
        """The columns that are read from the files if these are to come out; all by default."""
        return self._needed(self.named(columns))

    def named(self, columns: Sequence[str] | None) -> list[str]:
        """The columns that a caller named, checked; all by default."""
        if columns is None:
            return self.schema.column_names
        return select_columns(self.schema, columns).column_names

    def _needed(self, wanted: Sequence[str]) -> list[str]:
        """The columns to read from the files if these are to come out."""
        columns = self.maps[0].columns if self.maps else wanted
        return list(dict.fromkeys([*columns, *self.partitioning.filter_columns]))

    # -- sizes --------------------------------------------------------------------------

    def estimated_bytes(self, partitions: Sequence[Partition] | None = None) -> int:
        """About how many bytes these partitions, or all, take in memory, after the maps.

        Where the files don't say, as a Dask frame doesn't, three row slices are read and measured.
        """
        chosen = self.partitions if partitions is None else partitions
        pieces = [piece for part in chosen for piece in part.pieces]
        sizes = [self.piece_bytes(piece) for piece in pieces]
        unknown = [piece for piece, size in zip(pieces, sizes, strict=True) if size is None]
        if unknown:
            some = {unknown[i] for i in (0, len(unknown) // 2, -1)}
            columns = self.source_columns
            read = (self.files.read(Partition((piece,)), columns).nbytes for piece in some)
            sizes.append(sum(read) * len(unknown) // len(some))
        total = 1 + sum(size for size in sizes if size is not None)
        return total if self.map_sizes is None else int(total * self.map_sizes.growth)

    def piece_bytes(self, piece: Piece) -> int | None:
        """About how many bytes a row slice takes in memory; None if the file does not say."""
        rows = self.files.files[piece.file].unit_rows[piece.unit]
        share = 1.0 if piece.whole or not rows else (piece.rows or 0) / rows
        nbytes = self.files.nbytes(piece, self.source_columns)
        return None if nbytes is None else int(nbytes * share)

    @property
    def known_rows(self) -> int | None:
        """Rows of all partitions before any filter; None where some are not counted."""
        counts = [p.rows for p in self.partitions]
        return None if None in counts else sum(c or 0 for c in counts)

    # -- reading one partition ----------------------------------------------------------

    def read(
        self,
        partition: int | Partition,
        columns: Sequence[str] | None = None,
        *,
        dictionary: Sequence[str] = (),
    ) -> pa.Table:
        """See `Dataset.read`."""
        return self._read(self._partition(partition), self.named(columns), dictionary)

    def _read(
        self, part: Partition, columns: Sequence[str], dictionary: Sequence[str] = ()
    ) -> pa.Table:
        encoded = self.maps[0].dictionary if self.maps else dictionary
        table = self.files.read(part, self._needed(columns), encoded)
        return self._finish(table, columns, part)

    def read_rows(self, number: int, low: int, high: int, columns: Sequence[str]) -> pa.Table:
        """Some rows of a partition by their numbers in it; no more is read if that is possible."""
        part = self.partitions[number]
        plain = self.condition is None and not self.files.skips.allowed
        if not plain or not self.cut_freely or any(step.numbered for step in self.maps):
            return self.read(part, columns).slice(low, high - low)
        counted = Partition(tuple(self.files.counted(part.pieces)))
        return self.read(rows_between(counted, low, high), columns)

    def read_by_column(
        self, partition: int | Partition, columns: Sequence[str] | None, at_once: int
    ) -> Iterator[pa.Table]:
        """See `Dataset.read_by_column`."""
        part, wanted = self._partition(partition), self.named(columns)
        if self.maps or self.condition is not None or not wanted:
            yield self.read(part, wanted)
            return
        yield from self.files.read_by_column(part, wanted, at_once)

    def begin_read(
        self, partition: int | Partition, columns: Sequence[str] | None = None
    ) -> list[Fetch]:
        """See `Dataset.begin_read`."""
        part, wanted = self._partition(partition), self.named(columns)
        return self.files.begin(part, self._needed(wanted))

    def empty(self) -> pa.Table:
        """The table's columns without any rows."""
        if any(c.dtype is None for c in self.schema):
            return self.read(0).slice(0, 0)
        return self.schema.to_arrow().empty_table()

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

    def _finish(self, table: pa.Table, columns: Sequence[str], part: Partition) -> pa.Table:
        """Filter a decoded partition, apply the maps, pick the columns."""
        if self.condition is not None:
            table = combine(self.condition.apply(table))
        if not self.maps:
            return table if table.column_names == list(columns) else table.select(list(columns))
        try:
            for step in self.maps:
                table = step.apply(table, lambda: self.first_rows[part])
        except Exception as e:
            add_note(e, f"on {self.where(part)}")
            raise
        return _as_declared(table, columns, self.schema)

    def where(self, part: Partition) -> str:
        """Files and row groups of a partition, for messages."""
        shown = [f"{self.files.names[p.file]}, row group {p.unit}" for p in part.pieces[:3]]
        more = len(part.pieces) - len(shown)
        return " and ".join(shown) + (f" and {more} more" if more else "")

    # -- reading all --------------------------------------------------------------------

    def iter_tables(
        self, columns: Sequence[str] | None = None, *, executor: Executor | None = None
    ) -> Iterator[pa.Table]:
        """Every partition in order, a few read ahead on threads, memory bounded."""
        wanted = self.named(columns)
        if len(self.partitions) == 1 and executor is None and self.executor is None:
            yield self._read(self.partitions[0], wanted)  # a thread would only cost
            return
        self._number()
        work = self._executor(executor)
        for sliced, group in groupby(runs(self.partitions), key=lambda run: len(run) > 1):
            group_runs = list(group)
            if sliced:  # slices of one unit follow each other: decode it once, from start to end
                for run in group_runs:
                    tables = self.files.stream(run, self._needed(wanted))
                    for part, table in zip(run, tables, strict=True):
                        yield self._finish(table, wanted, part)
            else:
                read = Titled("read", partial(self._read, columns=wanted))
                yield from work.map([r[0] for r in group_runs], read)

    def _executor(self, executor: Executor | None = None) -> Executor:
        return executor or self.executor or LocalExecutor()
