"""One schema for files that differ a little, and tables cast to it.

A column missing from some files is null there. Types that differ are widened where every value of
each survives exactly: int32 beside int64, float beside double, int32 beside double, a dictionary
beside its values, null beside anything. Whatever would lose a digit is an error that names both
files, because a value changed in silence is worse than a run that stops. A user who knows better
gives the type, or leaves the column out.

Types are normalized first, so that a column looks the same from every format: Polars, and files it
wrote, give ``large_string`` where Arrow's own readers give ``string``; views and large lists
likewise. tabfeed's tables hold the small layouts, so that files of several formats agree and no
operator has to know four kinds of text.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tabfeed.budget import working_memory
from tabfeed.display import megabytes
from tabfeed.errors import SchemaError, SchemaMismatchError
from tabfeed.schema.dtypes import (
    format_type,
    holds_union,
    is_list_type,
    normalize_schema,
    normalize_type,
)

__all__ = [
    "align_schemas",
    "cast_columns",
    "cast_table",
    "combine",
    "common_type",
    "invalid_column",
    "key_column",
    "normalize_schema",
    "normalize_type",
    "null_bytes",
    "rebatch",
    "schema_with_keys",
]

_MOST_BYTES = 2**31
_MANY_BYTES = 2**30  # of nulls: only then is it looked up how many are free


def cast_columns(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """Cast a table to `schema`, in more chunks where 32-bit offsets would overflow.

    Examples
    --------
    >>> table = pa.table({"x": pa.array(["a"], pa.large_string())})
    >>> cast_columns(table, pa.schema({"x": pa.string()})).schema
    x: string
    """
    if table.schema.equals(schema):
        return table
    columns = [
        c if c.type == f.type else pa.chunked_array(_cast_values(c, f.type), f.type)
        for c, f in zip(table.columns, schema, strict=True)
    ]
    return pa.Table.from_arrays(columns, schema=schema)


def _cast_values(column: pa.ChunkedArray, dtype: pa.DataType) -> Iterator[pa.Array]:
    for chunk in column.chunks:
        yield from _cast_chunk(chunk, dtype)


def _cast_chunk(chunk: pa.Array, dtype: pa.DataType) -> Iterator[pa.Array]:
    """Cast an array; by halves if it holds more than 2 GB of text."""
    chunk = _plain(chunk)
    if chunk.offset:  # a slice, whose offsets may lie beyond 2 GB
        chunk = pa.concat_arrays([chunk])
    if len(chunk) < 2 or chunk.nbytes < _MOST_BYTES:
        yield chunk.cast(dtype)
        return
    half = len(chunk) // 2
    for part in (chunk.slice(0, half), chunk.slice(half)):
        yield from _cast_chunk(pa.concat_arrays([part]), dtype)  # a copy, its offsets from 0 again


def _plain(array: pa.Array) -> pa.Array:
    """Lists for list views, and values for those encoded as `normalize_type` has them plain.

    At any depth. pyarrow 26 casts list views into lists of other values, and the rest not at all.
    """
    dtype = array.type
    if not _is_special(dtype):
        return array
    if pa.types.is_run_end_encoded(dtype):
        return _plain(pc.run_end_decode(array))
    if pa.types.is_dictionary(dtype):
        return _plain(array.dictionary).take(array.indices)
    nulls = array.is_null()
    if pa.types.is_struct(dtype):
        children = [_plain(array.field(i)) for i in range(dtype.num_fields)]
        fields = [dtype.field(i).with_type(c.type) for i, c in enumerate(children)]
        return pa.StructArray.from_arrays(children, fields=fields, mask=nulls)
    rows = _entries(array, nulls) if pa.types.is_map(dtype) else array
    if pa.types.is_fixed_size_list(dtype):
        held = pc.if_else(array.is_valid(), dtype.list_size, 0)
    else:
        held = pc.fill_null(pc.list_value_length(rows), 0)
    ends = np.cumsum(held.to_numpy(zero_copy_only=False), dtype=np.int64)
    offsets = np.concatenate([np.zeros(1, np.int64), ends])
    values = _plain(rows.flatten())  # those of null rows left out
    if pa.types.is_map(dtype):
        starts = pa.array(offsets, pa.int32())
        return pa.MapArray.from_arrays(starts, values.field(0), values.field(1), mask=nulls)
    return pa.LargeListArray.from_arrays(pa.array(offsets), values, mask=nulls)


def _entries(array: pa.MapArray, nulls: pa.BooleanArray) -> pa.ListArray:
    """A map as lists of structs."""
    pairs = pa.StructArray.from_arrays([array.keys, array.items], ["key", "value"])
    return pa.ListArray.from_arrays(pa.array(array.offsets.to_numpy()), pairs, mask=nulls)


def _is_special(dtype: pa.DataType) -> bool:
    if pa.types.is_dictionary(dtype):
        return pa.types.is_nested(dtype.value_type) or _is_special(dtype.value_type)
    kinds = (pa.types.is_list_view, pa.types.is_large_list_view, pa.types.is_run_end_encoded)
    inner = (dtype.field(i).type for i in range(dtype.num_fields))
    return any(kind(dtype) for kind in kinds) or any(_is_special(t) for t in inner)


def rebatch(tables: Iterable[pa.Table], rows: int) -> Iterator[pa.RecordBatch]:
    """Cut a stream of tables into batches of `rows` rows; the last may be shorter.

    Examples
    --------
    >>> stream = [pa.table({"x": [1, 2, 3]}), pa.table({"x": [4]})]
    >>> [b.num_rows for b in rebatch(stream, 2)]
    [2, 2]
    """
    held: list[pa.Table] = []
    count = 0
    for table in tables:
        held.append(table)
        count += table.num_rows
        if count < rows:
            continue
        joined = pa.concat_tables(held)
        whole = count - count % rows
        for start in range(0, whole, rows):
            yield from joined.slice(start, rows).combine_chunks().to_batches()
        held, count = [joined.slice(whole)], count - whole
    if count:
        yield from pa.concat_tables(held).combine_chunks().to_batches()


_SIGNED = [pa.int8(), pa.int16(), pa.int32(), pa.int64()]
_UNSIGNED = [pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()]
_FLOATS = [pa.float16(), pa.float32(), pa.float64()]
_EXACT_BITS = {pa.float16(): 11, pa.float32(): 24, pa.float64(): 53}
_UNITS = ["s", "ms", "us", "ns"]


def align_schemas(
    schemas: Sequence[tuple[str, pa.Schema]], types: Mapping[str, pa.DataType] | None = None
) -> tuple[pa.Schema, dict[str, SchemaMismatchError]]:
    """The union of the schemas, and the error for each column that has no common type.

    The caller raises the error if that column is wanted.

    Parameters
    ----------
    schemas
        Each with the name of its file, for the error message.
    types
        The user's own: no two files disagree about a column that has one.

    Examples
    --------
    >>> a, b = pa.schema({"x": pa.int32()}), pa.schema({"x": pa.int64(), "y": pa.string()})
    >>> align_schemas([("a.parquet", a), ("b.parquet", b)])[0]
    x: int64
    y: string
    """
    distinct = _distinct(schemas)
    given = types or {}
    fields: dict[str, pa.Field] = {}
    origin: dict[str, str] = {}
    conflicts: dict[str, SchemaMismatchError] = {}
    seen: dict[str, int] = {}
    for file, schema in distinct:
        for new in normalize_schema(schema, given):
            name = new.name
            known = fields.setdefault(name, new)
            first = origin.setdefault(name, file)
            seen[name] = seen.get(name, 0) + 1
            if holds_union(new.type):
                conflicts.setdefault(name, _union(file, new))
            merged = new.type if known is new else common_type(known.type, new.type)
            if merged is None:
                conflicts.setdefault(name, _mismatch((first, known), (file, new)))
                continue
            nullable = known.nullable or new.nullable or pa.types.is_null(merged)
            fields[name] = pa.field(name, merged, nullable)
    for name, count in seen.items():
        if count < len(distinct):
            fields[name] = fields[name].with_nullable(True)
    return pa.schema(list(fields.values())), conflicts


def _distinct(schemas: Sequence[tuple[str, pa.Schema]]) -> list[tuple[str, pa.Schema]]:
    """The schemas that differ; a thousand files usually share one."""
    found: list[tuple[str, pa.Schema]] = []
    for file, schema in schemas:
        if not any(schema.equals(known) for _, known in found):
            found.append((file, schema))
    return found


def _mismatch(a: tuple[str, pa.Field], b: tuple[str, pa.Field]) -> SchemaMismatchError:
    (first, known), (second, new) = a, b
    return SchemaMismatchError(
        f"column {new.name!r} is {format_type(known.type)} in {first} and {format_type(new.type)} "
        f"in {second}, and no type holds both exactly; say which one with "
        f"dtypes={{{new.name!r}: ...}}, leave the column out with columns=, or rewrite one file"
    )


def _union(file: str, field: pa.Field) -> SchemaMismatchError:
    return SchemaMismatchError(
        f"column {field.name!r} of {file} is {field.type}: values of several types, which tabfeed "
        "does not read; leave it out with columns=, or write its types as columns of their own"
    )


def common_type(a: pa.DataType, b: pa.DataType) -> pa.DataType | None:
    """The narrowest type that holds every value of both exactly, or None.

    Examples
    --------
    >>> common_type(pa.int32(), pa.float64()), common_type(pa.int64(), pa.float64())
    (DataType(double), None)
    """
    a, b = normalize_type(a), normalize_type(b)
    if a == b:
        return a
    if pa.types.is_null(a) or pa.types.is_null(b):
        return b if pa.types.is_null(a) else a
    if pa.types.is_dictionary(a) or pa.types.is_dictionary(b):
        return common_type(_decoded(a), _decoded(b))
    if is_list_type(a) and is_list_type(b):
        inner = common_type(a.value_type, b.value_type)
        return None if inner is None else pa.list_(inner, _common_length(a, b))
    if pa.types.is_timestamp(a) and pa.types.is_timestamp(b) and a.tz == b.tz:
        return pa.timestamp(max(a.unit, b.unit, key=_UNITS.index), a.tz)
    if pa.types.is_decimal(a) and pa.types.is_decimal(b):
        return _common_decimal(a, b)
    return _common_number(a, b)


def _decoded(dtype: pa.DataType) -> pa.DataType:
    return dtype.value_type if pa.types.is_dictionary(dtype) else dtype


def _common_length(a: pa.DataType, b: pa.DataType) -> int:
    """The length that all lists of both have, or -1 where it varies."""
    sizes = {t.list_size if pa.types.is_fixed_size_list(t) else -1 for t in (a, b)}
    return int(sizes.pop()) if len(sizes) == 1 else -1


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


def cast_table(table: pa.Table, schema: pa.Schema, *, where: str = "the data") -> pa.Table:
    """Give a table the columns, order and types of `schema`; absent columns become null.

    Examples
    --------
    >>> table = pa.table({"x": pa.array([1], pa.int32())})
    >>> cast_table(table, pa.schema({"y": pa.string(), "x": pa.int64()})).to_pylist()
    [{'y': None, 'x': 1}]
    """
    if table.schema.equals(schema):
        return table
    columns = []
    for field in schema:
        index = table.schema.get_field_index(field.name)
        if index < 0:
            _refuse_large_nulls(table.num_rows, field, where)
            columns.append(pa.chunked_array([pa.nulls(table.num_rows, field.type)]))
        else:
            columns.append(_convert(table.column(index), field, where))
    if not columns:
        return table.select([])
    return pa.Table.from_arrays(columns, schema=schema)


def null_bytes(dtype: pa.DataType) -> int:
    """What a null of a type takes in memory: lists and text of one length take all of it.

    Examples
    --------
    >>> null_bytes(pa.list_(pa.float32(), 100)), null_bytes(pa.list_(pa.float32()))
    (400, 4)
    """
    if isinstance(dtype, pa.BaseExtensionType):  # a tensor of fixed shape, say
        return null_bytes(dtype.storage_type)
    if pa.types.is_fixed_size_list(dtype):
        return int(dtype.list_size) * null_bytes(dtype.value_type)
    if pa.types.is_struct(dtype):
        return sum(null_bytes(field.type) for field in dtype)
    try:
        return -(-int(dtype.bit_width) // 8)
    except ValueError:  # an offset
        return 4


def _refuse_large_nulls(rows: int, field: pa.Field, where: str) -> None:
    needed = rows * null_bytes(field.type)
    if needed > _MANY_BYTES and needed > (most := working_memory(None)):
        raise SchemaError(
            f"column {field.name!r} has no values in {where}; nulls of {format_type(field.type)} "
            f"for {rows:,} rows would take {megabytes(needed)}, more than a quarter of what is "
            f"free, {megabytes(most)}. Leave the column out with columns=, or read fewer rows at "
            "once (part_size=)"
        )


def _convert(column: pa.ChunkedArray, field: pa.Field, where: str) -> pa.ChunkedArray:
    if column.type == field.type:
        return column
    if pa.types.is_null(column.type):
        _refuse_large_nulls(len(column), field, where)
    try:
        return _cast(column, field.type)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as e:
        raise SchemaError(
            f"column {field.name!r} of {where} is {format_type(column.type)} and cannot become "
            f"{format_type(field.type)}: {e}"
        ) from e


def _cast(column: pa.ChunkedArray, dtype: pa.DataType) -> pa.ChunkedArray:
    if pa.types.is_dictionary(column.type) and pa.types.is_dictionary(dtype):
        return column.cast(dtype)
    if pa.types.is_dictionary(dtype):
        values = _cast(column, dtype.value_type)
        chunks = [pc.dictionary_encode(chunk).cast(dtype) for chunk in values.chunks]
        return pa.chunked_array(chunks, dtype)
    table = pa.Table.from_arrays([column], names=[""])
    return cast_columns(table, pa.schema([pa.field("", dtype)])).column(0)


def invalid_column(table: pa.Table) -> tuple[str, str] | None:
    r"""The first column that breaks Arrow's rules, and how; text that is not UTF-8 does.

    Examples
    --------
    >>> text = pa.Array.from_buffers(pa.string(), 1, pa.array([b"\xff"]).buffers())
    >>> invalid_column(pa.table([[1], text], ["n", "x"]))
    ('x', 'In chunk 0: Invalid: Invalid UTF8 sequence at string index 0')
    """
    for name, column in zip(table.column_names, table.columns, strict=True):
        try:
            column.validate(full=True)
        except pa.ArrowInvalid as e:
            return name, str(e)
    return None


def combine(table: pa.Table) -> pa.Table:
    """One chunk a column; dictionaries that together outgrow their index type stay apart.

    A slice becomes a table of its own: a few rows must not keep the many they were cut from.
    """
    try:
        if table.get_total_buffer_size() > 2 * table.nbytes:
            columns = [pa.concat_arrays(c.chunks) if c.num_chunks else c for c in table.columns]
            return pa.Table.from_arrays(columns, schema=table.schema) if columns else table
        return table.combine_chunks()
    except pa.ArrowInvalid:
        return table


def schema_with_keys(
    schema: pa.Schema, keys: Sequence[dict[str, Any]], types: Mapping[str, pa.DataType]
) -> pa.Schema:
    """The schema and, after it, the folder keys."""
    values: dict[str, list[Any]] = {}
    for found in keys:
        for name, value in found.items():
            values.setdefault(name, []).append(value)
    for name, seen in values.items():
        if schema.get_field_index(name) < 0:
            schema = schema.append(pa.field(name, types.get(name) or _key_type(seen)))
    return schema


def key_column(value: Any, field: pa.Field, rows: int, where: str) -> pa.ChunkedArray:
    """A folder key, as many times as there are rows."""
    column = pa.table({field.name: pa.array([value])})
    typed = cast_table(column, pa.schema([field]), where=where).column(0)
    return typed.take(pa.repeat(pa.scalar(0, pa.int32()), rows))


def _key_type(values: list[Any]) -> pa.DataType:
    """Integers or text; text if every folder says null."""
    dtype = pa.array(values).type
    return pa.string() if pa.types.is_null(dtype) else dtype
