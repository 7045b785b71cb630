"""Columns of lists: cut, pad, measure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tabfeed.errors import ArgumentError, OperatorError
from tabfeed.ops.base import Inputs, Operator, StatOperator
from tabfeed.ops.frames import list_lengths
from tabfeed.ops.state.checks import by_name, check_lengths, record
from tabfeed.schema import ColumnSchema, Schema, Tags
from tabfeed.schema.dtypes import is_list_type

Ints = npt.NDArray[np.int64]


class ListSlice(Operator):
    """Cut each list like a Python slice, and optionally pad it to a fixed length.

    Parameters
    ----------
    start
        First element. Alone and positive it is the end: ``ListSlice(5)`` keeps the first five;
        ``ListSlice(-5)`` the last five.
    end
        Where to stop.
    pad
        Whether shorter lists are filled up to the longest that the slice allows; a null row
        becomes all padding.
    pad_value
        What with.
    pad_side
        ``"right"`` puts padding behind the values, ``"left"`` before them.

    Examples
    --------
    >>> ListSlice(2, pad=True)({"x": [[1, 2, 3], [4]]})["x"].tolist()
    [array([1, 2]), array([4, 0])]
    """

    eager = True

    def __init__(
        self,
        start: int,
        end: int | None = None,
        pad: bool = False,
        pad_value: float | str = 0.0,
        pad_side: str = "right",
    ) -> None:
        if pad_side not in ("left", "right"):
            raise ArgumentError(f"pad_side is {pad_side!r}; it is 'left' or 'right'")
        self.start, self.end, self.pad = start, end, pad
        self.pad_value, self.pad_side = pad_value, pad_side
        low, high = self._slice()
        if low is not None and high is not None and (low < 0) == (high < 0) and high < low:
            raise ArgumentError(f"ListSlice({start}, {end}) is empty: it ends before it starts")
        if pad and self._most() is None:
            raise ArgumentError(
                f"ListSlice({start}, {end}) has no longest list, so there is no length to pad to"
            )

    def _slice(self) -> tuple[int | None, int | None]:
        if self.end is None:
            return (0, self.start) if self.start > 0 else (self.start, None)
        return self.start, self.end

    def _most(self) -> int | None:
        """Most elements a row can have afterwards."""
        low, high = self._slice()
        if low is None or high is None:
            return -low if low is not None and low < 0 else None
        if (low < 0) == (high < 0):
            return high - low
        return None if low >= 0 else max(0, min(-low, high))

    def output_schema(self, inputs: Inputs) -> Schema:
        """Lists of known length."""
        return Schema(self._column(c) for c in inputs.columns)

    def _column(self, column: ColumnSchema) -> ColumnSchema:
        if column.dtype is None:
            return column.with_tags(Tags.LIST)
        if not column.is_list:
            raise OperatorError(f"ListSlice is for lists; column {column.name!r} is {column.dtype}")
        most = self._most()
        cut = replace(
            column,
            dtype=pa.list_(column.dtype.value_type),
            value_count=((most or 0) if self.pad else 0, most),
            nullable=column.nullable and not self.pad,
        )
        return cut.with_tags(Tags.LIST)

    def transform(self, frame: pa.Table, inputs: Inputs) -> pa.Table:
        """Cut and pad each column."""
        return pa.table({n: self._cut_column(frame.column(n)) for n in inputs.names})

    def _cut_column(self, column: pa.ChunkedArray) -> pa.ChunkedArray:
        dtype = pa.list_(column.type.value_type)
        return pa.chunked_array([self._cut(c) for c in column.chunks], dtype)

    def _cut(self, lists: pa.Array) -> pa.Array:
        lengths = list_lengths(lists)
        starts = np.cumsum(lengths) - lengths
        first, last = _bounds(lengths, *self._slice())
        kept = np.maximum(last - first, 0)
        values = lists.flatten()
        if not self.pad:
            picked = values.take(pa.array(_ranges(starts + first, kept)))
            return _lists(kept, picked, lists if lists.null_count else None)
        return self._padded(values, starts + first, kept)

    def _padded(self, values: pa.Array, at: Ints, kept: Ints) -> pa.Array:
        most = self._most() or 0
        places = np.full((len(kept), most), len(values), np.int64)
        column = np.arange(most)[None, :]
        shift = most - kept[:, None] if self.pad_side == "left" else 0
        inside = (column >= shift) & (column - shift < kept[:, None])
        places[inside] = (at[:, None] + column - shift)[inside]
        filler = pa.array([_filler(self.pad_value, values.type)], values.type)
        padded = pa.concat_arrays([values, filler]).take(pa.array(places.reshape(-1)))
        return _lists(np.full(len(kept), most), padded, None)


def _bounds(lengths: Ints, low: int | None, high: int | None) -> tuple[Ints, Ints]:
    """First and last position of a Python slice of each row."""

    def place(at: int | None, default: Ints) -> Ints:
        if at is None:
            return default
        return np.clip(lengths + at if at < 0 else np.full(len(lengths), at), 0, lengths)

    return place(low, np.zeros_like(lengths)), place(high, lengths)


def _ranges(starts: Ints, counts: Ints) -> Ints:
    """The numbers ``start .. start + count`` of every row, one after the other."""
    ends = np.cumsum(counts)
    total = int(ends[-1]) if len(ends) else 0
    return np.asarray(np.arange(total) + np.repeat(starts - (ends - counts), counts), np.int64)


def _lists(lengths: Ints, values: pa.Array, nulls_of: pa.Array | None) -> pa.Array:
    offsets = pa.array(np.concatenate([[0], np.cumsum(lengths)]), pa.int32())
    mask = None if nulls_of is None else nulls_of.is_null()
    return pa.ListArray.from_arrays(offsets, values, mask=mask)


def _filler(value: Any, dtype: pa.DataType) -> Any:
    if pa.types.is_string(dtype) or pa.types.is_large_string(dtype):
        return "" if value in (0, 0.0) else str(value)
    if is_list_type(dtype):
        return []
    return pa.scalar(value).cast(dtype).as_py()


class ValueCount(StatOperator):
    """Learn how short and how long the lists of a column are.

    Examples
    --------
    >>> op = ValueCount().fit({"x": [[1, 2], [3]]})
    >>> op.counts_
    {'x': (1, 2)}
    """

    eager = True

    def output_schema(self, inputs: Inputs) -> Schema:
        """The same columns; once fitted with the lengths of their lists."""
        if not self.is_fitted:
            return inputs.schema.select(inputs.names)
        return Schema(
            replace(c, value_count=self.counts_[c.name])
            if c.name in self.counts_ and c.is_list
            else c
            for c in inputs.columns
        )

    def partial(self, frame: pa.Table, inputs: Inputs) -> dict[str, Any]:
        """Shortest and longest list of each column; a null row counts as empty."""
        found: dict[str, Any] = {}
        for column in inputs.columns:
            if not is_list_type(frame.column(column.name).type):
                raise OperatorError(
                    f"ValueCount is for lists; column {column.name!r} is {column.dtype}"
                )
            lengths = [list_lengths(c) for c in frame.column(column.name).chunks if len(c)]
            low = min((int(n.min()) for n in lengths), default=None)
            found[column.name] = [low, max((int(n.max()) for n in lengths), default=None)]
        return found

    def merge(self, a: dict[str, Any], b: dict[str, Any]) -> dict[str, Any]:
        """The wider range."""
        pairs = {n: [p for p in (a[n], b[n]) if p[0] is not None] for n in a}
        return {
            n: [min(x[0] for x in p), max(x[1] for x in p)] if p else [None, None]
            for n, p in pairs.items()
        }

    def finish(self, summary: dict[str, Any], inputs: Inputs) -> None:
        """Keep the ranges."""
        self.counts_ = {n: (low, high) for n, (low, high) in summary.items() if low is not None}

    def check_state(self, state: Mapping[str, Any], inputs: Inputs, at: str) -> None:
        """Refuse what are no lengths."""
        record(summary=by_name(check_lengths))(state, at)

    def transform(self, frame: pa.Table, inputs: Inputs) -> pa.Table:
        """The columns as they are."""
        self.require_fitted()
        return frame.select(list(inputs.names))
