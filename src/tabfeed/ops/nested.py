"""Lists: apply something to the values inside and keep the rows as they are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tabfeed.dtypes import is_list_type

__all__ = ["map_leaves", "rebuild"]


def map_leaves(
    column: pa.Array | pa.ChunkedArray, fn: Callable[[pa.Array], pa.Array], dtype: pa.DataType
) -> Any:
    """Replace the values of a column, or the values inside its lists, by ``fn`` of them.

    Examples
    --------
    >>> lists = pa.array([[1, 2], None, []])
    >>> map_leaves(lists, lambda a: pc.multiply(a, 2), pa.int64()).to_pylist()
    [[2, 4], None, []]
    """
    if isinstance(column, pa.ChunkedArray):
        chunks = [map_leaves(c, fn, dtype) for c in column.chunks]
        if not chunks:
            empty = pa.array([], column.type)
            return pa.chunked_array([map_leaves(empty, fn, dtype)])
        return pa.chunked_array(chunks)
    if not is_list_type(column.type):
        return fn(column)
    inner = map_leaves(column.flatten(), fn, dtype)
    return rebuild(column, inner)


def rebuild(lists: pa.Array, values: pa.Array) -> pa.Array:
    """Lists of the same lengths and nulls as `lists`, holding `values`."""
    lengths = list_lengths(lists)
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    mask = lists.is_null() if lists.null_count else None
    if pa.types.is_large_list(lists.type):
        return pa.LargeListArray.from_arrays(pa.array(offsets, pa.int64()), values, mask=mask)
    if pa.types.is_fixed_size_list(lists.type) and not lists.null_count:
        return pa.FixedSizeListArray.from_arrays(values, lists.type.list_size)
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), values, mask=mask)


def list_lengths(lists: pa.Array) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Values in each row, 0 where the row is null."""
    found = pc.fill_null(pc.list_value_length(lists), 0)
    return np.asarray(found.to_numpy(zero_copy_only=False), np.int64)
