"""Parquet pages: the two layouts that are written, and how the pages of a file were cut.

``compact`` is what most files are: dictionaries, compression, checksums. ``fast`` is for files
that a loader reads many times: plain values, uncompressed, in pages as long as their bytes allow,
columns without nulls declared so. Measured on one core, 40 columns of 4 bytes: compact
6 to 8 M rows/s, fast 30 to 35. The checksums of a fast file are written, and verified by
`Dataset.validate`; verifying them at every read would halve the speed.

How pages were cut is not in the footer, but in their own headers (`headers`). A header is a small
Thrift struct in front of each page. Only the fields that matter here are kept; the rest is stepped
over.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from tabfeed.errors import ArgumentError, SchemaError
from tabfeed.io.formats.parquet.footer import LIST, STRUCT, behind, number
from tabfeed.io.formats.parquet.layout import chunk_range

__all__ = [
    "DATA",
    "DATA_V2",
    "DICTIONARY",
    "FAST",
    "MOST_BATCH_ROWS",
    "Header",
    "Page",
    "PageOptions",
    "batch_rows",
    "explain_refusal",
    "headers",
    "pages_of",
    "plain_inside",
    "refuse_types",
]

MOST_BATCH_ROWS = 1024  # Arrow's own
_BATCH_BYTES = 2**20
FAST = {"tabfeed.layout": "fast"}  # in the footer, so that a reader knows
_CODECS = ("snappy", "zstd", "lz4", "gzip", "brotli")


@dataclass(frozen=True)
class PageOptions:
    """How pages are written; checked when made. See `Dataset.to_parquet`.

    ``group_bytes`` is about what a row group takes in memory where its rows are not given, and the
    most that waits to be written.
    """

    row_group_size: int | None = None
    compression: str | None = "snappy"
    layout: str = "compact"
    group_bytes: int = 64 * 2**20

    def __post_init__(self) -> None:
        if self.layout not in ("compact", "fast"):
            raise ArgumentError(f'layout is {self.layout!r}; it must be "compact" or "fast"')
        if self.row_group_size is not None and self.row_group_size < 1:
            raise ArgumentError(f"row_group_size is {self.row_group_size}; it must be 1 or more")
        if not _is_codec(self.compression):
            raise ArgumentError(
                f"compression is {self.compression!r}; it must be {', '.join(_CODECS)} or None"
            )

    @property
    def fast(self) -> bool:
        """Whether the files are for reading at the speed of a copy."""
        return self.layout == "fast"

    def declare(self, group: pa.Table) -> pa.Schema:
        """The schema of a file whose first row group this is."""
        if not self.fast:
            return group.schema
        fields = zip(group.schema, group.columns, strict=True)
        return pa.schema([f if c.null_count else _required(f) for f, c in fields])

    def writer(
        self, sink: pa.NativeFile, schema: pa.Schema, batch_rows: int = MOST_BATCH_ROWS
    ) -> pq.ParquetWriter:
        """A Parquet writer set up so, which ends a page after `batch_rows` rows at the earliest."""
        options: dict[str, Any] = {"compression": self.compression or "none"}
        if self.fast:
            options = {
                "compression": "none",
                "use_dictionary": False,
                "max_rows_per_page": 2**31 - 1,  # bytes alone end a page
            }
        writer = pq.ParquetWriter(
            sink,
            schema,
            write_page_checksum=True,
            store_schema=True,
            write_batch_size=batch_rows,
            **options,
        )
        if self.fast:
            writer.add_key_value_metadata(FAST)
        return writer


def batch_rows(group: pa.Table) -> int:
    """After how many rows a writer looks whether a page is full: fewer where text is long.

    Arrow looks after 1024 values, by which time a page of 40 kB texts has 40 MB.

    Examples
    --------
    >>> batch_rows(pa.table({"a": ["x" * 2**17] * 3, "b": [1, 2, 3]}))
    7
    """
    flat = [c for c in group.columns if not pa.types.is_nested(c.type)]
    widest = max((c.nbytes for c in flat), default=0) / max(1, group.num_rows)
    return int(max(1, min(MOST_BATCH_ROWS, _BATCH_BYTES // max(1.0, widest))))


def _is_codec(name: str | None) -> bool:
    if name is None or name.lower() == "none":
        return True
    return name.lower() in _CODECS and pa.Codec.is_available(name.lower())


def _required(field: pa.Field) -> pa.Field:
    """Nested columns keep their levels anyway, so nothing is gained by declaring them."""
    kept = field.type.num_fields or pa.types.is_null(field.type)
    return field if kept else field.with_nullable(False)


def plain_inside(schema: pa.Schema) -> pa.Schema:
    """The schema with dictionaries inside lists and structs as plain values.

    Parquet readers cannot put such a dictionary together again if it comes in several parts.

    Examples
    --------
    >>> plain_inside(pa.schema({"x": pa.list_(pa.dictionary(pa.int32(), pa.string()))}))
    x: list<item: string>
      child 0, item: string
    """
    return pa.schema([f.with_type(_plain_children(f.type)) for f in schema])


def _plain_children(dtype: pa.DataType) -> pa.DataType:
    if not dtype.num_fields or not pa.types.is_nested(dtype):
        return dtype
    fields = [dtype.field(i) for i in range(dtype.num_fields)]
    fields = [f.with_type(_plain_children(_decoded(f.type))) for f in fields]
    if pa.types.is_fixed_size_list(dtype):
        return pa.list_(fields[0], dtype.list_size)
    if pa.types.is_list(dtype):
        return pa.list_(fields[0])
    if pa.types.is_struct(dtype):
        return pa.struct(fields)
    if pa.types.is_map(dtype):
        return pa.map_(*(_plain_children(_decoded(t)) for t in (dtype.key_type, dtype.item_type)))
    return dtype


def _decoded(dtype: pa.DataType) -> pa.DataType:
    return dtype.value_type if pa.types.is_dictionary(dtype) else dtype


def refuse_types(schema: pa.Schema) -> None:
    """Name the first column whose type Parquet cannot hold, before anything is written.

    Examples
    --------
    >>> refuse_types(pa.schema({"x": pa.struct([])}))
    Traceback (most recent call last):
        ...
    tabfeed.errors.SchemaError: column 'x' is struct<>, which Parquet cannot hold; convert it
    """
    for field in schema:
        if not _is_writable(field):
            raise SchemaError(
                f"column {field.name!r} is {field.type}, which Parquet cannot hold; convert it"
            )


def _is_writable(field: pa.Field) -> bool:
    if _has_empty_lists(field.type):
        return False
    try:
        pq.ParquetWriter(pa.BufferOutputStream(), pa.schema([field])).close()
    except (pa.ArrowNotImplementedError, pa.ArrowInvalid):
        return False
    return True


def _has_empty_lists(dtype: pa.DataType) -> bool:
    """Lists of the fixed length 0 can be written, but not read back."""
    if pa.types.is_fixed_size_list(dtype) and dtype.list_size == 0:
        return True
    return any(_has_empty_lists(dtype.field(i).type) for i in range(dtype.num_fields))


def explain_refusal(table: pa.Table, error: Exception) -> SchemaError:
    """Which column of a table Parquet would not take."""
    for name, column in zip(table.column_names, table.columns, strict=True):
        try:
            pq.write_table(pa.table({name: column}), pa.BufferOutputStream())
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as e:
            return SchemaError(
                f"Parquet cannot hold the values of column {name!r} ({column.type}): {e}"
            )
    return SchemaError(f"Parquet cannot hold one of the columns: {error}")


DATA, DICTIONARY, DATA_V2 = 0, 2, 3
# -- how pages were cut --------------------------------------------------------------------

_MOST_BYTES = 8 * 2**20
_INNER = 16


class Header(NamedTuple):
    """One page.

    Attributes
    ----------
    kind
        `DATA`, `DICTIONARY`, or another of Parquet's numbers.
    at
        Where its bytes begin, behind the header.
    stored, bytes
        How many they are, as they lie there and decompressed.
    values
        How many values, or entries of a dictionary.
    encoding
        Of its values, Parquet's number.
    checksum
        CRC-32 of its bytes as they lie there; None if it has none.
    repetition
        Bytes of repetition levels at its start, which a page of version 2 never compresses.
    """

    kind: int
    at: int
    stored: int
    bytes: int
    values: int
    encoding: int
    checksum: int | None
    repetition: int = 0


@dataclass(frozen=True)
class Page:
    """One data page: its values, its bytes before and after compression, and its kind."""

    values: int
    bytes: int
    stored: int
    checksum: bool
    version: int


def headers(data: bytes | memoryview, start: int, end: int) -> Iterator[Header]:
    """The pages of a column chunk that lies in `data`; ValueError where that is none.

    Examples
    --------
    >>> sink = pa.BufferOutputStream()
    >>> pq.write_table(pa.table({"x": [7, 7, 8]}), sink)
    >>> data = sink.getvalue().to_pybytes()
    >>> chunk = pq.ParquetFile(pa.BufferReader(data)).metadata.row_group(0).column(0)
    >>> start = chunk.dictionary_page_offset
    >>> [(h.kind, h.values) for h in headers(data, start, start + chunk.total_compressed_size)]
    [(2, 2), (0, 3)]
    """
    at = start
    while at < end:
        try:
            fields, at = _numbers(data, at)
            kind, stored = fields[1], fields[3]
        except (IndexError, KeyError) as e:
            raise ValueError(f"no page header at byte {at}") from e
        size, values = fields.get(2, 0), fields.get(_INNER + 1, 0)
        if stored < 0 or size < 0 or values < 0:
            raise ValueError(f"a page of {stored} bytes, {size} and {values} values at byte {at}")
        encoding = fields.get(_INNER + (4 if kind == DATA_V2 else 2), 0)
        levels = fields.get(_INNER + 6, 0) if kind == DATA_V2 else 0
        yield Header(kind, at, stored, size, values, encoding, fields.get(4), levels)
        at += stored


def pages_of(file: pa.NativeFile, chunk: pq.ColumnChunkMetaData) -> list[Page]:
    """The data pages of a column chunk; those within its first megabytes if it is long.

    What cannot be understood ends the walk with what was found so far, since this is evidence for
    a person and not the way data are read.

    Examples
    --------
    >>> sink = pa.BufferOutputStream()
    >>> pq.write_table(pa.table({"x": range(1000)}), sink, max_rows_per_page=400,
    ...                use_dictionary=False, write_batch_size=100)
    >>> file = pq.ParquetFile(pa.BufferReader(sink.getvalue()))
    >>> chunk = file.metadata.row_group(0).column(0)
    >>> [p.values for p in pages_of(pa.BufferReader(sink.getvalue()), chunk)]
    [400, 400, 200]
    """
    where = chunk_range(chunk)
    file.seek(where.start)
    data = file.read(min(_MOST_BYTES, where.size))
    pages: list[Page] = []
    try:
        for h in headers(data, 0, len(data)):
            if h.kind in (DATA, DATA_V2):
                version = 1 if h.kind == DATA else 2
                pages.append(Page(h.values, h.bytes, h.stored, h.checksum is not None, version))
    except ValueError:
        pass
    return pages


def _numbers(data: bytes | memoryview, at: int) -> tuple[dict[int, int], int]:
    """The whole numbers of a header and of the one struct in it, and where the header ends.

    By their fields, those of the struct from `_INNER` on. There are hundreds of headers in a row
    group, so this does without a call for each field.
    """
    found: dict[int, int] = {}
    field = outer = 0
    inner = False
    while True:
        byte = data[at]
        at += 1
        if not byte:  # the end of a struct
            if not inner:
                return found, at
            inner, field = False, outer
            continue
        kind = byte & 15
        if byte > 15:
            field += byte >> 4
        else:
            field, at = number(data, at)
        if 4 <= kind <= 6:
            value = data[at]
            at += 1
            if value > 127:
                value, at = number(data, at - 1)
                found[field + _INNER if inner else field] = value
            else:
                found[field + _INNER if inner else field] = (value >> 1) ^ -(value & 1)
        elif kind == STRUCT and not inner:
            inner, outer, field = True, field, 0
        elif kind == LIST:
            raise ValueError("no page header holds a list")
        elif kind > 2:  # up to there it is a truth value, and all is said
            at = behind(data, at, kind, 0)
