"""Rows of Python values: running a graph on them, and which values a column may have.

A number takes the type of its column, in a row as in a table. It is refused where that type cannot
hold it: a fraction or a number out of range for integers, another number than 0 and 1 for booleans,
a finite number beyond the largest of the fractions. Rounding within fractions is not an error: 0.1
becomes float32's 0.1. NaN means a missing value where a column cannot hold it.

`value_converter` is the rule. `cast_numbers` does the same for a column, and converts value by
value where Arrow does not convert all of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tabfeed.errors import ColumnNotFoundError, OperatorError, SchemaError, TabfeedError
from tabfeed.ops.base import Operator
from tabfeed.ops.graph.node import Node, Selection, Structural
from tabfeed.ops.graph.plan import kind_of
from tabfeed.schema import ColumnSchema
from tabfeed.schema.dtypes import is_list_type

if TYPE_CHECKING:
    from tabfeed.workflow.compiled import CompiledGraph

Convert = Callable[[Any], Any]
Row = dict[str, Any]


class RowGraph:
    """A graph as a function of rows of Python values."""

    def __init__(self, graph: CompiledGraph) -> None:
        self._graph, self._source = graph, graph.plan.source
        self._target = graph.targets[0]
        self._output = graph.plan.schemas[self._target].column_names
        self._convert = [(n, value_converter(n, self._source[n].dtype)) for n in graph.columns]
        self._selections = [n for n in graph.nodes if isinstance(n.op, Selection)]
        self._steps = [
            (n, n.op.transform_row, graph.plan.inputs[n], graph.sources[n])
            for n in graph.nodes
            if not isinstance(n.op, Selection)
        ]
        self._by_value = self._target.rows is None and all(_knows_rows(n) for n in graph.nodes)

    def one(self, row: Mapping[str, Any]) -> Row | None:
        """Transform one row; None if an operator drops it."""
        clean = self._clean(row)
        if self._by_value:
            try:
                return self._run(clean)
            except NotImplementedError:
                pass
        out = self._as_table([clean])
        if len(out) > 1:
            raise OperatorError(f"one row became {len(out)}; transform a table to have them all")
        return out[0] if out else None

    def several(self, rows: Sequence[Mapping[str, Any]]) -> list[Row]:
        """Transform rows all at once, by the rules for one; rows that are dropped are missing."""
        return self._as_table([self._clean(row) for row in rows])

    def _as_table(self, rows: Sequence[Row]) -> list[Row]:
        arrays = {n: _array([row[n] for row in rows], self._source[n]) for n, _ in self._convert}
        out: list[Row] = self._graph(pa.table(arrays)).to_pylist()
        return out

    def _clean(self, row: Mapping[str, Any]) -> Row:
        """The needed values as Python's own types, as the columns hold them."""
        out: Row = {}
        for name, convert in self._convert:
            if name not in row:  # asked first: a defaultdict would make one up
                raise ColumnNotFoundError(name, row, where="the row")
            value = row[name]
            out[name] = None if value is None else convert(value)
        return out

    def _run(self, row: Row) -> Row:
        values: dict[Node, Row] = dict.fromkeys(self._selections, row)
        for node, transform, inputs, sources in self._steps:
            if len(sources) == 1:
                given = values[sources[0][0]]
            else:
                given = {name: values[source][name] for source, names in sources for name in names}
            if isinstance(node.op, Structural):
                values[node] = given
                continue
            try:
                values[node] = transform(given, inputs)
            except (TabfeedError, NotImplementedError):
                raise
            except Exception as e:  # a user's function may raise anything
                raise OperatorError(f"{node!r} failed on a row: {e!r}") from e
        out = values[self._target]
        return {n: out[n] for n in self._output}


def _knows_rows(node: Node) -> bool:
    """Whether a node's operator can transform a row without a table."""
    own = type(node.op).transform_row is not Operator.transform_row
    return own or isinstance(node.op, Structural)


def _array(values: list[Any], column: ColumnSchema) -> pa.Array:
    """Values of one column; NaN stays NaN where the column can hold it."""
    floating = column.dtype is not None and pa.types.is_floating(column.leaf_dtype)
    try:
        return pa.array(values, column.dtype, from_pandas=not floating)
    except (pa.ArrowException, TypeError, OverflowError) as e:
        raise SchemaError(
            f"column {column.name!r} is {values[0]!r} here and was {column.dtype} when the "
            f"workflow was fitted: {e}"
        ) from e


def cast_numbers(column: pa.ChunkedArray, dtype: pa.DataType, name: str) -> pa.ChunkedArray:
    """A column of numbers in another type."""
    try:
        return _cast(column, dtype)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, _Unfit) as e:
        convert = value_converter(name, dtype)
        values = [None if v is None else convert(v) for v in column.to_pylist()]
        try:
            return pa.chunked_array([pa.array(values, dtype)])
        except (pa.ArrowException, TypeError):
            raise SchemaError(f"column {name!r} cannot be converted to {dtype}: {e}") from e


class _Unfit(Exception):
    """Some value does not fit."""


