"""Row filters, as users of Parquet readers write them, and which row groups they rule out.

A filter is an Arrow expression, or a list of ``(column, operator, value)`` triples that must all
hold, or a list of such lists of which one must hold (`parse_filters`). NaN equals nothing and is
neither below nor above anything, as in all arithmetic: so rows with NaN are in ``!=`` and
``not in`` only, and a filter that compares with NaN is refused.

What is known of a row group without reading it (its folder keys, the smallest and largest value of
a column, whether it has nulls) is written as an expression that holds for all of its rows. Arrow
then says whether the filter can be true where that expression is (`may_match`). The footers were
read when the files were opened; Arrow's own pruning would read each of them again. Statistics leave
NaN out, so a filter that NaN may pass gets no help from those of floats: ``not (x <= 5)`` and
``x != 5`` can hold in a row group whose largest value is 5.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from decimal import Decimal
from functools import reduce
from operator import and_, eq, ge, gt, le, lt, ne, or_
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs as pafs
import pyarrow.parquet as pq

from tabfeed.errors import ArgumentError, ColumnNotFoundError
from tabfeed.schema.dtypes import holds_union

__all__ = [
    "Filter",
    "facts_of_chunk",
    "facts_of_keys",
    "known_bounds",
    "may_match",
    "parse_filters",
]

_OPERATORS: dict[str, Callable[[Any, Any], pc.Expression]] = {
    "==": eq,
    "=": eq,
    "!=": ne,
    "<": lt,
    "<=": le,
    ">": gt,
    ">=": ge,
}
_SETS = ("in", "not in")
_MAY_KEEP_NAN = re.compile(r"invert|!=|\bnan\b|is_nan|nan_is_null=true|\.\.\.")
_ABSENT = re.compile(r"No match for FieldRef\.Name\((.*?)\) in ")


class Filter:
    """An expression and the columns it looks at."""

    def __init__(self, expression: pc.Expression, columns: Sequence[str]) -> None:
        self.expression = expression
        self.columns = tuple(columns)

    def apply(self, table: pa.Table) -> pa.Table:
        """The rows for which it is true; null counts as false."""
        try:
            return table.filter(self.expression)
        except pa.ArrowException as e:
            raise ArgumentError(
                f"the filter {self.expression} cannot be evaluated: {e}. Compare with values of "
                "the column's own type, such as pyarrow.scalar(5, 'uint64')"
            ) from e

    def __repr__(self) -> str:
        return str(self.expression)


def parse_filters(filters: Any, schema: pa.Schema) -> Filter | None:
    """Check a filter against the columns there are.

    Examples
    --------
    >>> parse_filters([("x", ">", 3), ("y", "==", 1)], pa.schema({"x": "int64", "y": "int8"}))
    ((x >= 4) and (y == 1))
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
        expression = reduce(
            or_, (reduce(and_, (_condition(*t, schema) for t in all_of)) for all_of in any_of)
        )
    except (TypeError, ValueError, OverflowError, pa.ArrowException) as e:
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
    if any(_is_nan(v) for v in (value if op in _SETS and np.iterable(value) else [value])):
        raise ArgumentError(
            f"the filter ({name!r}, {op!r}, {value!r}) compares with NaN, which equals nothing; "
            f"write pyarrow.compute.field({name!r}).is_nan(), or ~ before it"
        )


def _is_nan(value: Any) -> bool:
    return isinstance(value, float | np.floating | Decimal) and value != value


