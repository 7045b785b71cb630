"""Rows of different lengths: values laid end to end, and where each row begins."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from tabfeed.loader.columns import Lists

__all__ = ["gather_lists", "join_lists", "slice_lists"]

Index = npt.NDArray[np.int64]


def slice_lists(lists: Lists, start: int, stop: int) -> Lists:
    """The rows ``[start, stop)``."""
    offsets = lists.offsets[start : stop + 1]
    return Lists(lists.values[offsets[0] : offsets[-1]], offsets - offsets[0])


def join_lists(runs: Sequence[Lists], dtype: np.dtype[Any]) -> Lists:
    """Ragged rows laid end to end, in the batch's dtype."""
    if not runs:
        return Lists(np.empty(0, dtype), np.zeros(1, np.int64))
    if len(runs) == 1:
        return Lists(runs[0].values.astype(dtype), runs[0].offsets)
    shifts = np.cumsum([0, *(len(r.values) for r in runs[:-1])])
    offsets = [r.offsets[1:] + shift for r, shift in zip(runs, shifts, strict=True)]
    values = np.concatenate([r.values for r in runs], dtype=dtype, casting="unsafe")
    return Lists(values, np.concatenate([[0], *offsets]).astype(np.int64))


def gather_lists(lists: Lists, index: Index | None) -> Lists:
    """Ragged rows in another order.

    Examples
    --------
    >>> rows = Lists(np.array([1, 2, 3, 4]), np.array([0, 2, 2, 4]))
    >>> gather_lists(rows, np.array([2, 0]))
    Lists(values=array([3, 4, 1, 2]), offsets=array([0, 2, 4]))
    """
    if index is None:
        return lists
    lengths = np.diff(lists.offsets)[index]
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    where = np.repeat(lists.offsets[:-1][index] - offsets[:-1], lengths)
    where += np.arange(len(where))
    return Lists(np.take(lists.values, where, mode="clip"), offsets)
