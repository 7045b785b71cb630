"""Avro files by fastavro, and by hand what it does not write."""

from __future__ import annotations

import json
import zlib
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa

SYNC = b"0123456789abcdef"


def varint(value: int) -> bytes:
    """A number as Avro has it: zigzag, seven bits a byte."""
    value = value << 1 if value >= 0 else ~(value << 1)
    out = b""
    while value > 127:
        value, out = value >> 7, out + bytes([value & 127 | 128])
    return out + bytes([value])


def v(*numbers: int) -> bytes:
    return b"".join(map(varint, numbers))


def string(data: bytes) -> bytes:
    return varint(len(data)) + data


def record(**fields: Any) -> dict[str, Any]:
    listed = [{"name": n, "type": t} for n, t in fields.items()]
    return {"type": "record", "name": "row", "fields": listed}


def save(path: Path, schema: dict[str, Any], rows: list[dict[str, Any]], **options: Any) -> Path:
    with path.open("wb") as f:
        fastavro.writer(f, fastavro.parse_schema(schema), rows, **options)
    return path


def snappy(data: bytes) -> bytes:
    """With its checksum, as Avro has it."""
    packed: bytes = pa.Codec("snappy").compress(data, asbytes=True)
    return packed + zlib.crc32(data).to_bytes(4, "big")


def container(schema: Any, blocks: list[tuple[int, bytes]], codec: str = "null") -> bytes:
    """A file of these blocks: how many rows, and their bytes."""
    meta = string(b"avro.schema") + string(json.dumps(schema).encode())
    meta += string(b"avro.codec") + string(codec.encode())
    data = b"Obj\x01" + varint(2) + meta + varint(0) + SYNC
    for rows, body in blocks:
        data += varint(rows) + varint(len(body)) + body + SYNC
    return data
