"""How a column's pages were cut: what the footer does not say, read from the pages' own headers.

A header is a small Thrift struct in front of each page. Only the fields that matter here are
kept; the rest is stepped over. What cannot be understood ends the walk with what was found so
far, since this is evidence for a person and not the way data are read.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.parquet as pq

__all__ = ["Page", "pages_of"]

_MOST_BYTES = 8 * 2**20
_DATA, _DATA_V2 = 0, 3
_BOOLEANS, _BYTE, _INTEGERS, _DOUBLE, _BINARY, _STRUCT = (1, 2), 3, (4, 5, 6), 7, 8, 12
_MOST_DEPTH = 16


@dataclass(frozen=True)
class Page:
    """One data page: its values, its bytes before and after compression, and its kind."""

    values: int
    bytes: int
    stored: int
    checksum: bool
    version: int


def pages_of(file: pa.NativeFile, chunk: pq.ColumnChunkMetaData) -> list[Page]:
    """The data pages of a column chunk; those within its first megabytes if it is long.

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
    start = int(chunk.data_page_offset)
    if chunk.has_dictionary_page and chunk.dictionary_page_offset:
        start = min(start, int(chunk.dictionary_page_offset))
    file.seek(start)
    data = file.read(min(_MOST_BYTES, int(chunk.total_compressed_size)))
    pages, at = [], 0
    while at < len(data):
        try:
            fields, at = _struct(data, at, 0)
            at += _int(fields[3])
        except (IndexError, KeyError, ValueError, struct.error, TypeError):
            break
        if fields.get(1) in (_DATA, _DATA_V2):
            pages.append(_page(fields))
    return pages


def _page(fields: dict[int, object]) -> Page:
    version = 1 if fields[1] == _DATA else 2
    inner = fields.get(5 if version == 1 else 8)
    values = inner.get(1, 0) if isinstance(inner, dict) else 0
    return Page(int(values), _int(fields[2]), _int(fields[3]), 4 in fields, version)


def _int(value: object) -> int:
    return value if isinstance(value, int) else 0


def _struct(data: bytes, at: int, depth: int) -> tuple[dict[int, object], int]:
    """Fields by number, and where the struct ends (Thrift's compact form)."""
    if depth > _MOST_DEPTH:
        raise ValueError("too deep")
    fields: dict[int, object] = {}
    number = 0
    while data[at]:
        kind, delta = data[at] & 15, data[at] >> 4
        at += 1
        if delta:
            number += delta
        else:
            raw, at = _varint(data, at)
            number = _zigzag(raw)
        fields[number], at = _value(data, at, kind, depth)
    return fields, at + 1


def _value(data: bytes, at: int, kind: int, depth: int) -> tuple[object, int]:
    if kind in _BOOLEANS:
        return kind == 1, at
    if kind == _BYTE:
        return data[at], at + 1
    if kind in _INTEGERS:
        raw, at = _varint(data, at)
        return _zigzag(raw), at
    if kind == _DOUBLE:
        return struct.unpack_from("<d", data, at)[0], at + 8
    if kind == _BINARY:
        length, at = _varint(data, at)
        return data[at : at + length], at + length
    if kind == _STRUCT:
        return _struct(data, at, depth + 1)
    raise ValueError(f"no page header holds a field of kind {kind}")


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            return value, at
        if shift > 63:
            raise ValueError("a number too long")


def _zigzag(raw: int) -> int:
    return (raw >> 1) ^ -(raw & 1)
