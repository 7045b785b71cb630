"""Values as 64-bit keys: exact, reversible, in the order of the values; and looking them up.

Numbers, booleans, dates and times always fit. Text and bytes fit when they have at most eight bytes
and do not end in a zero byte, which covers most identifiers. Sorting, counting and looking up such
keys is several times faster than the same on strings.

Arrow's and Polars' look-ups build their hash table anew at every call. A vocabulary is looked up
once for each partition and again for every request, so its table is built once here and kept: open
addressing in NumPy, four bytes a slot, at most two thirds of the slots used. Keys that lie close
together (small integers) get a plain array instead.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tabfeed.errors import SchemaError
from tabfeed.hashing import byte_words, combine, hash_array, large_buffers, mix
from tabfeed.schema.dtypes import is_list_type

Keys = npt.NDArray[np.uint64]
Mask = npt.NDArray[np.bool_]
_SIGN = np.uint64(1 << 63)
Positions = npt.NDArray[np.int64]


def base_type(dtype: pa.DataType) -> pa.DataType:
    """The type that values of `dtype` are compared as: int8 and int64 are the same thing."""
    if is_list_type(dtype) or pa.types.is_dictionary(dtype):
        return base_type(dtype.value_type)
    if pa.types.is_uint64(dtype):
        return pa.uint64()
    if pa.types.is_integer(dtype):
        return pa.int64()
    if pa.types.is_floating(dtype):
        return pa.float64()
    text = (pa.types.is_large_string, pa.types.is_string_view, pa.types.is_decimal)
    if any(kind(dtype) for kind in text):
        return pa.string()
    raw = (pa.types.is_large_binary, pa.types.is_binary_view, pa.types.is_fixed_size_binary)
    return pa.binary() if any(kind(dtype) for kind in raw) else dtype


def normalise(values: pa.Array, dtype: pa.DataType) -> pa.Array:
    """Cast to a base type; a NaN among floats is a null, and whole floats may become integers."""
    if pa.types.is_floating(values.type):
        values = pc.if_else(pc.is_nan(values), pa.scalar(None, values.type), values)
    if values.type == dtype:
        return values
    if not _comparable(values.type, dtype):
        raise SchemaError(f"values are {values.type} now and were {dtype} when fitted")
    try:
        return values.cast(dtype)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as e:
        raise SchemaError(f"values are {values.type} now and were {dtype} when fitted: {e}") from e


def _comparable(given: pa.DataType, fitted: pa.DataType) -> bool:
    """Whether values of the one type can equal values of the other."""
    if pa.types.is_null(given) or base_type(given) == fitted:
        return True
    kinds = (pa.types.is_temporal, lambda t: pa.types.is_integer(t) or pa.types.is_floating(t))
    return any(kind(given) and kind(fitted) for kind in kinds)


def plain_array(column: pa.ChunkedArray, dtype: pa.DataType) -> pa.Array:
    """A column as one array of a base type, dictionaries decoded."""
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    return normalise(array, dtype)


def flatten(array: pa.Array) -> pa.Array:
    """The values inside all lists of an array, null lists skipped."""
    while is_list_type(array.type):
        array = array.flatten()
    return array


def pack(values: pa.Array) -> tuple[Keys, Mask | None]:
    """Keys of values without nulls, and which of them are true keys (None: all).

    Examples
    --------
    >>> keys, good = pack(pa.array(["b", "a", "longer than eight"]))
    >>> bool(keys[1] < keys[0]), good.tolist()
    (True, [True, True, False])
    """
    kind = values.type
    if pa.types.is_null(kind):
        return np.zeros(len(values), np.uint64), None
    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        return _pack_text(values.cast(pa.large_binary()))
    if pa.types.is_uint64(kind):
        return values.to_numpy(zero_copy_only=False), None
    if pa.types.is_floating(kind):
        bits = (values.cast(pa.float64()).to_numpy(zero_copy_only=False) + 0.0).view(np.uint64)
        return np.where(bits & _SIGN, ~bits, bits | _SIGN), None
    return _as_int64(values).view(np.uint64) ^ _SIGN, None


def _as_int64(values: pa.Array) -> npt.NDArray[np.int64]:
    kind = values.type
    if pa.types.is_boolean(kind):
        values = values.cast(pa.int8())
    elif pa.types.is_date32(kind) or pa.types.is_time32(kind):
        values = values.view(pa.int32())
    elif pa.types.is_temporal(kind):
        values = values.view(pa.int64())
    elif not pa.types.is_integer(kind):
        raise SchemaError(f"values of type {kind} cannot be counted or looked up")
    return np.asarray(values.cast(pa.int64()).to_numpy(zero_copy_only=False), np.int64)


def _pack_text(values: pa.LargeBinaryArray) -> tuple[Keys, Mask | None]:
    offsets, data = large_buffers(values)
    lengths = np.diff(offsets)
    if len(lengths) and (lengths == 8).all():
        keys = data[: 8 * len(lengths)].view(">u8").astype(np.uint64)
        good = (keys & np.uint64(255)) != 0
    else:
        keys = byte_words(data, offsets[:-1], np.minimum(lengths, 8)).byteswap()
        keys[lengths == 0] = 0
        shift = (np.uint64(8) * (8 - np.clip(lengths, 1, 8)).astype(np.uint64)).astype(np.uint64)
        good = ((keys >> shift) & np.uint64(255)) != 0
        good = (good | (lengths == 0)) & (lengths <= 8)
    return keys, None if good.all() else good


def unpack(keys: Keys, dtype: pa.DataType) -> pa.Array:
    """The values that `pack` made keys of.

    Examples
    --------
    >>> unpack(pack(pa.array([-1, 7]))[0], pa.int64()).to_pylist()
    [-1, 7]
    """
    if pa.types.is_string(dtype) or pa.types.is_binary(dtype):
        return _unpack_text(keys, dtype)
    if pa.types.is_uint64(dtype):
        return pa.array(keys)
    if pa.types.is_floating(dtype):
        return pa.array(np.where(keys & _SIGN, keys ^ _SIGN, ~keys).view(np.float64))
    ints = pa.array((keys ^ _SIGN).view(np.int64))
    if pa.types.is_boolean(dtype):
        return ints.cast(pa.int8()).cast(dtype)
    if pa.types.is_date32(dtype) or pa.types.is_time32(dtype):
        return ints.cast(pa.int32()).view(dtype)
    return ints.view(dtype) if pa.types.is_temporal(dtype) else ints.cast(dtype)


def _unpack_text(keys: Keys, dtype: pa.DataType) -> pa.Array:
    raw = keys.astype(">u8").view(np.uint8).reshape(-1, 8)
    if len(keys) and (raw[:, 7] != 0).all():
        offsets = np.arange(len(keys) + 1, dtype=np.int64) * 8
        buffers = [None, pa.py_buffer(offsets), pa.py_buffer(raw)]
        return pa.Array.from_buffers(pa.large_binary(), len(keys), buffers).cast(dtype)
    used = raw != 0
    lengths = np.where(used.any(axis=1), 8 - used[:, ::-1].argmax(axis=1), 0)
    keep = np.arange(8) < lengths[:, None]
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(np.ascontiguousarray(raw[keep]))]
    return pa.Array.from_buffers(pa.large_binary(), len(keys), buffers).cast(dtype)


class KeyTable:
    """Positions of distinct keys.

    Examples
    --------
    >>> table = KeyTable(np.array([10, 20, 30], dtype=np.uint64))
    >>> table.find(np.array([30, 7, 10], dtype=np.uint64)).tolist()
    [2, -1, 0]
    >>> table.find_one(20), table.find_one(21)
    (1, -1)
    """

    def __init__(self, keys: Keys) -> None:
        self.keys = keys
        n = len(keys)
        self._low = int(keys.min()) if n else 0
        span = int(keys.max()) - self._low + 1 if n else 0
        self._dense = span <= 4 * n + 1024
        if self._dense:
            self._slots = np.full(span, -1, np.int32 if n < 2**31 else np.int64)
            self._slots[(keys - np.uint64(self._low)).astype(np.int64)] = np.arange(n)
        else:
            self._slots = _build(keys)
            self._mask = np.uint64(len(self._slots) - 1)

    def find(self, keys: Keys) -> Positions:
        """Position of each key, -1 where it is unknown."""
        if len(self.keys) == 0:
            return np.full(len(keys), -1, np.int64)
        if self._dense:
            places = keys - np.uint64(self._low)
            known = places < len(self._slots)
            found = np.take(self._slots, np.where(known, places, 0).astype(np.int64))
            return np.where(known, found, -1).astype(np.int64)
        return self._probe(keys)

    def _probe(self, keys: Keys) -> Positions:
        out = np.take(self._slots, mix(keys) & self._mask, mode="clip").astype(np.int64)
        wrong = np.take(self.keys, out, mode="clip") != keys
        todo = np.flatnonzero(wrong & (out >= 0))
        places = mix(keys[todo]) & self._mask
        while len(todo):
            places = (places + np.uint64(1)) & self._mask
            found = np.take(self._slots, places, mode="clip").astype(np.int64)
            out[todo] = found
            going = (found >= 0) & (np.take(self.keys, found, mode="clip") != keys[todo])
            todo, places = todo[going], places[going]
        return out

    def find_one(self, key: int) -> int:
        """Position of one key, without the cost of an array."""
        if len(self.keys) == 0:
            return -1
        if self._dense:
            place = key - self._low
            return int(self._slots[place]) if 0 <= place < len(self._slots) else -1
        place = _mix_one(key) & (len(self._slots) - 1)
        while (at := int(self._slots[place])) >= 0:
            if int(self.keys[at]) == key:
                return at
            place = (place + 1) & (len(self._slots) - 1)
        return -1


def _build(keys: Keys) -> npt.NDArray[Any]:
    """Place all keys at once; those that meet move on together until each has a slot."""
    n = len(keys)
    size = 1 << max(4, int(n * 1.5).bit_length())
    kind = np.int32 if n < 2**31 else np.int64
    slots: npt.NDArray[Any] = np.full(size, -1, kind)
    todo = np.arange(n, dtype=kind)
    places = (mix(keys) & np.uint64(size - 1)).astype(np.int64)
    slots[places] = todo  # all are free; the last of those that meet stays
    while True:
        lost = np.flatnonzero(np.take(slots, places) != todo)
        if not len(lost):
            return slots
        todo, places = todo[lost], (places[lost] + 1) & (size - 1)
        free = np.take(slots, places) < 0
        slots[places[free]] = todo[free]


def _mix_one(x: int) -> int:
    """`mix` of one Python integer."""
    full = 0xFFFFFFFFFFFFFFFF
    z = (x + 0x9E3779B97F4A7C15) & full
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & full
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & full
    return z ^ (z >> 31)


class Finder:
    """Looks up values. Keys are exact, or hashes whose hits are compared with the values."""

    def __init__(self, table: KeyTable, check: pa.Array | None) -> None:
        self.table = table
        self._check = check

    @staticmethod
    def of(values: list[pa.Array]) -> Finder:
        """A finder of single values or of combinations."""
        if len(values) > 1:
            return CombinationFinder(values)
        keys, good = pack(values[0])
        if good is None:
            return Finder(KeyTable(keys), None)
        hashes = hash_array(values[0])
        if len(np.unique(hashes)) < len(hashes):
            return _SlowFinder(values[0])
        return Finder(KeyTable(hashes), values[0])

    def find(self, values: list[pa.Array]) -> Positions:
        """Position of each value, -1 where unknown."""
        if self._check is None:
            keys, good = pack(values[0])
            found = self.table.find(keys)
            return found if good is None else np.where(good, found, -1)
        found = self.table.find(hash_array(values[0]))
        same = pc.equal(self._check.take(pa.array(np.maximum(found, 0))), values[0])
        return (
            np.where(same.to_numpy(zero_copy_only=False), found, -1) if len(self._check) else found
        )

    def find_one(self, value: Any) -> int | None:
        """Position of one Python value; None if it must be looked up by `find`."""
        if self._check is not None:
            return None
        if isinstance(value, str):
            raw = value.encode()
            if len(raw) > 8 or raw.endswith(b"\0"):
                return -1
            return self.table.find_one(int.from_bytes(raw.ljust(8, b"\0"), "big"))
        if type(value) is int and -(2**63) <= value < 2**63:
            return self.table.find_one((value + 2**63) & 0xFFFFFFFFFFFFFFFF)
        return None


class _SlowFinder(Finder):
    """For the vocabulary in which two values share a hash: Arrow's own look-up."""

    def __init__(self, values: pa.Array) -> None:
        self._values = values

    def find(self, values: list[pa.Array]) -> Positions:
        found = pc.fill_null(pc.index_in(values[0], value_set=self._values), -1)
        return np.asarray(found.to_numpy(zero_copy_only=False), np.int64)

    def find_one(self, value: Any) -> int | None:
        return None


