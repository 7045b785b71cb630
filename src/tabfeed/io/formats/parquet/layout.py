"""What a Parquet schema means in Arrow: types, where columns lie, their size in memory, their text.

Parquet has fewer types than Arrow; `arrow_schema` restores those that were written. A thousand
files usually share one schema, so what follows from the schema is worked out once.

Sizes are estimated from the footer (`Layout`). Numbers have a width. Text and lists do not: the
footer says how many values there are, how long the smallest and the largest is, and how many bytes
the pages hold once decompressed.

pyarrow decodes text without checking that it is UTF-8, and readers downstream trust it: Python
raises an error of its own, Polars does what it likes. `check_texts` finds such text first. Most
text is ASCII, which is recognised at some 20 GB/s; Arrow checks the rest at 2 to 3 GB/s, which adds
a half to two thirds to decoding.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from tabfeed.errors import SchemaError
from tabfeed.io.align import cast_table, normalize_type
from tabfeed.io.formats.parquet.footer import Footer
from tabfeed.io.storage.fetch import Range
from tabfeed.schema.dtypes import is_list_type, leaf_type

__all__ = [
    "STREAM_BUFFER",
    "Layout",
    "arrow_schema",
    "check_texts",
    "chunk_range",
    "count_leaves",
    "known_nulls",
    "layout_of",
]

STREAM_BUFFER = 2**18
_PHYSICAL = {"BOOLEAN": 1, "INT32": 4, "INT64": 8, "INT96": 8, "FLOAT": 4, "DOUBLE": 8}
_UNKNOWN_LENGTH = 16
_PAGES = 2**21  # a page and a dictionary of the usual size, decompressed


@dataclass(frozen=True)
class Layout:
    """Where the columns of a schema lie in a row group, and how wide they are.

    Attributes
    ----------
    leaves
        Which column chunks make up each column.
    widths
        Bytes a row of each column takes, a bit for null included; None where that varies.
    types
        The columns' types.
    value_widths
        Bytes of a value inside the lists of each column, or of the column itself; None of text.
    lists
        The columns that are lists.
    texts
        The leaves of each column that may be text.
    """

    leaves: dict[str, range]
    widths: dict[str, float | None]
    types: dict[str, pa.DataType]
    value_widths: dict[str, int | None]
    lists: frozenset[str]
    texts: dict[str, range]

    def nbytes(
        self,
        group: pq.RowGroupMetaData,
        columns: Sequence[str],
        texts: Mapping[int, int | None],
    ) -> int:
        """Estimate of what these columns of a row group take in memory once decoded.

        `texts` says what the text of a leaf takes, if that can be known.
        """
        varying = [c for c in columns if self.widths[c] is None]
        fixed = sum(self.widths[c] or 0 for c in columns) * int(group.num_rows)
        return max(1, int(fixed) + sum(self._varying(group, c, texts) for c in varying))

    def value_bytes(self, name: str, chunk: pq.ColumnChunkMetaData) -> int | None:
        """Bytes of a value of one of a column's leaves, once decoded; None for text."""
        width = self.value_widths[name]
        return _PHYSICAL.get(chunk.physical_type) if width is None else width

    def held(self, group: pq.RowGroupMetaData, columns: Sequence[str], *, whole: bool) -> list[int]:
        """What each column keeps in memory while it is read, besides its rows.

        Pages and a dictionary, decompressed; and before that the stored bytes, all of them where
        the column is read whole, a buffer of them where it is streamed.
        """
        found = []
        for name in columns:
            total = 0
            for i in self.leaves[name]:
                chunk = group.column(i)
                total += min(int(chunk.total_uncompressed_size), _PAGES)
                total += int(chunk.total_compressed_size) if whole else STREAM_BUFFER
            found.append(total)
        return found

    def ranges(self, groups: Sequence[pq.RowGroupMetaData], columns: Sequence[str]) -> list[Range]:
        """Where the columns of these row groups lie in the file."""
        leaves = [i for c in columns for i in self.leaves[c]]
        return [chunk_range(group.column(i)) for group in groups for i in leaves]

    def _varying(
        self, group: pq.RowGroupMetaData, name: str, texts: Mapping[int, int | None]
    ) -> int:
        """Text and lists: from the number of values, and how long the ones in the footer are."""
        dtype, rows = self.types[name], int(group.num_rows)
        chunks = [group.column(i) for i in self.leaves[name]]
        stored = sum(int(c.total_uncompressed_size) for c in chunks)
        if pa.types.is_dictionary(dtype):  # the file, too, holds indices and values
            return stored + rows * (_fixed_width(dtype.index_type) or 4)
        offsets = (4 * rows if name in self.lists else 0) + rows // 8
        return sum(self._leaf(group, i, name, texts.get(i)) for i in self.leaves[name]) + offsets

    def _leaf(
        self,
        group: pq.RowGroupMetaData,
        leaf: int,
        name: str,
        known: int | None,
    ) -> int:
        chunk = group.column(leaf)
        width = self.value_bytes(name, chunk)
        if width is not None:
            return int(chunk.num_values) * width
        if known is not None:
            return known
        decoded = int(chunk.num_values) * (_text_length(chunk) + 4)
        return max(decoded, int(chunk.total_uncompressed_size))


