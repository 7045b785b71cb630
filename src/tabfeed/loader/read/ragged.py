"""Rows of different lengths: values laid end to end, and where each row begins."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tabfeed.loader.read.arrow_columns import Lists

__all__ = ["gather_lists", "join_lists", "slice_lists"]

Index = npt.NDArray[np.int64]
_LARGE = 2**18
_AT_ONCE = 2**18  # values that are gathered at a time


def _empty(shape: tuple[int, ...], dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """An array of Arrow's memory if it is large: the C library keeps what is of ever new sizes."""
    nbytes = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    if nbytes < _LARGE:
        return np.empty(shape, dtype)
    array: npt.NDArray[Any] = np.frombuffer(pa.allocate_buffer(nbytes), np.uint8)
    return array.view(dtype).reshape(shape)


def slice_lists(lists: Lists, start: int, stop: int) -> Lists:
    """The rows ``[start, stop)``."""
    offsets = lists.offsets[start : stop + 1]
    return Lists(lists.values[offsets[0] : offsets[-1]], offsets - offsets[0])


def join_lists(runs: Sequence[Lists], dtype: np.dtype[Any]) -> Lists:
    """Ragged rows laid end to end, in the batch's dtype; the very values of a single run."""
    if not runs:
        return Lists(np.empty(0, dtype), np.zeros(1, np.int64))
    if len(runs) == 1:
        return runs[0]
    shifts = np.cumsum([0, *(len(r.values) for r in runs[:-1])])
    offsets = [r.offsets[1:] + shift for r, shift in zip(runs, shifts, strict=True)]
    values = np.concatenate([r.values for r in runs], dtype=dtype, casting="unsafe")
    return Lists(values, np.concatenate([[0], *offsets]).astype(np.int64))


def gather_lists(lists: Lists, index: Index | None, dtype: np.dtype[Any] | None = None) -> Lists:
    """Ragged rows in another order, copied, in a dtype if one is given.

    Some rows at a time: where each value comes from is a number of 8 bytes, of which there shall
    not be as many as there are values.

    Examples
    --------
    >>> rows = Lists(np.array([1, 2, 3, 4]), np.array([0, 2, 2, 4]))
    >>> gather_lists(rows, np.array([2, 0]))
    Lists(values=array([3, 4, 1, 2]), offsets=array([0, 2, 4]))
    """
    dtype = lists.values.dtype if dtype is None else dtype
    if index is None:
        return Lists(lists.values.astype(dtype), lists.offsets)
    lengths = np.diff(lists.offsets)[index]
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    begins = lists.offsets[:-1][index]
    values = _empty((int(offsets[-1]), *lists.values.shape[1:]), dtype)
    row = 0
    while row < len(index):
        start = int(offsets[row])
        stop = int(np.searchsorted(offsets, start + _AT_ONCE, side="right")) - 1
        if stop <= row:  # one row, longer than that
            begin, length = int(begins[row]), int(lengths[row])
            values[start : start + length] = lists.values[begin : begin + length]
            row += 1
            continue
        stop = min(stop, len(index))
        where = np.repeat(begins[row:stop] - offsets[row:stop], lengths[row:stop])
        where += np.arange(start, start + len(where))
        out = values[start : int(offsets[stop])]
        if dtype == lists.values.dtype:
            np.take(lists.values, where, axis=0, out=out, mode="clip")
        else:
            out[...] = np.take(lists.values, where, axis=0, mode="clip")
        row = stop
    return Lists(values, offsets)
