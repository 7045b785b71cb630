"""One hash for every column type that never changes.

Buckets chosen by a hash end up in saved workflows and trained embedding tables, so this
hash may never change: not with a library's version, a machine, an engine or a thread
count. Hashes of Polars, pandas, DuckDB and Python promise none of that. This one is
plain 64-bit arithmetic on NumPy arrays, written down here and frozen by test vectors.

Equal values have equal hashes in every type: 5 as int8, uint32 or 5.0; a day as date or
as timestamp of any unit; text as string, large string, view or dictionary. Text and
numbers that look alike ("5" and 5) differ.

Given up: speed on very long texts (words past the 32nd of a text are hashed row by row)
and any defence against someone who chooses values in order to collide.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tabfeed.errors import ColumnNotFoundError, SchemaError

U64 = npt.NDArray[np.uint64]

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_M1 = np.uint64(0xBF58476D1CE4E5B9)
_M2 = np.uint64(0x94D049BB133111EB)
_TEXT = np.uint64(0xD6E8FEB86659FD93)
_FLOAT = np.uint64(0xA0761D6478BD642F)
_TIME = np.uint64(0xE7037ED1A0B428DB)
_CROSS = np.uint64(0x8EBC6AF09C88C6E3)
_NULL = np.array([0x589965CC75374CC3], np.uint64)
_ROW_WISE_AFTER = 32  # words of 8 bytes


def mix(x: U64) -> U64:
    """Scramble 64 bits so that every input bit reaches every output bit (splitmix64).

    Examples
    --------
    >>> [hex(v) for v in mix(np.array([0, 1], dtype=np.uint64))]
    ['0xe220a8397b1dcdaf', '0x910a2dec89025cc1']
    """
    with np.errstate(over="ignore"):
        z = x + _GOLDEN
        z = (z ^ (z >> np.uint64(30))) * _M1
        z = (z ^ (z >> np.uint64(27))) * _M2
        return z ^ (z >> np.uint64(31))


def combine(hashes: Iterable[U64]) -> U64:
    """One hash of several, in order: equal hashes do not cancel, swapped ones differ.

    Examples
    --------
    >>> a, b = np.array([1], dtype=np.uint64), np.array([2], dtype=np.uint64)
    >>> bool(combine([a, b])[0] == combine([b, a])[0])
    False
    """
    total: U64 | None = None
    with np.errstate(over="ignore"):
        for part in hashes:
            before = np.full(len(part), _CROSS) if total is None else total
            total = mix(before * _GOLDEN + part)
    return np.zeros(0, np.uint64) if total is None else total


def hash_columns(table: pa.Table, columns: Sequence[str]) -> U64:
    """Hash each row of some columns of a table.

    Examples
    --------
    >>> table = pa.table({"a": [1, 1, None], "b": ["x", "x", None]})
    >>> h = hash_columns(table, ["a", "b"])
    >>> bool(h[0] == h[1]), bool(h[1] == h[2])
    (True, False)
    """
    for name in columns:
        if name not in table.column_names:
            raise ColumnNotFoundError(name, table.column_names, where="the table")
    return combine(hash_array(table.column(name)) for name in columns)


def hash_array(array: pa.Array | pa.ChunkedArray) -> U64:
    """Hash each value of an Arrow array; null has a hash of its own.

    Examples
    --------
    >>> same = hash_array(pa.array([5], pa.int8())), hash_array(pa.array([5.0]))
    >>> bool(same[0][0] == same[1][0])
    True
    """
    if isinstance(array, pa.ChunkedArray):
        parts = [hash_array(chunk) for chunk in array.chunks]
        return np.concatenate(parts) if parts else np.zeros(0, np.uint64)
    if pa.types.is_dictionary(array.type):
        return _hash_dictionary(array)
    out = _hash_values(array)
    if array.null_count:
        out[pc.is_null(array).to_numpy(zero_copy_only=False)] = mix(_NULL)[0]
    return out


def _hash_dictionary(array: pa.DictionaryArray) -> U64:
    """Hash each distinct value once."""
    values = np.append(hash_array(array.dictionary), mix(_NULL))
    codes = pc.fill_null(array.indices.cast(pa.int64()), len(values) - 1)
    return np.asarray(np.take(values, codes.to_numpy(zero_copy_only=False)), np.uint64)


def _hash_values(array: pa.Array) -> U64:
    kind = array.type
    if pa.types.is_integer(kind) or pa.types.is_boolean(kind):
        return mix(_integers(array))
    if pa.types.is_floating(kind):
        return _hash_floats(array)
    if pa.types.is_temporal(kind):
        return _hash_times(array)
    if _is_text(kind):
        return _hash_bytes(array.cast(pa.large_binary()))
    if pa.types.is_fixed_size_binary(kind):
        return _hash_bytes(array.cast(pa.binary()).cast(pa.large_binary()))
    if pa.types.is_decimal(kind):
        text = pc.utf8_rtrim(array.cast(pa.string()), "0") if kind.scale > 0 else array
        return _hash_bytes(pc.utf8_rtrim(text.cast(pa.string()), ".").cast(pa.large_binary()))
    if pa.types.is_null(kind):
        return np.zeros(len(array), np.uint64)
    raise SchemaError(
        f"values of type {kind} have no hash; hashes are for numbers, text, bytes, booleans, "
        "dates and times (for lists: of their elements)"
    )


def _is_text(kind: pa.DataType) -> bool:
    checks = ("string", "large_string", "string_view", "binary", "large_binary", "binary_view")
    return any(getattr(pa.types, f"is_{c}")(kind) for c in checks)


def _integers(array: pa.Array) -> U64:
    if pa.types.is_uint64(array.type):
        return np.asarray(_numpy(array, np.uint64), np.uint64)
    wide = array if pa.types.is_integer(array.type) else array.cast(pa.int8())
    return np.asarray(_numpy(wide.cast(pa.int64()), np.int64).view(np.uint64), np.uint64)


def _numpy(array: pa.Array, dtype: type[np.generic]) -> npt.NDArray[np.generic]:
    """Values with zero under nulls, without a copy where there are none."""
    filled = pc.fill_null(array, 0) if array.null_count else array
    return np.asarray(filled.to_numpy(zero_copy_only=False), dtype=dtype)


def _hash_floats(array: pa.Array) -> U64:
    x = np.asarray(_numpy(array.cast(pa.float64()), np.float64))
    whole = (x == np.floor(x)) & (np.abs(x) < 2.0**63)
    as_int = np.where(whole, x, 0.0).astype(np.int64).view(np.uint64)
    bits = np.where(np.isnan(x), np.nan, x).view(np.uint64)
    return np.where(whole, mix(as_int), mix(mix(bits) ^ _FLOAT))


def _hash_times(array: pa.Array) -> U64:
    """By whole seconds and the nanoseconds within, so that the unit does not matter."""
    kind = array.type
    per_second = 1
    if pa.types.is_date32(kind):
        ticks = _numpy(array.cast(pa.int32()).cast(pa.int64()), np.int64) * 86_400
    elif pa.types.is_date64(kind):
        ticks, per_second = _numpy(array.cast(pa.int64()), np.int64), 1_000
    else:
        ticks = _numpy(array.view(pa.int32() if pa.types.is_time32(kind) else pa.int64()), np.int64)
        per_second = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}[kind.unit]
    seconds, rest = np.divmod(np.asarray(ticks, np.int64), per_second)
    nanos = (rest * (10**9 // per_second)).view(np.uint64)
    with np.errstate(over="ignore"):
        return mix(mix(seconds.view(np.uint64)) + nanos * _TIME)


def _hash_bytes(array: pa.LargeBinaryArray) -> U64:
    """Sum of its 8-byte words, each scrambled with its place, then scrambled with the length."""
    offsets, data = large_buffers(array)
    starts, lengths = offsets[:-1], np.diff(offsets)
    total = np.zeros(len(array), np.uint64)
    words = int((lengths.max(initial=0) + 7) // 8)
    for w in range(min(words, _ROW_WISE_AFTER)):
        rows = np.flatnonzero(lengths > 8 * w) if w else np.flatnonzero(lengths)
        with np.errstate(over="ignore"):
            total[rows] += _scramble(
                byte_words(data, starts[rows] + 8 * w, lengths[rows] - 8 * w), w
            )
    for row in np.flatnonzero(lengths > 8 * _ROW_WISE_AFTER):
        total[row : row + 1] += _hash_tail(data, int(starts[row]), int(lengths[row]))
    with np.errstate(over="ignore"):
        return mix(total ^ ((lengths.astype(np.uint64) + np.uint64(1)) * _TEXT))


def _hash_tail(data: npt.NDArray[np.uint8], start: int, length: int) -> np.uint64:
    places = np.arange(_ROW_WISE_AFTER, (length + 7) // 8)
    words = byte_words(data, start + 8 * places, length - 8 * places)
    with np.errstate(over="ignore"):
        return np.uint64(_scramble(words, places).sum(dtype=np.uint64))


def _scramble(words: U64, place: int | npt.NDArray[np.int64]) -> U64:
    with np.errstate(over="ignore"):
        key = (np.asarray(place, np.uint64) + np.uint64(1)) * _TEXT
        return mix(mix(words) ^ key)


def byte_words(
    data: npt.NDArray[np.uint8], at: npt.NDArray[np.int64], left: npt.NDArray[np.int64]
) -> U64:
    """The 8 bytes at each place, little-endian, zero past the end of the text."""
    aligned = data.view("<u8").astype(np.uint64, copy=False)
    index, shift = at >> 3, ((at & 7) << 3).astype(np.uint64)
    words: U64 = aligned[index] >> shift
    if shift.any():  # << 1 << (63 - shift): shifting by 64 at once is undefined
        words |= (aligned[index + 1] << np.uint64(1)) << (np.uint64(63) - shift)
    short = left < 8
    if short.any():
        keep = np.uint64(2) ** (left[short].astype(np.uint64) * np.uint64(8)) - np.uint64(1)
        words[short] &= keep
    return words


def large_buffers(
    array: pa.LargeBinaryArray,
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.uint8]]:
    """Offsets and bytes of an array, the bytes followed by zeros so that words may overrun."""
    _, offsets_buffer, data_buffer = array.buffers()
    if len(array) == 0 or offsets_buffer is None:
        return np.zeros(len(array) + 1, np.int64), np.zeros(16, np.uint8)
    offsets = np.frombuffer(offsets_buffer, np.int64)[array.offset : array.offset + len(array) + 1]
    low, high = int(offsets[0]), int(offsets[-1])
    data = np.zeros((high - low) // 8 * 8 + 16, np.uint8)
    if data_buffer is not None and high > low:
        data[: high - low] = np.frombuffer(data_buffer, np.uint8)[low:high]
    return offsets - low, data
