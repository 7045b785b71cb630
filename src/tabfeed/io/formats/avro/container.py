"""The Avro object container: a header, then blocks that say how many rows and bytes they hold.

Hopping from block to block gives exact row counts without decoding anything. Blocks are
handed on decompressed, in a container of their own without a codec, so that every codec
of the Avro specification can be read whatever the decoder behind knows.
"""

from __future__ import annotations

import bz2
import json
import lzma
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

__all__ = [
    "CODECS",
    "MOST_PLAIN",
    "Block",
    "Cursor",
    "Header",
    "find_blocks",
    "plain_file",
    "plain_header",
    "read_header",
]

MOST_PLAIN = 2**27
"""Bytes that compressed blocks may always hold; more only if they are compressed to a hundredth."""

_MAGIC = b"Obj\x01"
_SYNC = 16
_LONGEST_VARINT = 10
_MOST_EMPTY_ROWS = 2**24  # rows of nothing but nulls, which take no bytes


@dataclass(frozen=True)
class Header:
    """What the file says of itself; ``end`` is where the first block starts."""

    schema: Any
    codec: str
    sync: bytes
    end: int


@dataclass(frozen=True)
class Block:
    """Some rows: how many, and where their data lie."""

    rows: int
    start: int
    end: int


class Cursor:
    """Reads Avro's integers and strings from bytes."""

    def __init__(self, data: bytes, position: int = 0) -> None:
        self.data = data
        self.position = position

    def long(self) -> int:
        """A zigzag varint."""
        value = shift = 0
        while True:
            byte = self.data[self.position]
            self.position += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return (value >> 1) ^ -(value & 1)
            if shift >= 7 * _LONGEST_VARINT:
                raise ValueError("a number that does not end")

    def bytes(self) -> bytes:
        """Bytes or text, behind its length."""
        length = self.long()
        start = self.position
        self.skip(length)
        return self.data[start : self.position]

    def skip(self, length: int) -> None:
        """Pass over some bytes."""
        if length < 0 or self.position + length > len(self.data):
            raise IndexError("a value that does not end")
        self.position += length


def read_header(data: bytes) -> Header:
    """Parse the start of a file.

    Raises
    ------
    IndexError
        If `data` ends too soon.
    ValueError
        If this is not an Avro file.
    """
    if not data.startswith(_MAGIC):
        raise ValueError(f"it starts with {data[:4]!r}, not {_MAGIC!r}")
    cursor = Cursor(data, len(_MAGIC))
    meta: dict[str, bytes] = {}
    while count := cursor.long():
        if count < 0:  # a negative count is followed by the size in bytes
            count = -count
            cursor.long()
        for _ in range(count):
            key = cursor.bytes().decode("utf-8")
            meta[key] = cursor.bytes()
    end = cursor.position + _SYNC
    if end > len(data):
        raise IndexError("a header that does not end")
    schema = json.loads(meta.get("avro.schema", b""))
    codec = meta.get("avro.codec", b"null").decode("utf-8")
    return Header(schema, codec, data[cursor.position : end], end)


def find_blocks(
    file: pa.NativeFile, header: Header, size: int, window: int, least: int
) -> Iterator[Block]:
    """Hop over the blocks of a file.

    Parameters
    ----------
    file, header, size
        The file, its header and its length.
    window
        Bytes to read at once: few where seeking is cheap, many where it is not.
    least
        The fewest bytes a row takes.

    Raises
    ------
    ValueError, IndexError
        If the file is cut or something else stands where a block should.
    """
    position, data, first = header.end, b"", 0
    while position < size:
        inside = position - first
        if inside + 2 * _LONGEST_VARINT > len(data) and first + len(data) < size:
            file.seek(position)
            data, first, inside = bytes(file.read(window)), position, 0
        cursor = Cursor(data, inside)
        rows, length = cursor.long(), cursor.long()
        start = first + cursor.position
        if rows < 0 or length < 0 or start + length + _SYNC > size:
            raise ValueError(f"the block at byte {position:,} does not fit into the file")
        room = length if header.codec == "null" else max(MOST_PLAIN, 100 * length)
        if rows * least > room or (not least and rows > _MOST_EMPTY_ROWS):
            raise ValueError(
                f"the block at byte {position:,} cannot hold the {rows:,} rows it announces"
            )
        yield Block(rows, start, start + length)
        position = start + length + _SYNC


# -- codecs -----------------------------------------------------------------------------


# Each gives at most as many bytes as it is told, and one more where there are more.


def _inflate(data: bytes, most: int) -> bytes:
    return _all_of(zlib.decompressobj(-15), data, most)


def _unbzip2(data: bytes, most: int) -> bytes:
    return _all_of(bz2.BZ2Decompressor(), data, most)


def _unxz(data: bytes, most: int) -> bytes:
    return _all_of(lzma.LZMADecompressor(memlimit=2 * MOST_PLAIN), data, most)


def _all_of(unpacker: Any, data: bytes, most: int) -> bytes:
    plain: bytes = unpacker.decompress(data, most + 1)
    if not unpacker.eof and len(plain) <= most:
        raise ValueError("its compressed data are cut short")
    return plain


def _unsnappy(data: bytes, most: int) -> bytes:
    """Snappy, followed by the checksum of what it holds."""
    size = shift = 0
    for byte in data[:5]:
        size |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            break
    if size > most:
        return bytes(most + 1)
    plain: bytes = pa.Codec("snappy").decompress(data[:-4], size, asbytes=True)
    if zlib.crc32(plain) != int.from_bytes(data[-4:], "big"):
        raise ValueError("its checksum is wrong")
    return plain


def _unzstd(data: bytes, most: int) -> bytes:
    with pa.CompressedInputStream(pa.BufferReader(data), "zstd") as stream:
        return bytes(stream.read(most + 1))


CODECS: dict[str, Callable[[Any, int], Any]] = {
    "null": lambda data, most: data,
    "deflate": _inflate,
    "snappy": _unsnappy,
    "zstandard": _unzstd,
    "bzip2": _unbzip2,
    "xz": _unxz,
}


# -- containers for the decoder ---------------------------------------------------------


def _varint(value: int) -> bytes:
    value = (value << 1) ^ (value >> 63)
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


def _string(data: bytes) -> bytes:
    return _varint(len(data)) + data


def plain_header(schema: Any) -> bytes:
    """The header of a container without compression; its sync marker is zeros."""
    text = json.dumps(schema).encode("utf-8")
    meta = _string(b"avro.schema") + _string(text) + _string(b"avro.codec") + _string(b"null")
    return _MAGIC + _varint(2) + meta + _varint(0) + bytes(_SYNC)


def plain_file(header: bytes, rows: int, data: Sequence[bytes]) -> bytes:
    """Such a container with one block, of the data of several."""
    length = sum(map(len, data))
    return b"".join([header, _varint(rows), _varint(length), *data, bytes(_SYNC)])
