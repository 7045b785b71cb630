"""What operators share: frames between Arrow and Polars, types of columns, values inside lists.

Frames travel as Arrow tables or as Polars lazy frames, whichever the operator before left; they are
converted only where the next one needs the other form. A user's frame becomes a table, and the
result what the user gave.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from tabfeed.errors import ArgumentError, OperatorError
from tabfeed.execute.executor import refuse_forked
from tabfeed.io.formats.memory import arrow_from_frame, refuse_bad_text
from tabfeed.io.frames import frame_of, refuse_type
from tabfeed.ops.base import Inputs, Operator, StatOperator
from tabfeed.schema import ColumnSchema, Schema, Tags
from tabfeed.schema.dtypes import as_arrow_type, is_list_type

Sizes = dict[str, tuple[int, int]]
Value: TypeAlias = "pa.Table | pl.LazyFrame"


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


def require_numeric(op: Operator, columns: Iterable[ColumnSchema], *, lists: bool = True) -> None:
    """Refuse columns that hold anything but numbers and booleans; lists of them too, on demand."""
    is_of = pa.types
    kinds = (is_of.is_integer, is_of.is_floating, is_of.is_decimal, is_of.is_boolean, is_of.is_null)
    for column in columns:
        leaf = column.leaf_dtype if lists else column.dtype
        if leaf is not None and not any(kind(leaf) for kind in kinds):
            raise OperatorError(
                f"{op.label} works on numbers; column {column.name!r} is {column.dtype}. "
                "Convert it first, for instance with LambdaOp, or leave it out"
            )


def missing_to_null(value: pl.Expr, column: ColumnSchema) -> pl.Expr:
    """NaN as null, where there can be NaN."""
    floating = column.dtype is not None and pa.types.is_floating(column.leaf_dtype)
    return value.fill_nan(None) if floating else value


def is_null(column: ColumnSchema) -> pl.Expr:
    """Where a column is null, or NaN if it holds numbers; what is inside lists does not count."""
    value = pl.col(column.name)
    return (value if column.is_list else missing_to_null(value, column)).is_null()


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


def to_polars(table: pa.Table) -> pl.DataFrame:
    """An Arrow table in Polars: dictionaries decoded, fixed-size lists as lists."""
    refuse_forked()
    columns = []
    for column in table.columns:
        kind = column.type
        if pa.types.is_dictionary(kind):
            column = column.cast(kind.value_type)
        elif pa.types.is_fixed_size_list(kind):
            column = column.cast(pa.list_(kind.value_type))
        columns.append(column)
    return frame_of(pa.table(columns, names=table.column_names))


def as_lazy(value: Value) -> pl.LazyFrame:
    """As a Polars lazy frame."""
    return value if isinstance(value, pl.LazyFrame) else to_polars(value).lazy()


def as_table(value: Value) -> pa.Table:
    """As an Arrow table; a lazy frame is computed."""
    if isinstance(value, pa.Table):
        return value
    frame: pl.DataFrame = value.collect()
    return frame.to_arrow(compat_level=pl.CompatLevel.newest())


def compute(values: Sequence[Value]) -> list[Value]:
    """The values, lazy frames computed, all at once."""
    lazy = [v for v in values if isinstance(v, pl.LazyFrame)]
    if len(lazy) < 2:
        return list(values)
    made = iter(pl.collect_all(lazy))
    return [next(made).lazy() if isinstance(v, pl.LazyFrame) else v for v in values]


def gather(taken: Sequence[tuple[Value, list[str]]]) -> Value:
    """The named columns of each value, side by side."""
    if len(taken) == 1:
        value, names = taken[0]
        return value.select(names)
    tables = map(as_table, compute([value for value, _ in taken]))
    return pa.table(
        {n: table.column(n) for table, (_, names) in zip(tables, taken, strict=True) for n in names}
    )


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
    refuse_bad_text(table, "the data")
    if isinstance(frame, pl.DataFrame):
        return table, to_polars
    if isinstance(frame, pa.RecordBatch):
        return table, _to_batch
    pandas = sys.modules.get("pandas")
    if pandas is not None and isinstance(frame, pandas.DataFrame):
        return table, lambda t: _to_pandas(t, frame.index)
    if isinstance(frame, Mapping):
        return table, lambda t: {n: t.column(n).to_numpy() for n in t.column_names}
    return table, lambda t: t


def _to_batch(table: pa.Table) -> pa.RecordBatch:
    empty = pa.RecordBatch.from_pylist([], schema=table.schema)
    return table.combine_chunks().to_batches()[0] if len(table) else empty


def _to_pandas(table: pa.Table, index: Any) -> Any:
    """With the index of the frame that came, where the rows are still the same."""
    out = table.to_pandas()
    if len(out) == len(index):
        out.index = index
    return out


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
