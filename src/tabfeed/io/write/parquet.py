"""Write tables as Parquet files, in row groups of the right size and pages of the right kind.

Row groups are cut by rows, and how many is found from the first rows of the stream, so that the
same rows give the same file however they were cut into tables. Only rows that turn
out far wider than the first ones make a group end early.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress
from types import TracebackType
from typing import Protocol
from urllib.parse import quote

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tabfeed.errors import SchemaError
from tabfeed.io.align import cast_table, combine
from tabfeed.io.commit.staged_files import StagedFiles
from tabfeed.io.folder import HIVE_NULL
from tabfeed.io.formats.parquet.pages import (
    MOST_BATCH_ROWS,
    PageOptions,
    batch_rows,
    explain_refusal,
)
from tabfeed.io.shuffle.local import prepare, take_prepared
from tabfeed.trace import span

__all__ = ["FileWriter", "HiveWriter", "TableWriter"]

_GROUP_ROWS = 1_000_000
_SAMPLE_ROWS = 10_000
_OPEN_FILES = 64


class TableWriter(Protocol):
    """Writes tables into one file or several."""

    rows: int

    def write(self, table: pa.Table) -> None:
        """Add rows."""
        ...

    def __enter__(self) -> TableWriter: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...


class FileWriter:
    """One Parquet file. Rows are held back until a row group is full.

    In the fast layout a column that has no null in the first row group is declared to have none,
    which halves the work of reading it. If a null comes later, the file is written again.
    """

    def __init__(
        self, commit: StagedFiles, name: str, schema: pa.Schema, pages: PageOptions
    ) -> None:
        self.rows = 0
        self._commit, self._name, self._schema, self._pages = commit, name, schema, pages
        self._group_rows = pages.row_group_size
        self._held: list[pa.Table] = []
        self._held_rows = self._held_bytes = 0
        self._stack = ExitStack()
        self._writer: pq.ParquetWriter | None = None
        self._declared = schema
        self._batch_rows = MOST_BATCH_ROWS

    def __enter__(self) -> FileWriter:
        self._sink = self._stack.enter_context(self._commit.create(self._name))
        return self

    def write(self, table: pa.Table) -> None:
        """Add rows."""
        if not table.num_rows:
            return
        table = _checked(cast_table(table, self._schema, where=self._name), self._schema)
        self._held.append(table)
        self._held_rows += table.num_rows
        self._held_bytes += table.nbytes
        if self._group_rows is None and self._held_rows >= _SAMPLE_ROWS:
            self._group_rows = self._choose_group_rows()
        with self._commit.writing(self._name):
            while self._group_rows is not None and self._held_rows >= self._group_rows:
                self._flush(self._group_rows)
            given = self._pages.row_group_size is not None
            if self._held_bytes > 2 * self._pages.group_bytes and not given:
                self._flush(self._held_rows)

    def _choose_group_rows(self) -> int:
        sample = combine(pa.concat_tables(self._held).slice(0, _SAMPLE_ROWS))
        width = max(1.0, sample.nbytes / sample.num_rows)
        return int(min(_GROUP_ROWS, max(1_000, self._pages.group_bytes // width)))

    def _flush(self, rows: int) -> None:
        held = pa.concat_tables(self._held)
        group, rest = combine(held.slice(0, rows)), held.slice(rows)
        self._held = [rest] if rest.num_rows else []
        self._held_rows, self._held_bytes = rest.num_rows, rest.nbytes
        del held  # not to be kept while the copy is encoded
        with span("write", rows=rows):
            self._write_group(group)
        self.rows += group.num_rows

    def _write_group(self, group: pa.Table) -> None:
        writer = self._open_for(group)
        group = pa.Table.from_arrays(group.columns, schema=self._declared)
        try:
            writer.write_table(group, row_group_size=max(1, group.num_rows))
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as e:
            raise explain_refusal(group, e) from e

    # -- the writer -----------------------------------------------------------------

    def _open_for(self, group: pa.Table) -> pq.ParquetWriter:
        """The Parquet writer, whose schema allows the nulls of this group."""
        if self._writer is None:
            self._declared = self._pages.declare(group)
            self._batch_rows = batch_rows(group)
            self._writer = self._start()
        elif not self._allows(group):
            self._start_again()
        return self._writer

    def _start(self) -> pq.ParquetWriter:
        writer = self._pages.writer(self._sink, self._declared, self._batch_rows)
        return self._stack.enter_context(writer)

    def _allows(self, group: pa.Table) -> bool:
        pairs = zip(self._declared, group.columns, strict=True)
        return all(field.nullable or not column.null_count for field, column in pairs)

    def _start_again(self) -> None:
        """Write the file anew with a schema that allows nulls."""
        self._stack.close()
        self._declared = self._schema
        with self._commit.again(self._name) as source:
            self._sink = self._stack.enter_context(self._commit.create(self._name))
            self._writer = self._start()
            with pq.ParquetFile(source, pre_buffer=False) as old:
                for i in range(old.num_row_groups):
                    group = cast_table(old.read_row_group(i), self._schema)
                    self._writer.write_table(group, row_group_size=max(1, group.num_rows))

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None:
            try:
                self._finish()
            except BaseException:
                self._abandon()
                raise
        else:
            self._abandon()

    def _finish(self) -> None:
        with self._commit.writing(self._name):
            if self._held_rows:
                self._flush(self._held_rows)
            if self._writer is None:
                self._declared = self._schema
                self._writer = self._start()
            self._stack.close()
        self._commit.rows[self._name] = self.rows

    def _abandon(self) -> None:
        """Close what is open; the error that led here is reported instead."""
        with suppress(OSError, pa.ArrowException):
            self._stack.close()


def _checked(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """Refuse nulls where there may be none; take nulls out of dictionaries."""
    for i, field in enumerate(schema):
        column = table.column(i)
        if not field.nullable and column.null_count:
            raise SchemaError(
                f"column {field.name!r} is declared not null and has {column.null_count:,} nulls; "
                "fill them, or declare it nullable in the schema"
            )
        # Parquet knows no null among the values of a dictionary.
        dictionary = pa.types.is_dictionary(field.type)
        if dictionary and any(chunk.dictionary.null_count for chunk in column.chunks):
            plain = pa.table({field.name: column.cast(field.type.value_type)})
            table = table.set_column(i, field, cast_table(plain, pa.schema([field])).column(0))
    return table


class HiveWriter:
    """A file for each combination of key values, in folders ``key=value``.

    Rows wait in memory, sorted by folder, until there are enough of them; then the largest folders
    are written. At most a few dozen files are open at a time; a combination that comes back after
    its file was closed gets another file.
    """

    def __init__(
        self,
        commit: StagedFiles,
        name: str,
        schema: pa.Schema,
        pages: PageOptions,
        keys: Sequence[str],
    ) -> None:
        self.rows = 0
        self._commit, self._pages, self._keys = commit, pages, list(keys)
        self._stem = name.removesuffix(".parquet")
        self._full = schema
        self._schema = pa.schema([f for f in schema if f.name not in keys])
        self._waiting: dict[str, list[pa.Table]] = {}
        self._bytes: dict[str, int] = {}
        self._open: OrderedDict[str, FileWriter] = OrderedDict()
        self._opened: dict[str, int] = {}

    def __enter__(self) -> HiveWriter:
        return self

    def write(self, table: pa.Table) -> None:
        """Add rows, each to its folder."""
        if not table.num_rows:
            return
        table = cast_table(table, self._full, where=self._stem)
        for folder, rows in self._split(table):
            self._waiting.setdefault(folder, []).append(rows)
            self._bytes[folder] = self._bytes.get(folder, 0) + rows.nbytes
        self.rows += table.num_rows
        total = sum(self._bytes.values())
        while total > self._pages.group_bytes:
            largest = max(self._bytes, key=lambda folder: self._bytes[folder])
            total -= self._bytes[largest]
            self._write_out(largest)

    def _split(self, table: pa.Table) -> Iterator[tuple[str, pa.Table]]:
        """The rows of each folder, as tables of their own."""
        codes = self._folders(table).dictionary_encode().combine_chunks()
        numbers = codes.indices.to_numpy()
        order = np.argsort(numbers, kind="stable")
        ends = np.cumsum(np.bincount(numbers, minlength=len(codes.dictionary))).tolist()
        rest = prepare(table.drop_columns(self._keys))
        start = 0
        for folder, end in zip(codes.dictionary.to_pylist(), ends, strict=True):
            yield folder, take_prepared(rest, order[start:end], self._schema)
            start = end

    def _folders(self, table: pa.Table) -> pa.ChunkedArray:
        parts = [_folder_names(table.column(key), key) for key in self._keys]
        return pc.binary_join_element_wise(*parts, "/")

    def _write_out(self, folder: str) -> None:
        self._bytes.pop(folder)
        self._file(folder).write(pa.concat_tables(self._waiting.pop(folder)))

    def _file(self, folder: str) -> FileWriter:
        if folder in self._open:
            self._open.move_to_end(folder)
            return self._open[folder]
        if len(self._open) >= _OPEN_FILES:
            _, oldest = self._open.popitem(last=False)
            oldest.__exit__(None, None, None)
        again = self._opened.get(folder, 0)
        self._opened[folder] = again + 1
        name = f"{folder}/{self._stem}{f'-{again}' if again else ''}.parquet"
        writer = FileWriter(self._commit, name, self._schema, self._pages).__enter__()
        self._open[folder] = writer
        return writer

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with ExitStack() as stack:
            stack.callback(self._abandon)
            if error is None:
                for folder in sorted(self._waiting, key=lambda f: f not in self._open):
                    self._write_out(folder)
                while self._open:
                    _, writer = self._open.popitem()
                    writer.__exit__(None, None, None)

    def _abandon(self) -> None:
        while self._open:
            _, writer = self._open.popitem()
            writer._abandon()


def _folder_names(column: pa.ChunkedArray, key: str) -> pa.ChunkedArray:
    """``key=value`` for each row, special characters escaped; each distinct value once."""
    column = column.cast(_key_type(column.type))
    codes = column.dictionary_encode(null_encoding="encode").combine_chunks()
    values = _key_texts(codes.dictionary, key)
    names = [f"{quote(key, safe='')}={_folder_value(v)}" for v in values]
    return pa.chunked_array([pa.array(names, pa.string()).take(codes.indices)])


def _key_type(dtype: pa.DataType) -> pa.DataType:
    """A type of the same values that has all the kernels, and whose text is exact."""
    if pa.types.is_dictionary(dtype):
        return _key_type(dtype.value_type)
    if pa.types.is_decimal(dtype) and dtype.bit_width < 128:
        return pa.decimal128(dtype.precision, dtype.scale)
    if pa.types.is_timestamp(dtype) and dtype.tz is not None:
        return pa.timestamp(dtype.unit, "UTC")
    return dtype


def _key_texts(values: pa.Array, key: str) -> list[str | None]:
    """Key values as text that reads back as the same values."""
    try:
        texts = values.cast(pa.string())
        if texts.cast(values.type).cast(pa.string()).equals(texts):
            return list(texts.to_pylist())
        reason = "they change when they are read back"
    except pa.ArrowInvalid as e:
        reason = str(e)
    raise SchemaError(f"partition_on: the values of {key!r} cannot be names of folders: {reason}")


def _folder_value(text: str | None) -> str:
    if text is None:
        return HIVE_NULL
    escaped = quote(text, safe="")
    return escaped.replace("_", "%5F", 1) if escaped == HIVE_NULL else escaped
