"""Rows dropped, compared and gathered: Filter, Dropna, DifferenceLag, Groupby."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa

from tabfeed.arguments import call
from tabfeed.errors import ArgumentError, ColumnNotFoundError, OperatorError
from tabfeed.ops.base import Inputs, Operator
from tabfeed.ops.frames import as_list, is_null, polars_type, require_numeric
from tabfeed.schema import ColumnSchema, Schema, Tags

_NUMERIC = {"sum", "mean", "median", "std", "var"}


class Filter(Operator):
    """Keep some rows. All columns that belong together must be in front of it.

    Parameters
    ----------
    f
        From a Polars frame to the rows to keep: a boolean Series, an expression, or the frame.

    Examples
    --------
    >>> Filter(lambda df: df["x"] > 1)({"x": [1, 2], "y": [3, 4]})
    {'x': array([2]), 'y': array([4])}
    """

    def __init__(self, f: Callable[[pl.DataFrame], Any]) -> None:
        if not callable(f):
            raise ArgumentError(f"Filter needs a function of the frame, not {f!r}")
        self.f = f

    @property
    def changes_rows(self) -> bool:
        """It drops rows."""
        return True

    def transform(self, frame: pl.LazyFrame, inputs: Inputs) -> pl.LazyFrame:
        """Keep the rows the function chooses."""
        whole = frame.collect()
        kept = call(self.f, whole)
        if isinstance(kept, pl.DataFrame | pl.LazyFrame):
            return kept.lazy().select(inputs.names)
        if not isinstance(kept, pl.Expr):
            kept = kept if isinstance(kept, pl.Series) else pl.Series(np.asarray(kept))
            if kept.dtype != pl.Boolean:
                raise OperatorError(
                    f"Filter's function must give booleans or a frame; it gave {kept.dtype}"
                )
        return whole.filter(kept).lazy()


class Dropna(Operator):
    """Drop rows with a null or NaN in any selected column.

    Examples
    --------
    >>> Dropna()({"x": [1.0, None], "y": [3, 4]})
    {'x': array([1.]), 'y': array([3])}
    """

    @property
    def changes_rows(self) -> bool:
        """It drops rows."""
        return True

    def output_schema(self, inputs: Inputs) -> Schema:
        """The same columns, without nulls."""
        return Schema(replace(c, nullable=False) for c in inputs.columns)

    def transform(self, frame: pl.LazyFrame, inputs: Inputs) -> pl.LazyFrame:
        """Keep rows that are whole."""
        missing = [is_null(c) for c in inputs.columns]
        return frame.remove(pl.any_horizontal(missing)) if missing else frame


class DifferenceLag(Operator):
    """Difference to an earlier row of the same group.

    Rows of a group must follow each other, in order, in the data: `x` minus the `x` of the row
    `shift` rows before, null where that row is of another group. Of a Dataset the rows before
    are found across partitions and files; of a table, a batch or one row, within that alone.
    An operator that drops or moves rows may stand in front of it where there is one partition.

    Parameters
    ----------
    partition_cols
        Columns that say which group a row belongs to.
    shift
        How many rows back, or several such numbers; negative looks ahead.

    Examples
    --------
    >>> from tabfeed import Workflow
    >>> node = ["x"] >> DifferenceLag("user")
    >>> Workflow(node).transform({"user": [1, 1, 2], "x": [1.0, 5.0, 6.0]})
    {'x_difference_lag_1': array([nan,  4., nan], dtype=float32)}
    """

    def __init__(self, partition_cols: Sequence[str] | str, shift: int | Sequence[int] = 1) -> None:
        self.partition_cols = as_list(partition_cols)
        self.shift = [shift] if isinstance(shift, int) else list(shift)

    @property
    def reach(self) -> tuple[int, int]:
        """The furthest shifts."""
        return max([0, *self.shift]), max([0, *(-s for s in self.shift)])

    @property
    def dependencies(self) -> list[Any]:
        """The group's columns."""
        return [self.partition_cols]

    def output_schema(self, inputs: Inputs) -> Schema:
        """A float32 column for each column and shift."""
        require_numeric(self, inputs.columns)
        for column in inputs.columns:
            if column.is_list:
                raise OperatorError(f"DifferenceLag: column {column.name!r} holds lists")
        return Schema(
            ColumnSchema(f"{n}_difference_lag_{s}", pa.float32(), tags=(Tags.CONTINUOUS,))
            for n in inputs.names
            for s in self.shift
        )

    def transform(self, frame: pl.LazyFrame, inputs: Inputs) -> pl.LazyFrame:
        """Subtract where the groups agree."""
        exprs = []
        for name in inputs.names:
            for s in self.shift:
                same = [pl.col(c).eq_missing(pl.col(c).shift(s)) for c in self.partition_cols]
                inside = (pl.int_range(pl.len()) >= s) & (pl.int_range(pl.len()) < pl.len() + s)
                # A float would lose the difference of large whole numbers, int64 would wrap around.
                leaf = inputs.schema[name].leaf_dtype
                whole = leaf is not None and pa.types.is_integer(leaf)
                value = pl.col(name).cast(pl.Int128 if whole else pl.Float64)
                lag = pl.when(pl.all_horizontal([*same, inside])).then(value - value.shift(s))
                exprs.append(lag.cast(pl.Float32).alias(f"{name}_difference_lag_{s}"))
        return frame.select(exprs)


