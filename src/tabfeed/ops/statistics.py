"""Operators that learn how the values of columns are distributed: scaling, and DataStats.

They learn moments (`tabfeed.ops.state.exact`), so neither the order of the data nor how it is cut
changes the result.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from tabfeed.errors import OperatorError
from tabfeed.ops.base import Inputs, StatOperator
from tabfeed.ops.frames import (
    continuous_floats,
    float_type,
    leafwise,
    map_value,
    polars_type,
    require_numeric,
)
from tabfeed.ops.state.checks import anything, by_name, check_counts, check_moments, or_null, record
from tabfeed.ops.state.counting import Counter, count_values
from tabfeed.ops.state.exact import Moments, collect_moments, merge_moments, spread
from tabfeed.ops.state.keys import base_type, flatten
from tabfeed.ops.state.memory import SpilledTable
from tabfeed.schema import ColumnSchema, Schema
from tabfeed.schema.dtypes import format_type


class _Scale(StatOperator):
    """``(x - shift) * factor``, both learned. Nulls stay, lists are scaled value by value."""

    def __init__(self, out_dtype: Any = None) -> None:
        self.out_dtype = out_dtype
        self._float = float_type(out_dtype, pa.float64())

    def output_schema(self, inputs: Inputs) -> Schema:
        """Floats, tagged continuous."""
        require_numeric(self, inputs.columns)
        return continuous_floats(inputs, self._float)

    def partial(self, frame: pl.LazyFrame, inputs: Inputs) -> dict[str, Moments]:
        """Moments of each column."""
        return collect_moments(frame, inputs.columns)

    def merge(self, a: dict[str, Moments], b: dict[str, Moments]) -> dict[str, Moments]:
        """Moments of both."""
        return {n: merge_moments(a[n], b[n]) for n in a}

    def _scaling(self, name: str) -> tuple[float, float]:
        raise NotImplementedError

    def check_state(self, state: Mapping[str, Any], inputs: Inputs, at: str) -> None:
        """Refuse what are no moments."""
        record(summary=by_name(check_moments, inputs.names))(state, at)

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
        return {n: map_value(row[n], lambda v, n=n: self._scale_one(v, n)) for n in inputs.names}

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


class DataStats(StatOperator):
    """Learn cardinality, range, mean, deviation and share of nulls of each column.

    The columns pass unchanged; `output` holds what was found. Text is measured by its length.

    Examples
    --------
    >>> op = DataStats().fit({"x": [1, 2, 2, None]})
    >>> op.output["x"]["cardinality"], op.output["x"]["per_nan"]
    (2, 25.0)
    """

    eager = True
    only_for_update = ("counts",)

    @property
    def output(self) -> dict[str, dict[str, Any]]:
        """What was found, by column."""
        self.require_fitted()
        return self.output_

    def partial(self, frame: pa.Table, inputs: Inputs) -> dict[str, Any]:
        """Counts, moments and nulls of each column."""
        found: dict[str, Any] = {}
        for name in inputs.names:
            values = pa.chunked_array(
                [flatten(_plain(c)) for c in frame.column(name).chunks] or [pa.array([], pa.null())]
            )
            found[name] = self._column(name, values, frame.column(name).type, inputs)
        return found

    def _column(
        self, name: str, values: pa.ChunkedArray, dtype: pa.DataType, inputs: Inputs
    ) -> Any:
        base = base_type(values.type)
        counter = Counter([pa.string() if pa.types.is_null(base) else base], inputs.memory)
        if not pa.types.is_null(values.type):
            for distinct, counts in count_values(values, counter.dtypes[0]):
                counter.add(distinct, counts)
        inputs.memory.hold(counter)
        numbers = _numbers(values)
        column = ColumnSchema(name, pa.float64())
        series = pl.Series(name, numbers.to_numpy(zero_copy_only=False).astype(np.float64))
        moments = collect_moments(pl.DataFrame({name: series}).lazy(), [column])[name]
        return {
            "rows": len(values), "nulls": len(values) - moments["count"], "moments": moments,
            "values": counter, "dtype": format_type(dtype),
        }  # fmt: skip

    def merge(self, a: dict[str, Any], b: dict[str, Any]) -> dict[str, Any]:
        """Statistics of both."""
        return {n: _join(a[n], b[n]) for n in a}

    def finish(self, summary: dict[str, Any], inputs: Inputs) -> None:
        """Put the findings in words users know."""
        self.output_ = {n: self._finding(n, s) for n, s in summary.items()}

    def learn(self, summary: dict[str, Any], inputs: Inputs) -> None:
        """Finish, and keep the counts."""
        self.finish(summary, inputs)
        self.counts_: dict[str, SpilledTable] | None = {
            n: s["values"].stored() for n, s in summary.items()
        }
        self.summary_ = {n: {**s, "values": None} for n, s in summary.items()}

    def update(self, summary: dict[str, Any], inputs: Inputs) -> None:
        """Merge the counts."""
        for name, new in summary.items():
            what = f"{self.label}: column {name!r}"
            values = new["values"].with_stored((self.counts_ or {}).get(name), what)
            summary[name] = {**_join(self.summary_[name], new), "values": values}
        self.learn(summary, inputs)

    def _finding(self, name: str, found: dict[str, Any]) -> dict[str, Any]:
        moments = found["moments"]
        mean, std = spread(moments, name, self.label) if moments["count"] else (None, None)
        return {
            "dtype": found["dtype"],
            "cardinality": found["values"].distinct(),
            "min": moments["min"], "max": moments["max"], "mean": mean, "std": std,
            "per_nan": 100.0 * found["nulls"] / found["rows"] if found["rows"] else 0.0,
        }  # fmt: skip

    def state(self) -> dict[str, Any]:
        """The findings, values and counts included."""
        return {"summary": self.summary_, "counts": self.counts_, "output": self.output_}

    def restore(self, state: Mapping[str, Any], inputs: Inputs) -> None:
        """Take them back."""
        self.summary_, self.output_ = state["summary"], state["output"]
        self.counts_ = state["counts"]

    def check_state(self, state: Mapping[str, Any], inputs: Inputs, at: str) -> None:
        """Refuse what are no findings and counts."""
        counts = or_null(by_name(check_counts))
        record(summary=by_name(anything), counts=counts, output=by_name(anything))(state, at)

    def transform(self, frame: pa.Table, inputs: Inputs) -> pa.Table:
        """The columns as they are."""
        self.require_fitted()
        return frame.select(list(inputs.names))


def _join(a: dict[str, Any], b: dict[str, Any]) -> dict[str, Any]:
    return {
        "rows": a["rows"] + b["rows"],
        "nulls": a["nulls"] + b["nulls"],
        "moments": merge_moments(a["moments"], b["moments"]),
        "values": None if a["values"] is None else a["values"].join(b["values"]),
        "dtype": a["dtype"],
    }


def _plain(chunk: pa.Array) -> pa.Array:
    return chunk.cast(chunk.type.value_type) if pa.types.is_dictionary(chunk.type) else chunk


def _numbers(values: pa.ChunkedArray) -> pa.ChunkedArray:
    """The values as numbers: text by its length, times by their count of units."""
    kind = values.type
    if pa.types.is_null(kind):
        return values.cast(pa.float64())
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return pc.utf8_length(values).cast(pa.float64())
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return pc.binary_length(values).cast(pa.float64())
    if pa.types.is_temporal(kind):
        wide = pa.int32() if pa.types.is_date32(kind) or pa.types.is_time32(kind) else pa.int64()
        return values.cast(wide).cast(pa.float64(), safe=False)
    if pa.types.is_boolean(kind):
        return values.cast(pa.int8()).cast(pa.float64())
    return values.cast(pa.float64(), safe=False)
