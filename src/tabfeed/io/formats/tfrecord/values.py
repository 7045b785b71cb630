"""The values of features: of one feature in many records at once, or of one record.

Bytes and packed floats are copied out by Arrow: an array over the block whose every other
element is a value and the rest what lies between is built from offsets alone, and Arrow takes the
values out of it. Varints are decoded eight bytes at a time: the bits that carry the number are
squeezed together in three steps, for all numbers at once.

Records laid out otherwise than every writer lays them out, but legally (a list in several pieces, a
feature given twice, unpacked numbers), are read one at a time, in plain Python (`parse_example`),
with the meaning protocol buffers give them: a later piece of a list is added to it, a later list of
another type or a later feature of the same name replaces it. Fields that an Example does not have
are refused rather than ignored: a record that has them is something else.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from tabfeed.io.formats.tfrecord.walk import (
    PAD_AFTER,
    Bytes,
    Flags,
    Ints,
    Spans,
    Words,
    sizes,
    sliding,
)

__all__ = [
    "BYTES",
    "FLOATS",
    "INTS",
    "KINDS",
    "WIRE_TYPES",
    "Feature",
    "NotAnExampleError",
    "Values",
    "lists_of",
    "parse_example",
    "scalars_of",
]

BYTES, FLOATS, INTS = 1, 2, 3
KINDS = {BYTES: "bytes", FLOATS: "float", INTS: "int64"}

Feature = tuple[int, list[Any]]
"""The kind of a feature and its values. Kind 0: its name is there, but nothing else."""

WIRE_TYPES = {BYTES: pa.binary(), FLOATS: pa.float32(), INTS: pa.int64()}

_FEW = 16
_U = np.uint64
_TOP_BITS = _U(0x8080808080808080)
# By the length of a number, up to 9 for what does not fit a word: the bytes it takes of the word,
# and the top bits that say that it goes on.
_KEPT = np.array([2 ** (8 * min(n, 8)) - 1 for n in range(10)], _U)
_CONTINUED = np.array([2 ** (8 * max(0, n - 1)) - 1 for n in range(10)], _U) & _TOP_BITS


@dataclass(frozen=True)
class Values:
    """An array for some records, and which could not be read.

    Attributes
    ----------
    array
        A value or a list for each record that ``fine`` says, in order.
    fine
        Whether each record could be read; the others are left to `parse_example`.
    """

    array: pa.Array
    fine: Flags


def scalars_of(kind: int, data: Bytes, spans: Spans) -> Values:
    """The one value of each list; lists that do not have exactly one are not fine."""
    if kind == INTS:
        numbers, fine = varints(data, spans.starts, spans.ends)
        return Values(pa.array(numbers if fine.all() else numbers[fine]), fine)
    if kind == FLOATS:
        fine = (spans.ends - spans.starts == 4) & spans.single
        starts = spans.starts if fine.all() else spans.starts[fine]
        floats = np.ndarray((len(data) - 3,), "<f4", data, strides=(1,))
        return Values(pa.array(floats[starts]), fine)
    fine = spans.single & (spans.lists < spans.ends)
    chosen = spans if fine.all() else spans.where(fine)
    return Values(slices(data, chosen.starts, chosen.ends), fine)


def lists_of(kind: int, data: Bytes, spans: Spans) -> Values:
    """The list of each record."""
    if kind == BYTES:
        return _lists_of_bytes(data, spans)
    packed = slices(data, spans.starts, spans.ends)
    offsets = np.frombuffer(packed.buffers()[1], np.int32)[: len(packed) + 1].astype(np.int64)
    if kind == FLOATS:
        return _lists_of_floats(packed, offsets)
    return _lists_of_ints(packed, offsets)


def slices(data: Bytes, starts: Ints, ends: Ints) -> pa.BinaryArray:
    """The bytes from each start to its end; ascending, without overlap."""
    offsets = np.empty(2 * len(starts) + 1, np.int32)
    offsets[0:-1:2] = starts
    offsets[1::2] = ends
    offsets[-1] = offsets[-2] if len(starts) else 0
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(data)]
    everything = pa.BinaryArray.from_buffers(pa.binary(), len(offsets) - 1, buffers)
    return everything.take(pa.array(np.arange(0, 2 * len(starts), 2, dtype=np.int32)))


# -- numbers ----------------------------------------------------------------------------


def _lists_of_floats(packed: pa.BinaryArray, offsets: Ints) -> Values:
    fine = np.diff(offsets) % 4 == 0
    if not fine.all():
        packed = packed.filter(pa.array(fine))
        offsets = np.frombuffer(packed.buffers()[1], np.int32)[: len(packed) + 1].astype(np.int64)
    floats = _bytes_of(packed)[: offsets[-1]].view(np.float32)
    return Values(_as_lists(offsets // 4, pa.array(floats)), fine)


def _lists_of_ints(packed: pa.BinaryArray, offsets: Ints) -> Values:
    stream = np.zeros(int(offsets[-1]) + PAD_AFTER, np.uint8)
    stream[: offsets[-1]] = _bytes_of(packed)[: offsets[-1]]
    last = stream[: offsets[-1]] < 0x80
    ends = np.flatnonzero(last) + 1
    starts = np.empty_like(ends)
    starts[1:] = ends[:-1]
    starts[:1] = 0
    numbers, good = varints(stream, starts, ends)
    bounds = np.concatenate([[0], np.cumsum(last)])[offsets]
    fine = np.ones(len(packed), np.bool_)
    full = np.flatnonzero(np.diff(offsets))
    fine[full] = last[offsets[full + 1] - 1]
    fine[np.searchsorted(bounds, np.flatnonzero(~good), side="right") - 1] = False
    lists = _as_lists(bounds, pa.array(numbers))
    return Values(lists if fine.all() else lists.filter(pa.array(fine)), fine)


def varints(data: Bytes, starts: Ints, ends: Ints) -> tuple[Ints, Flags]:
    """The number in each range, and whether the range is one number of at most ten bytes."""
    length = ends - starts
    shortest, longest = int(length.min(initial=1)), int(length.max(initial=1))
    short = length if shortest > 0 and longest <= 8 else np.clip(length, 1, 9)
    words = sliding(data)[starts]
    words &= np.take(_KEPT, short)
    fine = (words & _TOP_BITS) == np.take(_CONTINUED, short)
    numbers = _squeezed(words, longest).view(np.int64)
    if shortest < 1:
        fine &= length > 0
    if longest > 8:
        _add_high_bits(data, starts, length, np.flatnonzero(length > 8), numbers, fine)
    return numbers, fine


def _squeezed(words: Words, longest: int) -> Words:
    """Seven bits of each byte, together."""
    x = words & ~_TOP_BITS
    if longest > 1:
        x = (x & _U(0x007F007F007F007F)) | ((x & _U(0x7F007F007F007F00)) >> _U(1))
    if longest > 2:
        x = (x & _U(0x00003FFF00003FFF)) | ((x & _U(0x3FFF00003FFF0000)) >> _U(2))
    if longest > 4:
        x = (x & _U(0x000000000FFFFFFF)) | ((x & _U(0x0FFFFFFF00000000)) >> _U(4))
    return x


def _add_high_bits(
    data: Bytes, starts: Ints, length: Ints, long: Ints, numbers: Ints, fine: Flags
) -> None:
    """Numbers of nine and ten bytes: large ones, and all negative ones."""
    ninth = data[starts[long] + 8].astype(np.int64)
    tenth = np.where(length[long] == 10, data[starts[long] + 9], 0).astype(np.int64)
    numbers[long] |= (ninth & 0x7F) << 56 | (tenth & 1) << 63
    fine[long] &= ((length[long] == 9) & (ninth < 0x80)) | (
        (length[long] == 10) & (ninth >= 0x80) & (tenth < 0x80)
    )


# -- bytes ------------------------------------------------------------------------------


def _lists_of_bytes(data: Bytes, spans: Spans) -> Values:
    """Lists of several values each are walked in step, like the records."""
    words = sliding(data)
    fine = np.ones(len(spans.rows), np.bool_)
    counts = np.zeros(len(spans.rows), np.int64)
    found: list[tuple[Ints, Ints, Ints]] = []
    left = np.flatnonzero(spans.lists < spans.ends)
    at = spans.lists[left]
    while len(left):
        if len(left) < _FEW and len(found) > _FEW:
            fine[left] = False
            break
        head = words[at]
        size, length, short = sizes(head >> _U(8))
        start = at + 1 + length
        good = short & ((head & _U(0xFF)) == 0x0A) & (start + size <= spans.ends[left])
        fine[left[~good]] = False
        left, start, at = left[good], start[good], (start + size)[good]
        counts[left] += 1
        found.append((left, start, at))
        more = at < spans.ends[left]
        left, at = left[more], at[more]
    return _lists_in_order(data, found, counts, fine)


def _lists_in_order(
    data: Bytes, found: list[tuple[Ints, Ints, Ints]], counts: Ints, fine: Flags
) -> Values:
    none = np.empty(0, np.int64)
    which, starts, ends = (np.concatenate([none, *(f[i] for f in found)]) for i in range(3))
    kept = fine[which]
    order = np.argsort(starts[kept], kind="stable")  # by record, and within it as they come
    values = slices(data, starts[kept][order], ends[kept][order])
    return Values(_as_lists(np.concatenate([[0], np.cumsum(counts[fine])]), values), fine)


# -- Arrow ------------------------------------------------------------------------------


def _bytes_of(packed: pa.BinaryArray) -> Bytes:
    buffer = packed.buffers()[2]
    return np.frombuffer(b"" if buffer is None else buffer, np.uint8)


def _as_lists(offsets: Ints, values: pa.Array) -> pa.ListArray:
    return pa.ListArray.from_arrays(pa.array(offsets.astype(np.int32)), values)


# -- records laid out in an unusual way --------------------------------------------------

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
    tabfeed.io.formats.tfrecord.values.NotAnExampleError: is not an Example: it has a field 9
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
