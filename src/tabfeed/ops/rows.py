"""Functions of the user's, names, and rows: LambdaOp, Rename, Filter, Dropna, DifferenceLag."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa

from tabfeed.errors import ArgumentError, OperatorError
from tabfeed.execute.forks import refuse_forked
from tabfeed.ops.base import Inputs, Operator
from tabfeed.ops.columns import as_list, missing_to_null, polars_type, require_numeric
from tabfeed.schema import ColumnSchema, Schema, Tags
from tabfeed.schema.dtypes import as_arrow_type
from tabfeed.user_functions import call

__all__ = ["DifferenceLag", "Dropna", "Filter", "LambdaOp", "Rename"]


class LambdaOp(Operator):
    """Apply a function to each column.

    To be saved, the function must be importable: defined with ``def`` in a module.

    Parameters
    ----------
    f
        ``f(column)`` or ``f(column, frame)``: a Polars Series, and the frame of all selected
        columns and dependencies. Returns a Series, an array or an expression of the same length.
    dependency
        More columns, or nodes, that ``frame`` should hold.
    label
        A name to show.
    dtype
        Type of the result; found by trying the function on no rows when not given.
    tags, properties
        Remarks for the result.

    Examples
    --------
    >>> LambdaOp(lambda col: col * 2)({"x": [1, 2]})
    {'x': array([2, 4])}
    """

    def __init__(
        self,
        f: Callable[..., Any],
        dependency: Any = None,
        label: str | None = None,
        dtype: Any = None,
        tags: Iterable[str] | str | None = None,
        properties: Mapping[str, Any] | None = None,
    ) -> None:
        if not callable(f):
            raise ArgumentError(f"LambdaOp needs a function, not {f!r}")
        self.f, self.dependency, self.dtype = f, dependency, dtype
        self.tags, self.properties = tags, properties
        self._label = label
        self._two = _takes_two(f)

    @property
    def label(self) -> str:
        """The name given, or the function's."""
        name = getattr(self.f, "__name__", "")
        return self._label or (name if name and name != "<lambda>" else "LambdaOp")

    def params(self) -> dict[str, Any]:
        """The arguments."""
        return {
            "f": self.f, "label": self._label, "dtype": self.dtype,
            "tags": None if self.tags is None else [str(t) for t in self.tags]
            if not isinstance(self.tags, str) else self.tags, "properties": self.properties,
        }  # fmt: skip

    @property
    def dependencies(self) -> list[Any]:
        """The further columns that the function needs."""
        return as_list(self.dependency)

    def output_schema(self, inputs: Inputs) -> Schema:
        """The same names; types as declared, or as the function gives them."""
        empty = self._empty(inputs) if self.dtype is None else None
        return Schema(self._column(c, empty) for c in inputs.columns)

    def _column(self, column: ColumnSchema, empty: pl.DataFrame | None) -> ColumnSchema:
        declared = None if self.dtype is None else as_arrow_type(self.dtype)
        dtype = declared if empty is None else self._find_type(column, empty)
        tags = column.tags if self.tags is None else ()
        out = ColumnSchema(column.name, dtype, tags=tags, properties=column.properties)
        return out.with_tags(self.tags or []).with_properties(self.properties or {})

    def _empty(self, inputs: Inputs) -> pl.DataFrame | None:
        """All columns without rows, to try the function on; None if a type is not known."""
        if any(c.dtype is None for c in inputs.schema):
            return None
        refuse_forked()  # whatever the function does with Polars
        return pl.DataFrame(
            {c.name: pl.Series([], dtype=polars_type(c.dtype)) for c in inputs.schema}
        )

    def _find_type(self, column: ColumnSchema, empty: pl.DataFrame) -> pa.DataType | None:
        try:
            result = self._call(column.name, empty)
        except Exception:
            return None
        return as_arrow_type(result.dtype)

    def transform(self, frame: pl.LazyFrame, inputs: Inputs) -> pl.LazyFrame:
        """Call the function on whole columns."""
        whole = frame.collect()
        out = []
        for name in inputs.names:
            series = self._call(name, whole)
            if len(series) != len(whole):
                raise OperatorError(
                    f"{self.label} made {len(series)} values of {len(whole)} for column {name!r}; "
                    "to drop rows use Filter"
                )
            if self.dtype is not None:
                series = series.cast(polars_type(as_arrow_type(self.dtype)))
            out.append(series.alias(name))
        return pl.DataFrame(out).lazy()

    def _call(self, name: str, frame: pl.DataFrame) -> pl.Series:
        given = [frame[name], frame] if self._two else [frame[name]]
        result = call(self.f, *given)
        if isinstance(result, pl.Expr):
            return frame.select(result.alias(name))[name]
        if isinstance(result, pa.Array | pa.ChunkedArray):
            return pl.Series(result)
        return result if isinstance(result, pl.Series) else pl.Series(name, np.asarray(result))


def _takes_two(f: Callable[..., Any]) -> bool:
    try:
        parameters = inspect.signature(f).parameters.values()
    except (TypeError, ValueError):  # built-in functions and ufuncs have no signature
        return False
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return sum(p.kind in kinds and p.default is p.empty for p in parameters) >= 2


class Rename(Operator):
    """Give columns other names.

    Parameters
    ----------
    f
        From old name to new name.
    postfix
        Put behind each name.
    name
        The new name, where there is one column.

    Examples
    --------
    >>> Rename(postfix="_raw")({"x": [1]})
    {'x_raw': array([1])}
    """

    def __init__(
        self,
        f: Callable[[str], str] | None = None,
        postfix: str | None = None,
        name: str | None = None,
    ) -> None:
        if sum(a is not None for a in (f, postfix, name)) != 1:
            raise ArgumentError("Rename needs one of f, postfix and name")
        self.f, self.postfix, self.name = f, postfix, name

    def output_schema(self, inputs: Inputs) -> Schema:
        """The columns under their new names."""
        return Schema(
            c.with_name(n) for c, n in zip(inputs.columns, self._new(inputs), strict=True)
        )

    def _new(self, inputs: Inputs) -> list[str]:
        if self.name is not None:
            if len(inputs.names) != 1:
                raise OperatorError(f"Rename(name=...) is for one column; there are {inputs.names}")
            return [self.name]
        f = self.f
        return [f"{n}{self.postfix}" if f is None else call(f, n) for n in inputs.names]

    def transform(self, frame: pl.LazyFrame, inputs: Inputs) -> pl.LazyFrame:
        """Rename."""
        pairs = zip(inputs.names, self._new(inputs), strict=True)
        return frame.select(pl.col(old).alias(new) for old, new in pairs)

    def transform_row(self, row: dict[str, Any], inputs: Inputs) -> dict[str, Any]:
        """Rename."""
        return {new: row[old] for old, new in zip(inputs.names, self._new(inputs), strict=True)}


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
        return Schema(ColumnSchema(**{**vars(c), "nullable": False}) for c in inputs.columns)

    def transform(self, frame: pl.LazyFrame, inputs: Inputs) -> pl.LazyFrame:
        """Keep rows that are whole."""
        whole = [
            (pl.col(c.name) if c.is_list else missing_to_null(pl.col(c.name), c)).is_not_null()
            for c in inputs.columns
        ]
        return frame.filter(pl.all_horizontal(whole)) if whole else frame


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
        require_numeric(self, inputs)
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
