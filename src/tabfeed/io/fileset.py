"""The files of a dataset, seen as one table.

Files are opened in parallel. Their schemas are joined into one; what each file lacks is
filled with nulls and what it has narrower is widened as it is read. Folder keys become
columns. A file that cannot be read stops the work, or, when asked, is left out,
counted and reported.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

import pyarrow as pa

from tabfeed.errors import (
    BadFileError,
    ColumnNotFoundError,
    SkippedFileWarning,
    SourceNotFoundError,
    UnreadableFileError,
)
from tabfeed.execute import LocalExecutor
from tabfeed.io.filters import Filter
from tabfeed.io.parquet import ParquetFile
from tabfeed.io.partition import Partition, Piece
from tabfeed.io.source import DataFile, Location, OpenFormat, ReadOptions
from tabfeed.io.unify import conform, unify_schemas
from tabfeed.trace import span

__all__ = ["FileSet", "Skipped", "open_files"]

_OPEN_THREADS = 16
_STREAM_ROWS = 65_536


@dataclass(frozen=True)
class Skipped:
    """A file, or a row group of one, that could not be read and was left out."""

    file: str
    row_group: int | None
    rows: int | None
    reason: str


@dataclass
class SkipList:
    """What was left out so far; threads add to it."""

    allowed: bool
    items: list[Skipped] = field(default_factory=list)

    def add(self, error: BadFileError | UnreadableFileError, item: Skipped) -> None:
        """Note it, or raise if nobody allowed it."""
        if not self.allowed:
            raise error
        if item in self.items:
            return
        self.items.append(item)
        what = item.file if item.row_group is None else f"{item.file}, row group {item.row_group}"
        rows = "" if item.rows is None else f" ({item.rows:,} rows)"
        warnings.warn(f"left out {what}{rows}: {item.reason}", SkippedFileWarning, stacklevel=3)


def open_files(
    locations: Sequence[Location], open_format: OpenFormat, options: ReadOptions, skips: SkipList
) -> FileSet:
    """Open every file, in parallel."""

    def try_open(location: Location) -> DataFile | BadFileError | UnreadableFileError:
        try:
            return open_format(location, options)
        except (BadFileError, UnreadableFileError) as e:
            return e

    executor = LocalExecutor(threads=min(_OPEN_THREADS, len(locations)))
    opened = list(executor.map(locations, try_open))
    good: list[tuple[Location, DataFile]] = []
    for location, result in zip(locations, opened, strict=True):
        if isinstance(result, BadFileError | UnreadableFileError):
            skips.add(result, Skipped(location.name, None, None, str(result)))
        else:
            good.append((location, result))
    if not good:
        raise SourceNotFoundError(
            f"none of the {len(locations)} files can be read; the first: {skips.items[0].reason}"
        )
    return FileSet(
        [f for _, f in good],
        [loc.name for loc, _ in good],
        [dict(loc.keys) for loc, _ in good],
        skips,
    )


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
    """

    def __init__(
        self,
        files: Sequence[DataFile],
        names: Sequence[str],
        keys: Sequence[dict[str, Any]],
        skips: SkipList,
    ) -> None:
        self.files = list(files)
        self.names = list(names)
        self.keys = list(keys)
        self.skips = skips
        self._own = [frozenset(f.schema.names) for f in self.files]
        self.schema = self._joined_schema()

    def _joined_schema(self) -> pa.Schema:
        own = unify_schemas([(n, f.schema) for n, f in zip(self.names, self.files, strict=True)])
        values: dict[str, list[Any]] = {}
        for keys in self.keys:
            for name, value in keys.items():
                values.setdefault(name, []).append(value)
        for name, found in values.items():
            if name not in own.names:
                own = own.append(pa.field(name, _key_type(found)))
        return own

    def with_types(self, types: dict[str, pa.DataType]) -> FileSet:
        """The same files, some columns given another type as they are read."""
        new = FileSet(self.files, self.names, self.keys, self.skips)
        for name, dtype in types.items():
            index = self.schema.get_field_index(name)
            if index >= 0:
                new.schema = new.schema.set(index, self.schema.field(index).with_type(dtype))
        return new

    # -- units ----------------------------------------------------------------------

    def units(self) -> list[Piece]:
        """Every unit, whole, in file order."""
        return [
            Piece(f, u, 0, rows)
            for f, file in enumerate(self.files)
            for u, rows in enumerate(file.unit_rows)
        ]

    def counted(self, pieces: Sequence[Piece]) -> list[Piece]:
        """The same pieces with their rows counted where that is not known yet."""

        def count(piece: Piece) -> Piece:
            if piece.rows is not None:
                return piece
            rows = self.files[piece.file].count(piece.unit)
            return Piece(piece.file, piece.unit, 0, rows)

        return list(LocalExecutor().map(pieces, count))

    def nbytes(self, piece: Piece, columns: Sequence[str]) -> int:
        """Estimate of what these columns of a unit take in memory."""
        own = self._own_columns(piece.file, columns)
        return self.files[piece.file].nbytes(piece.unit, own)

    def _own_columns(self, index: int, columns: Sequence[str]) -> list[str]:
        return [c for c in columns if c in self._own[index]]

    def prune(self, pieces: Sequence[Piece], condition: Filter) -> list[Piece]:
        """Leave out units whose folder keys or statistics rule the filter out."""
        kept: list[Piece] = []
        for index, group in groupby(pieces, key=lambda p: p.file):
            kept.extend(self._prune_file(index, list(group), condition))
        return kept

    def _prune_file(self, index: int, pieces: list[Piece], condition: Filter) -> list[Piece]:
        file = self.files[index]
        keys = {k: v for k, v in self.keys[index].items() if k not in self._own[index]}
        if set(condition.columns) <= keys.keys():
            row = self._key_columns(index, list(condition.columns), 1)
            return pieces if condition.apply(pa.table(row)).num_rows else []
        if keys.keys().isdisjoint(condition.columns) and isinstance(file, ParquetFile):
            matching = set(file.prune(condition.expression, self.schema))
            return [p for p in pieces if p.unit in matching]
        return pieces

    # -- reading --------------------------------------------------------------------

    def read(
        self, partition: Partition, columns: Sequence[str], dictionary: Sequence[str] = ()
    ) -> pa.Table:
        """The columns of a partition, in the order asked."""
        self.refuse_unknown(columns)
        with span("read", rows=partition.rows):
            tables = [
                self._read_run(list(run), columns, dictionary)
                for _, run in groupby(partition.pieces, key=lambda p: (p.file, p.whole))
            ]
        schema = self._target(columns, tables, dictionary)
        tables = [conform(t, schema) for t in tables if t.num_rows] or [schema.empty_table()]
        return tables[0] if len(tables) == 1 else pa.concat_tables(tables)

    def stream(self, run: Sequence[Partition], columns: Sequence[str]) -> Iterator[pa.Table]:
        """Partitions that are successive slices of one unit, decoded once from start to end."""
        first = run[0].pieces[0]
        rest = self._slices(first, columns, rows=None)
        held: list[pa.Table] = []
        for partition in run:
            need = partition.rows or 0
            while sum(t.num_rows for t in held) < need and (table := next(rest, None)) is not None:
                held.append(table)
            joined = pa.concat_tables(held) if held else self._empty(columns)
            held = [joined.slice(need)]
            yield joined.slice(0, need).combine_chunks()

    def _read_run(
        self, run: list[Piece], columns: Sequence[str], dictionary: Sequence[str]
    ) -> pa.Table:
        """Pieces of one file: whole units in one call, slices one by one."""
        index = run[0].file
        file = self.files[index]
        own = self._own_columns(index, columns)
        try:
            if not run[0].whole:
                return pa.concat_tables(
                    [t for p in run for t in self._slices(p, columns, p.rows)]
                    or [self._empty(columns)]
                ).combine_chunks()
            units = [p.unit for p in run]
            if isinstance(file, ParquetFile):
                table = file.read(units, own, [c for c in dictionary if c in own])
            else:
                table = file.read(units, own)
            return self._add_keys(table, index, columns, dictionary)
        except (BadFileError, UnreadableFileError) as e:
            return self._recover(run, columns, e)

    def _recover(
        self, run: list[Piece], columns: Sequence[str], error: BadFileError | UnreadableFileError
    ) -> pa.Table:
        """Raise, or read what can be read unit by unit and note the rest."""
        if len(run) > 1 and self.skips.allowed:
            parts = [self._read_run([p], columns, ()) for p in run]
            return pa.concat_tables(parts)
        piece = run[0]
        self.skips.add(error, Skipped(self.names[piece.file], piece.unit, piece.rows, str(error)))
        return self._empty(columns)

    def _slices(self, piece: Piece, columns: Sequence[str], rows: int | None) -> Iterator[pa.Table]:
        """Rows of a unit from ``piece.start`` on, as a stream that never holds the unit whole."""
        file = self.files[piece.file]
        own = self._own_columns(piece.file, columns)
        skip, left = piece.start, rows
        for batch in file.batches(piece.unit, own, _STREAM_ROWS):
            drop = min(skip, batch.num_rows)
            skip -= drop
            part = batch.slice(drop) if left is None else batch.slice(drop, left)
            if left is not None:
                left -= part.num_rows
            if part.num_rows:
                yield self._add_keys(pa.Table.from_batches([part]), piece.file, columns)
            if left == 0:
                return

    def _add_keys(
        self, table: pa.Table, index: int, columns: Sequence[str], dictionary: Sequence[str] = ()
    ) -> pa.Table:
        keys, own = self.keys[index], self._own[index]
        wanted = [c for c in columns if c in keys and c not in own] if keys else []
        for name, values in self._key_columns(index, wanted, table.num_rows).items():
            table = table.append_column(name, values)
        return conform(table, self._target(columns, [table], dictionary))

    def _key_columns(self, index: int, names: Sequence[str], rows: int) -> dict[str, pa.Array]:
        keys = self.keys[index]
        types = {n: self.schema.field(n).type for n in names}
        return {n: pa.repeat(pa.scalar(keys[n]).cast(types[n]), rows) for n in names}

    def _target(
        self, columns: Sequence[str], tables: Sequence[pa.Table], dictionary: Sequence[str]
    ) -> pa.Schema:
        """The dataset's types, except where the caller asked for, and got, dictionaries."""
        fields = []
        for name in columns:
            wanted = self.schema.field(name)
            if name in dictionary:
                got = {t.schema.field(name).type for t in tables}
                if len(got) == 1 and pa.types.is_dictionary(first := next(iter(got))):
                    wanted = wanted.with_type(first)
            fields.append(wanted)
        return pa.schema(fields)

    def _empty(self, columns: Sequence[str]) -> pa.Table:
        return pa.schema([self.schema.field(c) for c in columns]).empty_table()

    def refuse_unknown(self, columns: Sequence[str]) -> None:
        """Complain of a column that no file has."""
        known = set(self.schema.names)
        for name in columns:
            if name not in known:
                where = self.names[0] if len(self.names) == 1 else "the dataset"
                raise ColumnNotFoundError(name, self.schema.names, where=where)


def _key_type(values: list[Any]) -> pa.DataType:
    """Integers or text; text if every folder says null."""
    dtype = pa.array(values).type
    return pa.string() if pa.types.is_null(dtype) else dtype
