"""The same column looks the same from every format.

Polars, and files it wrote, give ``large_string`` where Arrow's own readers give
``string``; views and large lists likewise. tabfeed's tables hold the small layouts, so
that files of several formats agree and no operator has to know four kinds of text.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tabfeed.dtypes import small_type

__all__ = ["rebatch", "small_schema", "small_type", "to_small"]

_MOST_BYTES = 2**31


def small_schema(schema: pa.Schema) -> pa.Schema:
    """A schema of small types, without metadata."""
    return pa.schema([pa.field(f.name, small_type(f.type), f.nullable) for f in schema])


def to_small(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """Cast a table to `schema`, in more chunks where 32-bit offsets would overflow.

    Examples
    --------
    >>> table = pa.table({"x": pa.array(["a"], pa.large_string())})
    >>> to_small(table, pa.schema({"x": pa.string()})).schema
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
    """Lists for list views, and values for those encoded as `small_type` has them plain.

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
