"""The files of a dataset, seen as one table.

Their schemas are joined into one; columns that a file lacks are filled with nulls, and narrower
ones widened as they are read. Folder keys become columns. A file that cannot be read raises, or,
with ``on_bad_file="skip"``, is left out, counted and reported (`SkipList`).

A unit found damaged in one column gives no rows from then on, whatever columns are read, and one
that is read in slices is decoded once to its end before its first slice. So the rows of one reading
fit those of the next.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tabfeed.budget import free_memory
from tabfeed.errors import (
    BadFileError,
    ColumnNotFoundError,
    SchemaError,
    SkippedFileWarning,
    UnreadableFileError,
)
from tabfeed.execute import LocalExecutor
from tabfeed.io.align import (
    align_schemas,
    cast_table,
    combine,
    key_column,
    null_bytes,
    schema_with_keys,
)
from tabfeed.io.filters import Filter, facts_of_keys, may_match
from tabfeed.io.formats.base import HELD_BYTES, STREAM_BYTES, DataFile
from tabfeed.io.partition import OpenStreams, Partition, Piece, UnitStream
from tabfeed.io.storage.fetch import Fetch
from tabfeed.lazy import cached_property
from tabfeed.trace import span

__all__ = ["CannotRead", "FileSet", "SkipList", "Skipped", "unannounced"]

_STREAM_ROWS = 65_536
_WIDE = 2**12  # bytes of a null: fewer are not counted
_HELD_SHARE = 16  # part of the free memory, where keeping less would mean decoding them often


# -- what was left out -------------------------------------------------------------------------

CannotRead = BadFileError | UnreadableFileError
_quiet: ContextVar[bool] = ContextVar("_quiet", default=False)


@contextmanager
def unannounced() -> Iterator[None]:
    """Suppress the warnings for files left out, in this thread: the caller reports them."""
    before = _quiet.set(True)
    try:
        yield
    finally:
        _quiet.reset(before)


@dataclass(frozen=True)
class Skipped:
    """A file, or a row group of one, that could not be read and was left out."""

    file: str
    row_group: int | None
    rows: int | None
    reason: str

    def __str__(self) -> str:
        where = self.file if self.row_group is None else f"{self.file}, row group {self.row_group}"
        rows = "" if self.rows is None else f" ({self.rows:,} rows)"
        return f"{where}{rows}: {self.reason}"


class SkipList:
    """What was left out so far; threads add to it.

    Parameters
    ----------
    allowed
        Whether anything may be left out. If not, the first attempt raises the error.
    """

    def __init__(self, allowed: bool) -> None:
        self.allowed = allowed
        self._items: dict[tuple[str, int | None], Skipped] = {}

    @property
    def items(self) -> list[Skipped]:
        """All of them, in the order they were found."""
        return list(self._items.values())

    def __contains__(self, place: tuple[str, int | None]) -> bool:
        return place in self._items

    def add(self, found: list[tuple[Skipped, CannotRead]]) -> None:
        """Note unreadable files in one warning; or raise if skipping is not allowed."""
        if found and not self.allowed:
            raise found[0][1]
        new = [
            item
            for item, _ in found
            if self._items.setdefault((item.file, item.row_group), item) is item
        ]
        if _quiet.get():
            return
        if len(new) == 1:
            warnings.warn(f"left out {new[0]}", SkippedFileWarning, stacklevel=3)
        elif new:
            warnings.warn(
                f"left out {len(new)} files, such as {new[0]}. The dataset's `skipped` lists all",
                SkippedFileWarning,
                stacklevel=3,
            )


# -- the files -----------------------------------------------------------------------------


class FileSet:
    """Opened files and the schema they share.

    Parameters
    ----------
    files
        The opened files.
    names
        How a person calls each.
    keys
        The folder keys of each.
    skips
        What to do with a file that cannot be read.
    types
        The user's own types for some columns.

    Attributes
    ----------
    schema
        All columns, folder keys last.
    conflicts
        The error for each column about which files disagree; raised when the column is read.
    """

    def __init__(
        self,
        files: Sequence[DataFile],
        names: Sequence[str],
        keys: Sequence[dict[str, Any]],
        skips: SkipList,
        types: Mapping[str, pa.DataType] | None = None,
    ) -> None:
        self.files = list(files)
        self.names = list(names)
        self.keys = list(keys)
        self.skips = skips
        self._own = _column_sets(self.files)
        self._checked: dict[tuple[int, int], set[str]] = {}
        self._types = dict(types or {})
        named = [(n, f.schema) for n, f in zip(self.names, self.files, strict=True)]
        schema, self.conflicts = align_schemas(named, types)
        self.schema = schema_with_keys(schema, self.keys, types or {})
        # An empty TFRecord shard has neither columns nor units: that is no error.
        if not self.schema.names and any(f.unit_rows for f in self.files):
            raise SchemaError(f"{self.names[0]} has no columns, so there is nothing to read")

    def with_types(self, types: Mapping[str, pa.DataType]) -> FileSet:
        """The same files, some columns given another type as they are read."""
        if not types:
            return self
        self.refuse_unknown(list(types))
        everything = {**self._types, **types}
        new = FileSet(self.files, self.names, self.keys, self.skips, everything)
        new.schema = pa.schema([new.schema.field(n) for n in self.schema.names])
        for name, file in zip(self.names, self.files, strict=True):
            changed = [c for c in types if file.schema.get_field_index(c) >= 0]
            part = pa.schema([file.schema.field(c) for c in changed])
            target = pa.schema([new.schema.field(c) for c in changed])
            cast_table(part.empty_table(), target, where=name)
        return new

    @property
    def index_columns(self) -> tuple[str, ...]:
        """The columns that are a pandas index in every file that has them."""
        index = [frozenset(f.index_columns) for f in self.files]
        if not any(index):
            return ()
        plain = {n for own, left in zip(self._own, index, strict=True) for n in own - left}
        named = frozenset().union(*index) - plain
        return tuple(n for n in self.schema.names if n in named)

    @cached_property
    def _streams(self) -> OpenStreams:
        return OpenStreams()

    # -- units ----------------------------------------------------------------------

    def in_smaller_units(self, nbytes: int) -> tuple[FileSet, Callable[[Piece], list[Piece]]]:
        """The same files in units of at most `nbytes`, where rows are not counted: text.

        Also gives what a whole unit becomes. Where damaged units are left out, all keep their
        numbers.
        """
        found = [(f, 1) if self.skips.allowed else f.in_smaller_units(nbytes) for f in self.files]
        times = [by for _, by in found]
        new = self
        if max(times, default=1) > 1:
            new = copy.copy(self)
            new.files = [file for file, _ in found]
            new._streams, new._checked = OpenStreams(), {}

        def divided(piece: Piece) -> list[Piece]:
            first, by = piece.unit * times[piece.file], times[piece.file]
            if by > 1:  # rows of the old unit, if they were counted, are not those of the new
                return [replace(piece, unit=first + i, rows=None) for i in range(by)]
            if piece.rows is None:  # it may have been counted since
                return [replace(piece, rows=self.files[piece.file].unit_rows[piece.unit])]
            return [piece]

        return new, divided

    def units(self) -> list[Piece]:
        """Every unit, whole, in file order. Compressed text is scanned for them, in parallel."""
        if len(self.files) == 1:
            found = iter([self.files[0].unit_rows])
        else:
            found = LocalExecutor().map(self.files, lambda file: file.unit_rows)
        return [Piece(f, u, 0, n) for f, rows in enumerate(found) for u, n in enumerate(rows)]

    def counted(self, pieces: Sequence[Piece]) -> list[Piece]:
        """The same pieces with their rows counted where that is not known yet."""

        def count(piece: Piece) -> Piece:
            if piece.rows is not None:
                return piece
            try:
                rows = self.files[piece.file].count(piece.unit)
            except (BadFileError, UnreadableFileError) as e:
                self._leave_out(piece, e)
                rows = 0
            return Piece(piece.file, piece.unit, 0, rows)

        if all(p.rows is not None for p in pieces):
            return list(pieces)
        return list(LocalExecutor().map(pieces, count))

    def nbytes(self, piece: Piece, columns: Sequence[str]) -> int | None:
        """Estimate of what these columns of a unit take in memory; None if unknown."""
        file, own = self.files[piece.file], self.own_columns(piece.file, columns)
        nbytes, absent = file.nbytes(piece.unit, own), self._wide_nulls(piece.file, columns)
        return None if nbytes is None else nbytes + absent * (file.unit_rows[piece.unit] or 0)

    def _wide_nulls(self, index: int, columns: Sequence[str]) -> int:
        """Bytes of a row of nulls in columns that a file does not have, of those that take many."""
        absent = self._absent[index]
        return sum(absent[c] for c in columns if c in absent) if absent else 0

    @cached_property
    def _absent(self) -> list[dict[str, int]]:
        sizes = {f.name: null_bytes(f.type) for f in self.schema}
        wide = {name: size for name, size in sizes.items() if size >= _WIDE}
        return [{n: s for n, s in wide.items() if n not in own} for own in self._own]

    def sized(
        self, pieces: Sequence[Piece], columns: Sequence[str]
    ) -> list[tuple[Piece, int | None]]:
        """Each piece with what these columns of its unit take in memory."""
        return [(piece, self.nbytes(piece, columns)) for piece in pieces]

    def row_bytes(self, piece: Piece, columns: Sequence[str]) -> npt.NDArray[Any] | None:
        """What each row of a piece takes in memory; None if rows are about alike, or if unknown."""
        file, own = self.files[piece.file], self.own_columns(piece.file, columns)
        sizes = file.row_bytes(piece.unit, own) if own else None
        if sizes is None:
            return None
        sizes = sizes + self._wide_nulls(piece.file, columns)
        if piece.rows is None:
            return sizes
        return sizes[piece.start : piece.start + piece.rows]

    def own_columns(self, index: int, columns: Sequence[str]) -> list[str]:
        """Those of these columns that a file itself has, which folder keys are not."""
        own = self._own[index]
        return [c for c in columns if c in own]

    def prune(self, pieces: Sequence[Piece], condition: Filter) -> list[Piece]:
        """Leave out units whose folder keys or statistics rule the filter out."""
        facts = [self._facts(p, condition) for p in pieces]
        kept = may_match(condition, facts, self.schema)
        return [p for p, keep in zip(pieces, kept, strict=True) if keep]

    def _facts(self, piece: Piece, condition: Filter) -> list[pc.Expression]:
        """What is known of a unit without reading it."""
        own, keys = self._own[piece.file], self.keys[piece.file]
        given = {c: keys.get(c) for c in condition.columns if c not in own}
        facts = facts_of_keys(given, condition.columns, self.schema)
        return facts + self.files[piece.file].facts(piece.unit, condition, self.schema)

    # -- reading --------------------------------------------------------------------

    def read(
        self, partition: Partition, columns: Sequence[str], dictionary: Sequence[str] = ()
    ) -> pa.Table:
        """The columns of a partition, in the order of `columns`."""
        self.refuse_unknown(columns)
        if not columns:  # tables without columns forget their rows when they are joined
            return self.read(partition, self.schema.names[:1]).select([])
        with span("read", rows=partition.rows):
            tables = [
                self._read_run(list(run), columns, dictionary)
                for _, run in groupby(partition.pieces, key=lambda p: (p.file, p.whole))
            ]
        if len(tables) == 1:
            return tables[0]
        schema = self._target(columns, tables, dictionary)
        tables = [cast_table(t, schema) for t in tables if t.num_rows] or [schema.empty_table()]
        return pa.concat_tables(tables)

    def read_by_column(
        self, partition: Partition, columns: Sequence[str], at_once: int
    ) -> Iterator[pa.Table]:
        """The same in tables of a few columns, where that is cheaper.

        Not where a damaged unit is to be left out: all its columns must be looked at before.
        """
        whole = len(partition.files) == 1 and all(p.whole for p in partition.pieces)
        if not whole or self.skips.allowed:
            yield self.read(partition, columns)
            return
        self.refuse_unknown(columns)
        index = partition.files[0]
        own = self.own_columns(index, columns)
        others = [c for c in columns if c not in own]
        units = [p.unit for p in partition.pieces]
        tables = self.files[index].read_by_column(units, own, at_once)
        for table in _recorded(tables, partition.rows):
            given = [*table.column_names, *others]
            others = []
            yield self._add_keys(table, index, given)

    @cached_property
    def are_plain_parquet(self) -> bool:
        """Whether all files are local Parquet files of exactly the columns of the whole."""
        return all(
            f.row_groups and not f.fetches_ahead and f.schema == self.schema for f in self.files
        )

    @cached_property
    def remote(self) -> bool:
        """Whether any of the files is read from a server in ranges known beforehand."""
        return any(f.fetches_ahead for f in self.files)

    def begin(self, partition: Partition, columns: Sequence[str]) -> list[Fetch]:
        """Begin to fetch what `read` of the same will need of remote files."""
        fetches = []
        for (index, whole), run in groupby(partition.pieces, key=lambda p: (p.file, p.whole)):
            file, units = self.files[index], [p.unit for p in run]
            own = self.own_columns(index, columns or self.schema.names[:1])
            if own and file.fetches_ahead:
                groups = [own] if whole else file.column_groups(units[0], own)
                fetches.append(file.begin(units if whole else units[:1], groups[0]))
        return [f for f in fetches if f is not None]

    def stream(self, run: Sequence[Partition], columns: Sequence[str]) -> Iterator[pa.Table]:
        """Partitions that are successive slices of one unit, decoded once from start to end.

        Unless the columns are so many that their pages alone would fill the memory: then a few
        columns at a time, which decodes them anew for each partition.
        """
        rest = self._once_through(run[0].pieces[0], columns)
        if rest is None:
            yield from (self.read(partition, columns) for partition in run)
            return
        held: list[pa.Table] = []
        for partition in run:
            need = partition.rows or 0
            while sum(t.num_rows for t in held) < need and (table := next(rest, None)) is not None:
                held.append(table)
            joined = pa.concat_tables(held) if held else self._empty(columns)
            held = [joined.slice(need)]
            yield combine(joined.slice(0, need))

    def _once_through(self, piece: Piece, columns: Sequence[str]) -> Iterator[pa.Table] | None:
        """A unit from a piece on, streamed or whole; None if either holds too much."""
        streamed, whole = self._held(piece, columns) or 0, self.nbytes(piece, columns)
        if whole is None:
            return self._slices(piece, columns, rows=None)
        if min(streamed, whole) > max(HELD_BYTES, free_memory() // _HELD_SHARE):
            return None
        if streamed <= whole:
            return self._slices(piece, columns, rows=None)
        unit = Piece(piece.file, piece.unit, 0, self.files[piece.file].unit_rows[piece.unit])
        return iter([self.read(Partition((unit,)), columns).slice(piece.start)])

    def batches(
        self, piece: Piece, columns: Sequence[str], *, verify: bool = False
    ) -> Iterator[pa.RecordBatch]:
        """The columns of a unit that the file itself has, as a stream.

        `verify` checks the checksums even where a file's layout skips them.
        """
        own = self.own_columns(piece.file, columns)
        file = self.files[piece.file]
        if verify:
            file = file.verifying()
        return file.batches(piece.unit, own, self._rows_at_once(piece, columns))

    def _rows_at_once(self, piece: Piece, columns: Sequence[str]) -> int:
        """How many rows to decode at a time: fewer where they are wide."""
        rows, nbytes = self.files[piece.file].unit_rows[piece.unit], self.nbytes(piece, columns)
        if not rows or nbytes is None:
            return _STREAM_ROWS
        return max(1, min(_STREAM_ROWS, STREAM_BYTES * rows // nbytes))

    def _read_run(
        self, run: list[Piece], columns: Sequence[str], dictionary: Sequence[str]
    ) -> pa.Table:
        """Pieces of one file: whole units in one call, slices one by one."""
        if self.skips.allowed:
            run = [p for p in run if (self.names[p.file], p.unit) not in self.skips]
            if not run:
                return self._empty(columns)
        try:
            return self._decode_run(run, columns, dictionary)
        except (BadFileError, UnreadableFileError) as e:
            if len(run) > 1 and self.skips.allowed:
                return pa.concat_tables([self._read_run([p], columns, ()) for p in run])
            self._leave_out(run[0], e)
            return self._empty(columns)

    def _decode_run(
        self, run: list[Piece], columns: Sequence[str], dictionary: Sequence[str]
    ) -> pa.Table:
        if not run[0].whole:
            return combine(pa.concat_tables([self._slice(p, columns) for p in run]))
        index = run[0].file
        file, own = self.files[index], self.own_columns(index, columns)
        units = [p.unit for p in run]
        encoded = [c for c in dictionary if c in own]
        table = file.read_encoded(units, own, encoded) if encoded else file.read(units, own)
        return self._add_keys(table, index, columns, dictionary)

    def _slice(self, piece: Piece, columns: Sequence[str]) -> pa.Table:
        """A part of a unit, a few columns at a time."""
        found: dict[str, pa.ChunkedArray] = {}
        for group in self.column_groups(piece, columns):
            slices = list(self._slices(piece, group, piece.rows)) or [self._empty(group)]
            part = combine(pa.concat_tables(slices))
            found.update(zip(part.column_names, part.columns, strict=True))
        return pa.Table.from_arrays([found[c] for c in columns], schema=self._schema_of(columns))

    def column_groups(self, piece: Piece, columns: Sequence[str]) -> list[list[str]]:
        """The columns in groups that can be streamed together within bounds."""
        own = self.own_columns(piece.file, columns)
        first, *rest = self.files[piece.file].column_groups(piece.unit, own)
        return [[*first, *(c for c in columns if c not in self._own[piece.file])], *rest]

    def _held(self, piece: Piece, columns: Sequence[str]) -> int | None:
        own = self.own_columns(piece.file, columns)
        return self.files[piece.file].held(piece.unit, own)

    def _slices(self, piece: Piece, columns: Sequence[str], rows: int | None) -> Iterator[pa.Table]:
        """Rows of a unit from ``piece.start`` on, as a stream that never holds the unit whole."""
        if self.skips.allowed and not self._sound(piece, columns):
            return
        file = self.files[piece.file]
        key = (piece.file, piece.unit, tuple(columns))
        stream = self._streams.resume(key, piece.start)
        stream = stream or UnitStream(key, self.batches(piece, columns))
        for batch in stream.take(piece.start, rows):
            yield self._add_keys(pa.Table.from_batches([batch]), piece.file, columns)
        held = None if file.fetches_ahead else self._held(piece, columns)
        if held is not None and stream.at < file.count(piece.unit):
            self._streams.keep(stream, held)

    def at_random(self) -> FileSet:
        """The same files, for reading slices in random order: keeps no stream open."""
        new = copy.copy(self)
        new._streams = OpenStreams(keeps=False)
        return new

    # -- leaving out ----------------------------------------------------------------

    def _sound(self, piece: Piece, columns: Sequence[str]) -> bool:
        """Whether these columns of a unit can be read to the end; looked at once."""
        if (self.names[piece.file], piece.unit) in self.skips:
            return False
        known = self._checked.setdefault((piece.file, piece.unit), set())
        new = [c for c in self.own_columns(piece.file, columns) if c not in known]
        if not new:
            return True
        try:
            for group in self.column_groups(piece, new):
                for _ in self.batches(piece, group):
                    pass
        except (BadFileError, UnreadableFileError) as e:
            self._leave_out(piece, e)
            return False
        known.update(new)
        return True

    def _leave_out(self, piece: Piece, error: CannotRead) -> None:
        """Note that a unit cannot be read, or raise."""
        rows = self.files[piece.file].unit_rows[piece.unit] if self.skips.allowed else None
        self.skips.add([(Skipped(self.names[piece.file], piece.unit, rows, str(error)), error)])

    # -- columns --------------------------------------------------------------------

    def _add_keys(
        self, table: pa.Table, index: int, columns: Sequence[str], dictionary: Sequence[str] = ()
    ) -> pa.Table:
        keys, own, where = self.keys[index], self._own[index], self.names[index]
        for name in [c for c in columns if c in keys and c not in own] if keys else []:
            column = key_column(keys[name], self.schema.field(name), table.num_rows, where)
            table = table.append_column(name, column)
        target = self._target(columns, [table], dictionary)
        return cast_table(table, target, where=where)

    def _target(
        self, columns: Sequence[str], tables: Sequence[pa.Table], dictionary: Sequence[str]
    ) -> pa.Schema:
        """The dataset's types, except where the caller asked for, and got, dictionaries."""
        fields = []
        for name in columns:
            wanted = self.schema.field(name)
            if name in dictionary:
                got = {t.schema.field(name).type for t in tables if name in t.schema.names}
                if len(got) == 1 and pa.types.is_dictionary(first := next(iter(got))):
                    wanted = wanted.with_type(first)
            fields.append(wanted)
        return pa.schema(fields)

    def _schema_of(self, columns: Sequence[str]) -> pa.Schema:
        return pa.schema([self.schema.field(c) for c in columns])

    def _empty(self, columns: Sequence[str]) -> pa.Table:
        return self._schema_of(columns).empty_table()  # imports pandas where it is installed

    def refuse_unknown(self, columns: Sequence[str]) -> None:
        """Complain of a column that no file has."""
        for name in columns:
            if self.schema.get_field_index(name) < 0:
                where = self.names[0] if len(self.names) == 1 else "the dataset"
                raise ColumnNotFoundError(name, self.schema.names, where=where)


def _column_sets(files: Sequence[DataFile]) -> list[frozenset[str]]:
    """The names in each file; files of one schema share one set."""
    sets: list[frozenset[str]] = []
    last: pa.Schema | None = None
    for file in files:
        same = last is not None and file.schema.equals(last)
        sets.append(sets[-1] if same else frozenset(file.schema.names))
        last = file.schema
    return sets


def _recorded(tables: Iterator[pa.Table], rows: int | None) -> Iterator[pa.Table]:
    """Tables as they come, each decoded inside a span; the rows count once."""
    while True:
        with span("read", rows=rows):
            table = next(tables, None)
        if table is None:
            return
        yield table
        rows = None
