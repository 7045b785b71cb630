"""``google.protobuf.Struct``, protobuf's JSON-like value, as plain Python values.

Files hold one in two forms: as bytes in protobuf's wire format, inside a string, or spelled
out as a message of the text format. Both are read here; the second, which a person can
read too, is written. Every number of a Struct is a double; whole ones come back as int.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from typing import Any

from tabfeed.textproto import Message, Name

__all__ = ["decode_struct", "struct_from_message", "struct_to_message"]

_DEEPEST = 100
_EXACT = 2**53  # doubles hold every whole number up to this


def decode_struct(data: bytes, *, depth: int = 0) -> dict[str, Any]:
    r"""Read a Struct in wire format; ValueError if the bytes are none.

    Examples
    --------
    >>> decode_struct(b"\n\r\n\x07is_list\x12\x02 \x01")
    {'is_list': True}
    """
    if depth > _DEEPEST:
        raise ValueError("the Struct is nested too deeply")
    out: dict[str, Any] = {}
    for number, entry in _fields(data):
        if number == 1:
            pair = dict(_fields(_as_bytes(entry)))
            key = _as_bytes(pair.get(1, b"")).decode()
            out[key] = _decode_value(_as_bytes(pair.get(2, b"")), depth)
    return out


def _decode_value(data: bytes, depth: int) -> Any:
    value: Any = None
    for number, raw in _fields(data):
        if number == 1:
            value = None
        elif number == 2:
            value = _plain_number(struct.unpack("<d", _as_bytes(raw, 8))[0])
        elif number == 3:
            value = _as_bytes(raw).decode()
        elif number == 4:
            value = bool(raw)
        elif number == 5:
            value = decode_struct(_as_bytes(raw), depth=depth + 1)
        elif number == 6:
            items = [item for n, item in _fields(_as_bytes(raw)) if n == 1]
            value = [_decode_nested(item, depth + 1) for item in items]
    return value


def _decode_nested(item: int | bytes, depth: int) -> Any:
    if depth > _DEEPEST:
        raise ValueError("the Struct is nested too deeply")
    return _decode_value(_as_bytes(item), depth)


def _fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Number and raw value of each field of a message in wire format."""
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        kind = key & 7
        if kind == 0:
            value, at = _varint(data, at)
            yield key >> 3, value
            continue
        if kind == 2:
            size, at = _varint(data, at)
        elif kind in (1, 5):
            size = 8 if kind == 1 else 4
        else:
            raise ValueError(f"wire type {kind} is not known")
        if at + size > len(data):
            raise ValueError("the bytes end within a field")
        yield key >> 3, data[at : at + size]
        at += size


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        if at >= len(data):
            raise ValueError("the bytes end within a number")
        value |= (data[at] & 0x7F) << shift
        at += 1
        if not data[at - 1] & 0x80:
            return value, at
    raise ValueError("a number is too long")


def _as_bytes(raw: int | bytes, size: int | None = None) -> bytes:
    if isinstance(raw, int) or (size is not None and len(raw) != size):
        raise ValueError("a field is of the wrong kind")
    return raw


def _plain_number(value: float) -> int | float:
    return int(value) if value.is_integer() and abs(value) <= _EXACT else value


# -- spelled out in the text format -------------------------------------------------


def struct_from_message(message: Message) -> dict[str, Any]:
    """Read a Struct spelled out in the text format.

    Examples
    --------
    >>> struct_from_message({"fields": [{"key": ["n"], "value": [{"number_value": [2.0]}]}]})
    {'n': 2}
    """
    out: dict[str, Any] = {}
    for entry in message.get("fields", []):
        out[str(entry.get("key", [""])[-1])] = _value_from(entry.get("value", [{}])[-1])
    return out


def _value_from(message: Message) -> Any:
    for kind, values in message.items():
        value = values[-1]
        if kind == "struct_value":
            return struct_from_message(value)
        if kind == "list_value":
            return [_value_from(item) for item in value.get("values", [])]
        if kind == "number_value":
            return _plain_number(float(value))
        if kind in ("string_value", "bool_value"):
            return value
    return None


def struct_to_message(values: Mapping[str, Any]) -> Message:
    """Spell out a dict of JSON-able values; the opposite of `struct_from_message`."""
    return {"fields": [{"key": [k], "value": [_value_to(v)]} for k, v in values.items()]}


def _value_to(value: Any) -> Message:
    if value is None:
        return {"null_value": [Name("NULL_VALUE")]}
    if isinstance(value, bool):
        return {"bool_value": [value]}
    if isinstance(value, int | float):
        return {"number_value": [float(value)]}
    if isinstance(value, str):
        return {"string_value": [value]}
    if isinstance(value, Mapping):
        return {"struct_value": [struct_to_message(value)]}
    return {"list_value": [{"values": [_value_to(item) for item in value]}]}
