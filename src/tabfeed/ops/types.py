"""Between Arrow types and Polars types, and questions operators ask of a type."""

from __future__ import annotations

from typing import Any

import polars as pl
import pyarrow as pa

from tabfeed.dtypes import as_arrow_type, is_list_type
from tabfeed.errors import ArgumentError
from tabfeed.io.to_polars import refuse_type

__all__ = ["float_type", "like", "polars_type"]


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
