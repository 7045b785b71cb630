"""Count, mean and spread, the same bits however the data was cut.

A summary is the count, the sum and the sum of squares, both without rounding
(`tabfeed.ops.state.exact`), and the range. So large values do not drown small differences, and
joining summaries in another order, or of other partitions, changes nothing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import polars as pl
import pyarrow as pa

from tabfeed.errors import OperatorError
from tabfeed.ops.numeric import missing_to_null
from tabfeed.ops.state.exact import Exact, sum_and_squares
from tabfeed.schema import ColumnSchema

__all__ = ["collect_moments", "merge_moments", "spread"]

Moments = dict[str, Any]


def collect_moments(frame: pl.LazyFrame, columns: Sequence[ColumnSchema]) -> dict[str, Moments]:
    """Moments of each column, nulls and NaN left out."""
    exprs = []
    for i, column in enumerate(columns):
        values = pl.col(column.name).explode() if column.is_list else pl.col(column.name)
        x = missing_to_null(values, column)
        if column.leaf_dtype != pa.float32():
            x = x.cast(pl.Float64)
        exprs.append(x.implode().alias(f"x{i}"))
    found = frame.select(exprs).collect()
    return {c.name: _moments(found[f"x{i}"].explode()) for i, c in enumerate(columns)}


def _moments(series: pl.Series) -> Moments:
    values = series.drop_nulls().to_numpy()
    if not len(values):
        nothing = [0, 0]
        return {"count": 0, "sum": nothing, "squares": nothing, "min": None, "max": None}
    low, high = float(values.min()), float(values.max())
    if not (math.isfinite(low) and math.isfinite(high)):
        return {"count": len(values), "sum": None, "squares": None, "min": low, "max": high}
    total, squares = sum_and_squares(values)
    return {
        "count": len(values), "sum": list(total), "squares": list(squares), "min": low, "max": high,
    }  # fmt: skip


def merge_moments(a: Moments, b: Moments) -> Moments:
    """Moments of both.

    Examples
    --------
    >>> one = {"count": 1, "sum": [1, 0], "squares": [1, 0], "min": 1.0, "max": 1.0}
    >>> two = {"count": 1, "sum": [3, 0], "squares": [9, 0], "min": 3.0, "max": 3.0}
    >>> merge_moments(one, two)
    {'count': 2, 'sum': [1, 2], 'squares': [5, 1], 'min': 1.0, 'max': 3.0}
    """
    if not a["count"] or not b["count"]:
        return a if a["count"] else b
    return {
        "count": a["count"] + b["count"],
        "sum": _plus(a["sum"], b["sum"]),
        "squares": _plus(a["squares"], b["squares"]),
        "min": min(a["min"], b["min"]),
        "max": max(a["max"], b["max"]),
    }


def _plus(a: list[int] | None, b: list[int] | None) -> list[int] | None:
    """The sum of two exact numbers; of what is infinite there is none."""
    return None if a is None or b is None else list(Exact(*a) + Exact(*b))


def spread(moments: Moments, name: str, operator: str) -> tuple[float, float]:
    """Mean and standard deviation (of a sample); 0 and 1 where there was no value."""
    if not moments["count"]:
        return 0.0, 1.0
    if moments["sum"] is None:
        raise OperatorError(
            f"{operator}: column {name!r} holds infinite values, so it has no mean; "
            "limit it first, for instance with Clip or FillMissing"
        )
    total, squares = (Exact(*moments[k]).value for k in ("sum", "squares"))
    count = moments["count"]
    variance = (squares - total * total / count) / max(1, count - 1)
    return float(total / count), _root(variance)


def _root(value: Fraction) -> float:
    """A square root, also of what is too large or too small for a float."""
    if not value:
        return 0.0
    shift = (value.numerator.bit_length() - value.denominator.bit_length()) // 2
    return math.ldexp(math.sqrt(value / Fraction(4) ** shift), shift)
