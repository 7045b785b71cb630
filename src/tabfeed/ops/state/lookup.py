"""From values to their positions in a fixed list: for vocabularies and for tables of groups.

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

from tabfeed.hashing import combine, hash_array, mix
from tabfeed.ops.state.keys import Keys, base_type, normalise, pack

__all__ = ["CombinationFinder", "Finder", "GroupLookup", "KeyTable", "Positions"]

Positions = npt.NDArray[np.int64]


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


class GroupLookup:
    """Finds the row of a table that belongs to a combination of keys."""

    def __init__(self, keys: list[pa.Array]) -> None:
        self._types = [k.type for k in keys]
        self._null = -1
        if len(keys) == 1 and not pa.types.is_null(keys[0].type):
            nulls = np.flatnonzero(keys[0].is_null().to_numpy(zero_copy_only=False))
            self._null = int(nulls[0]) if len(nulls) else -1
            self._rows = np.flatnonzero(keys[0].is_valid().to_numpy(zero_copy_only=False))
            self._finder = Finder.of([keys[0].drop_null()])
        else:
            self._finder = CombinationFinder(keys)

    def find(self, columns: list[pa.ChunkedArray]) -> Positions:
        """Row of each combination, -1 where it is unknown."""
        keys = [_key(c, t) for c, t in zip(columns, self._types, strict=True)]
        if isinstance(self._finder, CombinationFinder):
            return self._finder.find(keys)
        found = self._finder.find([keys[0].drop_null()])
        if self._null >= 0:
            found = np.where(found >= 0, np.take(self._rows, found, mode="clip"), -1)
        if not keys[0].null_count:
            return found
        out = np.full(len(keys[0]), self._null, np.int64)
        out[keys[0].is_valid().to_numpy(zero_copy_only=False)] = found
        return out


def _key(column: pa.ChunkedArray, dtype: pa.DataType) -> pa.Array:
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    if pa.types.is_null(dtype):  # nothing but nulls was seen: only nulls are known
        return (
            pa.nulls(len(array))
            if array.null_count == len(array)
            else array.cast(base_type(array.type))
        )
    return normalise(array, dtype)
