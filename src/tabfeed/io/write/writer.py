"""Write a table as Parquet files, in the order or shuffle the options ask for.

`tabfeed.io.write.plan` decides which partitions go into which file. Files are written in parallel;
for each, partitions are read, shuffled if asked, cut into row groups and written. A full shuffle is
one stream through all files (see `tabfeed.io.shuffle.local`), or on a cluster two rounds of tasks
(see `tabfeed.io.shuffle.distributed`). No file gets its final name before all of them are complete
(see `tabfeed.io.commit.commit`).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from tabfeed.budget import working_memory
from tabfeed.display import Bar, progress
from tabfeed.errors import ArgumentError, ColumnNotFoundError, SchemaError
from tabfeed.execute import Executor, LocalExecutor
from tabfeed.io.align import cast_table
from tabfeed.io.commit.commit import Commit
from tabfeed.io.commit.staged_files import StagedFiles
from tabfeed.io.formats.memory import TemporaryFolder
from tabfeed.io.formats.parquet.pages import plain_inside, refuse_types
from tabfeed.io.memory_needs import few_readers
from tabfeed.io.partition import Piece, cut_by_size
from tabfeed.io.shuffle.distributed import (
    BucketFiles,
    BucketSlice,
    ByRandomKey,
    choose_buckets,
    is_remote,
    require_files,
    slice_buckets,
    sorted_slice,
    task_memory,
    write_buckets,
)
from tabfeed.io.shuffle.local import SpillBudget, draw_keys, shuffled, sort_rows
from tabfeed.io.write.parquet import FileWriter, HiveWriter, TableWriter
from tabfeed.io.write.plan import (
    OutputFile,
    Shuffle,
    WriteOptions,
    file_names,
    group_files,
    plan_files,
)

if TYPE_CHECKING:
    from tabfeed.io.table import PartitionedTable

__all__ = ["Shuffle", "WriteOptions", "write_parquet"]


def write_parquet(
    table: PartitionedTable,
    path: str | os.PathLike[str],
    options: WriteOptions,
    *,
    overwrite: bool,
    storage_options: Mapping[str, Any] | None,
    executor: Executor,
) -> None:
    """Write a table into the folder `path`."""
    if not len(table.schema):
        raise SchemaError("there is no column to write; select some. Nothing was changed")
    _check_keys(table, options)
    commit = Commit(path, overwrite=overwrite, storage_options=storage_options)
    _refuse_own_input(table, commit.folder.name)
    refuse_types(table.schema.to_arrow())
    if options.memory_limit is not None:
        limit = working_memory(options.memory_limit)
        executor = few_readers(
            table.files, table.partitioning.pieces, table.source_columns, limit, executor
        )
    with commit:
        commit.schema = table.schema
        if is_remote(executor):
            require_files(executor, table.files)
            executor.require_folder(commit.staging)
        work = _DatasetWriter(table, options, commit, task_memory(executor))
        if options.shuffle is Shuffle.FULL and is_remote(executor):
            work.write_shuffled_on_cluster(executor)
        elif options.shuffle is Shuffle.FULL:
            work.write_shuffled()
        else:
            work.write_each(executor)
        if not commit.files:  # partition_on, and no rows
            work.write_empty()


def _check_keys(table: PartitionedTable, options: WriteOptions) -> None:
    keys = options.partition_on or ()
    for key in keys:
        if key not in table.schema:
            raise ColumnNotFoundError(key, table.schema.column_names)
        if not key or not _names_folders(table.schema[key].dtype):
            raise ArgumentError(
                f"partition_on: column {key!r} is {table.schema[key].dtype}; folders are named "
                "by numbers, text, booleans, dates or timestamps"
            )
    if keys and len(set(keys)) == len(table.schema):
        raise ArgumentError("partition_on names every column; nothing would be left in the files")


def _names_folders(dtype: pa.DataType) -> bool:
    """Whether values of this type can be written as text and read back."""
    if pa.types.is_dictionary(dtype):
        dtype = dtype.value_type
    if pa.types.is_binary(dtype) or pa.types.is_fixed_size_binary(dtype):
        return False
    try:
        pa.nulls(0, dtype).cast(pa.string()).cast(dtype)
    except pa.ArrowNotImplementedError:
        return False
    return True


def _refuse_own_input(table: PartitionedTable, folder: str) -> None:
    target = folder.rstrip("/") + "/"
    inside = [f for f in table.files.names if f.startswith(target)]
    if inside:
        raise ArgumentError(
            f"{inside[0]} is read and {target} would be written: a dataset cannot be written over "
            "itself; write elsewhere"
        )


class _DatasetWriter:
    """Writes a table: holds the options and the folder being filled.

    In this process, files are written for the commit itself. A copy in another process writes each
    group of files into a folder of its own, and returns that.
    """

    def __init__(
        self, table: PartitionedTable, options: WriteOptions, commit: Commit, memory: int | None
    ) -> None:
        self.table = table
        self.options = options
        self.commit: Commit | None = commit
        self.staged = StagedFiles(commit.folder, commit.staging)
        self.schema = plain_inside(table.schema.to_arrow())
        self.pages = options.pages
        limit = memory if options.memory_limit is None else options.memory_limit
        self.limit = working_memory(limit)
        self._at_once = 1  # files
        self._unit_sizes: tuple[int, int, Any] | None = None
        self._limit_row_groups()

    def _limit_row_groups(self) -> None:
        """Make row groups so small that all files written at once fit the limit while they wait."""
        if self.options.memory_limit is not None:
            most = max(1, self.limit // self._at_once // 16)
            self.pages = replace(self.pages, group_bytes=min(self.pages.group_bytes, most))

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "commit": None, "_unit_sizes": None}

    def write_empty(self) -> None:
        """A file without rows, so that the schema is kept."""
        assert self.commit is not None
        with FileWriter(self.commit, "part_0.parquet", self.schema, self.pages):
            pass

    # -- a file at a time -----------------------------------------------------------

    def write_each(self, executor: Executor) -> None:
        """Write every file, in parallel; files cut from one row group one after another."""
        files = plan_files(self.table, self.options)
        assert self.commit is not None
        self.commit.order = [file.name for file in files]
        threads = getattr(executor, "threads", 1)
        limited = self.options.shuffle is None and self.options.memory_limit is not None
        if self.options.shuffle is Shuffle.PER_WORKER or limited:
            files = self._in_small_parts(files, self.limit // threads // 16)
        groups = group_files(files)
        self._inner = LocalExecutor(max(1, threads // max(1, len(groups))))
        self._at_once = max(1, min(threads, len(groups)))
        self._limit_row_groups()
        with progress("writing", self.table.known_rows) as bar:
            for rows, staged in executor.map(groups, _WriteGroup(self)):
                bar.advance(rows)
                if staged is not None:
                    self.commit.adopt(staged)

    def _in_small_parts(self, files: list[OutputFile], nbytes: int) -> list[OutputFile]:
        """The same rows, read in smaller partitions; the files are the same."""
        if not self.table.cut_freely or any(file.first_rows for file in files):
            return files  # a map needs the partitions as they are
        most = max(1, self.table.bytes_to_read(nbytes))
        pieces = [p for file in files for part in file.partitions for p in part.pieces]
        divided = None
        if all(p.whole for p in pieces):
            self.table, divided = self.table.in_smaller_units(most)
        return [self._cut_file(file, most, divided) for file in files]

    def _cut_file(
        self, file: OutputFile, most: int, divided: Callable[[Piece], list[Piece]] | None
    ) -> OutputFile:
        pieces = [p for part in file.partitions for p in part.pieces]
        if divided is not None:
            pieces = [new for piece in pieces for new in divided(piece)]

        def bytes_of(piece: Piece) -> int | None:
            rows = None if piece.whole else self._row_bytes(piece)
            return self.table.piece_bytes(piece) if rows is None else int(rows.sum())

        sized = [(p, bytes_of(p)) for p in pieces]
        return replace(file, partitions=tuple(cut_by_size(sized, most, self._row_bytes)))

    def _row_bytes(self, piece: Piece) -> Any:
        """Bytes of each row of a row slice; those of its unit are found once."""
        if self._unit_sizes is None or self._unit_sizes[:2] != (piece.file, piece.unit):
            rows = self.table.files.files[piece.file].unit_rows[piece.unit]
            whole = Piece(piece.file, piece.unit, 0, rows)
            sizes = self.table.files.row_bytes(whole, self.table.source_columns)
            self._unit_sizes = (piece.file, piece.unit, sizes)
        sizes = self._unit_sizes[2]
        return None if sizes is None else sizes[piece.start :][: piece.rows]

    def write_group(self, group: list[OutputFile], to: StagedFiles) -> int:
        """Write some files, reading their partitions once, in order; returns the rows written."""
        parts = tuple(p for file in group for p in file.partitions)
        first_rows = {p: row for file in group for p, row in (file.first_rows or {}).items()}
        source = self.table.with_partitions(parts, first_rows or None)
        tables = self._conformed(source.iter_tables(executor=self._inner))
        total = 0
        for file in group:
            total += self._write_output(file, islice(tables, len(file.partitions)), to)
        return total

    def _write_output(self, file: OutputFile, tables: Iterator[pa.Table], to: StagedFiles) -> int:
        seed = self.options.seed
        if self.options.shuffle is Shuffle.PER_PARTITION:
            tables = (
                sort_rows(t, draw_keys(seed, 1 + number, 0, t.num_rows))
                for number, t in zip(file.numbers, tables, strict=True)
            )
        if self.options.shuffle is Shuffle.PER_WORKER:
            with self.spill_budget(to, self._at_once) as budget:
                return self.write_file(file.name, self._shuffled(tables, file, budget), to)
        return self.write_file(file.name, tables, to)

    def _conformed(self, tables: Iterable[pa.Table]) -> Iterator[pa.Table]:
        """Tables cast to the declared types, since the result of a map may differ by partition."""
        for table in tables:
            yield cast_table(table, self.schema)

    def _shuffled(
        self, tables: Iterable[pa.Table], file: OutputFile, budget: SpillBudget
    ) -> Iterator[pa.Table]:
        return shuffled(
            tables,
            seed=self.options.seed,
            stream=1 + file.numbers[0] if file.numbers else 0,
            nbytes=self.table.estimated_bytes(file.partitions),
            budget=budget,
        )

    # -- one stream through all files -----------------------------------------------

    def write_shuffled(self) -> None:
        """A full shuffle: one random permutation, written into files of equal rows."""
        source = self.table.in_smaller_partitions(max(1, self.limit // 16))
        names = file_names(self.options.output_files, self.table.npartitions)
        self.table = source
        assert self.commit is not None
        self.commit.order = names
        known = source.known_rows
        with (
            self.spill_budget(self.commit) as budget,
            progress("shuffling", known and 2 * known) as bar,
        ):
            whole = OutputFile("", source.partitions, (0,))
            read = _CountedTables(source.iter_tables(executor=LocalExecutor(1)), bar)
            mixed = self._shuffled(self._conformed(read), whole, budget)
            stream = _TableCutter(_CountedTables(mixed, bar))
            stream.fill()  # by now every row has been read and counted
            done = 0
            for i, name in enumerate(names):
                end = read.rows * (i + 1) // len(names)
                self.write_file(name, stream.take(end - done), self.commit)
                done = end

    def write_shuffled_on_cluster(self, executor: Executor) -> None:
        """The same on a cluster: rows are split into buckets, then files are made of buckets."""
        size = max(1, min(self.table.partitioning.part_size, self.limit // 16))
        source = self.table.in_smaller_partitions(size).on(executor)
        names = file_names(self.options.output_files, self.table.npartitions)
        assert self.commit is not None
        self.commit.order = names
        budget = SpillBudget(self.limit, Path())
        count = choose_buckets(source.estimated_bytes(), budget, at_least=len(names))
        folder = self.staged.fresh().staging
        rule = ByRandomKey(self.options.seed, 1, count)
        known = source.known_rows
        with progress("shuffling", known and 2 * known) as bar:
            buckets = write_buckets(source, rule, folder, executor, bar)
            files = _WriteSlices(self, buckets, slice_buckets(names, buckets.rows))
            for rows, staged in executor.map(range(len(names)), files):
                self.commit.adopt(staged)
                bar.advance(rows)

    # -- writing --------------------------------------------------------------------

    @contextmanager
    def spill_budget(self, to: StagedFiles, share: int = 1) -> Iterator[SpillBudget]:
        """Memory and disk for one of `share` shuffles; its files are deleted when it is done."""
        place = to.staging
        with to.writing():
            folder = TemporaryFolder(place.path if place.local else None)
        try:
            most = max(4, SpillBudget.buckets // share)
            yield SpillBudget(self.limit // share, folder.path, most)
        finally:
            folder.remove()

    def write_file(self, name: str, tables: Iterator[pa.Table], to: StagedFiles) -> int:
        """Write tables into one file, or one file for each folder key."""
        writer: TableWriter
        keys = self.options.partition_on
        if keys:
            writer = HiveWriter(to, name, self.schema, self.pages, keys)
        else:
            writer = FileWriter(to, name, self.schema, self.pages)
        with writer:
            for table in tables:
                writer.write(table)
                if self.options.memory_limit is not None:  # each thread would keep what it freed
                    pa.default_memory_pool().release_unused()
        return writer.rows


@dataclass(frozen=True)
class _WriteGroup:
    """Writes a group of files, in this process or on a worker."""

    work: _DatasetWriter

    def __call__(self, group: list[OutputFile]) -> tuple[int, StagedFiles | None]:
        """Rows written, and the files if another process wrote them."""
        if self.work.commit is not None:
            return self.work.write_group(group, self.work.commit), None
        staged = self.work.staged.fresh()
        return self.work.write_group(group, staged), staged

    def task_name(self, group: list[OutputFile]) -> str:
        """The name on the Dask dashboard."""
        return f"write/{group[0].name.removesuffix('.parquet')}"


@dataclass(frozen=True)
class _WriteSlices:
    """Writes one file of a full shuffle, from the buckets that have its rows."""

    work: _DatasetWriter
    buckets: BucketFiles
    files: Sequence[tuple[str, Sequence[BucketSlice]]]

    def __call__(self, number: int) -> tuple[int, StagedFiles]:
        """Rows written, and the file."""
        name, slices = self.files[number]
        staged = self.work.staged.fresh()
        with self.work.spill_budget(staged) as budget:
            tables = (t for part in slices for t in sorted_slice(self.buckets, part, budget))
            return self.work.write_file(name, tables, staged), staged

    def task_name(self, number: int) -> str:
        """The name on the Dask dashboard."""
        return f"write/{self.files[number][0].removesuffix('.parquet')}"


class _TableCutter:
    """Takes a number of rows at a time from a stream of tables."""

    def __init__(self, tables: Iterable[pa.Table]) -> None:
        self._tables = iter(tables)
        self._rest: pa.Table | None = None

    def fill(self) -> None:
        """Read the next table."""
        self._rest = next(self._tables, None)

    def take(self, rows: int) -> Iterator[pa.Table]:
        """The next `rows` rows."""
        while rows > 0:
            if self._rest is None:
                self.fill()
            if self._rest is None:
                return
            table = self._rest
            self._rest = table.slice(rows) if table.num_rows > rows else None
            yield table.slice(0, rows)
            rows -= min(rows, table.num_rows)


class _CountedTables:
    """Passes tables on, counts their rows and shows them on the bar."""

    def __init__(self, tables: Iterable[pa.Table], bar: Bar) -> None:
        self.rows = 0
        self._tables, self._bar = tables, bar

    def __iter__(self) -> Iterator[pa.Table]:
        for table in self._tables:
            self.rows += table.num_rows
            self._bar.advance(table.num_rows)
            yield table
