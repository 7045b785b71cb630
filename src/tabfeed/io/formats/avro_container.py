"""The Avro object container: a header, then blocks that say how many rows and bytes they hold.

Hopping from block to block gives exact row counts without decoding anything. Blocks are
handed on decompressed, in a container of their own without a codec, so that every codec
of the Avro specification can be read whatever the decoder behind knows.

Polars takes a union's branch that is neither of its two for the second. So unions are checked here.
The quick test compares what a block holds with what its decoded values take in their shortest
encoding, in three ways:

1. How many bytes: nothing takes fewer than its shortest encoding. If both take as many, every
   wrong branch is a single byte, as the right one would be.
2. How many are below 128, as the last byte of each number is: a list written in several parts has
   more numbers, and so more of them.
3. How many are 0 or 2, the bytes of branches 0 and 1: each wrong branch makes this one less, and
   where the first two are equal nothing else can make it more.

So equal counts prove every branch right, however a file was forged. Unequal ones prove nothing:
numbers may be padded and lists written in parts. Such blocks are walked value by value (`walk`).
"""

from __future__ import annotations

import bz2
import json
import lzma
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

__all__ = [
    "CODECS",
    "MOST_PLAIN",
    "Block",
    "Cursor",
    "Header",
    "as_stored",
    "count_bytes",
    "count_encoded",
    "decoded_exactly",
    "find_blocks",
    "plain_file",
    "plain_header",
    "read_header",
    "walk",
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
    "deflate": lambda data, most: _all_of(zlib.decompressobj(-15), data, most),
    "snappy": _unsnappy,
    "zstandard": _unzstd,
    "bzip2": lambda data, most: _all_of(bz2.BZ2Decompressor(), data, most),
    "xz": lambda data, most: _all_of(lzma.LZMADecompressor(memlimit=2 * MOST_PLAIN), data, most),
}
"""Each gives at most as many bytes as it is told, and one more where there are more."""


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


# -- unions --------------------------------------------------------------------------------

_Counts = npt.NDArray[np.int64]
_NOTHING: _Counts = np.zeros(3, np.int64)
_AT_ONCE = 2**15  # numbers, so that what is computed of them stays in the processor's cache
_WIDTHS = {"boolean": 1, "float": 4, "double": 8}


def as_stored(wire: Any) -> Any:
    """A column's schema without any meaning: values decode to just what the file holds.

    Examples
    --------
    >>> as_stored(["null", {"type": "int", "logicalType": "date"}])
    ['null', 'long']
    """
    if isinstance(wire, list):
        return [as_stored(w) for w in wire]
    if not isinstance(wire, dict):
        return {"int": "long", "string": "bytes"}.get(wire, wire)
    if wire["type"] == "record":
        return {**wire, "fields": [{**f, "type": as_stored(f["type"])} for f in wire["fields"]]}
    if wire["type"] == "array":
        return {**wire, "items": as_stored(wire["items"])}
    if wire["type"] == "fixed":
        return {k: wire[k] for k in ("type", "name", "size")}
    return as_stored(wire["type"])


def decoded_exactly(wire: Any) -> bool:
    """Whether decoded values tell what the file holds: decimals and times are converted."""
    text = json.dumps(wire)
    return not any(f'"{t}"' in text for t in ("decimal", "time-millis", "time-micros"))


# -- the quick test -----------------------------------------------------------------------


def count_bytes(parts: Iterable[Any]) -> _Counts:
    """How many bytes there are, how many below 128, and how many that are 0 or 2."""
    counts = _NOTHING.copy()
    for part in parts:
        data = np.frombuffer(part, np.uint8)
        for start in range(0, len(data), 8 * _AT_ONCE):
            some = data[start : start + 8 * _AT_ONCE]
            low, others = np.count_nonzero(some < 128), np.count_nonzero(some & 0xFD)
            counts += np.array([len(some), low, len(some) - others])
    return counts