def _condition(name: str, op: str, value: Any, schema: pa.Schema) -> pc.Expression:
    """One triple; the value is given the column's type, exactly, before they are compared.

    Arrow would bring both to a type in between, which cannot hold a number of 2**63 in one row,
    and fail there.
    """
    column, dtype = pc.field(name), schema.field(name).type
    dtype = dtype.value_type if pa.types.is_dictionary(dtype) else dtype
    if op in _SETS:
        if isinstance(value, str | bytes) or not np.iterable(value):
            raise TypeError(f"{op!r} takes a list of values, not {value!r}")
        found = column.isin(_values(value, dtype))
        return ~found if op == "not in" else found
    if op not in _OPERATORS:
        raise ValueError(f"{op!r} is not one of {', '.join([*_OPERATORS, *_SETS])}")
    if pa.types.is_integer(dtype) and _is_number(value):
        return _compare_whole(column, op, value, dtype)
    if pa.types.is_floating(dtype) and _is_number(value):
        value = pa.scalar(float(value), dtype)
    elif pa.types.is_temporal(dtype) and isinstance(value, str):
        value = pa.scalar(value).cast(dtype)
    compared: pc.Expression = _OPERATORS[op](column, value)
    return compared


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float | np.number | Decimal) and not isinstance(value, bool)


def _compare_whole(column: pc.Expression, op: str, value: Any, dtype: pa.DataType) -> pc.Expression:
    """A column of whole numbers and any number, also one that its type does not hold."""
    lowest, highest = _limits(dtype)
    bounded = min(max(value, lowest - 1), highest + 1)  # infinity among them
    below = math.floor(bounded)
    above = below if below == bounded else below + 1
    if op in ("==", "=", "!="):
        if below < above or not lowest <= below <= highest:
            return pc.scalar(False) if op != "!=" else column.is_valid()
        return _OPERATORS[op](column, pa.scalar(below, dtype))
    if op in ("<", "<="):
        most = below if op == "<=" else above - 1
        if not lowest <= most < highest:
            return column.is_valid() if most >= highest else pc.scalar(False)
        return column <= pa.scalar(most, dtype)
    least = above if op == ">=" else below + 1
    if not lowest < least <= highest:
        return column.is_valid() if least <= lowest else pc.scalar(False)
    return column >= pa.scalar(least, dtype)


def _limits(dtype: pa.DataType) -> tuple[int, int]:
    bits = dtype.bit_width
    if pa.types.is_unsigned_integer(dtype):
        return 0, 2**bits - 1
    return -(2 ** (bits - 1)), 2 ** (bits - 1) - 1


def _values(values: Iterable[Any], dtype: pa.DataType) -> pa.Array:
    """The values of a set that a column of this type can have."""
    kept: list[Any] = []
    for value in values:
        if pa.types.is_integer(dtype) and _is_number(value):
            lowest, highest = _limits(dtype)
            if lowest <= value <= highest and math.floor(value) == value:
                kept.append(int(value))
        elif pa.types.is_floating(dtype) and _is_number(value):
            kept.append(float(value))
        elif pa.types.is_boolean(dtype) and _is_number(value):
            kept += [bool(value)] if value in (0, 1) else []
        elif value is not None and (pa.types.is_temporal(dtype) or pa.types.is_decimal(dtype)):
            kept += _cast(value, dtype)
        else:
            kept.append(value)
    return pa.array(kept, dtype)


def _cast(value: Any, dtype: pa.DataType) -> list[pa.Scalar]:
    """The value in that type, if the type holds it."""
    given = pa.scalar(value)
    try:
        return [given.cast(dtype)]
    except pa.ArrowInvalid:
        if isinstance(value, str):  # not a date at all
            raise
        return []


def _check(expression: pc.Expression, schema: pa.Schema) -> None:
    """Try it on an empty table, so that a wrong column or type is said now, not while reading."""
    known_types = pa.schema([f for f in schema if not holds_union(f.type)])
    try:
        known_types.empty_table().filter(expression)
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


# -- pruning ----------------------------------------------------------------------------


def may_match(
    condition: Filter, facts: Sequence[Sequence[pc.Expression]], schema: pa.Schema
) -> list[bool]:
    """Whether the filter can hold, for each row group of which the facts are known."""
    import pyarrow.dataset as pads  # imports pandas where it is installed: not at the top

    form, nowhere = pads.ParquetFileFormat(), pafs.LocalFileSystem()
    pieces = [
        form.make_fragment(str(i), nowhere, partition_expression=_all_of(known))
        for i, known in enumerate(facts)
    ]
    possible = pads.FileSystemDataset(pieces, schema, form, nowhere)
    try:
        kept = {int(p.path) for p in possible.get_fragments(filter=condition.expression)}
    except pa.ArrowException:  # as reading will say, if it holds there too
        return [True] * len(facts)
    return [i in kept for i in range(len(facts))]


