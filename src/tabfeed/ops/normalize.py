"""Columns brought to one scale: by mean and deviation, or by range."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import polars as pl
import pyarrow as pa

from tabfeed.errors import OperatorError
from tabfeed.ops.base import Inputs, StatOperator, leafwise, require_numeric
from tabfeed.ops.numeric import _each, _floats
from tabfeed.ops.state.moments import Moments, collect_moments, merge_moments, spread
from tabfeed.ops.types import float_type, polars_type
from tabfeed.schema import Schema

__all__ = ["Normalize", "NormalizeMinMax"]


class _Scale(StatOperator):
    """``(x - shift) * factor``, both learned. Nulls stay, lists are scaled value by value."""

    def __init__(self, out_dtype: Any = None) -> None:
        self.out_dtype = out_dtype
        self._float = float_type(out_dtype, pa.float64())

    def output_schema(self, inputs: Inputs) -> Schema:
        """Floats, tagged continuous."""
        require_numeric(self, inputs)
        return _floats(inputs, self._float)

    def partial(self, frame: pl.LazyFrame, inputs: Inputs) -> dict[str, Moments]:
        """Moments of each column."""
        return collect_moments(frame, inputs.columns)

    def merge(self, a: dict[str, Moments], b: dict[str, Moments]) -> dict[str, Moments]:
        """Moments of both."""
        return {n: merge_moments(a[n], b[n]) for n in a}

    def _scaling(self, name: str) -> tuple[float, float]:
        raise NotImplementedError

    def transform(self, frame: pl.LazyFrame, inputs: Inputs) -> pl.LazyFrame:
        """Scale each value."""
        self.require_fitted()
        kind = polars_type(self._float)

        def scaled(value: pl.Expr, name: str) -> pl.Expr:
            shift, factor = self._scaling(name)
            return ((value.cast(pl.Float64) - shift) * factor).cast(kind)

        return frame.select(leafwise(c, partial(scaled, name=c.name)) for c in inputs.columns)

    def transform_row(self, row: dict[str, Any], inputs: Inputs) -> dict[str, Any]:
        """Scale each value."""
        return {n: _each(row[n], lambda v, n=n: self._scale_one(v, n)) for n in inputs.names}

    def _scale_one(self, value: Any, name: str) -> Any:
        if value is None:
            return None
        shift, factor = self._scaling(name)
        scaled = (float(value) - shift) * factor
        return (
            scaled if self._float == pa.float64() else float(self._float.to_pandas_dtype()(scaled))
        )


class Normalize(_Scale):
    """Subtract the mean, divide by the standard deviation (of a sample).

    A constant column becomes 0; a column without values stays as it is. NaN is not counted.

    Parameters
    ----------
    out_dtype
        Type of the result; float64 by default.

    Examples
    --------
    >>> op = Normalize().fit({"x": [1.0, 2.0, 3.0]})
    >>> op.means_, op.stds_
    ({'x': 2.0}, {'x': 1.0})
    >>> op({"x": [4.0]})
    {'x': array([2.])}
    """

    def finish(self, summary: dict[str, Moments], inputs: Inputs) -> None:
        """Mean and deviation of each column."""
        found = {n: spread(m, n, self.label) for n, m in summary.items()}
        self.means_ = {n: mean for n, (mean, _) in found.items()}
        self.stds_ = {n: std for n, (_, std) in found.items()}

    def _scaling(self, name: str) -> tuple[float, float]:
        return self.means_[name], _factor(self.stds_[name])


class NormalizeMinMax(_Scale):
    """Bring the range seen to 0 .. 1. Values outside it go outside; a constant becomes 0.

    Parameters
    ----------
    out_dtype
        Type of the result; float64 by default.

    Examples
    --------
    >>> NormalizeMinMax().fit({"x": [1.0, 3.0]})({"x": [2.0, 5.0]})
    {'x': array([0.5, 2. ])}
    """

    def finish(self, summary: dict[str, Moments], inputs: Inputs) -> None:
        """Range of each column."""
        for name, m in summary.items():
            if m["count"] and not math.isfinite(m["max"] - m["min"]):
                finite = math.isfinite(m["max"]) and math.isfinite(m["min"])
                what = "has a range wider than any float"
                raise OperatorError(
                    f"{self.label}: column {name!r} "
                    f"{what if finite else 'holds infinite values, so it has no range'}; "
                    "limit it first, for instance with Clip"
                )
        self.mins_ = {n: m["min"] if m["count"] else 0.0 for n, m in summary.items()}
        self.maxs_ = {n: m["max"] if m["count"] else 1.0 for n, m in summary.items()}

    def _scaling(self, name: str) -> tuple[float, float]:
        return self.mins_[name], _factor(self.maxs_[name] - self.mins_[name])


def _factor(scale: float) -> float:
    """One over a scale; 1 for a constant column, whose scale is 0 or as good as 0."""
    return 1.0 / scale if scale > 1e-300 else 1.0
