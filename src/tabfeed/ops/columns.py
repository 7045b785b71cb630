"""Columns as such: functions of the user's, names, tags and properties, which to leave out."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa

from tabfeed.arguments import call
from tabfeed.errors import ArgumentError, OperatorError
from tabfeed.execute.executor import refuse_forked
from tabfeed.io.formats.memory import refuse_bad_text
from tabfeed.ops.base import Inputs, Operator
from tabfeed.ops.frames import as_list, polars_type
from tabfeed.ops.graph.node import Structural
from tabfeed.schema import ColumnSchema, Schema, Tags
from tabfeed.schema.dtypes import as_arrow_type


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
            refuse_bad_text(pa.table([result], [name]), f"what {self.label} returned")
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


class AddMetadata(Structural):
    """Add tags and properties to columns.

    Parameters
    ----------
    tags
        `Tags` or any strings.
    properties
        Anything JSON can hold.

    Examples
    --------
    >>> from tabfeed import ColumnSchema
    >>> AddMetadata(tags=["id"]).output_schema(Inputs.of(Schema([ColumnSchema("x", "int64")])))
    Schema of 1 column
      x: int64 [id]
    """

    def __init__(
        self, tags: Iterable[str] | str | None = None, properties: Mapping[str, Any] | None = None
    ) -> None:
        self.tags = [tags] if isinstance(tags, str) else list(tags or [])
        self.properties = dict(properties or {})

    def output_schema(self, inputs: Inputs) -> Schema:
        """The same columns, better described."""
        return Schema(
            c.with_tags(self.tags).with_properties(self.properties) for c in inputs.columns
        )


class AddTags(AddMetadata):
    """Add tags to columns."""

    def __init__(self, tags: Iterable[str] | str) -> None:
        super().__init__(tags=tags)


class AddProperties(AddMetadata):
    """Add properties to columns."""

    def __init__(self, properties: Mapping[str, Any]) -> None:
        super().__init__(properties=properties)


class TagAsUserID(AddMetadata):
    """Say that a column identifies a user."""

    def __init__(self) -> None:
        super().__init__(tags=[Tags.ID, Tags.USER])


class TagAsItemID(AddMetadata):
    """Say that a column identifies an item."""

    def __init__(self) -> None:
        super().__init__(tags=[Tags.ID, Tags.ITEM])


class TagAsUserFeatures(AddMetadata):
    """Say that columns describe a user."""

    def __init__(self) -> None:
        super().__init__(tags=[Tags.USER])


class TagAsItemFeatures(AddMetadata):
    """Say that columns describe an item."""

    def __init__(self) -> None:
        super().__init__(tags=[Tags.ITEM])


class DropLowCardinality(Structural):
    """Leave out categorical columns with few values.

    Parameters
    ----------
    min_cardinality
        Columns whose largest id is below this are left out; so is nothing without a known range.
    """

    def __init__(self, min_cardinality: int = 4) -> None:
        self.min_cardinality = min_cardinality

    def output_schema(self, inputs: Inputs) -> Schema:
        """The columns with enough values."""
        return Schema(c for c in inputs.columns if not self._low(c))

    def _low(self, column: ColumnSchema) -> bool:
        if (
            Tags.CATEGORICAL not in column.tags
            or column.domain is None
            or column.domain.max is None
        ):
            return False
        return column.domain.max < self.min_cardinality
