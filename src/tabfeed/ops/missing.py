"""Nulls and NaN replaced: by a value (FillMissing) or by the column's median (FillMedian).

The median is exact, of more values than memory holds. Each partition contributes its values as
order-preserving 64-bit keys, sorted and counted. Past the memory limit they go to disk like any
other counts. The middle is then found by walking the sorted keys.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa

from tabfeed.errors import OperatorError
from tabfeed.ops.base import Inputs, Operator, StatOperator
from tabfeed.ops.frames import (
    is_missing,
    is_null,
    leafwise,
    like,
    map_value,
    missing_to_null,
    polars_type,
    require_numeric,
)
from tabfeed.ops.state.checks import a_number, by_name, check_counts, or_null, record
from tabfeed.ops.state.counting import KEY, Counter, count_values
from tabfeed.ops.state.keys import unpack
from tabfeed.ops.state.memory import COUNT, SpilledTable
from tabfeed.schema import ColumnSchema, Schema


class _Fill(Operator):
    """Replaces nulls and NaN, inside lists too, and marks where they were. Null lists stay."""

    add_binary_cols: bool

    def _leaf(self, column: ColumnSchema) -> pa.DataType:
        """The type of the filled values."""
        raise NotImplementedError

    def _value(self, column: ColumnSchema) -> Any:
        """What to fill a column with."""
        raise NotImplementedError

    def output_schema(self, inputs: Inputs) -> Schema:
        """The same columns without nulls, and the marks."""
        columns = [
            replace(
                c,
                dtype=None if c.dtype is None else like(c.dtype, self._leaf(c)),
                nullable=c.nullable and (c.is_list or c.dtype is None),
            )
            for c in inputs.columns
        ]
        if self.add_binary_cols:
            columns += [
                ColumnSchema(f"{n}_filled", pa.bool_(), nullable=False) for n in inputs.names
            ]
        return Schema(columns)

    def transform(self, frame: pl.LazyFrame, inputs: Inputs) -> pl.LazyFrame:
        """Fill each value."""
        exprs = [leafwise(c, partial(self._fill, column=c)) for c in inputs.columns]
        if self.add_binary_cols:
            exprs += [is_null(c).alias(f"{c.name}_filled") for c in inputs.columns]
        return frame.select(exprs)

    def _fill(self, value: pl.Expr, column: ColumnSchema) -> pl.Expr:
        kind = polars_type(self._leaf(column))
        filler = pl.lit(self._value(column)).cast(kind)
        return missing_to_null(value, column).cast(kind).fill_null(filler)

    def transform_row(self, row: dict[str, Any], inputs: Inputs) -> dict[str, Any]:
        """Fill each value."""
        out = {}
        for column in inputs.columns:
            value = row[column.name]
            if not (column.is_list and value is None):
                value = map_value(value, partial(self._fill_one, column=column))
            out[column.name] = value
        if self.add_binary_cols:
            out.update({f"{n}_filled": is_missing(row[n]) for n in inputs.names})
        return out

    def _fill_one(self, value: Any, column: ColumnSchema) -> Any:
        return self._value(column) if is_missing(value) else value


class FillMissing(_Fill):
    """Replace nulls and NaN by a value.

    Parameters
    ----------
    fill_val
        The value.
    add_binary_cols
        Also make a boolean column ``<name>_filled`` that says where.

    Examples
    --------
    >>> FillMissing(0, add_binary_cols=True)({"x": [1, None]})
    {'x': array([1, 0]), 'x_filled': array([False,  True])}
    """

    def __init__(self, fill_val: Any = 0, add_binary_cols: bool = False) -> None:
        self.fill_val, self.add_binary_cols = fill_val, add_binary_cols

    def _value(self, column: ColumnSchema) -> Any:
        return self.fill_val

    def _leaf(self, column: ColumnSchema) -> pa.DataType:
        """The column's own type, or float64 where an integer column gets a fraction."""
        leaf = column.leaf_dtype
        if leaf is None:
            raise OperatorError(
                f"FillMissing: the type of column {column.name!r} is not known before it is made; "
                "give the LambdaOp that makes it a dtype="
            )
        try:
            value = pa.scalar(self.fill_val)
        except OverflowError as e:
            if not (pa.types.is_uint64(leaf) and 0 <= self.fill_val < 2**64):
                raise OperatorError(
                    f"FillMissing: {self.fill_val!r} does not fit column {column.name!r} ({leaf})"
                ) from e
            return leaf
        if pa.types.is_null(leaf):
            return value.type
        number = isinstance(self.fill_val, int | float)
        if pa.types.is_boolean(leaf) and self.fill_val not in (0, 1):
            raise OperatorError(
                f"FillMissing: column {column.name!r} is boolean; {self.fill_val!r} is not"
            )
        if pa.types.is_decimal(leaf) and number:
            value = pa.scalar(str(self.fill_val))
        if number and (pa.types.is_string(leaf) or pa.types.is_large_string(leaf)):
            raise OperatorError(
                f"FillMissing: column {column.name!r} is text; {self.fill_val!r} is a number"
            )
        fraction = isinstance(self.fill_val, float) and not self.fill_val.is_integer()
        if pa.types.is_integer(leaf) and fraction:
            return pa.float64()
        try:
            return leaf if pa.types.is_boolean(leaf) else value.cast(leaf).type
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as e:
            raise OperatorError(
                f"FillMissing: {self.fill_val!r} does not fit column {column.name!r} ({leaf})"
            ) from e


