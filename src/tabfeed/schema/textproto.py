"""Protobuf's text format and its ``Struct``, without protobuf, as plain Python values.

A message is a dict from field name to the list of its values, in order, since the text alone does
not say which fields repeat. Values are str, int, float, bool and messages. Enum values are read as
str, and written without quotes if given as `Name`. Extension and ``Any`` names keep their brackets:
``"[type.googleapis.com/x.Y]"``. The declared types of fields are unknown, so callers check values.

Strings are bytes in the format. They are decoded as UTF-8 with ``surrogateescape``, so binary data
survives a round trip.

``google.protobuf.Struct`` is protobuf's JSON-like value. Files hold it either in wire format, as
bytes inside a string, or spelled out as a message of the text format. Both are read; the readable
second form is written. All numbers of a Struct are doubles; whole ones are returned as int.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator, Mapping
from typing import Any, NoReturn

from tabfeed.errors import SchemaError

__all__ = [
    "Message",
    "Name",
    "decode_struct",
    "dump",
    "parse",
    "struct_from_message",
    "struct_to_message",
]

Message = dict[str, list[Any]]

_MAX_DEPTH = 100  # protobuf's own limit
_MAX_DIGITS = 1000  # Python refuses integers of more than 4300 digits
_SPACE = re.compile(r"(?:\s|#[^\n]*)*")
_FIELD = re.compile(r"[A-Za-z_]\w*|\[\s*[\w./%~-]+\s*\]", re.ASCII)
_STRING = re.compile(r'"((?:[^"\\\n]|\\.)*)"|\'((?:[^\'\\\n]|\\.)*)\'', re.DOTALL)
_NAME = re.compile(r"[A-Za-z_]\w*", re.ASCII)
_NUMBER = re.compile(r"0[xX][0-9a-fA-F]+|(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?[fF]?", re.ASCII)
_ESCAPE = re.compile(
    rb"\\(?:([0-7]{1,3})|[xX]([0-9a-fA-F]{1,2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|(.))", re.DOTALL
)
_LETTERS = dict(zip(b"nrtabfv", b"\n\r\t\a\b\f\v", strict=True))
_CLOSING = {"{": "}", "<": ">"}
_BOOLS = {"true": True, "false": False, "True": True, "False": False}
_FLOATS = {"inf", "infinity", "nan"}


class Name(str):
    """The name of an enum value: text that is written without quotes."""

    __slots__ = ()


def parse(text: str) -> Message:
    """Read a message.

    Examples
    --------
    >>> parse('feature { name: "a" type: INT }  # a comment')
    {'feature': [{'name': ['a'], 'type': ['INT']}]}
    >>> parse("feature {")
    Traceback (most recent call last):
        ...
    tabfeed.errors.SchemaError: not protobuf text: expected '}' at line 1, column 10, found the end
    """
    return _Reader(text).message("")


def dump(message: Message, *, indent: str = "") -> str:
    r"""Write a message, a field a line.

    Examples
    --------
    >>> print(dump({"name": ["café"], "type": [Name("INT")], "shape": [{"dim": [{}]}]}), end="")
    name: "caf\303\251"
    type: INT
    shape {
      dim {
      }
    }
    """
    lines = []
    for field, values in message.items():
        for value in values:
            if isinstance(value, dict):
                inner = dump(value, indent=indent + "  ")
                lines.append(f"{indent}{field} {{\n{inner}{indent}}}\n")
            else:
                lines.append(f"{indent}{field}: {_scalar(value)}\n")
    return "".join(lines)


def _scalar(value: str | int | float | bool) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Name):
        return str(value)
    if isinstance(value, str):
        return '"' + "".join(map(_escaped, value.encode("utf-8", "surrogateescape"))) + '"'
    return repr(value)


def _escaped(byte: int) -> str:
    char = chr(byte)
    if char in "\\\"'":
        return "\\" + char
    if char == "\n":
        return "\\n"
    return char if 32 <= byte < 127 else f"\\{byte:03o}"


class _Reader:
    """A recursive-descent parser of the text format."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self.depth = 0
        self.skip()

    def message(self, close: str) -> Message:
        """Fields up to `close`, or to the end where that is empty."""
        self.depth += 1
        if self.depth > _MAX_DEPTH:
            self.fail(f"at most {_MAX_DEPTH} levels of messages")
        fields: Message = {}
        while not (self.take(close) if close else self.at == len(self.text)):
            name = self.match(_FIELD)
            if name is None:
                self.fail(f"{close!r}" if close and self.at == len(self.text) else "a field's name")
            fields.setdefault("".join(name[0].split()), []).extend(self.values())
            _ = self.take(",") or self.take(";")
        self.depth -= 1
        return fields

    def values(self) -> list[Any]:
        """The value after a field's name, or the values of a list in brackets."""
        has_colon = self.take(":")
        if has_colon and self.take("["):
            return self.listed()
        return [self.value(scalar=has_colon)]

    def listed(self) -> list[Any]:
        found: list[Any] = []
        while not self.take("]"):
            if found and not self.take(","):
                self.fail("',' or ']'")
            found.append(self.value(scalar=True))
        return found

    def value(self, *, scalar: bool) -> Any:
        for opening, closing in _CLOSING.items():
            if self.take(opening):
                return self.message(closing)
        if not scalar:
            self.fail("':' or '{'")
        if string := self.match(_STRING):
            return self.string(string)
        negative = self.take("-")
        place = self.at
        if number := self.match(_NUMBER):
            if len(number[0]) > _MAX_DIGITS:
                self.at = place
                self.fail(f"a number of at most {_MAX_DIGITS} characters")
            return -_number(number[0]) if negative else _number(number[0])
        word = self.match(_NAME)
        if word is not None and word[0].lower() in _FLOATS:
            return -float(word[0]) if negative else float(word[0])
        if word is None or negative:
            self.fail("a value")
        return _BOOLS.get(word[0], word[0])

    def string(self, match: re.Match[str]) -> str:
        """A string, joined with the strings that directly follow it."""
        data = b""
        found: re.Match[str] | None = match
        while found is not None:
            data += _unescaped(found[1] if found[1] is not None else found[2])
            found = self.match(_STRING)
        return data.decode("utf-8", "surrogateescape")

    # -- the text -----------------------------------------------------------------

    def skip(self) -> None:
        match = _SPACE.match(self.text, self.at)
        self.at = match.end() if match else self.at

    def take(self, symbol: str) -> bool:
        if not self.text.startswith(symbol, self.at):
            return False
        self.at += len(symbol)
        self.skip()
        return True

    def match(self, pattern: re.Pattern[str]) -> re.Match[str] | None:
        match = pattern.match(self.text, self.at)
        if match is not None:
            self.at = match.end()
            self.skip()
        return match

    def fail(self, expected: str) -> NoReturn:
        line = self.text.count("\n", 0, self.at) + 1
        column = self.at - (self.text.rfind("\n", 0, self.at) + 1) + 1
        found = self.text[self.at : self.at + 20].partition("\n")[0]
        raise SchemaError(
            f"not protobuf text: expected {expected} at line {line}, column {column}, "
            f"found {repr(found) if found else 'the end'}"
        )


