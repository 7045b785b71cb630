"""What is said about columns, brought together with the columns there are.

Tags, ranges and sizes come from three places: the data itself, a file that a writer left
beside it, and the user. The data decides the types, the user has the last word on the rest.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pyarrow as pa

from tabfeed.errors import ArgumentError, ColumnNotFoundError, SchemaError
from tabfeed.schema import ColumnSchema, Schema

__all__ = ["noted", "select_columns", "types_of", "with_remarks"]


def types_of(schema: Schema | None) -> dict[str, pa.DataType]:
    """The types a schema states."""
    return {c.name: c.dtype for c in schema or () if c.dtype is not None}


def select_columns(schema: Schema, columns: Sequence[str]) -> Schema:
    """The named columns, or a complaint that helps."""
    if isinstance(columns, str):
        raise ArgumentError(f"columns is {columns!r}; give a list of names: [{columns!r}]")
    for name in columns:
        if name not in schema:
            raise ColumnNotFoundError(name, schema.column_names)
    return schema.select(columns)


def with_remarks(found: Schema, beside: Schema | None, given: Schema | None) -> Schema:
    """The columns found in the data, with the tags and notes that others have for them.

    What lies beside the files may speak of columns that are gone; what the user gave may not.
    """
    for column in given or ():
        if column.name not in found:
            raise ColumnNotFoundError(column.name, found.column_names)
    notes = {c.name: c for schema in (beside, given) for c in schema or ()}
    return Schema(noted(c, notes[c.name]) if c.name in notes else c for c in found)


def noted(found: ColumnSchema, remarks: ColumnSchema) -> ColumnSchema:
    """The notes on a column, on what it really is."""
    if found.dtype is None:
        return remarks
    try:
        return replace(remarks.with_dtype(found.dtype), nullable=found.nullable)
    except SchemaError:  # notes about a column that has become another type
        return found