def chunk_range(chunk: pq.ColumnChunkMetaData) -> Range:
    """Where a column of a row group lies: a dictionary, if there is one, comes first."""
    start = chunk.data_page_offset
    if chunk.has_dictionary_page and 0 < (chunk.dictionary_page_offset or 0) < start:
        start = chunk.dictionary_page_offset
    return Range(start, start + chunk.total_compressed_size)


@lru_cache(maxsize=64)
def layout_of(schema: pa.Schema) -> Layout:
    """The layout of files of this schema.

    Examples
    --------
    >>> layout_of(pa.schema({"x": pa.int32(), "l": pa.list_(pa.int8()), "y": pa.int8()})).leaves
    {'x': range(0, 1), 'l': range(1, 2), 'y': range(2, 3)}
    """
    leaves, start = {}, 0
    for field in schema:
        end = start + count_leaves(field.type)
        leaves[field.name] = range(start, end)
        start = end
    widths = {f.name: _row_width(f) for f in schema}
    types = {f.name: f.type for f in schema}
    value_widths = {name: _fixed_width(leaf_type(t)) for name, t in types.items()}
    lists = frozenset(name for name, t in types.items() if is_list_type(t))
    fixed = {n for n in types if widths[n] is not None or value_widths[n] is not None}
    fixed |= {n for n, t in types.items() if pa.types.is_dictionary(t)}
    texts = {name: found for name, found in leaves.items() if name not in fixed}
    return Layout(leaves, widths, types, value_widths, lists, texts)


def known_nulls(chunk: pq.ColumnChunkMetaData) -> int | None:
    """How many nulls a column of a row group has; None if the footer does not say."""
    facts = chunk.statistics
    if facts is None or not facts.has_null_count or not 0 <= facts.null_count <= chunk.num_values:
        return None
    return int(facts.null_count)


def count_leaves(dtype: pa.DataType) -> int:
    """Each value inside lists and structs is a column of its own in Parquet."""
    if isinstance(dtype, pa.BaseExtensionType):
        return count_leaves(dtype.storage_type)
    inner = [dtype.field(i).type for i in range(dtype.num_fields)]
    return sum(count_leaves(t) for t in inner) if inner else 1


def _row_width(field: pa.Field) -> float | None:
    width = None if pa.types.is_dictionary(field.type) else _fixed_width(field.type)
    return None if width is None else width + field.nullable / 8


def _fixed_width(dtype: pa.DataType) -> int | None:
    """Bytes a value takes, or None where that varies."""
    if pa.types.is_fixed_size_list(dtype):
        inner = _fixed_width(dtype.value_type)
        return None if inner is None else inner * int(dtype.list_size)
    if pa.types.is_boolean(dtype) or pa.types.is_null(dtype):
        return 1
    try:
        return max(1, int(dtype.bit_width) // 8)
    except ValueError:
        return None


def _text_length(chunk: pq.ColumnChunkMetaData) -> int:
    """How long a text value is, judging by the smallest and the largest one."""
    if chunk.physical_type != "BYTE_ARRAY":
        return _UNKNOWN_LENGTH
    statistics = chunk.statistics
    if statistics is None or not statistics.has_min_max:
        return _UNKNOWN_LENGTH
    lengths = [len(v) for v in (statistics.min_raw, statistics.max_raw) if isinstance(v, bytes)]
    return max(lengths, default=_UNKNOWN_LENGTH)


# -- types ---------------------------------------------------------------------------------


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


# -- text ----------------------------------------------------------------------------------


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
