"""Damage bytes and JSON the way disks, bad writers and attackers do."""

from __future__ import annotations

import random
import struct
from collections.abc import Sequence
from typing import Any

INTEGERS = [0, 1, 2, 127, 128, 255, 256, 2**15, 2**16 - 1, 2**31 - 1, 2**31, 2**32 - 1]
INTEGERS += [2**40, 2**62, 2**63 - 1, 2**63, 2**64 - 1]

TOKENS = [b"", b"null", b"nan", b"NaN", b"inf", b"-Infinity", b"-0", b"007", b"1e400", b"1_000"]
TOKENS += [
    b"9223372036854775808",
    b"18446744073709551616",
    b"0x10",
    b"3.7",
    b'"',
    b'""',
    b",",
    b"\n",
]
TOKENS += [b"\r\n", b"\0", b"\xff\xfe", b"\xed\xa0\x80", b"{", b"}", b"[", b"]", b"[" * 3000]
TOKENS += [b'{"a":' * 3000, b"x" * 200_000, b"true", b"\\ud800", b"2026-11-18", b"\xef\xbb\xbf"]

VALUES: list[Any] = [
    None,
    True,
    False,
    -1,
    0,
    1,
    2**31,
    2**63,
    2**64,
    -(2**63) - 1,
    10**400,
    0.5,
    -0.0,
]
VALUES += [
    float("nan"),
    float("inf"),
    "",
    "a",
    "../x",
    "/etc/passwd",
    "a\0b",
    "\ud800",
    "x" * 70_000,
]
VALUES += [
    [],
    {},
    [[]],
    [None],
    {"a": 1},
    {"": None},
    "$call",
    {"$call": "os:getcwd"},
    "tabfeed.ops:Nothing",
]
VALUES += [{"$table": "../../x.parquet"}, {"$stored": "tables/0000.parquet"}, {"$type": "list<"}]


def mutate_bytes(
    data: bytes,
    rng: random.Random,
    *,
    within: tuple[int, int] | None = None,
    tokens: Sequence[bytes] = (),
) -> bytes:
    """One to four kinds of damage to `data`, inside the bytes `within` if that is given.

    Inside such bounds nothing is cut off, cut out or copied: that may be whole records, each with
    its own checksum.
    """
    out = bytearray(data)
    start, stop = within or (0, len(out))
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        stop += _damage(out, rng, start, max(stop, start + 1), tokens, moved=within is None)
    return bytes(out)


def _damage(
    out: bytearray,
    rng: random.Random,
    start: int,
    stop: int,
    tokens: Sequence[bytes],
    *,
    moved: bool,
) -> int:
    """Damage `out` between two offsets; by how many bytes it grew."""
    before = len(out)
    at = rng.randrange(start, stop) if before else 0
    end = min(stop, at + rng.choice((1, 2, 4, 8, 16, 64, 1024)))
    kind = rng.randrange(9 if tokens else 8) if moved else rng.choice((0, 1, 3, 5, 6))
    if kind == 0 and before:
        out[min(at, before - 1)] ^= 1 << rng.randrange(8)
    elif kind == 1 and before:
        out[min(at, before - 1)] = rng.choice((0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)))
    elif kind == 2:
        del out[at:end]
    elif kind == 3:
        out[at:at] = rng.randbytes(end - at)
    elif kind == 4:
        out[at:at] = out[at:end]
    elif kind == 5:
        out[at:end] = rng.randbytes(end - at)
    elif kind == 6:
        form = rng.choice(("<I", "<Q", ">I", ">Q"))
        value = rng.choice(INTEGERS) % (2 ** (32 if form[1] == "I" else 64))
        out[at : at + struct.calcsize(form)] = struct.pack(form, value)
    elif kind == 7:
        if rng.random() < 0.3:
            del out[at:]
        else:
            other = rng.randrange(start, stop)
            out[at:end] = out[other : other + end - at]
    elif kind == 8:
        out[at : end if rng.random() < 0.5 else at] = rng.choice(tokens)
    return len(out) - before


def mutate_json(value: Any, rng: random.Random) -> Any:
    """One to three changes to a JSON value: others in place of parts, keys gone, deep nesting."""
    for _ in range(rng.choice((1, 1, 2, 3))):
        places = list(_places(value))
        if not places:
            return rng.choice(VALUES)
        holder, key = rng.choice(places)
        kind = rng.randrange(6)
        if kind == 0:
            del holder[key]
        elif kind == 1:
            other, name = rng.choice(places)
            holder[key] = _copy(other[name]) if _has(other, name) else None
        elif kind == 2 and isinstance(holder, dict):
            holder[rng.choice(("", "x", "$call", "name", key + "_"))] = holder.pop(key)
        elif kind == 3:
            nested: Any = holder[key]
            for _ in range(rng.choice((2, 50, 250))):
                nested = [nested] if rng.random() < 0.5 else {"a": nested}
            holder[key] = nested
        elif kind == 4 and isinstance(holder[key], int):
            holder[key] = holder[key] + rng.choice((-1, 1, 1000))
        else:
            holder[key] = _copy(rng.choice(VALUES))
    return value


def _places(value: Any) -> Any:
    """Every (container, key) in a JSON value."""
    keys: Any = ()
    if isinstance(value, dict):
        keys = list(value)
    elif isinstance(value, list):
        keys = range(len(value))
    for key in keys:
        yield value, key
        yield from _places(value[key])


def _has(holder: Any, key: Any) -> bool:
    return key in holder if isinstance(holder, dict) else key < len(holder)


def _copy(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _copy(v) for k, v in value.items()}
    return [_copy(v) for v in value] if isinstance(value, list) else value