_AGGREGATES: dict[str, Callable[[pl.Expr], pl.Expr]] = {
    "list": lambda e: e,
    "first": lambda e: e.first(),
    "last": lambda e: e.last(),
    "count": lambda e: e.count().cast(pl.Int32),
    "nunique": lambda e: e.drop_nulls().n_unique().cast(pl.Int32),
    "sum": lambda e: e.sum(),
    "min": lambda e: e.min(),
    "max": lambda e: e.max(),
    "mean": lambda e: e.cast(pl.Float64).mean(),
    "median": lambda e: e.cast(pl.Float64).median(),
    "std": lambda e: e.cast(pl.Float64).std(),
    "var": lambda e: e.cast(pl.Float64).var(),
}


class Groupby(Operator):
    """Gather the rows of each group into one.

    Groups are whole whatever the partitions of the data: rows with equal keys are brought
    together first. Rows come out ordered by key within a partition; a null key is a key.

    Parameters
    ----------
    groupby_cols
        The keys.
    sort_cols
        Order of the rows inside a group, for lists, first and last.
    aggs
        One or several of list, first, last, count, nunique, sum, min, max, mean, median, std, var;
        or ``{column: aggregates}`` for some columns only.
    name_sep
        Between a column's name and the aggregate's.
    ascending
        Whether `sort_cols` ascend.

    Examples
    --------
    >>> op = Groupby("user", sort_cols="t", aggs={"item": ["list", "last"], "t": "max"})
    >>> frame = pl.DataFrame({"user": [1, 2, 1], "t": [5, 1, 3], "item": ["c", "x", "a"]})
    >>> op(frame).rows()
    [(1, ['a', 'c'], 'c', 5), (2, ['x'], 'x', 1)]
    """

    def __init__(
        self,
        groupby_cols: Sequence[str] | str,
        sort_cols: Sequence[str] | str | None = None,
        aggs: str | Sequence[str] | Mapping[str, Any] = "list",
        name_sep: str = "_",
        ascending: bool = True,
    ) -> None:
        self.groupby_cols, self.sort_cols = as_list(groupby_cols), as_list(sort_cols)
        self.aggs, self.name_sep, self.ascending = aggs, name_sep, ascending
        if not self.groupby_cols:
            raise ArgumentError("Groupby needs at least one key column")
        given = aggs.values() if isinstance(aggs, Mapping) else [aggs]
        for name in (a for g in given for a in as_list(g)):
            if name not in _AGGREGATES:
                raise ArgumentError(
                    f"{name!r} is not an aggregate Groupby knows: {list(_AGGREGATES)}"
                )

    @property
    def changes_rows(self) -> bool:
        """Many rows become one."""
        return True

    @property
    def shuffle_keys(self) -> list[str] | None:
        """Rows of a group must meet."""
        return list(self.groupby_cols)

    def _outputs(self, inputs: Inputs) -> list[tuple[str, str]]:
        """(column, aggregate) of each output behind the keys."""
        chosen = self.aggs if isinstance(self.aggs, Mapping) else ()
        for name in [*self.groupby_cols, *self.sort_cols, *chosen]:
            if name not in inputs.names:
                raise ColumnNotFoundError(name, inputs.names, where="Groupby's columns")
        if isinstance(self.aggs, Mapping):
            return [(c, a) for c, given in self.aggs.items() for a in as_list(given)]
        rest = [n for n in inputs.names if n not in self.groupby_cols]
        return [(c, a) for c in rest for a in as_list(self.aggs)]

    def output_schema(self, inputs: Inputs) -> Schema:
        """The keys, then ``<column>_<aggregate>``."""
        columns = [inputs.schema[k] for k in self.groupby_cols]
        for name, aggregate in self._outputs(inputs):
            columns.append(self._column(inputs.schema[name], aggregate))
        return Schema(columns)

    def _column(self, source: ColumnSchema, aggregate: str) -> ColumnSchema:
        leaf = source.dtype
        if leaf is not None and aggregate in _NUMERIC and not _is_number(leaf):
            raise OperatorError(
                f"Groupby: {aggregate} of column {source.name!r} needs numbers, not {leaf}"
            )
        name = f"{source.name}{self.name_sep}{aggregate}"
        if aggregate in ("first", "last", "min", "max"):
            return replace(source, name=name, nullable=True)
        if aggregate == "list":
            tags = (*source.tags, Tags.LIST)
            dtype = None if leaf is None else pa.list_(leaf)
            return ColumnSchema(
                name, dtype, tags=tags, properties=source.properties, nullable=False,
                domain=source.domain, embedding_size=source.embedding_size,
            )  # fmt: skip
        tags = (Tags.CONTINUOUS,) if aggregate in _NUMERIC | {"count", "nunique"} else ()
        return ColumnSchema(name, _result_type(aggregate, leaf), tags=tags)

    def transform(self, frame: pl.LazyFrame, inputs: Inputs) -> pl.LazyFrame:
        """Group and aggregate."""
        outputs = self._outputs(inputs)
        frame, large = _with_large(frame, [n for n, a in outputs if a in _NUMERIC], inputs)
        whole: dict[str, pa.DataType] = {}
        exprs = []
        for name, aggregate in outputs:
            column, made = pl.col(name), f"{name}{self.name_sep}{aggregate}"
            if name in large and aggregate in ("mean", "var", "std"):
                exprs.append(_of_large(column, aggregate).alias(made))
                continue
            if aggregate == "sum":
                kind = _result_type("sum", inputs.schema[name].dtype)
                if name in large:
                    whole[made] = kind
                column = column.cast(pl.Int128 if name in large else polars_type(kind))
            exprs.append(_AGGREGATES[aggregate](column).alias(made))
        if self.sort_cols:
            frame = frame.sort(self.sort_cols, descending=not self.ascending, maintain_order=True)
        grouped = frame.group_by(self.groupby_cols, maintain_order=True).agg(exprs)
        grouped = grouped.sort(self.groupby_cols, nulls_last=False)
        return _narrowed(grouped.collect(), whole).lazy() if whole else grouped


