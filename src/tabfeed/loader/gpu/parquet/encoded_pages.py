"""Row groups in their files: which bytes are needed, and which pages they contain.

A GPU can decode pages of numbers without nulls as nearly every writer makes them: plain values or
dictionary codes, snappy or uncompressed. Everything else raises `UnsupportedError`, and is read in
another way.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple
from zlib import crc32

import numpy as np
import numpy.typing as npt
import pyarrow.parquet as pq

from tabfeed.io.formats.parquet.file import ParquetFile
from tabfeed.io.formats.parquet.layout import chunk_range, known_nulls
from tabfeed.io.formats.parquet.pages import DATA, DICTIONARY, headers
from tabfeed.io.storage.fetch import Range

__all__ = [
    "NO_KIND",
    "ROWS",
    "Extent",
    "Kind",
    "Pages",
    "Search",
    "UnsupportedError",
    "Wanted",
    "extent_of",
    "find_in_staging",
    "find_pages",
    "may_have_nulls",
]

Array = npt.NDArray[Any]
_ALIGN = 16
NO_KIND = -1
_STORED = {"INT32": 4, "FLOAT": 4, "INT64": 8, "DOUBLE": 8}
_CODECS = {"SNAPPY": True, "UNCOMPRESSED": False}
_ENCODINGS = {"PLAIN", "RLE", "BIT_PACKED", "RLE_DICTIONARY", "PLAIN_DICTIONARY"}
_PLAIN, _CODED = (0,), (2, 8)
_MOST = 2**31  # bytes of a row group: what an int32 numbers


class UnsupportedError(Exception):
    """Something that the GPU cannot decode; says what."""


class _Chunk(NamedTuple):
    """A column.

    Attributes
    ----------
    start, end
        Its range among the bytes read.
    levels
        Whether its pages have levels.
    stored, width
        Bytes of a value, in pages and in device buffers.
    kind
        The number of its kind.
    """

    start: int
    end: int
    levels: bool
    stored: int
    width: int
    kind: int


@dataclass(frozen=True)
class Extent:
    """The bytes of some columns of a row group.

    Attributes
    ----------
    runs
        Their ranges in the file, to be read one behind the other.
    chunks
        Each column's part of the bytes read.
    compressed
        Whether pages are compressed.
    encoded, decompressed
        How many bytes there are, and about how many once decompressed.
    """

    runs: tuple[Range, ...]
    chunks: tuple[_Chunk, ...]
    compressed: bool
    encoded: int
    decompressed: int


class Pages(NamedTuple):
    """The pages of a row group, those of one column after the other.

    Attributes
    ----------
    table
        ``(len(ROWS), pages)``, int32, with offsets in place of addresses.
    column
        The number of each page's column.
    coded
        1 if its values are dictionary codes.
    room
        Bytes of all pages once decompressed.
    """

    table: Array
    column: Array
    coded: Array
    room: int


# A page's position among the bytes read, and its size; its position and size once decompressed; how
# many values it has, whether levels precede them (which carry nothing if there are no nulls), and
# the position of the first among the column's bytes; the position of its dictionary, and how many
# entries that has, 0 if values are plain; its kind, `NO_KIND` if it is a dictionary itself; and for
# nvCOMP to fill in, its actual size, and whether decompressing failed.
ROWS = (
    "at", "stored", "to", "bytes", "values", "levels", "first", "words", "entries", "kind",
    "became", "wrong",
)  # fmt: skip


class Kind(NamedTuple):
    """How a value is read: its bytes in a page, and in a device buffer."""

    stored: int
    width: int


class Wanted(NamedTuple):
    """A column to read: its name, its kind, and the number of its kind."""

    name: str
    kind: Kind
    number: int


def extent_of(file: ParquetFile, unit: int, columns: Sequence[Wanted]) -> Extent:
    """The bytes of some columns of a row group; `UnsupportedError` if the GPU can't decode them."""
    found = file.chunks_in(unit, [column.name for column in columns])
    codecs = {chunk.compression for chunk, _ in found}
    if len(codecs) != 1 or not codecs <= _CODECS.keys():
        raise UnsupportedError(f"pages are compressed with {', '.join(sorted(codecs))}")
    for (chunk, _), (name, kind, _) in zip(found, columns, strict=True):
        if _STORED.get(chunk.physical_type) != kind.stored:
            raise UnsupportedError(f"column {name!r} is stored as {chunk.physical_type}")
        if not set(chunk.encodings) <= _ENCODINGS:
            raise UnsupportedError(f"column {name!r} is encoded as {', '.join(chunk.encodings)}")
    if any(may_have_nulls(chunk, levels) for chunk, levels in found):
        raise UnsupportedError("there are nulls, or the footer does not rule them out")
    ranges = [chunk_range(chunk) for chunk, _ in found]
    runs, starts = _end_to_end(ranges)
    chunks = tuple(
        _Chunk(start, start + r.size, levels, *kind, number)
        for start, r, (_, levels), (_, kind, number) in zip(
            starts, ranges, found, columns, strict=True
        )
    )
    compressed = _CODECS[codecs.pop()]
    decompressed = sum(chunk.total_uncompressed_size for chunk, _ in found) if compressed else 0
    return Extent(runs, chunks, compressed, sum(run.size for run in runs), decompressed)


