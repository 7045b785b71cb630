"""Values of another type than a workflow was fitted on: one rule for a row and for a table.

A number takes the type of its column. It is refused where that type cannot hold it: a fraction or a
number out of range for integers, another number than 0 and 1 for booleans, a finite number beyond
the largest of the fractions. Rounding within fractions is not an error: 0.1 becomes float32's 0.1.
NaN means a missing value where a column cannot hold it.

`value_converter` is the rule. `cast_numbers` does the same for a column, and converts value by
value where Arrow does not convert all of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tabfeed.errors import SchemaError
from tabfeed.ops.graph.plan import kind_of
from tabfeed.schema.dtypes import is_list_type

__all__ = ["cast_numbers", "is_number", "value_converter"]

Convert = Callable[[Any], Any]


def is_number(dtype: pa.DataType) -> bool:
    """Whether a type holds numbers or booleans, or lists of them."""
    return kind_of(dtype).endswith("number")


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
    if dtype is None:
        return _as_python
    if pa.types.is_dictionary(dtype):
        return value_converter(name, dtype.value_type)
    if kind_of(dtype).startswith("list of "):
        return _list_converter(name, dtype, value_converter(name, dtype.value_type))

    def refused(value: Any) -> SchemaError:
        return SchemaError(f"column {name!r} is {value!r} here, which {dtype} cannot hold")

    if pa.types.is_boolean(dtype):
        return _bool_converter(refused)
    if pa.types.is_integer(dtype):
        return _int_converter(dtype, refused)
    if pa.types.is_floating(dtype):
        return _float_converter(dtype, refused)
    if kind_of(dtype) == "text":
        return _text_converter(refused)
    return _as_python if pa.types.is_null(dtype) else _other_converter(dtype, refused)


def _as_python(value: Any) -> Any:
    """A value of NumPy's as Python's own."""
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, np.ndarray):
        return value.tolist()
    return list(value) if isinstance(value, tuple) else value


def _bool_converter(refused: Callable[[Any], Exception]) -> Convert:
    def convert(value: Any) -> Any:
        value = _as_python(value)
        if value is True or value is False:
            return value
        if isinstance(value, int | float):
            if value == 0 or value == 1:
                return bool(value)
            if value != value:
                return None
        raise refused(value)

    return convert


def _int_converter(dtype: pa.DataType, refused: Callable[[Any], Exception]) -> Convert:
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
        raise refused(value)

    return convert


def _float_converter(dtype: pa.DataType, refused: Callable[[Any], Exception]) -> Convert:
    kind = dtype.to_pandas_dtype()
    rounded = kind if dtype.bit_width < 64 else None

    def convert(value: Any) -> Any:
        if type(value) is not float:
            value = _as_python(value)
            if not isinstance(value, int | float):
                raise refused(value)
        try:
            found = float(value)
            if rounded is None:
                return found
            with np.errstate(over="ignore"):
                found = float(rounded(found))
        except OverflowError:
            raise refused(value) from None
        if math.isinf(found) and not math.isinf(value):
            raise refused(value)
        return found

    return convert


def _text_converter(refused: Callable[[Any], Exception]) -> Convert:
    def convert(value: Any) -> Any:
        value = _as_python(value)
        if isinstance(value, str):
            if not value.isascii():
                try:
                    value.encode()
                except UnicodeEncodeError:
                    raise refused(value) from None
            return value
        if isinstance(value, float) and value != value:
            return None
        raise refused(value)

    return convert


def _other_converter(dtype: pa.DataType, refused: Callable[[Any], Exception]) -> Convert:
    """For dates and times, decimals, bytes: what Arrow takes for a value of that kind."""
    temporal = pa.types.is_temporal(dtype)

    def convert(value: Any) -> Any:
        if isinstance(value, float) and value != value:
            return None
        try:
            found = pa.array([value], None if temporal else dtype)
            if temporal and kind_of(found.type) not in ("time", "nothing"):
                raise refused(value)  # Arrow would take a number for a time since 1970
            return found.cast(dtype)[0].as_py()
        except (pa.ArrowException, TypeError, ValueError, OverflowError):
            raise refused(value) from None

    return convert


def _list_converter(name: str, dtype: pa.DataType, inner: Convert) -> Convert:
    def convert(value: Any) -> Any:
        value = _as_python(value)
        if isinstance(value, list):
            return [None if v is None else inner(v) for v in value]
        if isinstance(value, float) and value != value:
            return None
        raise SchemaError(f"column {name!r} is {value!r} here and was {dtype} in the fitted data")

    return convert
