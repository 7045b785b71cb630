"""The same column looks the same from every format.

Polars, and files it wrote, give ``large_string`` where Arrow's own readers give
``string``; views and large lists likewise. tabfeed's tables hold the small layouts, so
that files of several formats agree and no operator has to know four kinds of text.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pyarrow as pa

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
        c if c.type == f.type else pa.chunked_array(_cast(c, f.type), f.type)
        for c, f in zip(table.columns, schema, strict=True)
    ]
    return pa.Table.from_arrays(columns, schema=schema)


def _cast(column: pa.ChunkedArray, dtype: pa.DataType) -> Iterator[pa.Array]:
    for chunk in column.chunks:
        yield from _cast_chunk(chunk, dtype)


def _cast_chunk(chunk: pa.Array, dtype: pa.DataType) -> Iterator[pa.Array]:
    """Cast an array; by halves if it holds more than 2 GB of text."""
    if len(chunk) < 2 or chunk.nbytes < _MOST_BYTES:
        yield chunk.cast(dtype)
        return
    half = len(chunk) // 2
    for part in (chunk.slice(0, half), chunk.slice(half)):
        yield from _cast_chunk(pa.concat_arrays([part]), dtype)  # a copy, its offsets from 0 again


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
