"""From key to position, for millions of keys at once: an open-addressing table in NumPy.

Arrow's and Polars' look-ups build their hash table anew at every call; a vocabulary is
looked up once a partition and again for every request, so its table is built once here and
kept. Four bytes a slot, at most two thirds of the slots used. Keys that lie close together
(small integers) get a plain array instead.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from tabfeed.hashing import mix
from tabfeed.ops.keys import Keys

__all__ = ["KeyTable"]

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
