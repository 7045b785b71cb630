"""Types as text: Arrow types to readable strings and back, and any library's dtype to Arrow.

Arrow's own types are tabfeed's types. What Arrow lacks is a way to write a nested type
down and read it again, which saved schemas need: ``list<int64>`` rather than a blob.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from tabfeed.errors import SchemaError

__all__ = [
    "as_arrow_type",
    "format_type",
    "holds_union",
    "is_list_type",
    "leaf_type",
    "normalize_schema",
    "normalize_type",
    "parse_type",
]


def is_list_type(dtype: pa.DataType) -> bool:
    """Whether each row holds a list of values."""
    return bool(
        pa.types.is_list(dtype)
        or pa.types.is_large_list(dtype)
        or pa.types.is_fixed_size_list(dtype)
    )


def holds_union(dtype: pa.DataType) -> bool:
    """Whether values are of several types, by themselves or inside lists and structs."""
    inner = (dtype.field(i).type for i in range(dtype.num_fields))
    return pa.types.is_union(dtype) or any(holds_union(t) for t in inner)


def leaf_type(dtype: pa.DataType) -> pa.DataType:
    """The type inside all lists and dictionaries.

    Examples
    --------
    >>> leaf_type(pa.list_(pa.list_(pa.int32())))
    DataType(int32)
    """
    while True:
        if is_list_type(dtype) or pa.types.is_dictionary(dtype):
            dtype = dtype.value_type
        else:
            return dtype


def normalize_type(dtype: pa.DataType) -> pa.DataType:
    """The type with 32-bit offsets that holds the same values.

    Run-end encoded values, and dictionaries of lists or structs, become plain values: Arrow does
    not filter the former, nor join the latter.

    Examples
    --------
    >>> print(normalize_type(pa.large_list(pa.large_string())))
    list<item: string>
    """
    if dtype in _FLAT:
        return _FLAT[dtype]
    if pa.types.is_run_end_encoded(dtype):
        return normalize_type(dtype.value_type)
    if pa.types.is_fixed_size_list(dtype):
        return pa.list_(_small_field(dtype.value_field), dtype.list_size)
    if _is_list(dtype):
        return pa.list_(_small_field(dtype.value_field))
    if pa.types.is_struct(dtype):
        return pa.struct([_small_field(dtype.field(i)) for i in range(dtype.num_fields)])
    if pa.types.is_dictionary(dtype):
        value = normalize_type(dtype.value_type)
        nested = pa.types.is_nested(value)
        return value if nested else pa.dictionary(dtype.index_type, value, dtype.ordered)
    if pa.types.is_map(dtype):
        return pa.map_(
            normalize_type(dtype.key_type), _small_field(dtype.item_field), dtype.keys_sorted
        )
    return dtype


def normalize_schema(
    schema: pa.Schema, types: Mapping[str, pa.DataType] | None = None
) -> pa.Schema:
    """A schema of such types, without metadata; `types` replace those of some columns."""
    given = types or {}
    named = ((f, given.get(f.name, f.type)) for f in schema)
    return pa.schema([pa.field(f.name, normalize_type(t), f.nullable) for f, t in named])


def _is_list(dtype: pa.DataType) -> bool:
    checks = (
        pa.types.is_list,
        pa.types.is_large_list,
        pa.types.is_list_view,
        pa.types.is_large_list_view,
    )
    return any(check(dtype) for check in checks)


def _small_field(field: pa.Field) -> pa.Field:
    return field.with_type(normalize_type(field.type))


_FLAT = {
    pa.large_string(): pa.string(),
    pa.string_view(): pa.string(),
    pa.large_binary(): pa.binary(),
    pa.binary_view(): pa.binary(),
}


def format_type(dtype: pa.DataType) -> str:
    """Write an Arrow type as text that `parse_type` reads back.

    Rare types that have no text of their own (unions, extension types) are written as
    ``arrow:`` and Arrow's serialised form.

    Examples
    --------
    >>> format_type(pa.list_(pa.timestamp("us", tz="UTC")))
    'list<timestamp[us, tz=UTC]>'
    >>> format_type(pa.struct([pa.field("a b", pa.int8(), nullable=False)]))
    'struct<"a b": int8 not null>'
    """
    if pa.types.is_fixed_size_list(dtype):
        return f"fixed_size_list<{_format_field(dtype.value_field)}, {dtype.list_size}>"
    if pa.types.is_large_list(dtype):
        return f"large_list<{_format_field(dtype.value_field)}>"
    if pa.types.is_list(dtype):
        return f"list<{_format_field(dtype.value_field)}>"
    if pa.types.is_dictionary(dtype):
        ordered = ", ordered" if dtype.ordered else ""
        return f"dictionary<{format_type(dtype.value_type)}, {dtype.index_type}{ordered}>"
    if pa.types.is_map(dtype):
        ordered = ", keys_sorted" if dtype.keys_sorted else ""
        return f"map<{format_type(dtype.key_type)}, {_format_field(dtype.item_field)}{ordered}>"
    if pa.types.is_struct(dtype):
        fields = [dtype.field(i) for i in range(dtype.num_fields)]
        return f"struct<{', '.join(f'{_quoted(f.name)}: {_format_field(f)}' for f in fields)}>"
    return _format_leaf(dtype)


def _format_field(field: pa.Field) -> str:
    return format_type(field.type) + ("" if field.nullable else _NOT_NULL)


def _format_leaf(dtype: pa.DataType) -> str:
    text = str(dtype)
    try:
        if _parse(text) == dtype:
            return text
    except (ValueError, IndexError):
        pass
    return _ARROW + base64.b64encode(pa.schema([pa.field("", dtype)]).serialize()).decode()


def _quoted(name: str) -> str:
    return name if _PLAIN_NAME.fullmatch(name) else json.dumps(name)


def parse_type(text: str) -> pa.DataType:
    """Read what `format_type` wrote.

    Examples
    --------
    >>> parse_type("fixed_size_list<float, 4>")
    FixedSizeListType(fixed_size_list<item: float>[4])
    """
    try:
        return _parse(text.strip())
    except (ValueError, TypeError, IndexError, OverflowError, OSError):
        raise SchemaError(
            f"{text!r} is not a type tabfeed knows; examples: int64, float, string, "
            "timestamp[us], list<int64>, dictionary<string, int32>"
        ) from None


def _parse(text: str) -> pa.DataType:
    head, _, rest = text.partition("<")
    if rest.endswith(">") and head in _NESTED:
        return _NESTED[head](_split(rest[:-1]))
    if text.startswith(_ARROW):
        data = base64.b64decode(text[len(_ARROW) :], validate=True)
        return pa.ipc.read_schema(pa.BufferReader(data)).field(0).type
    for pattern, make in _PARAMETRIC:
        if match := pattern.fullmatch(text):
            return make(match)
    return pa.type_for_alias(text)


def _parse_field(text: str, name: str = "item") -> pa.Field:
    bare = text.removesuffix(_NOT_NULL)
    return pa.field(name, _parse(bare.strip()), nullable=bare == text)


def _parse_struct(parts: list[str]) -> pa.DataType:
    fields = []
    for part in parts:
        match = _STRUCT_FIELD.fullmatch(part)
        if match is None:
            raise ValueError(part)
        name = json.loads(match[1]) if match[1].startswith('"') else match[1]
        fields.append(_parse_field(match[2], name))
    return pa.struct(fields)


def _split(text: str) -> list[str]:
    """Split at the commas that are inside neither brackets nor quotes."""
    parts, depth, start = [], 0, 0
    for match in _PUNCTUATION.finditer(text):
        char = match[0]
        depth += (char in "<[(") - (char in ">])")
        if char == "," and depth == 0:
            parts.append(text[start : match.start()])
            start = match.end()
    parts.append(text[start:])
    return [p.strip() for p in parts if p.strip()]


_ARROW = "arrow:"
_NOT_NULL = " not null"
_PLAIN_NAME = re.compile(r"\w+")
_PUNCTUATION = re.compile(r'"(?:[^"\\]|\\.)*"|[<>\[\](),]')
_STRUCT_FIELD = re.compile(r'("(?:[^"\\]|\\.)*"|\w+)\s*:\s*(.*)', re.DOTALL)

_NESTED: dict[str, Callable[[list[str]], pa.DataType]] = {
    "list": lambda p: pa.list_(_parse_field(p[0])),
    "large_list": lambda p: pa.large_list(_parse_field(p[0])),
    "fixed_size_list": lambda p: pa.list_(_parse_field(p[0]), int(p[1])),
    "dictionary": lambda p: pa.dictionary(_parse(p[1]), _parse(p[0]), "ordered" in p[2:]),
    "map": lambda p: pa.map_(_parse(p[0]), _parse_field(p[1], "value"), "keys_sorted" in p[2:]),
    "struct": _parse_struct,
}

_PARAMETRIC: list[tuple[re.Pattern[str], Callable[[re.Match[str]], pa.DataType]]] = [
    (re.compile(r"timestamp\[(\w+), tz=(.+)\]"), lambda m: pa.timestamp(m[1], m[2])),
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
    if isinstance(dtype, str):
        return _from_name(dtype)
    if isinstance(dtype, type) and dtype in _PYTHON:
        return _PYTHON[dtype]
    library = (dtype if isinstance(dtype, type) else type(dtype)).__module__.partition(".")[0]
    try:
        if library == "polars":
            return _from_polars(dtype)
        if library == "pandas":
            return _from_pandas(dtype)
        if dtype is not None:
            return _from_numpy(np.dtype(dtype))
    except (TypeError, ValueError, pa.ArrowNotImplementedError):
        pass
    raise SchemaError(
        f"{dtype!r} is not a type tabfeed knows; give an Arrow type, a NumPy dtype or a name"
    )


def _from_name(name: str) -> pa.DataType:
    try:
        return parse_type(name)
    except SchemaError as unknown:
        try:
            return _from_numpy(np.dtype(name))
        except (TypeError, ValueError, pa.ArrowNotImplementedError):
            raise unknown from None


def _from_numpy(dtype: np.dtype[Any]) -> pa.DataType:
    """A NumPy dtype; ``object`` is how NumPy and pandas hold text."""
    return pa.string() if dtype.kind == "O" else pa.from_numpy_dtype(dtype)


def _from_polars(dtype: Any) -> pa.DataType:
    import polars as pl

    if dtype == pl.Object:
        raise TypeError("Python objects have no Arrow type")
    return normalize_type(pl.Series([], dtype=dtype).to_arrow().type)


def _from_pandas(dtype: Any) -> pa.DataType:
    import pandas as pd

    arrow = pa.Array.from_pandas(pd.Series([], dtype=dtype)).type
    if pa.types.is_dictionary(arrow) and pa.types.is_null(arrow.value_type):  # no values yet
        return pa.dictionary(pa.int32(), pa.string(), arrow.ordered)
    return normalize_type(arrow)


_PYTHON: dict[type, pa.DataType] = {
    int: pa.int64(),
    float: pa.float64(),
    bool: pa.bool_(),
    str: pa.string(),
    bytes: pa.binary(),
    object: pa.string(),
}