class FillMedian(_Fill, StatOperator):
    """Replace nulls and NaN by the column's median. A column without values is filled with 0.

    Parameters
    ----------
    add_binary_cols
        Also make a boolean column ``<name>_filled`` that says where.

    Examples
    --------
    >>> op = FillMedian().fit({"x": [1.0, 2.0, 3.0, 10.0]})
    >>> op.medians_
    {'x': 2.5}
    >>> op({"x": [None, 7.0]})
    {'x': array([2.5, 7. ])}
    """

    only_for_update = ("counts",)

    def __init__(self, add_binary_cols: bool = False) -> None:
        self.add_binary_cols = add_binary_cols

    def output_schema(self, inputs: Inputs) -> Schema:
        """Without nulls; integers become float64, since a median may lie between two."""
        require_numeric(self, inputs.columns)
        return super().output_schema(inputs)

    def _leaf(self, column: ColumnSchema) -> pa.DataType:
        leaf = column.leaf_dtype
        return leaf if leaf in (pa.float32(), pa.float64()) else pa.float64()

    def _value(self, column: ColumnSchema) -> Any:
        median = self.medians_[column.name]
        return float(np.float32(median)) if self._leaf(column) == pa.float32() else median

    def partial(self, frame: pl.LazyFrame, inputs: Inputs) -> dict[str, Counter]:
        """Count the values of each column."""
        values = frame.select(pl.col(n).implode() for n in inputs.names).collect()
        found = {}
        for column in inputs.columns:
            series = values[column.name].explode()
            if column.is_list:
                series = series.explode()
            array = series.cast(pl.Float64).to_arrow()
            found[column.name] = Counter([pa.float64()], inputs.memory)
            for keys, counts in count_values(array, pa.float64()):
                found[column.name].add(keys, counts)
        return found

    def large_parts(self, inputs: Inputs) -> Sequence[str]:
        """The counts of each column."""
        return inputs.names

    def finish(self, summary: dict[str, Any], inputs: Inputs) -> None:
        """Find the middle of each column."""
        self.medians_ = {n: _median(counter) for n, counter in summary.items()}

    def learn(self, summary: dict[str, Counter], inputs: Inputs) -> None:
        """Finish, and keep the counts: a median alone cannot be updated."""
        self.finish(summary, inputs)
        self.counts_: dict[str, SpilledTable] | None = {
            n: counter.stored() for n, counter in summary.items()
        }
        self.summary_ = True

    def state(self) -> dict[str, Any]:
        """The medians, and values with their counts."""
        return {"medians": self.medians_, "counts": self.counts_}

    def restore(self, state: Mapping[str, Any], inputs: Inputs) -> None:
        """Take them back."""
        self.medians_, self.counts_ = state["medians"], state["counts"]
        self.summary_ = True

    def check_state(self, state: Mapping[str, Any], inputs: Inputs, at: str) -> None:
        """Refuse what are no medians and counts."""
        medians, counts = by_name(a_number, inputs.names), or_null(by_name(check_counts))
        record(medians=medians, counts=counts)(state, at)

    def update(self, summary: dict[str, Counter], inputs: Inputs) -> None:
        """Merge the counts."""
        both = {
            n: counter.with_stored((self.counts_ or {}).get(n), f"{self.label}: column {n!r}")
            for n, counter in summary.items()
        }
        self.learn(both, inputs)

    def transform(self, frame: pl.LazyFrame, inputs: Inputs) -> pl.LazyFrame:
        """Fill each value."""
        self.require_fitted()
        return super().transform(frame, inputs)

    def _fill_one(self, value: Any, column: ColumnSchema) -> Any:
        return self._value(column) if is_missing(value) else float(value)


def _median(counter: Counter) -> float:
    """The middle value, or halfway between the two middle ones."""
    total, ordered = _ascending(counter)
    if total == 0:
        return 0.0
    low = high = None
    before = 0
    for keys, counts in ordered:
        ends = before + np.cumsum(counts)
        before = int(ends[-1]) if len(ends) else before
        if low is None and before > (total - 1) // 2:
            low = keys[np.searchsorted(ends, (total - 1) // 2, "right")]
        if before > total // 2:
            high = keys[np.searchsorted(ends, total // 2, "right")]
            break
    a, b = unpack(np.array([low, high], np.uint64), pa.float64()).to_pylist()
    return float(a + (b - a) / 2) if a != b else float(a)


def _ascending(counter: Counter) -> tuple[int, Any]:
    """How many values there are, and their keys and counts in ascending pieces."""
    if not counter.spilled:
        frame = counter.frame().sort(KEY)
        return int(frame[COUNT].sum()), [(frame[KEY].to_numpy(), frame[COUNT].to_numpy())]
    run = counter.collapse(ordered=True)
    total = sum(int(b.column(0).to_numpy().sum()) for b in run.iter_batches(columns=[COUNT]))
    batches = run.iter_batches(batch_size=500_000)
    return total, ((b.column(0).to_numpy(), b.column(1).to_numpy()) for b in batches)
