"""Blocks of records: cut out of a file, verified, and walked when a column is needed.

`walk` reads blocks of records laid out as every writer lays them out. Records laid out otherwise
but legally (a list in several pieces, a feature given twice, unpacked numbers) are read here one at
a time, in plain Python (`parse_example`), with the meaning protocol buffers give them: a later
piece of a list is added to it, a later list of another type or a later feature of the same name
replaces it.

Fields that an Example does not have are refused rather than ignored: a record that has them is
something else.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from tabfeed.io.formats.tfrecord.crc32c import PAD, crc32c, masked
from tabfeed.io.formats.tfrecord.frames import FOOTER, HEADER, place, whole_frames
from tabfeed.io.formats.tfrecord.walk import PAD_AFTER, Bytes, Ints, Walk
from tabfeed.io.storage.file_ref import FileRef, bad_file

__all__ = [
    "BYTES",
    "FLOATS",
    "INTS",
    "KINDS",
    "Feature",
    "NotAnExampleError",
    "Records",
    "parse_example",
    "records_of",
]

BYTES, FLOATS, INTS = 1, 2, 3
KINDS = {BYTES: "bytes", FLOATS: "float", INTS: "int64"}

Feature = tuple[int, list[Any]]
"""The kind of a feature and its values. Kind 0: its name is there, but nothing else."""

_VARINT, _DELIMITED, _FIXED32 = 0, 2, 5
_Known = dict[int, tuple[int, ...]]  # the fields of a message, and how each may be encoded
_ENTRY: _Known = {1: (_DELIMITED,)}
_NAME_AND_VALUE: _Known = {1: (_DELIMITED,), 2: (_DELIMITED,)}
_ONE_OF: _Known = {BYTES: (_DELIMITED,), FLOATS: (_DELIMITED,), INTS: (_DELIMITED,)}


class NotAnExampleError(ValueError):
    """A record is no Example; the message goes on after "the record"."""


def parse_example(data: bytes) -> dict[str, Feature]:
    r"""The features of a record.

    Examples
    --------
    >>> parse_example(b"\n\x0c\n\n\n\x01a\x12\x05\x1a\x03\n\x01*")
    {'a': (3, [42])}
    >>> parse_example(b"Hello")
    Traceback (most recent call last):
        ...
    tabfeed.io.formats.tfrecord.records.NotAnExampleError: is not an Example: it has a field 9
    """
    features: dict[str, Feature] = {}
    for field, value in _fields(data, _NAME_AND_VALUE):
        if field == 2:
            raise NotAnExampleError("is a SequenceExample; tabfeed reads Examples")
        for _, entry in _fields(value, _ENTRY):
            name, feature = _named(entry)
            features[name] = feature
    return features


def _named(data: bytes) -> tuple[str, Feature]:
    name, message = b"", b""
    for field, value in _fields(data, _NAME_AND_VALUE):
        if field == 1:
            name = value
        else:
            message += value  # parts of a message add up when they are joined
    try:
        return name.decode("utf-8"), _feature(message)
    except UnicodeDecodeError:
        raise NotAnExampleError(
            f"is not an Example: the name {name!r} of a feature is not UTF-8"
        ) from None


def _feature(data: bytes) -> Feature:
    kind, content = 0, b""
    for field, value in _fields(data, _ONE_OF):
        content = content + value if field == kind else value
        kind = field
    if kind == BYTES:
        return kind, [value for _, value in _fields(content, _ENTRY)]
    if kind == FLOATS:
        return kind, list(_floats(content))
    return kind, list(_ints(content))


def _floats(data: bytes) -> Iterator[float]:
    for _, packed in _fields(data, {1: (_DELIMITED, _FIXED32)}):
        if len(packed) % 4:
            raise NotAnExampleError(f"is not an Example: {len(packed)} bytes are no list of floats")
        yield from struct.unpack(f"<{len(packed) // 4}f", packed)


def _ints(data: bytes) -> Iterator[int]:
    for _, value in _fields(data, {1: (_DELIMITED, _VARINT)}):
        position = 0
        while position < len(value):
            number, position = _varint(value, position)
            yield number - 2**64 if number >= 2**63 else number


# -- the wire ---------------------------------------------------------------------------


def _fields(data: bytes, known: _Known) -> Iterator[tuple[int, bytes]]:
    """The fields of a message: numbers and the bytes of their values, a varint's still encoded."""
    position = 0
    while position < len(data):
        tag, position = _varint(data, position)
        field, wire = tag >> 3, tag & 7
        if wire not in known.get(field, ()):
            raise NotAnExampleError(f"is not an Example: it has a field {field}")
        end = position + 4
        if wire == _VARINT:
            _, end = _varint(data, position)
        elif wire == _DELIMITED:
            length, position = _varint(data, position)
            end = position + length
        if end > len(data):
            raise NotAnExampleError("is not an Example: a value ends beyond what holds it")
        yield field, data[position:end]
        position = end


