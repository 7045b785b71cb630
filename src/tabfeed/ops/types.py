"""Between Arrow types and Polars types, and questions operators ask of a type.

Lists: apply something to the values inside and keep the rows as they are.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from tabfeed.errors import ArgumentError
from tabfeed.io.to_polars import refuse_type
from tabfeed.schema.dtypes import as_arrow_type, is_list_type

__all__ = ["float_type", "like", "map_leaves", "polars_type", "rebuild"]


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


def polars_type(dtype: pa.DataType) -> pl.DataType:
    """The Polars type of an Arrow type.

    Examples
    --------
    >>> polars_type(pa.float32())
    Float32
    """
    refuse_type(dtype, "the type of a column")
    series = pl.from_arrow(pa.array([], dtype))
    assert isinstance(series, pl.Series)
    return series.dtype


def like(source: pa.DataType | None, leaf: pa.DataType) -> pa.DataType:
    """The type of `source` with the values inside its lists replaced.

    Examples
    --------
    >>> like(pa.list_(pa.int8()), pa.float32())
    ListType(list<item: float>)
    """
    if source is None or not is_list_type(source):
        return leaf
    inner = like(source.value_type, leaf)
    if pa.types.is_fixed_size_list(source):
        return pa.list_(inner, source.list_size)
    return pa.large_list(inner) if pa.types.is_large_list(source) else pa.list_(inner)


def float_type(dtype: Any, default: pa.DataType) -> pa.DataType:
    """A floating type from what a user calls a dtype."""
    arrow = default if dtype is None else as_arrow_type(dtype)
    if not pa.types.is_floating(arrow):
        raise ArgumentError(f"the output is a fraction; {dtype!r} is not a floating type")
    return arrow
