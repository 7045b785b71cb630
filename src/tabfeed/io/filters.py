"""Row filters, as users of Parquet readers write them.

A filter is an Arrow expression, or a list of ``(column, operator, value)`` triples that
must all hold, or a list of such lists of which one must hold.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tabfeed.errors import ArgumentError, ColumnNotFoundError

__all__ = ["Filter", "parse_filters"]


class Filter:
    """An expression and the columns it looks at."""

    def __init__(self, expression: pc.Expression, columns: Sequence[str]) -> None:
        self.expression = expression
        self.columns = tuple(columns)

    def apply(self, table: pa.Table) -> pa.Table:
        """The rows for which it is true; null counts as false."""
        return table.filter(self.expression)

    def __repr__(self) -> str:
        return str(self.expression)


def parse_filters(filters: Any, schema: pa.Schema) -> Filter | None:
    """Check a filter against the columns there are.

    Examples
    --------
    >>> parse_filters([("x", ">", 3), ("y", "in", [1, 2])], pa.schema({"x": "int64", "y": "int8"}))
    ((x > 3) and is_in(y, {value_set=int64:[
      1,
      2
    ], null_matching_behavior=MATCH}))
    """
    if filters is None:
        return None
    if isinstance(filters, pc.Expression):
        text = str(filters)
        return _checked(filters, [n for n in schema.names if n in text], schema)
    try:
        flat = [
            t for part in filters for t in (part if isinstance(part[0], tuple | list) else [part])
        ]
        names = list(dict.fromkeys(name for name, _, _ in flat))
    except (TypeError, ValueError, IndexError):
        raise ArgumentError(
            f"filters is {filters!r}; write a list of (column, operator, value), a list of such "
            "lists, or a pyarrow.compute expression"
        ) from None
    for name in names:
        if name not in schema.names:
            raise ColumnNotFoundError(str(name), schema.names)
    try:
        expression = pq.filters_to_expression(
            [tuple(t) if isinstance(t, list) and isinstance(t[0], str) else t for t in filters]
        )
    except (TypeError, ValueError) as e:
        raise ArgumentError(f"filters is {filters!r}: {e}") from e
    return _checked(expression, names, schema)


def _checked(expression: pc.Expression, columns: Sequence[str], schema: pa.Schema) -> Filter:
    """Try it on an empty table, so that a wrong column or type is said now, not while reading."""
    try:
        schema.empty_table().filter(expression)
    except (pa.ArrowException, TypeError, KeyError) as e:
        raise ArgumentError(f"the filter {expression} does not fit the data: {e}") from e
    return Filter(expression, columns)
