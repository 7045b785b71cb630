"""Thrift's compact form, as far as Parquet's footers and page headers need it.

Values are stepped over rather than made into objects: a footer holds tens of thousands of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

__all__ = [
    "BINARY",
    "INT32",
    "INT64",
    "LIST",
    "STRUCT",
    "behind",
    "length",
    "list_head",
    "number",
    "struct",
]

INT16, INT32, INT64, DOUBLE, BINARY, LIST, SET, STRUCT = 4, 5, 6, 7, 8, 9, 10, 12
_BYTE = 3
_MOST_DEPTH = 16


def number(data: bytes | memoryview, at: int) -> tuple[int, int]:
    """A whole number, and where it ends."""
    raw, at = length(data, at)
    return (raw >> 1) ^ -(raw & 1), at


def length(data: bytes | memoryview, at: int) -> tuple[int, int]:
    """A number that is never negative, and where it ends."""
    raw = shift = 0
    while shift < 70:
        byte = data[at]
        at += 1
        raw |= (byte & 127) << shift
        if byte < 128:
            return raw, at
        shift += 7
    raise ValueError("a number too long")


def list_head(data: bytes | memoryview, at: int) -> tuple[int, int, int]:
    """How many values a list has, of which kind, and where the first one begins."""
    head = data[at]
    at += 1
    count = head >> 4
    if count == 15:
        count, at = length(data, at)
    if count > len(data) - at:
        raise ValueError(f"a list of {count} values")
    return count, head & 15, at


def behind(data: bytes | memoryview, at: int, kind: int, depth: int = 0) -> int:
    """Where a value of a list or a field that is not a truth value ends."""
    if kind == BINARY:
        size, at = length(data, at)
        return at + size
    if INT16 <= kind <= INT64:
        while data[at] > 127:
            at += 1
        return at + 1
    if kind == _BYTE:
        return at + 1
    if kind == DOUBLE:
        return at + 8
    if depth > _MOST_DEPTH:
        raise ValueError("too deep")
    if kind == STRUCT:
        while byte := data[at]:
            at += 1
            if byte < 16:
                at = number(data, at)[1]
            kind = byte & 15
            if kind == BINARY and data[at] < 128:  # the least and the largest value, mostly
                at += 1 + data[at]
            elif kind > 2:  # up to there it is a truth value, and all is said
                at = behind(data, at, kind, depth + 1)
        return at + 1
    if kind in (LIST, SET):
        count, kind, at = list_head(data, at)
        if kind < 3:  # truth values of a list take a byte each
            return at + count
        for _ in range(count):
            at = behind(data, at, kind, depth + 1)
        return at
    raise ValueError(f"a field of kind {kind}")


def struct(
    data: bytes | memoryview,
    at: int,
    depth: int = 0,
    lists: Mapping[int, Callable[[int], tuple[Any, int]]] | None = None,
) -> tuple[dict[int, Any], int]:
    """The fields of a struct by number and kind (``number << 4 | kind``), and where it ends.

    Of whole numbers the value, of binaries the length, of structs their fields, of lists where
    they begin; of those in `lists` what its function makes of the list that begins there, which
    also returns where the list ends.
    """
    if depth > _MOST_DEPTH:
        raise ValueError("too deep")
    found: dict[int, Any] = {}
    field = 0
    while byte := data[at]:
        at += 1
        kind = byte & 15
        if byte > 15:
            field += byte >> 4
        else:
            field, at = number(data, at)
        if INT16 <= kind <= INT64:
            raw = data[at]
            at += 1
            if raw > 127:
                raw, at = length(data, at - 1)
            found[field << 4 | kind] = (raw >> 1) ^ -(raw & 1)
        elif kind == BINARY:
            size, at = length(data, at)
            found[field << 4 | kind] = size
            at += size
        elif kind == STRUCT:
            found[field << 4 | kind], at = struct(data, at, depth + 1)
        elif lists is not None and (read := lists.get(field << 4 | kind)) is not None:
            found[field << 4 | kind], at = read(at)
        elif kind > 2:  # up to there it is a truth value, and all is said
            found[field << 4 | kind] = at
            at = behind(data, at, kind)
    return found, at + 1
