"""What pyarrow leaves to do where Parquet becomes Arrow: restoring types, and checking text.

Parquet has fewer types than Arrow; `arrow_schema` restores those that were written.

pyarrow decodes text without checking that it is UTF-8, and readers downstream trust it: Python
raises an error of its own, Polars does what it likes. `check_texts` finds such text first. Most
text is ASCII, which is recognised at some 20 GB/s; Arrow checks the rest at 2 to 3 GB/s, which adds
a half to two thirds to decoding.
"""

from __future__ import annotations

import base64
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from tabfeed.errors import SchemaError
from tabfeed.io.align import cast_table, normalize_type
from tabfeed.io.formats.parquet.footer import Footer
from tabfeed.io.formats.parquet.layout import count_leaves
from tabfeed.schema.dtypes import is_list_type

__all__ = ["arrow_schema", "check_texts"]


class _Known(NamedTuple):
    """The schema of the file opened last: most files of a dataset have the same."""

    parquet: bytes
    written: bytes
    schema: pa.Schema


_known: _Known | None = None


def arrow_schema(footer: Footer) -> pa.Schema:
    """The columns and their types as they were before they were written."""
    global _known
    metadata, parquet = footer.metadata, footer.schema_bytes
    written = (metadata.metadata or {}).get(b"ARROW:schema")
    known = _known
    if known and known.written == written and known.parquet == parquet:
        return known.schema
    schema = _restore_types(metadata.schema.to_arrow_schema(), metadata)
    if written is not None and parquet:  # only together they say all there is to know
        _known = _Known(parquet, written, schema)
    return schema


def _restore_types(schema: pa.Schema, metadata: pq.FileMetaData) -> pa.Schema:
    """The types as they were before they were written.

    Parquet itself keeps dictionaries of text only, has no seconds and one kind of date; the
    writer's own schema, which lies beside, knows what they were.
    """
    encoded = (metadata.metadata or {}).get(b"ARROW:schema")
    if encoded is None:
        return schema.remove_metadata()
    original = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(encoded)))
    if schema.equals(original):
        return schema.remove_metadata()
    fields = []
    for field in schema:
        index = original.get_field_index(field.name)
        known = original.field(index).type if index >= 0 else field.type
        fields.append(field.with_type(known) if _becomes(field, known) else field)
    return pa.schema(fields)


def _becomes(field: pa.Field, dtype: pa.DataType) -> bool:
    """Whether values can be given that type as they are read."""
    if normalize_type(field.type) == normalize_type(dtype) or _holds_dictionary(dtype):
        return False
    if count_leaves(field.type) != count_leaves(dtype):
        return False
    try:
        cast_table(pa.schema([field]).empty_table(), pa.schema([field.with_type(dtype)]))
    except SchemaError:
        return False
    return True


def _holds_dictionary(dtype: pa.DataType) -> bool:
    """Whether a list or struct has a dictionary inside, which values cannot be cast into."""
    inner = [dtype.field(i).type for i in range(dtype.num_fields)]
    return any(pa.types.is_dictionary(t) or _holds_dictionary(t) for t in inner)


def check_texts(rows: pa.Table | pa.RecordBatch) -> None:
    r"""Raise `pyarrow.ArrowInvalid` unless all text of all columns is UTF-8.

    Examples
    --------
    >>> text = pa.Array.from_buffers(pa.string(), 1, pa.array([b"\xff"]).buffers())
    >>> check_texts(pa.table([text], ["x"]))
    Traceback (most recent call last):
        ...
    pyarrow.lib.ArrowInvalid: Invalid UTF8 sequence at string index 0
    """
    for column in rows.columns:
        _check_column(column)


def _check_column(column: pa.ChunkedArray | pa.Array) -> None:
    if _holds_text(column.type):
        for chunk in column.chunks if isinstance(column, pa.ChunkedArray) else [column]:
            _check(chunk)


def _check(array: pa.Array) -> None:
    dtype = array.type
    if isinstance(dtype, pa.BaseExtensionType):
        _check(array.storage)
    elif pa.types.is_dictionary(dtype):
        _check_column(array.dictionary)
    elif pa.types.is_struct(dtype):
        for i in range(dtype.num_fields):
            _check_column(array.field(i))
    elif pa.types.is_map(dtype) or is_list_type(dtype):
        _check_column(array.values)
    elif pa.types.is_string(dtype) or pa.types.is_large_string(dtype):
        _check_flat(array)
    else:
        array.validate(full=True)


def _check_flat(array: pa.Array) -> None:
    """Value by value, unless all are ASCII."""
    _, offsets, data = array.buffers()
    if not len(array) or data is None:
        return
    wide = pa.types.is_large_string(array.type)
    ends = np.frombuffer(offsets, np.int64 if wide else np.int32)
    ends = ends[array.offset : array.offset + len(array) + 1]
    text = np.frombuffer(data, np.uint8)[ends[0] : ends[-1]]
    if not _is_ascii(text):
        array.validate(full=True)


def _is_ascii(text: npt.NDArray[np.uint8]) -> bool:
    whole = len(text) // 8 * 8
    bits = np.bitwise_or.reduce(text[:whole].view(np.uint64), initial=0)
    return not int(bits) & 0x8080808080808080 and bool((text[whole:] < 128).all())


@lru_cache(maxsize=1024)
def _holds_text(dtype: pa.DataType) -> bool:
    if pa.types.is_dictionary(dtype):
        return _holds_text(dtype.value_type)
    if isinstance(dtype, pa.BaseExtensionType):
        return _holds_text(dtype.storage_type)
    kinds = (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view)
    inner = (dtype.field(i).type for i in range(dtype.num_fields))
    return any(kind(dtype) for kind in kinds) or any(_holds_text(t) for t in inner)
