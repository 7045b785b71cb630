"""Numbers, value by value: Clip, LogOp, ReduceDtypeSize."""

from __future__ import annotations

import math
from collections.abc import Mapping
from decimal import Context, Decimal
from functools import partial
from operator import gt, lt
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa

from tabfeed.errors import ArgumentError, OperatorError
from tabfeed.ops.base import Inputs, Operator, StatOperator
from tabfeed.ops.frames import (
    continuous_floats,
    float_type,
    leafwise,
    like,
    map_value,
    polars_type,
    require_numeric,
)
from tabfeed.ops.state.checks import by_name, check_range, record
from tabfeed.schema import ColumnSchema, Schema


class Clip(Operator):
    """Limit values from below, above, or both. Nulls stay.

    Parameters
    ----------
    min_value, max_value
        The limits; at least one.

    Examples
    --------
    >>> Clip(min_value=0)({"x": [-3, 5]})
    {'x': array([0, 5])}
    """

    def __init__(self, min_value: float | None = None, max_value: float | None = None) -> None:
        if min_value is None and max_value is None:
            raise ArgumentError("Clip needs min_value, max_value, or both")
        for name, limit in {"min_value": min_value, "max_value": max_value}.items():
            if limit is not None and limit != limit:
                raise ArgumentError(f"{name} is NaN; it must be a number")
        if min_value is not None and max_value is not None and min_value > max_value:
            raise ArgumentError(f"min_value {min_value} is above max_value {max_value}")
        self.min_value, self.max_value = min_value, max_value

    def output_schema(self, inputs: Inputs) -> Schema:
        """The same types; float64 where an integer column meets a fractional limit."""
        require_numeric(self, inputs.columns)
        for column in inputs.columns:
            if column.dtype is not None and pa.types.is_boolean(column.leaf_dtype):
                raise OperatorError(f"Clip works on numbers; column {column.name!r} is boolean")
            if column.dtype is not None:
                self._require_room(column)
        return Schema(
            c.with_dtype(self._dtype(c)) if c.dtype is not None else c for c in inputs.columns
        )

    def _require_room(self, column: ColumnSchema) -> None:
        """Refuse a limit outside the range of the column's type."""
        leaf = column.with_dtype(self._dtype(column)).leaf_dtype
        low, high = _within(self.min_value, leaf), _within(self.max_value, leaf)
        for limit, lacking in (
            (self.min_value, low is not None and low < self.min_value),
            (self.max_value, high is not None and high > self.max_value),
        ):
            if lacking:
                raise OperatorError(
                    f"Clip: {limit!r} does not fit column {column.name!r} ({leaf}); convert the "
                    "column to float64 first, for instance with LambdaOp"
                )

    def _dtype(self, column: ColumnSchema) -> pa.DataType:
        limits = [v for v in (self.min_value, self.max_value) if v is not None]
        whole = all(math.isinf(v) or float(v).is_integer() for v in limits)
        leaf = column.leaf_dtype
        if whole or pa.types.is_floating(leaf) or pa.types.is_null(leaf):
            return column.dtype
        return like(column.dtype, pa.float64())

    def transform(self, frame: pl.LazyFrame, inputs: Inputs) -> pl.LazyFrame:
        """Clip each value."""
        return frame.select(leafwise(c, partial(self._clip, column=c)) for c in inputs.columns)

    def _clip(self, value: pl.Expr, column: ColumnSchema) -> pl.Expr:
        leaf = column.with_dtype(self._dtype(column)).leaf_dtype
        if pa.types.is_null(leaf):
            return value
        kind = polars_type(leaf)
        low, high = _within(self.min_value, leaf), _within(self.max_value, leaf)
        return value.cast(kind).clip(
            None if low is None else pl.lit(low, kind), None if high is None else pl.lit(high, kind)
        )

    def transform_row(self, row: dict[str, Any], inputs: Inputs) -> dict[str, Any]:
        """Clip each value."""
        return {n: map_value(row[n], self._clip_one) for n in inputs.names}

    def _clip_one(self, value: Any) -> Any:
        if value is None or value != value:
            return value
        for limit, beyond in ((self.min_value, lt), (self.max_value, gt)):
            if limit is not None and beyond(value, limit):
                value = type(value)(limit) if float(limit).is_integer() else limit
        return value


class LogOp(Operator):
    """``log(1 + x)`` as float32. Below -1 there is no logarithm: the result is NaN.

    Examples
    --------
    >>> LogOp()({"x": [0.0, 1.0]})["x"].round(4)
    array([0.    , 0.6931], dtype=float32)
    """

    def output_schema(self, inputs: Inputs) -> Schema:
        """float32, tagged continuous."""
        require_numeric(self, inputs.columns)
        return continuous_floats(inputs, pa.float32())

    def transform(self, frame: pl.LazyFrame, inputs: Inputs) -> pl.LazyFrame:
        """Compute in double precision, keep single."""
        return frame.select(leafwise(c, _log) for c in inputs.columns)

    def transform_row(self, row: dict[str, Any], inputs: Inputs) -> dict[str, Any]:
        """All values at once, by the same kernel as a frame."""
        values = [row[n] for n in inputs.names]
        if any(isinstance(v, list) for v in values):
            return {n: map_value(v, _log_one) for n, v in zip(inputs.names, values, strict=True)}
        logs = pl.Series(values, dtype=pl.Float64, strict=False).log1p().cast(pl.Float32)
        return dict(zip(inputs.names, logs.to_list(), strict=True))


