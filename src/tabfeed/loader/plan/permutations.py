"""Permutations of many blocks of one size, for the price of two.

Drawing a permutation takes ten times as long as gathering a column by it, and every block of every
epoch needs one. Where many blocks have the same number of rows, two permutations ``p`` and ``q`` of
that size are drawn for the epoch, and a number ``s`` for each block: its permutation is
``q[(p + s) mod rows]``. Each is as random as one drawn for itself. Two of one epoch are not quite
independent of each other: they are the same steps through a circle, from another point of it.

Blocks of a size that is rare, or small, have permutations of their own.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["Permutations"]

Index = npt.NDArray[np.int64]
_SMALL = 4096
_RARE = 4


class Permutations:
    """The permutations of one epoch's blocks.

    Parameters
    ----------
    rows
        Of each block.
    random
        Gives a source of random numbers for a key.

    Examples
    --------
    >>> drawn = Permutations(np.full(10, 5000), lambda *key: np.random.default_rng(key))
    >>> one, other = drawn.of(0), drawn.of(1)
    >>> bool((np.sort(one) == np.arange(5000)).all()), bool((one == other).all())
    (True, False)
    """

    def __init__(self, rows: Index, random: Callable[..., np.random.Generator]) -> None:
        self._rows, self._random = rows, random
        sizes, counts = np.unique(rows, return_counts=True)
        self._common = set(sizes[(sizes >= _SMALL) & (counts >= _RARE)].tolist())
        self._lock = threading.Lock()
        self._pairs: dict[tuple[int, Any], tuple[Index, Any]] = {}

    def of(self, block: int, dtype: npt.DTypeLike = np.int64) -> Any:
        """The permutation of a block."""
        out = np.empty(self._rows[block], dtype)
        self.into(block, out)
        return out

    def into(self, block: int, out: npt.NDArray[Any]) -> None:
        """The permutation of a block, into an array of integers."""
        random = self._random(1, block)
        rows = len(out)
        if rows not in self._common:
            out[:] = random.permutation(rows)
            return
        steps, circle = self._pair(rows, out.dtype)
        start = int(random.integers(rows))
        np.take(circle[start : start + rows], steps, out=out, mode="clip")

    def _pair(self, rows: int, dtype: np.dtype[Any]) -> tuple[Index, npt.NDArray[Any]]:
        """Steps, and a circle twice over, so that any start is followed by a whole round."""
        with self._lock:
            if (rows, dtype) not in self._pairs:
                random = self._random(2, rows)
                steps, circle = random.permutation(rows), random.permutation(rows)
                twice = np.concatenate([circle, circle]).astype(dtype, copy=False)
                self._pairs[rows, dtype] = steps, twice
            return self._pairs[rows, dtype]
