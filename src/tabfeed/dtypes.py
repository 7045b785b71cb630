"""Types as text: Arrow types to readable strings and back, and any library's dtype to Arrow.

Arrow's own types are tabfeed's types. What Arrow lacks is a way to write a nested type
down and read it again, which saved schemas need: ``list<int64>`` rather than a blob.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa

from tabfeed.errors import SchemaError

__all__ = ["as_arrow_type", "format_type", "is_list_type", "leaf_type", "parse_type"]


def is_list_type(dtype: pa.DataType) -> bool:
    """Whether each row holds a list of values."""
    return bool(
        pa.types.is_list(dtype)
        or pa.types.is_large_list(dtype)
        or pa.types.is_fixed_size_list(dtype)
    )


def leaf_type(dtype: pa.DataType) -> pa.DataType:
    """The type inside all lists and dictionaries.

    Examples
    --------
    >>> leaf_type(pa.list_(pa.list_(pa.int32())))
    DataType(int32)
    """
    while True:
        if is_list_type(dtype):
            dtype = dtype.value_type
        elif pa.types.is_dictionary(dtype):
            dtype = dtype.value_type
        else:
            return dtype


def format_type(dtype: pa.DataType) -> str:
    """Write an Arrow type as text that `parse_type` reads back.

    Examples
    --------
    >>> format_type(pa.list_(pa.timestamp("us", tz="UTC")))
    'list<timestamp[us, tz=UTC]>'
    """
    if pa.types.is_fixed_size_list(dtype):
        return f"fixed_size_list<{format_type(dtype.value_type)}, {dtype.list_size}>"
    if pa.types.is_large_list(dtype):
        return f"large_list<{format_type(dtype.value_type)}>"
    if pa.types.is_list(dtype):
        return f"list<{format_type(dtype.value_type)}>"
    if pa.types.is_dictionary(dtype):
        ordered = ", ordered" if dtype.ordered else ""
        return f"dictionary<{format_type(dtype.value_type)}, {dtype.index_type}{ordered}>"
    if pa.types.is_map(dtype):
        return f"map<{format_type(dtype.key_type)}, {format_type(dtype.item_type)}>"
    if pa.types.is_struct(dtype):
        fields = [dtype.field(i) for i in range(dtype.num_fields)]
        return "struct<" + ", ".join(f"{f.name}: {format_type(f.type)}" for f in fields) + ">"
    return str(dtype)


def parse_type(text: str) -> pa.DataType:
    """Read what `format_type` wrote.

    Examples
    --------
    >>> parse_type("fixed_size_list<float, 4>")
    FixedSizeListType(fixed_size_list<item: float>[4])
    """
    text = text.strip()
    head, _, rest = text.partition("<")
    if rest.endswith(">") and head in _NESTED:
        return _NESTED[head](_split(rest[:-1]))
    for pattern, make in _PARAMETRIC:
        if match := pattern.fullmatch(text):
            return make(match)
    try:
        return pa.type_for_alias(text)
    except ValueError:
        raise SchemaError(
            f"{text!r} is not a type tabfeed knows; examples: int64, float, string, "
            "timestamp[us], list<int64>, dictionary<string, int32>"
        ) from None


def _split(text: str) -> list[str]:
    """Split at the commas that are not inside brackets."""
    parts, depth, start = [], 0, 0
    for i, char in enumerate(text):
        depth += (char in "<[(") - (char in ">])")
        if char == "," and depth == 0:
            parts.append(text[start:i])
            start = i + 1
    parts.append(text[start:])
    return [p.strip() for p in parts if p.strip()]


def _parse_struct(parts: list[str]) -> pa.DataType:
    pairs = [p.partition(":") for p in parts]
    return pa.struct([(name, parse_type(rest)) for name, _, rest in pairs])


_NESTED: dict[str, Callable[[list[str]], pa.DataType]] = {
    "list": lambda p: pa.list_(parse_type(p[0])),
    "large_list": lambda p: pa.large_list(parse_type(p[0])),
    "fixed_size_list": lambda p: pa.list_(parse_type(p[0]), int(p[1])),
    "dictionary": lambda p: pa.dictionary(parse_type(p[1]), parse_type(p[0]), len(p) > 2),
    "map": lambda p: pa.map_(parse_type(p[0]), parse_type(p[1])),
    "struct": _parse_struct,
}

_PARAMETRIC: list[tuple[re.Pattern[str], Callable[[re.Match[str]], pa.DataType]]] = [
    (re.compile(r"timestamp\[(\w+), tz=(.+)\]"), lambda m: pa.timestamp(m[1], m[2])),
    (re.compile(r"date32\[day\]"), lambda m: pa.date32()),
    (re.compile(r"date64\[ms\]"), lambda m: pa.date64()),
    (
        re.compile(r"decimal(32|64|128|256)\((\d+), (-?\d+)\)"),
        lambda m: getattr(pa, f"decimal{m[1]}")(int(m[2]), int(m[3])),
    ),
    (re.compile(r"fixed_size_binary\[(\d+)\]"), lambda m: pa.binary(int(m[1]))),
]


def as_arrow_type(dtype: Any) -> pa.DataType:
    """Turn what a user calls a dtype into an Arrow type.

    Accepts Arrow types, their text, NumPy dtypes and their names, Python's
    ``int, float, bool, str, bytes``, pandas and Polars dtypes.

    Examples
    --------
    >>> as_arrow_type("int32"), as_arrow_type(np.float32), as_arrow_type(str)
    (DataType(int32), DataType(float), DataType(string))
    """
    if isinstance(dtype, pa.DataType):
        return dtype
    if isinstance(dtype, str) and dtype == "object":
        return pa.string()
    if isinstance(dtype, str):
        try:
            return parse_type(dtype)
        except SchemaError as unknown:
            try:
                return pa.from_numpy_dtype(np.dtype(dtype))
            except (TypeError, ValueError, pa.ArrowNotImplementedError):
                raise unknown from None
    if dtype in _PYTHON:
        return _PYTHON[dtype]
    if type(dtype).__module__.startswith("polars") or getattr(dtype, "__module__", "").startswith(
        "polars"
    ):
        import polars as pl

        arrow: pa.DataType = pl.Series([], dtype=dtype).to_arrow().type
        return pa.string() if pa.types.is_large_string(arrow) else arrow
    if hasattr(dtype, "numpy_dtype"):  # pandas' nullable types
        dtype = dtype.numpy_dtype
    try:
        return pa.from_numpy_dtype(np.dtype(dtype))
    except (TypeError, ValueError, pa.ArrowNotImplementedError):
        raise SchemaError(
            f"{dtype!r} is not a type tabfeed knows; give an Arrow type, a NumPy dtype or a name"
        ) from None


_PYTHON: dict[Any, pa.DataType] = {
    int: pa.int64(),
    float: pa.float64(),
    bool: pa.bool_(),
    str: pa.string(),
    bytes: pa.binary(),
}
