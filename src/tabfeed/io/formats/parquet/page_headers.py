"""How a column's pages were cut: what the footer does not say, read from the pages' own headers.

A header is a small Thrift struct in front of each page. Only the fields that matter here are
kept; the rest is stepped over.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from tabfeed.io.formats.parquet.footer import LIST, STRUCT, behind, number
from tabfeed.io.formats.parquet.layout import chunk_range

__all__ = ["DATA", "DATA_V2", "DICTIONARY", "Header", "Page", "headers", "pages_of"]

DATA, DICTIONARY, DATA_V2 = 0, 2, 3
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