def _varint(data: bytes, position: int) -> tuple[int, int]:
    """A number, and where it ends."""
    value = shift = 0
    while True:
        if position >= len(data) or shift > 63:
            raise NotAnExampleError("is not an Example: a number in it does not end")
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return value & (2**64 - 1), position


# What the caches hold, and enough records that a step of the walk is more than its overhead.
_BLOCK_BYTES = 2**22
_BLOCK_RECORDS = 2**14


@dataclass(frozen=True)
class Records:
    """Some records of a file, their checksums verified.

    ``starts`` and ``ends`` are places in ``data``; ``offset`` is what to add to a place for that
    in the file.
    """

    ref: FileRef
    data: Bytes
    starts: Ints
    ends: Ints
    offset: int

    def __len__(self) -> int:
        return len(self.starts)

    @property
    def nbytes(self) -> int:
        """Bytes in the file."""
        return int((self.ends - self.starts).sum()) + len(self) * (HEADER + FOOTER)

    @cached_property
    def walk(self) -> Walk:
        """Where the features lie."""
        return Walk(self.data, self.starts, self.ends)

    @cached_property
    def odd(self) -> dict[int, dict[str, Feature]]:
        """The records that have been read one by one."""
        return {int(row): self.parse(int(row)) for row in np.flatnonzero(self.walk.odd)}

    def parse(self, row: int) -> dict[str, Feature]:
        """Read one record."""
        try:
            return parse_example(self.data[self.starts[row] : self.ends[row]].tobytes())
        except NotAnExampleError as e:
            raise bad_file(self.ref, f"cannot be read: {self.where(row)} {e}") from e

    def where(self, row: int) -> str:
        """A record's name in errors."""
        at = self.offset + int(self.starts[row]) - HEADER
        return f"the record at {place(self.ref, at)}"


def records_of(ref: FileRef, data: bytes, offset: int) -> Iterator[Records]:
    """Whole frames as blocks that the caches hold; `offset` is where they start in the file."""
    bounds = whole_frames(ref, data, offset)
    first, count = 0, len(bounds) - 1
    while first < count:
        fit = int(np.searchsorted(bounds, bounds[first] + _BLOCK_BYTES, side="right")) - 1
        last = min(max(fit, first + 1), first + _BLOCK_RECORDS)
        low, high = int(bounds[first]), int(bounds[last])
        block = np.zeros(PAD + high - low + PAD_AFTER, np.uint8)
        block[PAD : PAD + high - low] = np.frombuffer(data, np.uint8, high - low, low)
        shift = PAD - low
        starts = bounds[first:last] + shift + HEADER
        ends = bounds[first + 1 : last + 1] + shift - FOOTER
        records = Records(ref, block, starts, ends, offset - shift)
        _verify(records)
        yield records
        first = last


def _verify(records: Records) -> None:
    stored = np.ndarray((len(records.data) - 3,), "<u4", records.data, strides=(1,))[records.ends]
    wrong = masked(crc32c(records.data, records.starts, records.ends)) != stored
    if wrong.any():
        raise bad_file(
            records.ref,
            f"is damaged: the checksum of {records.where(int(wrong.argmax()))} does not match",
        )
