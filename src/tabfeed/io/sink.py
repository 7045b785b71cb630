"""Tables in, Parquet files out: row groups of the right size, pages of the right kind."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from types import TracebackType
from typing import Protocol
from urllib.parse import quote

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tabfeed.errors import ArgumentError, SchemaError
from tabfeed.io.commit import Commit
from tabfeed.io.unify import conform
from tabfeed.trace import span

__all__ = ["FileSink", "HiveSink", "PageOptions", "Sink"]

_GROUP_BYTES = 64 * 2**20
_GROUP_ROWS = 1_000_000
_OPEN_FILES = 64
_HIVE_NULL = "__HIVE_DEFAULT_PARTITION__"


@dataclass(frozen=True)
class PageOptions:
    """How pages are written; checked when made."""

    row_group_size: int | None = None
    compression: str | None = "snappy"
    layout: str = "compact"

    def __post_init__(self) -> None:
        if self.layout not in ("compact", "fast"):
            raise ArgumentError(f'layout is {self.layout!r}; it must be "compact" or "fast"')
        if self.row_group_size is not None and self.row_group_size < 1:
            raise ArgumentError(f"row_group_size is {self.row_group_size}; it must be 1 or more")
        codec = self.compression or "none"
        if codec.lower() != "none" and not _is_codec(codec):
            raise ArgumentError(
                f"compression is {self.compression!r}; it must be snappy, zstd, lz4, gzip, brotli "
                "or None"
            )

    def writer(self, sink: pa.NativeFile, schema: pa.Schema) -> pq.ParquetWriter:
        """A Parquet writer set up so."""
        fast = self.layout == "fast"
        try:
            return pq.ParquetWriter(
                sink,
                schema,
                compression="none" if fast else (self.compression or "none"),
                use_dictionary=not fast,
                write_page_checksum=True,
                store_schema=True,
            )
        except pa.ArrowNotImplementedError as e:
            raise SchemaError(f"Parquet cannot hold one of the columns: {e}") from e


def _is_codec(name: str) -> bool:
    known = name.lower() in ("snappy", "zstd", "lz4", "gzip", "brotli")
    return known and pa.Codec.is_available(name.lower())


class Sink(Protocol):
    """Where tables go."""

    rows: int

    def write(self, table: pa.Table) -> None:
        """Add rows."""
        ...

    def __enter__(self) -> Sink: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...


class FileSink:
    """One Parquet file. Rows are held back until a row group is full."""

    def __init__(self, commit: Commit, name: str, schema: pa.Schema, pages: PageOptions) -> None:
        self.rows = 0
        self._commit, self._name, self._schema, self._pages = commit, name, schema, pages
        self._group_rows = pages.row_group_size
        self._held: list[pa.Table] = []
        self._held_rows = 0
        self._stack = ExitStack()

    def __enter__(self) -> FileSink:
        with ExitStack() as stack:
            sink = stack.enter_context(self._commit.create(self._name))
            self._writer = stack.enter_context(self._pages.writer(sink, self._schema))
            self._stack = stack.pop_all()
        return self

    def write(self, table: pa.Table) -> None:
        """Add rows."""
        if not table.num_rows:
            return
        table = conform(table, self._schema)
        if self._group_rows is None:
            width = max(1.0, table.nbytes / table.num_rows)
            self._group_rows = int(min(_GROUP_ROWS, max(1_000, _GROUP_BYTES // width)))
        self._held.append(table)
        self._held_rows += table.num_rows
        while self._held_rows >= self._group_rows:
            self._flush(self._group_rows)

    def _flush(self, rows: int) -> None:
        held = pa.concat_tables(self._held)
        with span("write", rows=rows):
            self._writer.write_table(held.slice(0, rows), row_group_size=rows)
        self.rows += min(rows, held.num_rows)
        self._held = [held.slice(rows)]
        self._held_rows = self._held[0].num_rows

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with self._stack:
            if error is None and self._held_rows:
                self._flush(self._held_rows)
        if error is None:
            self._commit.rows[self._name] = self.rows


class HiveSink:
    """A file for each combination of key values, in folders ``key=value``.

    At most a few dozen files are open at a time; a combination that comes back after its file
    was closed gets another file.
    """

    def __init__(
        self,
        commit: Commit,
        name: str,
        schema: pa.Schema,
        pages: PageOptions,
        keys: Sequence[str],
    ) -> None:
        self.rows = 0
        self._commit, self._pages, self._keys = commit, pages, list(keys)
        self._stem = name.removesuffix(".parquet")
        self._schema = pa.schema([f for f in schema if f.name not in keys])
        self._open: OrderedDict[str, FileSink] = OrderedDict()
        self._opened: dict[str, int] = {}

    def __enter__(self) -> HiveSink:
        return self

    def write(self, table: pa.Table) -> None:
        """Add rows, each to its folder."""
        folders = self._folders(table)
        codes = folders.dictionary_encode().combine_chunks()
        order = np.argsort(codes.indices.to_numpy(), kind="stable")
        ends = np.cumsum(np.bincount(codes.indices.to_numpy(), minlength=len(codes.dictionary)))
        rest = table.drop_columns(self._keys).combine_chunks().take(pa.array(order))
        start = 0
        for folder, end in zip(codes.dictionary.to_pylist(), ends.tolist(), strict=True):
            self._file(folder).write(rest.slice(start, end - start))
            start = end
        self.rows += table.num_rows

    def _folders(self, table: pa.Table) -> pa.ChunkedArray:
        parts = [self._folder_names(table, key) for key in self._keys]
        return pc.binary_join_element_wise(*parts, "/")

    def _folder_names(self, table: pa.Table, key: str) -> pa.ChunkedArray:
        """``key=value`` for each row, special characters escaped; each distinct value once."""
        column = table.column(key)
        if pa.types.is_dictionary(column.type):
            column = column.cast(column.type.value_type)
        codes = column.dictionary_encode(null_encoding="encode").combine_chunks()
        values = codes.dictionary.cast(pa.string()).to_pylist()
        names = [f"{quote(key)}={_HIVE_NULL if v is None else quote(v, safe='')}" for v in values]
        return pa.chunked_array([pa.array(names, pa.string()).take(codes.indices)])

    def _file(self, folder: str) -> FileSink:
        if folder in self._open:
            self._open.move_to_end(folder)
            return self._open[folder]
        if len(self._open) >= _OPEN_FILES:
            _, oldest = self._open.popitem(last=False)
            oldest.__exit__(None, None, None)
        again = self._opened.get(folder, 0)
        self._opened[folder] = again + 1
        name = f"{folder}/{self._stem}{f'_{again}' if again else ''}.parquet"
        sink = FileSink(self._commit, name, self._schema, self._pages).__enter__()
        self._open[folder] = sink
        return sink

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        while self._open:
            _, sink = self._open.popitem()
            sink.__exit__(kind, error, trace)
