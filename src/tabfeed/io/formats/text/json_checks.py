"""What must be checked of JSON lines because Arrow's reader does not.

It ends the process where a value of the top level is ``null`` or is nested some ten thousand levels
deep (slower than by the square of the depth before that), and it reads an object that spans several
lines, which cutting by lines would tear. So each line must start and end as an object does, and be
nested `DEEPEST` levels at most. That costs about 0.6 ms of the processor for each MB of text, where
Arrow's parsing costs 5 to 6.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tabfeed.io.formats.text.exact_numbers import is_exact
from tabfeed.io.storage.file_ref import FileRef, bad_file

__all__ = ["DEEPEST", "check_lines", "rounded_integer"]

DEEPEST = 64
"""Levels of objects and lists a line may have."""

_BLOCK = 2**18  # bytes that the caches hold
_BLANK = b" \t\r\n"
_STRING = re.compile(rb'"[^"\\\n]*(?:\\.[^"\\\n]*)*"')
_NO_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))
_LONG_INTEGER = re.compile(rb"[:\[,]\s*-?[0-9]{16,}\s*[,}\]]")
_EXACT = 2.0**53  # doubles hold every integer up to this


def check_lines(ref: FileRef, text: bytes) -> int:
    r"""The number of rows; raises where a line does not look like one object.

    Examples
    --------
    >>> import pyarrow.fs as pafs
    >>> check_lines(FileRef("a.jsonl", "", pafs.LocalFileSystem(), 0), b'{"a":1}\n\n{}')
    2
    """
    return sum(_check_block(ref, block) for block in _blocks(text))


def _blocks(text: bytes) -> Iterator[bytes]:
    """The text in blocks of whole lines, which the caches hold."""
    start = 0
    while start < len(text):
        end = text.rfind(b"\n", start, start + _BLOCK) + 1 or text.find(b"\n", start) + 1
        yield text[start : end or len(text)]
        start = end or len(text)


def _check_block(ref: FileRef, block: bytes) -> int:
    data = np.frombuffer(block, np.uint8)
    ends = np.flatnonzero(data == ord("\n"))
    if not block.endswith(b"\n"):
        ends = np.append(ends, len(data))
    starts = np.append(0, ends[:-1] + 1)
    if (data[starts % len(data)] == ord("{")).all() and (data[ends - 1] == ord("}")).all():
        rows = len(ends)
    else:
        lines = [line for line in block.split(b"\n") if line.strip(_BLANK)]
        rows = len(lines)
        wrong = next((x for x in lines if not _is_object(x.strip(_BLANK))), None)
        if wrong is not None:
            raise bad_file(
                ref,
                f"is not JSON lines: each line must be an object, {{...}}, but one is "
                f"{wrong[:80].decode('utf-8', 'replace')!r}",
            )
    opening = np.flatnonzero(data | 32 == ord("{"))  # [ as well
    spans = opening[DEEPEST:] - opening[:-DEEPEST]
    longest = (ends - starts).max()
    if len(spans) and spans.min() < longest:  # only then may all of a span be one line's
        deep = opening[DEEPEST:] < ends[np.searchsorted(ends, opening[:-DEEPEST])]
        if deep.any():  # or a long list of objects, or brackets in a string
            _check_depth(ref, block)
    return rows


def _is_object(line: bytes) -> bool:
    return line.startswith(b"{") and line.endswith(b"}")


def _check_depth(ref: FileRef, block: bytes) -> None:
    left = _STRING.sub(b"", block).translate(None, _NO_BRACKETS)
    for _ in range(DEEPEST):  # the innermost level goes each time
        left = left.replace(b"[]", b"").replace(b"{}", b"")
    if left:
        raise bad_file(
            ref,
            f"is not JSON lines that can be read: a line is nested more than {DEEPEST} levels "
            "deep, or its brackets do not match",
        )


# -- integers among doubles ---------------------------------------------------------------


def rounded_integer(table: pa.Table, text: bytes) -> tuple[str, str] | None:
    r"""A column of doubles and an integer of the text which it does not hold, if there is one.

    Examples
    --------
    >>> text = b'{"a": 9007199254740993}\n{"a": 0.5}'
    >>> rounded_integer(pa.table({"a": [9007199254740993.0, 0.5]}), text)
    ('a', '9007199254740993')
    """
    names = [f.name for f, c in zip(table.schema, table.columns, strict=True) if _has_large(c)]
    if not names:
        return None
    done = -1
    for found in _LONG_INTEGER.finditer(text):
        if found.start() <= done:
            continue
        done = text.find(b"\n", found.end() - 1)
        done = len(text) if done < 0 else done
        start = text.rfind(b"\n", 0, found.start()) + 1
        line = json.loads(text[start:done].decode("utf-8", "replace"), parse_int=_Integer)
        for name in names:
            if number := _first_rounded(line.get(name), table.schema.field(name).type):
                return name, number
    return None


class _Integer(str):
    """An integer as it is written."""

    __slots__ = ()


def _has_large(column: pa.ChunkedArray) -> bool:
    """Whether a column holds a double, in lists and structs too, above what is exact."""
    if pa.types.is_floating(column.type):
        largest = pc.max(pc.abs(column)).as_py()
        return largest is not None and not largest < _EXACT
    if pa.types.is_struct(column.type):
        return any(map(_has_large, column.flatten()))
    if pa.types.is_list(column.type):
        return any(_has_large(pa.chunked_array([c.flatten()])) for c in column.chunks)
    return False


def _first_rounded(value: Any, dtype: pa.DataType) -> str | None:
    if isinstance(value, _Integer) and pa.types.is_floating(dtype):
        return None if is_exact(value) else str(value)
    if isinstance(value, list) and pa.types.is_list(dtype):
        return next(filter(None, (_first_rounded(v, dtype.value_type) for v in value)), None)
    if isinstance(value, dict) and pa.types.is_struct(dtype):
        members = (_first_rounded(value.get(f.name), f.type) for f in dtype)
        return next(filter(None, members), None)
    return None
