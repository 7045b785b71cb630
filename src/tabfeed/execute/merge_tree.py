"""In which order summaries are merged: the same on every executor.

Results are folded from the left in runs of eight; the runs' results are folded in runs of eight;
and so on until one is left. The tree depends on the number of results alone, so a merge that is
only nearly associative, as sums of floats are, gives the same bits whoever did the work and
whichever partition was done first. A fold from left to right would do that too, but nobody could
help with it.

Examples
--------
>>> tree = Tree(lambda a, b: f"({a}{b})", width=3)
>>> for letter in "abcdefgh":
...     tree.add(letter)
>>> tree.result()
'((((ab)c)((de)f))(gh))'
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from itertools import count, takewhile
from typing import Generic, TypeVar

__all__ = ["WIDTH", "Tree", "fold", "runs_of"]

R = TypeVar("R")
WIDTH = 8


def runs_of(items: Sequence[R], width: int = WIDTH) -> list[Sequence[R]]:
    """Successive items, `width` at a time.

    Examples
    --------
    >>> runs_of([1, 2, 3, 4, 5], width=2)
    [[1, 2], [3, 4], [5]]
    """
    starts = takewhile(lambda start: start < len(items), count(0, width))
    return [items[start : start + width] for start in starts]


def fold(items: Sequence[R], merge: Callable[[R, R], R]) -> R:
    """All of one run merged, left to right."""
    return functools.reduce(merge, items)


class Tree(Generic[R]):
    """Merges results as they come, in order, holding one for each level of the tree.

    Parameters
    ----------
    merge
        Joins two neighbours.
    width
        How many make a run.
    """

    def __init__(self, merge: Callable[[R, R], R], width: int = WIDTH) -> None:
        self._merge, self._width = merge, width
        self._levels: list[tuple[int, list[R]]] = []

    def add(self, result: R, level: int = 0) -> None:
        """Add the next result."""
        if level == len(self._levels):
            self._levels.append((0, []))
        number, held = self._levels[level]
        held = [self._merge(held[0], result)] if held else [result]
        if number + 1 == self._width:
            self._levels[level] = (0, [])
            self.add(held[0], level + 1)
        else:
            self._levels[level] = (number + 1, held)

    def result(self) -> R | None:
        """Everything merged; None if nothing came."""
        whole: list[R] = []
        for _, held in self._levels:
            whole = [fold([*held, *whole], self._merge)] if held else whole
        return whole[0] if whole else None
