"""Functions applied to partitions as they are read: what `Dataset.map` keeps of one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pyarrow as pa

from tabfeed.errors import SchemaError
from tabfeed.io.unify import conform
from tabfeed.schema import Schema
from tabfeed.trace import span
from tabfeed.user_functions import call

__all__ = ["SelectThen", "TableMap", "as_declared"]


@dataclass(frozen=True)
class TableMap:
    """A function applied to each partition as it is read.

    ``dictionary`` are text columns it would rather have dictionary-encoded. A ``numbered`` function
    is also given the number of the partition's first row.
    """

    fn: Callable[..., pa.Table]
    columns: tuple[str, ...]
    keeps_rows: bool
    dictionary: tuple[str, ...] = ()
    numbered: bool = False

    def apply(self, table: pa.Table, first_row: Callable[[], int]) -> pa.Table:
        """What it makes of a partition; `first_row` is asked only by a numbered function."""
        with span("transform", rows=table.num_rows):
            return call(self.fn, table, first_row()) if self.numbered else call(self.fn, table)


@dataclass(frozen=True)
class SelectThen:
    """A map that looks at some columns of the map before it."""

    columns: tuple[str, ...]
    fn: Callable[..., pa.Table]

    def __call__(self, table: pa.Table, *number: int) -> pa.Table:
        """What the function makes of the columns it asked for."""
        return self.fn(table.select(list(self.columns)), *number)


def as_declared(table: pa.Table, columns: Sequence[str], schema: Schema) -> pa.Table:
    """What a map gave, as its schema says: a partition of nulls must fit the others."""
    fields = []
    for name in columns:
        index = table.schema.get_field_index(name)
        if index < 0:
            raise SchemaError(
                f"the function given to map returned no column {name!r}, which its schema "
                f"promises; it returned {table.column_names}"
            )
        column, real = schema[name], table.schema.field(index)
        fields.append(real if column.dtype is None else real.with_type(column.dtype))
    return conform(table, pa.schema(fields), where="what map returned")
