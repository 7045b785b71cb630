"""A first look at columns, taken while fitting: DataStats."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from tabfeed.ops.base import Inputs, StatOperator
from tabfeed.ops.state.counting import Counter, count_values
from tabfeed.ops.state.keys import base_type, flatten
from tabfeed.ops.state.memory import SpilledTable
from tabfeed.ops.state.moments import collect_moments, merge_moments, spread
from tabfeed.schema import ColumnSchema
from tabfeed.schema.dtypes import format_type

__all__ = ["DataStats"]


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
