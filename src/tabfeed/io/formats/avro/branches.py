"""Refuses unions whose branch is neither of their two, which Polars takes for the second.

The quick test counts bytes. It compares the data with what the decoded values take in their
shortest encoding, in three ways:

1. How many bytes: nothing takes fewer than its shortest encoding. If both take as many, every
   wrong branch is a single byte, as the right one would be.
2. How many are below 128, as the last byte of each number is: a list written in several parts has
   more numbers, and so more of them.
3. How many are 0 or 2, the bytes of branches 0 and 1: each wrong branch makes this one less, and
   where the first two are equal nothing else can make it more.

So equal counts prove every branch right, however a file was forged. Unequal ones prove nothing:
numbers may be padded and lists written in parts. Such blocks are walked value by value.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tabfeed.io.formats.avro.container import Cursor

__all__ = ["as_stored", "count_bytes", "count_encoded", "decoded_exactly", "walk"]

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