def _number(text: str) -> int | float:
    if text[:2] in ("0x", "0X"):
        return int(text, 16)
    if text.isdigit():
        octal = len(text) > 1 and text[0] == "0" and not set(text) & {"8", "9"}
        return int(text, 8 if octal else 10)
    return float(text.rstrip("fF"))


def _unescaped(text: str) -> bytes:
    return _ESCAPE.sub(_unescape, text.encode("utf-8", "surrogateescape"))


def _unescape(match: re.Match[bytes]) -> bytes:
    octal, code, short, long, letter = match.groups()
    if octal:
        return bytes([int(octal, 8) & 0xFF])
    if code:
        return bytes([int(code, 16)])
    if short or long:
        return chr(min(int(short or long, 16), 0x10FFFF)).encode("utf-8", "surrogatepass")
    return bytes([_LETTERS.get(letter[0], letter[0])])


_EXACT = 2**53  # doubles hold every whole number up to this


def decode_struct(data: bytes, *, depth: int = 0) -> dict[str, Any]:
    r"""Read a Struct in wire format; raises ValueError if it is malformed.

    Examples
    --------
    >>> decode_struct(b"\n\r\n\x07is_list\x12\x02 \x01")
    {'is_list': True}
    """
    if depth > _MAX_DEPTH:
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
    if depth > _MAX_DEPTH:
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