def may_have_nulls(chunk: pq.ColumnChunkMetaData, levels: bool) -> bool:
    """Whether a column of a row group has nulls, or its footer does not rule them out."""
    return levels and known_nulls(chunk) != 0


def _end_to_end(ranges: Sequence[Range]) -> tuple[tuple[Range, ...], list[int]]:
    """Ranges as runs without gaps, and where each begins if runs are read one behind the other.

    Examples
    --------
    >>> runs, starts = _end_to_end([Range(30, 40), Range(4, 10), Range(10, 20)])
    >>> [tuple(run) for run in runs], starts
    ([(4, 20), (30, 40)], [16, 0, 6])
    """
    runs: list[Range] = []
    starts = [0] * len(ranges)
    read = 0
    for number in sorted(range(len(ranges)), key=ranges.__getitem__):
        start, stop = ranges[number]
        starts[number] = read
        read += stop - start
        if runs and runs[-1].stop == start:
            runs[-1] = Range(runs[-1].start, stop)
        else:
            runs.append(ranges[number])
    return tuple(runs), starts


def find_pages(data: memoryview, extent: Extent, rows: int) -> Pages:
    """The pages in the bytes of an extent.

    `UnsupportedError` if they are not as the footer promises.
    """
    found: list[tuple[int, ...]] = []
    room = 0
    for number, chunk in enumerate(extent.chunks):
        done = words = entries = 0
        for page in _headers(data, chunk, extent.compressed):
            to = room if extent.compressed else page.at
            here = (page.at, page.stored, to, page.bytes, page.values)
            coded = page.encoding in _CODED
            if page.kind == DATA:
                if coded and not entries:
                    raise UnsupportedError("a page has no dictionary")
                dictionary = (words, entries) if coded else (0, 0)
                first = done * chunk.width
                rest = (chunk.levels, first, *dictionary, chunk.kind, 0, 0, number, coded)
                found.append((*here, *rest))
                done += page.values
            elif page.values * chunk.stored > page.bytes:
                raise UnsupportedError("a dictionary is too short")
            else:
                words, entries = to, page.values
                found.append((*here, 0, 0, 0, 0, NO_KIND, 0, 0, number, 0))
            room += _aligned(page.bytes)
        if done != rows:
            raise UnsupportedError(f"a column has {done} values where {rows} were expected")
    if not found or max(room, extent.encoded) >= _MOST:
        raise UnsupportedError("there are no pages, or more than 2 GB of them")
    whole = np.array(found, np.int32).reshape(-1, len(ROWS) + 2).T
    table = np.ascontiguousarray(whole[: len(ROWS)])
    return Pages(table, whole[-2], whole[-1], room if extent.compressed else 0)


class Search(NamedTuple):
    """A row group in a staging buffer: its first byte there, its extent, and its rows."""

    at: int
    extent: Extent
    rows: int


def find_in_staging(staging_buffer: Array, search: Search) -> Pages:
    """The pages of a row group whose bytes are in a staging buffer; runs in any process."""
    at, extent, rows = search
    return find_pages(staging_buffer[at : at + extent.encoded].data, extent, rows)


def _aligned(size: int) -> int:
    return -(-size // _ALIGN) * _ALIGN


def _headers(data: memoryview, chunk: _Chunk, compressed: bool) -> list[Any]:
    """The pages of a column; `UnsupportedError` if the GPU can't decode one."""
    try:
        found = list(headers(data, chunk.start, chunk.end))
    except ValueError as e:
        raise UnsupportedError(str(e)) from e
    for page in found:
        supported = _PLAIN + _CODED if page.kind == DATA else (0, 2)
        if page.kind not in (DATA, DICTIONARY) or page.encoding not in supported:
            raise UnsupportedError(f"a page of kind {page.kind} has encoding {page.encoding}")
        if page.at + page.stored > chunk.end:
            raise UnsupportedError("a page is longer than its column")
        if not compressed and page.bytes != page.stored:
            raise UnsupportedError("the size of a page is not the one in its header")
        if page.checksum is not None and page.checksum % 2**32 != crc32(
            data[page.at : page.at + page.stored]
        ):
            raise UnsupportedError("the checksum of a page does not match")
    return found