def _cast(column: pa.ChunkedArray, dtype: pa.DataType) -> pa.ChunkedArray:
    if is_list_type(dtype):
        values = [c.flatten() for c in column.chunks]
        _cast(pa.chunked_array(values, column.type.value_type), dtype.value_type)
        return column.cast(dtype)
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    if pa.types.is_boolean(dtype):
        flags = column.cast(dtype)
        same = pc.equal(flags.cast(pa.float64()), column.cast(pa.float64()))
        if not pc.all(same, min_count=0).as_py():
            raise _Unfit("a value is neither 0 nor 1")
        return flags
    if pa.types.is_integer(dtype) and pa.types.is_floating(column.type):
        column = pc.if_else(pc.is_nan(column), pa.scalar(None, column.type), column)
    if not pa.types.is_floating(dtype):
        return column.cast(dtype)
    found = column.cast(dtype, safe=False)
    fractions = pa.types.is_floating(column.type)
    if pa.types.is_float16(dtype) or (fractions and dtype.bit_width < column.type.bit_width):
        overflown = pc.is_inf(found)
        if fractions:
            overflown = pc.and_(overflown, pc.invert(pc.is_inf(column)))
        if pc.any(overflown).as_py():
            raise _Unfit("a value is too large")
    return found


def value_converter(name: str, dtype: pa.DataType | None) -> Convert:
    """A function from a Python value, not None, to what the column holds; it may refuse it.

    Examples
    --------
    >>> value_converter("n", pa.int32())(np.float64(3))
    3
    >>> value_converter("n", pa.int32())(3.7)
    Traceback (most recent call last):
        ...
    tabfeed.errors.SchemaError: column 'n' is 3.7 here, which int32 cannot hold
    """
    if dtype is None or pa.types.is_null(dtype):
        return _as_python
    if pa.types.is_dictionary(dtype):
        return value_converter(name, dtype.value_type)
    if kind_of(dtype).startswith("list of "):
        return _list_converter(name, dtype, value_converter(name, dtype.value_type))
    if pa.types.is_boolean(dtype):
        convert: Convert = _to_bool
    elif pa.types.is_integer(dtype):
        convert = _int_converter(dtype)
    elif pa.types.is_floating(dtype):
        convert = _float_converter(dtype)
    else:
        convert = _to_text if kind_of(dtype) == "text" else partial(_to_other, dtype=dtype)

    def checked(value: Any) -> Any:
        try:
            return convert(value)
        except _ERRORS:
            value = _as_python(value)
            raise SchemaError(
                f"column {name!r} is {value!r} here, which {dtype} cannot hold"
            ) from None

    return checked


_ERRORS = (_Unfit, pa.ArrowException, TypeError, ValueError, OverflowError)


def _as_python(value: Any) -> Any:
    """A value of NumPy's as Python's own."""
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, np.ndarray):
        return value.tolist()
    return list(value) if isinstance(value, tuple) else value


def _to_bool(value: Any) -> Any:
    value = _as_python(value)
    if isinstance(value, int | float):
        if value == 0 or value == 1:
            return bool(value)
        if value != value:
            return None
    raise _Unfit


def _int_converter(dtype: pa.DataType) -> Convert:
    limits = np.iinfo(dtype.to_pandas_dtype())
    low, high = int(limits.min), int(limits.max)

    def convert(value: Any) -> Any:
        if type(value) is int and low <= value <= high:
            return value
        value = _as_python(value)
        if isinstance(value, float):
            if value != value:
                return None
            if value.is_integer():
                value = int(value)
        if isinstance(value, int) and low <= value <= high:
            return int(value)
        raise _Unfit

    return convert


def _float_converter(dtype: pa.DataType) -> Convert:
    kind = dtype.to_pandas_dtype()
    rounded = kind if dtype.bit_width < 64 else None

    def convert(value: Any) -> Any:
        if type(value) is not float:
            value = _as_python(value)
            if not isinstance(value, int | float):
                raise _Unfit
        found = float(value)
        if rounded is not None:
            with np.errstate(over="ignore"):
                found = float(rounded(found))
        if math.isinf(found) and not math.isinf(value):
            raise _Unfit
        return found

    return convert


def _to_text(value: Any) -> Any:
    value = _as_python(value)
    if isinstance(value, str):
        if not value.isascii():
            value.encode()  # half a surrogate pair cannot be
        return value
    if isinstance(value, float) and value != value:
        return None
    raise _Unfit


def _to_other(value: Any, dtype: pa.DataType) -> Any:
    """Dates and times, decimals, bytes: what Arrow takes for a value of that kind."""
    if isinstance(value, float) and value != value:
        return None
    temporal = pa.types.is_temporal(dtype)
    found = pa.array([value], None if temporal else dtype)
    if temporal and kind_of(found.type) not in ("time", "nothing"):
        raise _Unfit  # Arrow would take a number for a time since 1970
    return found.cast(dtype)[0].as_py()


def _list_converter(name: str, dtype: pa.DataType, inner: Convert) -> Convert:
    def convert(value: Any) -> Any:
        value = _as_python(value)
        if isinstance(value, list):
            return [None if v is None else inner(v) for v in value]
        if isinstance(value, float) and value != value:
            return None
        raise SchemaError(f"column {name!r} is {value!r} here and was {dtype} in the fitted data")

    return convert
