"""TFRecord files made without TensorFlow, well-formed and otherwise."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

Kind = tuple[int, Sequence[Any]]


def ints(*values: int) -> Kind:
    return 3, values


def floats(*values: float) -> Kind:
    return 2, values


def texts(*values: bytes) -> Kind:
    return 1, values


def varint(value: int) -> bytes:
    value %= 2**64
    out = b""
    while value > 0x7F:
        out += bytes([value & 0x7F | 0x80])
        value >>= 7
    return out + bytes([value])


def delimited(field: int, data: bytes) -> bytes:
    return varint(field << 3 | 2) + varint(len(data)) + data


def feature(kind: Kind | None) -> bytes:
    if kind is None:
        return b""
    number, values = kind
    if number == 1:
        content = b"".join(delimited(1, v) for v in values)
    elif number == 2:
        content = delimited(1, struct.pack(f"<{len(values)}f", *values)) if values else b""
    else:
        content = delimited(1, b"".join(map(varint, values))) if values else b""
    return delimited(number, content)


def entry(name: str, value: bytes) -> bytes:
    return delimited(1, delimited(1, name.encode()) + delimited(2, value))


def example(features: Mapping[str, Kind | None]) -> bytes:
    return delimited(1, b"".join(entry(n, feature(k)) for n, k in features.items()))


def crc32c(data: bytes) -> int:
    """Byte by byte, as the definition has it."""
    register = 0xFFFFFFFF
    for byte in data:
        register = register >> 8 ^ _TABLE[(register ^ byte) & 0xFF]
    return register ^ 0xFFFFFFFF


def _bitwise(register: int) -> int:
    for _ in range(8):
        register = register >> 1 ^ (0x82F63B78 if register & 1 else 0)
    return register


_TABLE = [_bitwise(i) for i in range(256)]


def masked(data: bytes) -> bytes:
    crc = crc32c(data)
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) % 2**32)


def frame(record: bytes) -> bytes:
    length = struct.pack("<Q", len(record))
    return length + masked(length) + record + masked(record)


def frames(records: Iterable[bytes]) -> bytes:
    return b"".join(map(frame, records))