class CombinationFinder(Finder):
    """Each column gets a number for each of its values; the numbers together make a key."""

    def __init__(self, columns: list[pa.Array]) -> None:
        self._uniques = [c.drop_null().unique() for c in columns]
        self._finders = [Finder.of([u]) for u in self._uniques]
        self._exact = np.prod([float(len(u) + 1) for u in self._uniques]) < 2.0**63
        self._places = KeyTable(self._keys(columns)[0])

    def find(self, values: list[pa.Array]) -> Positions:
        """Position of each combination, -1 where unknown."""
        keys, known = self._keys(values)
        return np.where(known, self._places.find(keys), -1)

    def find_one(self, value: Any) -> int | None:
        """None: combinations are looked up by `find`."""
        return None

    def _keys(self, columns: list[pa.Array]) -> tuple[Keys, npt.NDArray[np.bool_]]:
        """Key of each combination, and whether all of its parts are known."""
        known = np.ones(len(columns[0]), bool)
        codes = []
        for column, finder in zip(columns, self._finders, strict=True):
            valid = pc.is_valid(column).to_numpy(zero_copy_only=False)
            code = np.zeros(len(column), np.int64)
            code[valid] = finder.find([column.drop_null()]) + 1
            known &= ~(valid & (code == 0))
            codes.append(code)
        if not self._exact:
            return combine(c.astype(np.uint64) for c in codes), known
        key = np.zeros(len(known), np.uint64)
        for code, unique in zip(codes, self._uniques, strict=True):
            key = key * np.uint64(len(unique) + 1) + code.astype(np.uint64)
        return key, known
