"""How Parquet pages are written: the two layouts, and what Parquet cannot hold.

``compact`` is what most files are: dictionaries, compression, checksums. ``fast`` is for files
that a loader reads many times: plain values, uncompressed, in pages as long as their bytes allow,
columns without nulls declared so. Measured on one core, 40 columns of 4 bytes: compact
6 to 8 M rows/s, fast 30 to 35. The checksums of a fast file are written, and verified by
`Dataset.validate`; verifying them at every read would halve the speed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tabfeed.errors import ArgumentError, SchemaError

__all__ = ["FAST", "PageOptions", "explain_refusal", "plain_inside", "refuse_types"]

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

    def writer(self, sink: pa.NativeFile, schema: pa.Schema) -> pq.ParquetWriter:
        """A Parquet writer set up so."""
        options: dict[str, Any] = {"compression": self.compression or "none"}
        if self.fast:
            options = {
                "compression": "none",
                "use_dictionary": False,
                "max_rows_per_page": 2**31 - 1,  # bytes alone end a page
            }
        writer = pq.ParquetWriter(
            sink, schema, write_page_checksum=True, store_schema=True, **options
        )
        if self.fast:
            writer.add_key_value_metadata(FAST)
        return writer


def _is_codec(name: str | None) -> bool:
    if name is None or name.lower() == "none":
        return True
    return name.lower() in _CODECS and pa.Codec.is_available(name.lower())


def _required(field: pa.Field) -> pa.Field:
    """Nested columns keep their levels anyway, so nothing is gained by declaring them."""
    return field if field.type.num_fields or pa.types.is_null(field.type) else _not_null(field)


def _not_null(field: pa.Field) -> pa.Field:
    return field.with_nullable(False)


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