def _with_large(
    frame: pl.LazyFrame, names: list[str], inputs: Inputs
) -> tuple[pl.LazyFrame, set[str]]:
    """The frame, computed if need be, and which integer columns floats and int64 are too small for.

    Their sums could wrap around, and their means and spreads lose digits.
    """
    kinds = {n: inputs.schema[n].dtype for n in names}
    wide = [n for n, t in kinds.items() if t is not None and pa.types.is_integer(t)]
    wide = [n for n in wide if kinds[n].bit_width == 64]
    if not wide:
        return frame, set()
    made = frame.collect()
    ranges = {n: (made[n].min() or 0, made[n].max() or 0) for n in wide}
    most = 2**53 // max(1, len(made))
    large = {n for n, (low, high) in ranges.items() if low < -most or high > most}  # type: ignore[operator]
    return made.lazy(), large


def _of_large(column: pl.Expr, aggregate: str) -> pl.Expr:
    """Mean or spread of large integers: a sum, and distances from the first, are exact."""
    whole = column.cast(pl.Int128)
    if aggregate == "mean":
        return pl.when(column.count() > 0).then(whole.sum().cast(pl.Float64) / column.count())
    return _AGGREGATES[aggregate](whole - whole.drop_nulls().first())


def _narrowed(frame: pl.DataFrame, whole: dict[str, pa.DataType]) -> pl.DataFrame:
    """Sums in their own types; one too large for it is an error, where it would wrap around."""
    for name, dtype in whole.items():
        narrow = frame[name].cast(polars_type(dtype), strict=False)
        if narrow.null_count() > frame[name].null_count():
            worst = frame[name].filter(narrow.is_null() & frame[name].is_not_null())[0]
            raise OperatorError(
                f"Groupby: {name!r} of a group is {worst:,}, which {dtype} cannot hold; convert "
                "the column to float64 first, for instance with LambdaOp"
            )
        frame = frame.with_columns(narrow)
    return frame


def _is_number(dtype: pa.DataType) -> bool:
    return bool(
        pa.types.is_integer(dtype) or pa.types.is_floating(dtype) or pa.types.is_boolean(dtype)
    )


def _result_type(aggregate: str, source: pa.DataType | None) -> pa.DataType | None:
    if aggregate in ("count", "nunique"):
        return pa.int32()
    if aggregate == "sum":
        if source is not None and pa.types.is_uint64(source):
            return pa.uint64()
        whole = source is not None and not pa.types.is_floating(source)
        return pa.int64() if whole else pa.float64()
    return pa.float64()
