"""Take rows of a table in a given order, also where Arrow cannot.

Arrow's ``take`` joins the chunks of a column first, and fails where the result would not be a valid
array: more than 2 GB of text, which 32-bit offsets cannot address, or dictionaries that together
outgrow their index type. Here such columns are taken in a wider type.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tabfeed.io.align import cast_table

__all__ = ["prepare", "take_prepared", "take_rows"]

_LARGE = {pa.string(): pa.large_string(), pa.binary(): pa.large_binary()}


def take_rows(table: pa.Table, order: npt.NDArray[np.integer[Any]]) -> pa.Table:
    """The rows with these numbers, in this order.

    Examples
    --------
    >>> take_rows(pa.table({"x": [5, 6, 7]}), np.array([2, 0]))["x"].to_pylist()
    [7, 5]
    """
    return take_prepared(prepare(table), order, table.schema)


def prepare(table: pa.Table) -> pa.Table:
    """The same rows, each column in one chunk, in a wider type where it does not fit into one.

    Examples
    --------
    >>> prepare(pa.table({"x": pa.chunked_array([["a"], ["b"]])}))["x"].num_chunks
    1
    """
    for i, field in enumerate(table.schema):
        if table.column(i).num_chunks > 1:
            array = _join(table.column(i))
            table = table.set_column(i, field.with_type(array.type), array)
    return table


def take_prepared(
    table: pa.Table, order: npt.NDArray[np.integer[Any]], schema: pa.Schema
) -> pa.Table:
    """Rows of a prepared table, with the types of `schema` again."""
    return cast_table(table.take(pa.array(order)), schema)


def _join(column: pa.ChunkedArray) -> pa.Array:
    try:
        joined = column.combine_chunks()
    except pa.ArrowInvalid:
        wide = _wider_type(column.type)
        if wide == column.type:
            raise
        joined = column.cast(wide).combine_chunks()
    if isinstance(joined, pa.ChunkedArray):  # still in chunks, since one would be too large
        return _join(joined.cast(_wider_type(column.type)))
    return joined


def _wider_type(dtype: pa.DataType) -> pa.DataType:
    """The type that holds the same values with 64-bit offsets and without dictionaries."""
    if pa.types.is_dictionary(dtype):
        return dtype.value_type
    if pa.types.is_list(dtype):
        return pa.large_list(dtype.value_field.with_type(_wider_type(dtype.value_type)))
    return _LARGE.get(dtype, dtype)