def count_encoded(array: pa.Array, wire: Any) -> _Counts:
    """The same of the shortest encoding of decoded values; `wire` is a schema `as_stored`."""
    if isinstance(wire, list):  # a branch is one byte, below 128, 0 or 2
        value = next(w for w in wire if w != "null")
        return count_encoded(array.drop_null(), value) + len(array)
    kind = wire["type"] if isinstance(wire, dict) else wire
    if kind == "record":
        children = zip(array.flatten(), wire["fields"], strict=True)
        return sum((count_encoded(c, f["type"]) for c, f in children), _NOTHING)
    if kind == "array":
        lengths = pc.list_value_length(array).to_numpy()
        ends = np.count_nonzero(lengths)  # a 0 after the items; an empty list is only that
        return count_encoded(array.flatten(), wire["items"]) + _count_longs(lengths) + ends
    if kind == "boolean":
        return np.array([len(array), len(array), len(array) - array.true_count])
    if kind in ("float", "double"):
        return count_bytes([array.to_numpy()])
    if kind == "long":
        bits = pa.int32() if array.type.bit_width == 32 else pa.int64()
        return _count_longs(array.view(bits).to_numpy())
    offsets = np.frombuffer(array.buffers()[1], np.int64)[array.offset :][: len(array) + 1]
    text = memoryview(array.buffers()[2] or b"")[offsets[0] : offsets[-1]]
    lengths = offsets[:0] if kind == "fixed" else np.diff(offsets)
    return count_bytes([text]) + _count_longs(lengths)


def _count_longs(values: npt.NDArray[Any]) -> _Counts:
    """The same of integers: seven bits a byte, the last one below 128."""
    size = ends = 0
    for start in range(0, len(values), _AT_ONCE):
        some = values[start : start + _AT_ONCE].astype(np.int64)
        zigzag = ((some << 1) ^ (some >> 63)).view(np.uint64)
        largest = int(zigzag.max())
        size += len(zigzag)
        ends += int(np.count_nonzero(zigzag == 0))
        for bits in range(0, 64, 7):  # those of more bytes, and those whose last one is 2
            one = np.uint64(1 << bits)
            if largest < one:
                break
            size += int(np.count_nonzero(zigzag >= one)) if bits else 0
            if bits < 63:
                ends += int(np.count_nonzero(zigzag - 2 * one < one))
    return np.array([size, len(values), ends])


# -- the exact test -----------------------------------------------------------------------


def walk(fields: Sequence[dict[str, Any]], rows: int, data: Any) -> None:
    """Pass over a block's rows one value at a time; the types of `fields` are `as_stored`.

    Raises
    ------
    ValueError, IndexError
        If a union has no such branch, or the rows do not take just these bytes.
    """
    cursor = Cursor(data)
    for _ in range(rows):
        for field in fields:
            try:
                _pass(cursor, field["type"])
            except (ValueError, IndexError) as e:
                raise ValueError(f"column {field['name']!r}: {e}") from e
    if cursor.position != len(data):
        raise ValueError(f"{rows:,} rows do not take the {len(data):,} bytes that hold them")


def _pass(cursor: Cursor, wire: Any) -> None:
    kind = wire["type"] if isinstance(wire, dict) else wire
    if isinstance(kind, list):
        branch = cursor.long()
        if branch not in (0, 1):
            raise ValueError(f"a union of two types has no branch {branch}")
        if kind[branch] != "null":
            _pass(cursor, kind[branch])
    elif kind == "record":
        for field in wire["fields"]:
            _pass(cursor, field["type"])
    elif kind == "array":
        while count := cursor.long():
            if count < 0:  # a negative count is followed by the size in bytes
                cursor.long()
            for _ in range(abs(count)):
                _pass(cursor, wire["items"])
    elif kind == "long":
        cursor.long()
    elif kind == "bytes":
        cursor.skip(cursor.long())
    else:
        cursor.skip(int(wire["size"]) if kind == "fixed" else _WIDTHS[kind])
