"""What operators share: types of columns, values inside lists, arguments, embedding sizes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from tabfeed.errors import ArgumentError, OperatorError
from tabfeed.io.to_polars import refuse_type
from tabfeed.ops.base import Inputs, Operator
from tabfeed.schema import ColumnSchema, Schema, Tags
from tabfeed.schema.dtypes import as_arrow_type, is_list_type

__all__ = [
    "as_list", "continuous_floats", "embedding_size", "float_type", "get_embedding_sizes",
    "is_missing", "leafwise", "like", "list_lengths", "map_leaves", "map_value", "missing_to_null",
    "polars_type", "rebuild", "require_numeric",
]  # fmt: skip

Sizes = dict[str, tuple[int, int]]


def as_list(what: Any) -> list[Any]:
    """Nothing, one thing or several, as a list."""
    if what is None:
        return []
    return list(what) if isinstance(what, list | tuple) else [what]


def leafwise(column: ColumnSchema, fn: Callable[[pl.Expr], pl.Expr]) -> pl.Expr:
    """Apply an expression to a column's values; to those inside its lists, if it has lists."""
    if column.is_list:
        return pl.col(column.name).list.eval(fn(pl.element())).alias(column.name)
    return fn(pl.col(column.name)).alias(column.name)


def require_numeric(op: Operator, inputs: Inputs) -> None:
    """Refuse columns that hold anything but numbers and booleans."""
    for column in inputs.columns:
        leaf = column.leaf_dtype
        if leaf is None or pa.types.is_boolean(leaf) or pa.types.is_null(leaf):
            continue
        if not (
            pa.types.is_integer(leaf) or pa.types.is_floating(leaf) or pa.types.is_decimal(leaf)
        ):
            raise OperatorError(
                f"{op.label} works on numbers; column {column.name!r} is {column.dtype}. "
                "Convert it first, for instance with LambdaOp, or leave it out"
            )


def missing_to_null(value: pl.Expr, column: ColumnSchema) -> pl.Expr:
    """NaN as null, where there can be NaN."""
    floating = column.dtype is not None and pa.types.is_floating(column.leaf_dtype)
    return value.fill_nan(None) if floating else value


def is_missing(value: Any) -> bool:
    """Whether a Python value is None or NaN."""
    return value is None or (isinstance(value, float) and value != value)


def map_value(value: Any, fn: Any) -> Any:
    """``fn`` of a Python value, or of each value of a list."""
    return [fn(v) for v in value] if isinstance(value, list) else fn(value)


def continuous_floats(inputs: Inputs, dtype: pa.DataType) -> Schema:
    """The schema of the input columns as floats of a type, tagged continuous."""
    return Schema(
        c.with_dtype(like(c.dtype, dtype)).with_tags(Tags.CONTINUOUS) for c in inputs.columns
    )


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


def embedding_size(cardinality: int) -> tuple[int, int]:
    """Rows and columns of the table for `cardinality` ids.

    Examples
    --------
    >>> [embedding_size(n)[1] for n in (100, 1_000, 10_000, 100_000)]
    [21, 77, 278, 512]
    """
    return cardinality, min(max(16, round(1.6 * cardinality**0.56)), 512)


def get_embedding_sizes(source: Any) -> Sizes | tuple[Sizes, Sizes]:
    """``{column: (cardinality, dimension)}`` of the categorical columns, sorted by name.

    Where there are columns of ragged lists, a pair: the single-valued columns and the list
    columns.

    Parameters
    ----------
    source
        A fitted `Workflow`, a node of one, or a `Schema`.

    Examples
    --------
    >>> from tabfeed import ColumnSchema
    >>> get_embedding_sizes(Schema([
    ...     ColumnSchema("C2", "int64", tags="categorical", embedding_size=(10, 16)),
    ...     ColumnSchema("C10", "int64", tags="categorical", embedding_size=(1000, 77))]))
    {'C10': (1000, 77), 'C2': (10, 16)}
    """
    schema = source if isinstance(source, Schema) else getattr(source, "output_schema", None)
    if schema is None:
        raise ArgumentError(f"give a workflow, a node or a schema, not {source!r}")
    single: Sizes = {}
    multi: Sizes = {}
    for column in sorted(schema, key=lambda c: c.name):
        if column.embedding_size is None or Tags.CATEGORICAL not in column.tags:
            continue
        (multi if column.is_list and column.is_ragged else single)[column.name] = (
            column.embedding_size
        )
    return (single, multi) if multi else single
