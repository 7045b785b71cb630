"""Running one operator on one frame: between Arrow and Polars, and between users' frames.

Frames travel as Arrow tables or as Polars lazy frames, whichever the operator before left;
they are converted only where the next one needs the other form.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import numpy as np
import polars as pl
import pyarrow as pa

from tabfeed.errors import ArgumentError, OperatorError
from tabfeed.execute.forks import refuse_forked
from tabfeed.io.formats.memory import arrow_from_frame
from tabfeed.ops.base import Inputs, Operator, StatOperator
from tabfeed.ops.graph.node import to_polars
from tabfeed.schema import Schema
from tabfeed.schema.dtypes import is_list_type

__all__ = ["Value", "apply", "as_lazy", "as_table", "cast_table", "fit", "open_frame", "run"]

Value: TypeAlias = "pa.Table | pl.LazyFrame"


def as_lazy(value: Value) -> pl.LazyFrame:
    """As a Polars lazy frame."""
    return value if isinstance(value, pl.LazyFrame) else to_polars(value).lazy()


def as_table(value: Value) -> pa.Table:
    """As an Arrow table; a lazy frame is computed."""
    if isinstance(value, pa.Table):
        return value
    frame: pl.DataFrame = value.collect()
    return frame.to_arrow(compat_level=pl.CompatLevel.newest())


def run(op: Operator, value: Value, inputs: Inputs) -> Value:
    """Transform with the form of frame that the operator works on."""
    frame = as_table(value) if op.eager else as_lazy(value)
    result: Value = op.transform(frame, inputs)
    return result


def cast_table(table: pa.Table, schema: Schema) -> pa.Table:
    """Exactly the declared columns, in the declared order and types."""
    columns = []
    have = set(table.column_names)
    for column in schema:
        if column.name not in have:
            raise OperatorError(
                f"column {column.name!r} was declared but not made; there are {table.column_names}"
            )
        values = table.column(column.name)
        if column.dtype is not None and values.type != column.dtype:
            values = _cast(values, column.dtype, column.name)
        columns.append(values)
    fields = []
    for c, v in zip(schema, columns, strict=True):
        kind = v.type if c.dtype is None else c.dtype
        nullable = c.nullable or v.null_count > 0 or pa.types.is_null(kind)
        fields.append(pa.field(c.name, kind, nullable=nullable))
    if not columns:
        return table.select([])
    return pa.table(columns, schema=pa.schema(fields))


def _cast(values: pa.ChunkedArray, dtype: pa.DataType, name: str) -> pa.ChunkedArray:
    try:
        if pa.types.is_fixed_size_list(dtype) and is_list_type(values.type):
            values = values.cast(pa.list_(dtype.value_type))
        if pa.types.is_null(values.type):
            return pa.chunked_array([pa.nulls(len(values), dtype)], dtype)
        if pa.types.is_dictionary(dtype) and not pa.types.is_dictionary(values.type):
            values = values.cast(dtype.value_type).dictionary_encode()
        return values.cast(dtype)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as e:
        raise OperatorError(
            f"column {name!r} came out as {values.type}, not as the declared {dtype}: {e}"
        ) from e


def open_frame(frame: Any) -> tuple[pa.Table, Callable[[pa.Table], Any]]:
    """A user's frame as a table, and the way back to what the user gave.

    Examples
    --------
    >>> table, back = open_frame({"a": [1, 2]})
    >>> back(table)
    {'a': array([1, 2])}
    """
    if isinstance(frame, pl.LazyFrame):
        refuse_forked()
        return open_frame(frame.collect())[0], lambda t: to_polars(t).lazy()
    table = arrow_from_frame(frame)
    if table is None:
        raise ArgumentError(
            f"a {type(frame).__name__} is not a frame tabfeed knows: give a Dataset, a Polars or "
            "pandas DataFrame, an Arrow table, or a dict of arrays"
        )
    if isinstance(frame, pl.DataFrame):
        return table, to_polars
    if isinstance(frame, pa.RecordBatch):
        return table, lambda t: t.combine_chunks().to_batches()[0] if len(t) else _empty_batch(t)
    pandas = sys.modules.get("pandas")
    if pandas is not None and isinstance(frame, pandas.DataFrame):
        return table, lambda t: _to_pandas(t, frame.index)
    if isinstance(frame, Mapping):
        return table, _to_arrays
    return table, lambda t: t


def _empty_batch(table: pa.Table) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([], schema=table.schema)


def _to_pandas(table: pa.Table, index: Any) -> Any:
    """With the index of the frame that came, where the rows are still the same."""
    out = table.to_pandas()
    if len(out) == len(index):
        out.index = index
    return out


def _to_arrays(table: pa.Table) -> dict[str, np.ndarray[Any, Any]]:
    return {n: table.column(n).to_numpy() for n in table.column_names}


def apply(op: Operator, frame: Any) -> Any:
    """Transform a frame by one operator, all columns selected."""
    table, back = open_frame(frame)
    if isinstance(op, StatOperator):
        op.require_fitted()
    inputs = Inputs.of(Schema.from_arrow(table.schema))
    return back(cast_table(as_table(run(op, table, inputs)), op.output_schema(inputs)))


def fit(op: StatOperator, frame: Any) -> None:
    """Fit one operator on a frame, all columns selected."""
    table, _ = open_frame(frame)
    inputs = Inputs.of(Schema.from_arrow(table.schema))
    value = table if op.eager else as_lazy(table)
    op.learn(op.partial(value, inputs), inputs)
