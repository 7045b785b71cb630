"""One schema for files that differ a little.

A column missing from some files is null there. Types that differ are widened where
every value of each survives exactly: int32 beside int64, float beside double, int32
beside double, string beside large_string, a dictionary beside its values, null beside
anything. Whatever would lose a digit is an error that names both files, because a value
changed in silence is worse than a run that stops.
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from tabfeed.dtypes import format_type, is_list_type
from tabfeed.errors import SchemaMismatchError

__all__ = ["common_type", "conform", "unify_schemas"]

_SIGNED = [pa.int8(), pa.int16(), pa.int32(), pa.int64()]
_UNSIGNED = [pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()]
_FLOATS = [pa.float16(), pa.float32(), pa.float64()]
_EXACT_BITS = {pa.float16(): 11, pa.float32(): 24, pa.float64(): 53}
_UNITS = ["s", "ms", "us", "ns"]
_LARGE = {pa.large_string(): pa.string(), pa.large_binary(): pa.binary()}


def unify_schemas(schemas: Sequence[tuple[str, pa.Schema]]) -> pa.Schema:
    """The union of the schemas of several files.

    Parameters
    ----------
    schemas
        Each with the name of its file, for the error message.

    Examples
    --------
    >>> a, b = pa.schema({"x": pa.int32()}), pa.schema({"x": pa.int64(), "y": pa.string()})
    >>> unify_schemas([("a.parquet", a), ("b.parquet", b)])
    x: int64
    y: string
    """
    fields: dict[str, pa.Field] = {}
    origin: dict[str, str] = {}
    for file, schema in schemas:
        for new in schema:
            known = fields.setdefault(new.name, new)
            first = origin.setdefault(new.name, file)
            if known.type != new.type:
                merged = common_type(known.type, new.type)
                if merged is None:
                    raise SchemaMismatchError(
                        f"column {new.name!r} is {format_type(known.type)} in {first} and "
                        f"{format_type(new.type)} in {file}, and no type holds both exactly; "
                        "rewrite one of them, or leave the column out with columns="
                    )
                known = known.with_type(merged)
            fields[new.name] = known.with_nullable(known.nullable or new.nullable)
    everywhere = len(schemas)
    for name, field in fields.items():
        if sum(schema.get_field_index(name) >= 0 for _, schema in schemas) < everywhere:
            fields[name] = field.with_nullable(True)
    return pa.schema(list(fields.values()))


def common_type(a: pa.DataType, b: pa.DataType) -> pa.DataType | None:
    """The narrowest type that holds every value of both exactly, or None.

    Examples
    --------
    >>> common_type(pa.int32(), pa.float64()), common_type(pa.int64(), pa.float64())
    (DataType(double), None)
    """
    if a == b:
        return a
    if pa.types.is_null(a) or pa.types.is_null(b):
        return b if pa.types.is_null(a) else a
    if pa.types.is_dictionary(a) or pa.types.is_dictionary(b):
        return common_type(_decoded(a), _decoded(b))
    if is_list_type(a) and is_list_type(b):
        inner = common_type(a.value_type, b.value_type)
        large = pa.types.is_large_list(a) or pa.types.is_large_list(b)
        return None if inner is None else (pa.large_list(inner) if large else pa.list_(inner))
    if _LARGE.get(a) == b or _LARGE.get(b) == a:
        return a if a in _LARGE else b
    if pa.types.is_timestamp(a) and pa.types.is_timestamp(b) and a.tz == b.tz:
        return pa.timestamp(max(a.unit, b.unit, key=_UNITS.index), a.tz)
    if pa.types.is_decimal(a) and pa.types.is_decimal(b):
        return _common_decimal(a, b)
    return _common_number(a, b)


def _decoded(dtype: pa.DataType) -> pa.DataType:
    return dtype.value_type if pa.types.is_dictionary(dtype) else dtype


def _common_decimal(a: pa.DataType, b: pa.DataType) -> pa.DataType | None:
    scale = max(a.scale, b.scale)
    digits = max(a.precision - a.scale, b.precision - b.scale) + scale
    if digits > 76:
        return None
    return pa.decimal128(digits, scale) if digits <= 38 else pa.decimal256(digits, scale)


def _common_number(a: pa.DataType, b: pa.DataType) -> pa.DataType | None:
    for candidate in (*_SIGNED, *_UNSIGNED, *_FLOATS):
        if _holds(candidate, a) and _holds(candidate, b):
            return candidate
    return None


def _holds(wide: pa.DataType, narrow: pa.DataType) -> bool:
    """Whether every value of `narrow` is a value of `wide`."""
    if wide in _FLOATS:
        if narrow in _FLOATS:
            return bool(narrow.bit_width <= wide.bit_width)
        return bool(pa.types.is_integer(narrow) and narrow.bit_width <= _EXACT_BITS[wide])
    if wide in _SIGNED and narrow in _UNSIGNED:
        return bool(narrow.bit_width < wide.bit_width)
    same_sign = (wide in _SIGNED and narrow in _SIGNED) or (
        wide in _UNSIGNED and narrow in _UNSIGNED
    )
    return bool(same_sign and narrow.bit_width <= wide.bit_width)


def conform(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """Give a table the columns, order and types of `schema`; absent columns become null."""
    if table.schema.equals(schema):
        return table
    columns = []
    for field in schema:
        index = table.schema.get_field_index(field.name)
        if index < 0:
            columns.append(pa.chunked_array([pa.nulls(table.num_rows, field.type)]))
        else:
            columns.append(_convert(table.column(index), field.type))
    if not columns:
        return table.select([])
    return pa.Table.from_arrays(columns, schema=schema)


def _convert(column: pa.ChunkedArray, dtype: pa.DataType) -> pa.ChunkedArray:
    if column.type == dtype:
        return column
    if pa.types.is_dictionary(dtype):
        values = _convert(column, dtype.value_type)
        return pc.dictionary_encode(values).cast(dtype)
    return column.cast(dtype)
