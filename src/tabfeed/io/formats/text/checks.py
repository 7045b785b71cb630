"""What Arrow's readers of text do not check: inexact numbers, and JSON lines that are not objects.

Inference looks at the first rows; what comes later may look like a number of that type and mean
something else. So a value of an inferred column must come back from the number it is read as:
``007``, ``0x10``, ``+5`` and an integer that a double would round are refused. Fractions are read
as the nearest double, as everywhere, and spaces around a number are no part of it.

Reading a column as text, to look at it and cast it, costs half as much again as reading numbers. So
the bytes of a file are looked through first (`padded_columns`), and only columns with a field that
starts like one of these, or with a large double, are read as text. Against no check at all, in CPU
time: integers 3 to 6 % more, floats up to 10 %, dates beside integers 10 to 19 %, hexadecimal ids
beside integers (as in Criteo's raw files) 22 to 31 %.

Arrow's reader of JSON ends the process where a value of the top level is ``null`` or is nested some
ten thousand levels deep (slower than by the square of the depth before that), and it reads an
object that spans several lines, which cutting by lines would tear. So each line must start and end
as an object does, and be nested `DEEPEST` levels at most (`check_lines`). That costs about 0.6 ms
of the processor for each MB of text, where Arrow's parsing costs 5 to 6.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tabfeed.io.storage.files import FileRef, bad_file

__all__ = [
    "DEEPEST",
    "InexactError",
    "check_lines",
    "exact_numbers",
    "has_large",
    "is_exact",
    "padded_columns",
    "rounded_integer",
]

_PART = 2**18  # bytes that the caches hold
_LONGEST = 24  # digits after which no more are looked at

_Bytes = npt.NDArray[np.uint8]
_Places = npt.NDArray[np.intp]

_EXACT = 2.0**53  # doubles hold every integer up to this
_PADDED = "^-?0[0-9xX]"
_INTEGER = "^[+-]?[0-9]+$"
_NOT_AN_INTEGER = r"^([+]|-?0)[0-9]+$"


class InexactError(ValueError):
    """A text is not a number of the type, or is not written as one; the message is the text."""


def exact_numbers(texts: pa.ChunkedArray, dtype: pa.DataType) -> pa.ChunkedArray:
    """Cast texts to integers or doubles.

    Examples
    --------
    >>> exact_numbers(pa.chunked_array([["1", " 20", None]]), pa.int64()).to_pylist()
    [1, 20, None]
    >>> exact_numbers(pa.chunked_array([["1", "007"]]), pa.int64())
    Traceback (most recent call last):
        ...
    tabfeed.io.formats.text.checks.InexactError: 007
    """
    check = _check_doubles if pa.types.is_floating(dtype) else _check_integers
    chunks = []
    for chunk in texts.chunks:
        trimmed = chunk
        try:
            numbers = chunk.cast(dtype)
        except pa.ArrowInvalid:
            trimmed = pc.utf8_trim(chunk, " \t")
            numbers = _cast(trimmed, dtype)
        check(trimmed, numbers)
        chunks.append(numbers)
    return pa.chunked_array(chunks, dtype)


def padded_columns(text: bytes, sep: str, width: int) -> set[int]:
    r"""The columns in which a field is written with padding zeros, with 0x or with a plus.

    Too many rather than too few: all of them where a quote may hold a separator.

    Parameters
    ----------
    text
        Whole rows.
    sep
        What stands between fields.
    width
        How many columns there are.

    Examples
    --------
    >>> sorted(padded_columns(b"1,0.5,2024-01-02 03:04,00a1\n2,1,,007\n", ",", 4))
    [3]
    """
    everywhere = set(range(width))
    if sep.isalnum() or sep in "+-. ":
        return everywhere
    data = np.frombuffer(text, np.uint8)
    starts = "0+" if b"+" in text else "0"
    columns: set[int] = set()
    for start in starts:
        for begin in range(0, len(data), _PART):
            places = _numbers_after(data, begin, ord(start), ord(sep))
            if len(places):
                if not columns and b'"' in text:
                    return everywhere
                row = text.rfind(b"\n", 0, places[0]) + 1
                columns |= _columns_at(data[row : places[-1] + 1], places - row, ord(sep), width)
    return columns


def _numbers_after(data: _Bytes, begin: int, start: int, sep: int) -> _Places:
    """Where in a part a field, or its minus, goes on with `start` and digits up to its end."""
    places = _candidates(data[max(0, begin - 2) : begin + _PART + 1], start, sep)
    places += max(2, begin)
    if not begin:  # what has no two bytes before it
        first = np.flatnonzero(data[:2] == start)
        if data[0] >= ord(".") and data[0] != sep:
            first = first[first == 0]
        places = np.concatenate([first, places])
    numbers = []
    for step in range(1, _LONGEST):
        if not len(places):
            break
        after = data.take(places + step, mode="clip")
        ended = after | 32 == ord("x") if step == 1 else (after <= ord('"')) | (after == sep)
        numbers.append(places[ended])
        places = places[after - np.uint8(ord("0")) < 10]
    return np.sort(np.concatenate([*numbers, places]).astype(np.intp))


def _candidates(data: _Bytes, start: int, sep: int) -> _Places:
    """Where a digit or a letter follows `start` where a field may start, less two."""
    outer, before, here, after = data[:-3], data[1:-2], data[2:-1], data[3:]
    found = here == start
    found &= before < ord(".") if sep < ord(".") else (before < ord(".")) | (before == sep)
    found &= after >= ord("0")
    if not found.any():
        return np.zeros(0, np.intp)
    raw = data.tobytes()
    if b"x" not in raw and b"X" not in raw:
        found &= after <= ord("9")
        if sep <= ord("9"):  # then neither a time nor a hexadecimal id that starts with digits
            found[:-1] &= data[4:] <= ord("9")
    if b"-" in raw:
        dash = before == ord("-")
        dash &= outer >= ord("-") if sep < ord("-") else (outer >= ord("-")) & (outer != sep)
        found &= ~dash  # the month of a date, or an exponent
    return np.flatnonzero(found)


def _columns_at(data: _Bytes, places: _Places, sep: int, width: int) -> set[int]:
    """The columns of fields in whole rows without quotes: separators before them are counted."""
    if width == 1:
        return {0}
    words = np.zeros(len(data) // 64 + 1, np.uint64)
    bits = np.packbits(data == sep, bitorder="little")
    words.view(np.uint8)[: len(bits)] = bits
    counts = np.bitwise_count(words)
    word, bit = places >> 6, (places & 63).astype(np.uint64)
    inside = np.bitwise_count(words[word] & ((np.uint64(1) << bit) - np.uint64(1)))
    column = (np.cumsum(counts, dtype=np.int64)[word] - counts[word] + inside) % (width - 1)
    columns = set(column.tolist())
    if 0 in columns:  # a row's last field has as many before it as the next row's first
        before = np.where(places > 0, data[places - 1], np.uint8(ord("\n")))[column == 0]
        if (before != ord("\n")).any():
            columns.add(width - 1)
        if (before == sep).all():
            columns.remove(0)
    return columns


def has_large(numbers: pa.Array | pa.ChunkedArray) -> bool:
    """Whether doubles hold one that may be a rounded integer."""
    chunks = numbers.chunks if isinstance(numbers, pa.ChunkedArray) else [numbers]
    return any(map(_chunk_has_large, chunks))


def _chunk_has_large(chunk: pa.Array) -> bool:
    values = np.frombuffer(chunk.buffers()[1] or b"", np.float64)
    values = values[chunk.offset : chunk.offset + len(chunk)]
    if not len(values) or -_EXACT < values.min() <= values.max() < _EXACT:
        return False
    largest = pc.max(pc.abs(chunk)).as_py()  # neither what stands under a null nor nan
    return largest is not None and not largest < _EXACT


def _cast(texts: pa.Array, dtype: pa.DataType) -> pa.Array:
    try:
        return texts.cast(dtype)
    except pa.ArrowInvalid as e:
        if len(texts) == 1:
            raise InexactError(texts[0].as_py()) from e
        half = len(texts) // 2
        return pa.concat_arrays([_cast(texts[:half], dtype), _cast(texts[half:], dtype)])


def _check_integers(texts: pa.Array, numbers: pa.Array) -> None:
    padded = pc.starts_with(texts, "0")
    if (pc.min(numbers).as_py() or 0) <= 0:
        padded = pc.or_(padded, pc.starts_with(texts, "-0"))
    _refuse(texts.filter(padded), _PADDED)


def _check_doubles(texts: pa.Array, numbers: pa.Array) -> None:
    whole = texts.filter(pc.invert(pc.match_substring(texts, ".")))
    _refuse(whole, _NOT_AN_INTEGER)
    if has_large(numbers):
        large = texts.filter(pc.greater_equal(pc.abs(numbers), _EXACT))
        for text in large.filter(pc.match_substring_regex(large, _INTEGER)):
            if not is_exact(text.as_py()):
                raise InexactError(text.as_py())
        infinite = texts.filter(pc.is_inf(numbers))
        _refuse(infinite, "[0-9]")  # 1e400


def _refuse(texts: pa.Array, pattern: str) -> None:
    """Raise for the first text that matches."""
    if not len(texts):
        return
    found = texts.filter(pc.match_substring_regex(texts, pattern))
    if len(found):
        raise InexactError(found[0].as_py())


def is_exact(integer: str) -> bool:
    """Whether a double gives an integer back as it is written.

    Examples
    --------
    >>> is_exact("9007199254740993"), is_exact("100000000000000000000")
    (False, True)
    """
    return Decimal(integer) == Decimal(repr(float(integer)))


# -- lines of JSON ------------------------------------------------------------------------

DEEPEST = 64
"""Levels of objects and lists a line may have."""

_BLOCK = 2**18  # bytes that the caches hold
_BLANK = b" \t\r\n"
_STRING = re.compile(rb'"[^"\\\n]*(?:\\.[^"\\\n]*)*"')
_NO_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))
_LONG_INTEGER = re.compile(rb"[:\[,]\s*-?[0-9]{16,}\s*[,}\]]")


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