def _log(value: pl.Expr) -> pl.Expr:
    return value.cast(pl.Float64).log1p().cast(pl.Float32)


def _log_one(value: Any) -> Any:
    return pl.Series([value], dtype=pl.Float64, strict=False).log1p().cast(pl.Float32)[0]


class ReduceDtypeSize(StatOperator):
    """Store integers in the smallest type that holds what was seen, floats in a smaller float.

    Parameters
    ----------
    float_dtype
        Type of floating columns; one with finite values beyond it keeps its own.

    Examples
    --------
    >>> op = ReduceDtypeSize().fit({"x": [1, 300]})
    >>> op({"x": [1, 300]})["x"].dtype
    dtype('int16')
    """

    def __init__(self, float_dtype: Any = "float") -> None:
        self.float_dtype = float_dtype
        self._float = float_type(float_dtype, pa.float32())

    def output_schema(self, inputs: Inputs) -> Schema:
        """Smaller types, known once fitted."""
        return Schema(
            c if c.dtype is None else c.with_dtype(like(c.dtype, self._leaf(c)))
            for c in inputs.columns
        )

    def _leaf(self, column: ColumnSchema) -> pa.DataType:
        leaf = column.leaf_dtype
        if pa.types.is_floating(leaf):
            return self._float if self._holds_floats(column.name) else leaf
        if not pa.types.is_integer(leaf) or not self.is_fitted:
            return leaf
        low, high = self.ranges_[column.name]
        if low is None:
            return pa.int8()
        return next((t for t in _INTEGERS if _holds(t, low, high)), leaf)

    def _holds_floats(self, name: str) -> bool:
        """Whether the smaller float holds what was seen, where it is known."""
        low, high = self.ranges_.get(name, (None, None)) if self.is_fitted else (None, None)
        if low is None or high is None:
            return True
        most = float(np.finfo(self._float.to_pandas_dtype()).max)
        return bool(-most <= low and high <= most)

    def partial(self, frame: pl.LazyFrame, inputs: Inputs) -> dict[str, Any]:
        """Smallest and largest finite value of each column of numbers."""
        ints = [c for c in inputs.columns if c.dtype is not None and self._has_range(c.leaf_dtype)]
        if not ints:
            return {}
        values = [_finite(c) for c in ints]
        lows = [v.min().alias(f"low{i}") for i, v in enumerate(values)]
        highs = [v.max().alias(f"high{i}") for i, v in enumerate(values)]
        found = frame.select(lows + highs).collect().row(0)
        pairs = zip(found[: len(ints)], found[len(ints) :], strict=True)
        return {c.name: list(pair) for c, pair in zip(ints, pairs, strict=True)}

    def _has_range(self, leaf: pa.DataType) -> bool:
        """Whether a column's range decides its type."""
        wide = pa.types.is_floating(leaf) and leaf.bit_width > self._float.bit_width
        return bool(wide or pa.types.is_integer(leaf))

    def merge(self, a: dict[str, Any], b: dict[str, Any]) -> dict[str, Any]:
        """The wider range."""
        return {n: [_of_known(min, a[n][0], b[n][0]), _of_known(max, a[n][1], b[n][1])] for n in a}

    def finish(self, summary: dict[str, Any], inputs: Inputs) -> None:
        """Keep the ranges."""
        self.ranges_ = summary

    def check_state(self, state: Mapping[str, Any], inputs: Inputs, at: str) -> None:
        """Refuse what are no ranges."""
        record(summary=by_name(check_range))(state, at)

    def transform(self, frame: pl.LazyFrame, inputs: Inputs) -> pl.LazyFrame:
        """Cast; a value outside the range seen is an error."""
        self.require_fitted()
        return frame.select(
            leafwise(c, partial(pl.Expr.cast, dtype=polars_type(self._leaf(c))))
            for c in inputs.columns
        )


def _finite(column: ColumnSchema) -> pl.Expr:
    """The values of a column of numbers, but for those that are infinite or NaN."""
    values = pl.col(column.name).explode() if column.is_list else pl.col(column.name)
    if not pa.types.is_floating(column.leaf_dtype):
        return values
    return pl.when(values.is_finite()).then(values)  # filter() takes time for all columns each time


_INTEGERS = [pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint64()]


def _holds(dtype: pa.DataType, low: int, high: int) -> bool:
    if pa.types.is_unsigned_integer(dtype):
        return low >= 0 and high < 2**dtype.bit_width
    half = 2 ** (dtype.bit_width - 1)
    return bool(-half <= low and high < half)


def _of_known(choose: Any, *values: Any) -> Any:
    """The smallest or largest of the values that are known."""
    return choose((v for v in values if v is not None), default=None)


def _within(limit: float | None, leaf: pa.DataType) -> Any:
    """A limit that the type can hold: the nearest bound that integers and decimals have."""
    if limit is None or not (pa.types.is_integer(leaf) or pa.types.is_decimal(leaf)):
        return limit
    low: int | Decimal
    high: int | Decimal
    if pa.types.is_decimal(leaf):
        high = Decimal(10**leaf.precision - 1).scaleb(-leaf.scale, _WIDE)
        low = -high
    else:
        unsigned = pa.types.is_unsigned_integer(leaf)
        bits = leaf.bit_width - (not unsigned)
        low, high = 0 if unsigned else -(2**bits), 2**bits - 1
    if limit <= low or limit >= high:
        return low if limit <= low else high
    return int(limit)


_WIDE = Context(prec=100)  # digits, more than a decimal has