def _all_of(facts: Sequence[pc.Expression]) -> pc.Expression:
    return reduce(and_, facts) if facts else pc.scalar(True)


def facts_of_keys(
    keys: Mapping[str, Any], columns: Iterable[str], schema: pa.Schema
) -> list[pc.Expression]:
    """What the folders say: a column has one value, or is null throughout."""
    facts = []
    for name in columns:
        if name not in keys:
            continue
        if keys[name] is None:
            facts.append(pc.field(name).is_null())
        elif not pa.types.is_nested(dtype := schema.field(name).type):
            facts.append(pc.field(name) == _as(keys[name], dtype))
    return facts


def _as(value: Any, dtype: pa.DataType) -> pa.Scalar:
    plain = dtype.value_type if pa.types.is_dictionary(dtype) else dtype
    return pa.scalar(value).cast(plain)


def facts_of_chunk(
    chunk: pq.ColumnChunkMetaData, stored: pa.DataType, field: pa.Field, condition: Filter
) -> list[pc.Expression]:
    """What the statistics of one column of a row group say.

    Parameters
    ----------
    chunk
        The column in the footer.
    stored
        Its type in the file.
    field
        Its name and type in the dataset.
    condition
        The filter, to leave out what does not help it.
    """
    statistics = chunk.statistics
    if statistics is None or not _ordered_alike(stored, field.type):
        return []
    if statistics.has_null_count and statistics.null_count == chunk.num_values:
        return [pc.field(field.name).is_null()]
    if pa.types.is_floating(stored) and not _may_bound(str(condition.expression), stored):
        return []
    bounds = _bounds(statistics, stored, field.type)
    if bounds is None:
        return []
    column = pc.field(field.name)
    within = [column >= bounds[0], column <= bounds[1]]
    if not statistics.has_null_count or statistics.null_count:
        within = [fact | column.is_null() for fact in within]  # each by itself, as Arrow reads them
    return within


def _may_bound(condition: str, stored: pa.DataType) -> bool:
    """Whether bounds of a column of floats tell anything of what a filter keeps."""
    if stored.bit_width < 64 and "is_in" in condition:  # 0.1 is not what it is in 32 bits
        return False
    return not _MAY_KEEP_NAN.search(condition)


def _ordered_alike(stored: pa.DataType, read: pa.DataType) -> bool:
    """Whether the smallest value in the file is the smallest once it is read."""
    if stored == read:
        return not pa.types.is_nested(stored) and not pa.types.is_dictionary(stored)
    numbers = (pa.types.is_integer, pa.types.is_floating)
    both_numbers = all(any(check(t) for check in numbers) for t in (stored, read))
    return both_numbers or (pa.types.is_timestamp(stored) and pa.types.is_timestamp(read))


def known_bounds(statistics: pq.Statistics | None) -> tuple[Any, Any] | None:
    """The smallest and the largest value, if the statistics tell and both are values."""
    try:
        if statistics is None or not statistics.has_min_max:
            return None
        low, high = statistics.min, statistics.max
        return (low, high) if low is not None and high is not None and low <= high else None
    except (pa.ArrowException, ValueError, TypeError, ArithmeticError):
        return None  # text cut in the middle of a character, a date Python does not know


def _bounds(
    statistics: pq.Statistics, stored: pa.DataType, read: pa.DataType
) -> tuple[pa.Scalar, pa.Scalar] | None:
    known = known_bounds(statistics)  # NaN is neither below nor above anything: None
    if known is None:
        return None
    try:
        low, high = (pa.scalar(v, stored).cast(read) for v in known)
    except (pa.ArrowException, ValueError, TypeError, OverflowError):
        return None
    return low, high
