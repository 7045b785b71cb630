"""Row filters, as users of Parquet readers write them.

A filter is an Arrow expression, or a list of ``(column, operator, value)`` triples that
must all hold, or a list of such lists of which one must hold.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tabfeed.errors import ArgumentError, ColumnNotFoundError

__all__ = ["Filter", "parse_filters"]

_ABSENT = re.compile(r"No match for FieldRef\.Name\((.*?)\) in ")


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
    >>> parse_filters([("x", ">", 3), ("y", "==", 1)], pa.schema({"x": "int64", "y": "int8"}))
    ((x > 3) and (y == 1))
    """
    if filters is None:
        return None
    if isinstance(filters, pc.Expression):
        _check(filters, schema)
        return Filter(filters, _columns_of(filters, schema))
    any_of = _any_of(filters)
    names = list(dict.fromkeys(name for all_of in any_of for name, _, _ in all_of))
    known = set(schema.names)
    for name in names:
        if name not in known:
            raise ColumnNotFoundError(str(name), schema.names)
    if not any_of:
        return None
    try:
        expression = pq.filters_to_expression(any_of)
    except (TypeError, ValueError, pa.ArrowException) as e:
        raise ArgumentError(f"filters is {filters!r}: {e}") from e
    _check(expression, schema)
    return Filter(expression, names)


def _any_of(filters: Any) -> list[list[tuple[Any, Any, Any]]]:
    """As a list of alternatives, each a list of triples."""
    try:
        parts = [list(part) for part in filters if not isinstance(part, str)]
        if len(parts) < len(filters):
            raise TypeError("a bare triple")
        flat = bool(parts) and all(isinstance(p[0], str) for p in parts)
        any_of = [[(n, op, v) for n, op, v in part] for part in ([parts] if flat else parts)]
        if not all(any_of):
            raise ValueError("an alternative without conditions")
        for name, op, value in (triple for all_of in any_of for triple in all_of):
            _refuse_null(name, op, value)
    except ArgumentError:
        raise
    except (TypeError, ValueError, IndexError):
        raise ArgumentError(
            f"filters is {filters!r}; write a list of (column, operator, value), a list of such "
            "lists, or a pyarrow.compute expression"
        ) from None
    return any_of


def _refuse_null(name: Any, op: Any, value: Any) -> None:
    if value is None:
        raise ArgumentError(
            f"the filter ({name!r}, {op!r}, None) holds for no row, as null equals nothing; "
            f"write pyarrow.compute.field({name!r}).is_null(), or .is_valid()"
        )


def _check(expression: pc.Expression, schema: pa.Schema) -> None:
    """Try it on an empty table, so that a wrong column or type is said now, not while reading."""
    try:
        schema.empty_table().filter(expression)
    except (pa.ArrowException, TypeError, KeyError) as e:
        if absent := _ABSENT.search(str(e)):
            raise ColumnNotFoundError(absent[1], schema.names) from e
        types = {n: str(schema.field(n).type) for n in _mentioned(expression, schema)}
        known = f" (the columns it names: {types})" if types else ""
        raise ArgumentError(f"the filter {expression} does not fit the data: {e}{known}") from e


def _mentioned(expression: pc.Expression, schema: pa.Schema) -> list[str]:
    """Columns whose names occur in its text, which may be more than it looks at."""
    text = str(expression)
    return [n for n in schema.names if n in text]


def _columns_of(expression: pc.Expression, schema: pa.Schema) -> list[str]:
    """The columns without which it cannot be evaluated."""
    maybe = _mentioned(expression, schema)
    return [n for n in maybe if _needs(expression, schema, [m for m in maybe if m != n])]


def _needs(expression: pc.Expression, schema: pa.Schema, others: list[str]) -> bool:
    """Whether the other columns are not enough."""
    try:
        pa.schema([schema.field(n) for n in others]).empty_table().filter(expression)
    except (pa.ArrowException, KeyError):
        return True
    return False
