"""Count, mean and spread, computed so that large values do not drown small differences.

A summary is (count, mean, m2), m2 being the sum of squared distances from the mean. Two
summaries join exactly (Chan, Golub and LeVeque 1979); sums of squares are never formed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import polars as pl

from tabfeed.errors import OperatorError
from tabfeed.ops.continuous import missing_to_null
from tabfeed.schema import ColumnSchema

__all__ = ["collect_moments", "merge_moments", "spread"]

Moments = dict[str, Any]


def collect_moments(frame: pl.LazyFrame, columns: Sequence[ColumnSchema]) -> dict[str, Moments]:
    """Moments of each column, nulls and NaN left out."""
    exprs = []
    for i, column in enumerate(columns):
        values = pl.col(column.name).explode() if column.is_list else pl.col(column.name)
        x = missing_to_null(values, column).cast(pl.Float64)
        exprs += [
            x.count().alias(f"n{i}"), x.mean().alias(f"mean{i}"), x.var(ddof=0).alias(f"var{i}"),
            x.min().alias(f"min{i}"), x.max().alias(f"max{i}"),
        ]  # fmt: skip
    found = frame.select(exprs).collect().row(0)
    out = {}
    for i, column in enumerate(columns):
        n, mean, var, low, high = found[5 * i : 5 * i + 5]
        m2 = 0.0 if not n or var is None else var * n
        out[column.name] = {"count": n, "mean": mean or 0.0, "m2": m2, "min": low, "max": high}
    return out


def merge_moments(a: Moments, b: Moments) -> Moments:
    """Moments of both.

    Examples
    --------
    >>> one = {"count": 1, "mean": 1.0, "m2": 0.0, "min": 1.0, "max": 1.0}
    >>> two = {"count": 1, "mean": 3.0, "m2": 0.0, "min": 3.0, "max": 3.0}
    >>> merge_moments(one, two)
    {'count': 2, 'mean': 2.0, 'm2': 2.0, 'min': 1.0, 'max': 3.0}
    """
    if not a["count"] or not b["count"]:
        return a if a["count"] else b
    n = a["count"] + b["count"]
    delta = b["mean"] - a["mean"]
    return {
        "count": n,
        "mean": a["mean"] + delta * (b["count"] / n),
        "m2": a["m2"] + b["m2"] + delta * delta * (a["count"] * b["count"] / n),
        "min": min(a["min"], b["min"]),
        "max": max(a["max"], b["max"]),
    }


def spread(moments: Moments, name: str, operator: str) -> tuple[float, float]:
    """Mean and standard deviation (of a sample); 0 and 1 where there was no value."""
    if not moments["count"]:
        return 0.0, 1.0
    if not math.isfinite(moments["mean"]) or not math.isfinite(moments["m2"]):
        raise OperatorError(
            f"{operator}: column {name!r} holds infinite values, so it has no mean; "
            "limit it first, for instance with Clip or FillMissing"
        )
    return moments["mean"], math.sqrt(moments["m2"] / max(1, moments["count"] - 1))
