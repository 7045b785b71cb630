"""How large a row group will be in memory, estimated from its footer.

Numbers have a width. Text and lists do not: the footer says how many values there are, how
long the smallest and the largest is, and how many bytes the pages hold once decompressed.
A thousand files usually share one schema, so what follows from the schema is worked out once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import pyarrow as pa
import pyarrow.parquet as pq

from tabfeed.io.storage.fetch import Range
from tabfeed.schema.dtypes import is_list_type, leaf_type

__all__ = ["STREAM_BUFFER", "Layout", "chunk_range", "count_leaves", "known_nulls", "layout_of"]

TextBytes = Callable[[int], "int | None"]  # of a leaf; None if it is not known
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
    """

    leaves: dict[str, range]
    widths: dict[str, float | None]
    types: dict[str, pa.DataType]
    value_widths: dict[str, int | None]
    lists: frozenset[str]

    def nbytes(
        self,
        group: pq.RowGroupMetaData,
        columns: Sequence[str],
        text: TextBytes | None = None,
    ) -> int:
        """Estimate of what these columns of a row group take in memory once decoded.

        `text` says what the text of a leaf takes, if that can be known.
        """
        varying = [c for c in columns if self.widths[c] is None]
        fixed = sum(self.widths[c] or 0 for c in columns) * int(group.num_rows)
        return max(1, int(fixed) + sum(self._varying(group, c, text) for c in varying))

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

    def _varying(self, group: pq.RowGroupMetaData, name: str, text: TextBytes | None) -> int:
        """Text and lists: from the number of values, and how long the ones in the footer are."""
        dtype, rows = self.types[name], int(group.num_rows)
        chunks = [group.column(i) for i in self.leaves[name]]
        stored = sum(int(c.total_uncompressed_size) for c in chunks)
        if pa.types.is_dictionary(dtype):  # the file, too, holds indices and values
            return stored + rows * (_fixed_width(dtype.index_type) or 4)
        offsets = (4 * rows if name in self.lists else 0) + rows // 8
        return sum(self._leaf(group, i, name, text) for i in self.leaves[name]) + offsets

    def _leaf(
        self,
        group: pq.RowGroupMetaData,
        leaf: int,
        name: str,
        text: TextBytes | None,
    ) -> int:
        chunk = group.column(leaf)
        width = self.value_bytes(name, chunk)
        if width is not None:
            return int(chunk.num_values) * width
        known = None if text is None else text(leaf)
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
    return Layout(leaves, widths, types, value_widths, lists)


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
