"""What a table's columns are: names, types, roles, ranges.

A `Schema` is a value, like the `tabfeed.schema.column.ColumnSchema` it is made of: it never
changes, compares by content, and every "change" returns a new one.

`Schema.to_json` is tabfeed's own format; `tabfeed.schema.merlin` reads and writes the
files that older tools leave beside their data.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import pyarrow as pa

from tabfeed.errors import ColumnNotFoundError, DuplicateColumnError, SchemaError
from tabfeed.notebook import box, table
from tabfeed.schema.column import ColumnSchema, Domain, Tags, counted, normalise_tags
from tabfeed.schema.dtypes import format_type

__all__ = ["ColumnSchema", "Domain", "Schema", "Tags"]

_MOST_LINES = 60


class Schema:
    """The columns of a table, in order.

    Examples
    --------
    >>> schema = Schema([
    ...     ColumnSchema("label", "float", tags="target"),
    ...     ColumnSchema("C1", "int64", tags="categorical"),
    ... ])
    >>> schema.select_by_tag(Tags.TARGET).column_names
    ['label']
    >>> schema["C2"]
    Traceback (most recent call last):
        ...
    tabfeed.errors.ColumnNotFoundError: there is no column 'C2' in the schema (2 columns: label, C1)
    """

    __slots__ = ("_by_name",)

    def __init__(self, columns: Iterable[ColumnSchema | str] = ()) -> None:
        by_name: dict[str, ColumnSchema] = {}
        for column in columns:
            column = ColumnSchema(column) if isinstance(column, str) else column
            if column.name in by_name:
                raise DuplicateColumnError(f"column {column.name!r} appears twice in the schema")
            by_name[column.name] = column
        self._by_name = by_name

    # -- looking ------------------------------------------------------------------

    @property
    def column_names(self) -> list[str]:
        """Names, in order."""
        return list(self._by_name)

    def __getitem__(self, name: str) -> ColumnSchema:
        try:
            return self._by_name[name]
        except KeyError:
            raise ColumnNotFoundError(name, self._by_name, where="the schema") from None

    def get(self, name: str, default: ColumnSchema | None = None) -> ColumnSchema | None:
        """The column of that name, or `default`."""
        return self._by_name.get(name, default)

    @property
    def first(self) -> ColumnSchema:
        """The first column."""
        if not self._by_name:
            raise SchemaError("the schema has no columns")
        return next(iter(self._by_name.values()))

    def __contains__(self, name: object) -> bool:
        return name in self._by_name

    def __iter__(self) -> Iterator[ColumnSchema]:
        return iter(self._by_name.values())

    def __len__(self) -> int:
        return len(self._by_name)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Schema):
            return NotImplemented
        return list(self) == list(other)

    def __hash__(self) -> int:
        return hash(tuple(self))

    # -- choosing -----------------------------------------------------------------

    def select(self, names: Iterable[str] | str) -> Schema:
        """The named columns, in the order named."""
        wanted = [names] if isinstance(names, str) else names
        return Schema([self[n] for n in wanted])

    def excluding(self, names: Iterable[str] | str) -> Schema:
        """All but the named columns, which must exist."""
        gone = set(self.select(names).column_names)
        return Schema(c for c in self if c.name not in gone)

    def select_by_tag(self, tags: Iterable[str] | str) -> Schema:
        """Columns that carry any of `tags`; a compound such as ``user_id`` asks for both parts."""
        return Schema(c for c in self if _has_any(c, tags))

    def excluding_by_tag(self, tags: Iterable[str] | str) -> Schema:
        """Columns that carry none of `tags`."""
        return Schema(c for c in self if not _has_any(c, tags))

    select_by_name = select
    excluding_by_name = excluding

    def remove_col(self, name: str) -> Schema:
        """All but one column."""
        return self.excluding([name])

    def without(self, names: Iterable[str] | str) -> Schema:
        """All but the named columns; a name that is absent is no error."""
        gone = {names} if isinstance(names, str) else set(names)
        return Schema(c for c in self if c.name not in gone)

    def __add__(self, other: Schema) -> Schema:
        """Both, the right-hand column winning where a name is in both."""
        return Schema({**self._by_name, **other._by_name}.values())

    def __or__(self, other: Schema) -> Schema:
        return self + other

    def __and__(self, other: Schema) -> Schema:
        """The columns of the left whose names are in both."""
        return Schema(c for c in self if c.name in other)

    def __sub__(self, other: Schema | Iterable[str]) -> Schema:
        return self.without(other.column_names if isinstance(other, Schema) else other)

    def replace(self, column: ColumnSchema) -> Schema:
        """With the column of the same name replaced, in its place."""
        self[column.name]
        return Schema(column if c.name == column.name else c for c in self)

    # -- other forms --------------------------------------------------------------

    @classmethod
    def from_arrow(cls, schema: pa.Schema) -> Schema:
        """Names, types and nullability of an Arrow schema."""
        return cls(ColumnSchema(f.name, f.type, nullable=f.nullable) for f in schema)

    def to_arrow(self) -> pa.Schema:
        """As an Arrow schema; every type must be known."""
        for column in self:
            if column.dtype is None:
                raise SchemaError(
                    f"the type of column {column.name!r} is not known; give it to the operator "
                    "that makes the column, such as LambdaOp(dtype=...), or in the schema"
                )
        return pa.schema(
            [
                pa.field(c.name, c.dtype, nullable=c.nullable or pa.types.is_null(c.dtype))
                for c in self
            ]
        )

    def to_json(self) -> str:
        """As JSON text, version and all."""
        body = {"tabfeed_schema": 1, "columns": [c.to_dict() for c in self]}
        try:
            return json.dumps(body, indent=2, allow_nan=False)
        except (TypeError, ValueError, RecursionError) as e:
            names = [c.name for c in self if not _is_jsonable(c.properties)]
            raise SchemaError(
                f"the properties of {', '.join(names)} cannot be saved as JSON: {e}"
            ) from e

    @classmethod
    def from_json(cls, text: str) -> Schema:
        """Read what `to_json` wrote."""
        try:
            body = json.loads(text)
            version, columns = body["tabfeed_schema"], body["columns"]
            if not isinstance(columns, list):
                raise TypeError(f"columns is {columns!r}")
        except (ValueError, KeyError, TypeError) as e:
            raise SchemaError(f"this is not a tabfeed schema in JSON: {e!r}") from e
        if version != 1:
            raise SchemaError(
                f"the schema is of format {version}; this tabfeed reads 1: upgrade tabfeed"
            )
        return cls(ColumnSchema.from_dict(c) for c in columns)

    def to_pandas(self) -> Any:
        """As a pandas DataFrame, a row a column, to look at."""
        import pandas as pd

        return pd.DataFrame([{"name": c.name, "dtype": str(c.dtype), **c.to_dict()} for c in self])

    def __reduce__(self) -> tuple[type[Schema], tuple[list[ColumnSchema]]]:
        return Schema, (list(self),)

    def __repr__(self) -> str:
        lines = [f"  {c!r}" for c in list(self)[:_MOST_LINES]]
        if len(self) > _MOST_LINES:
            lines.append(f"  ... and {len(self) - _MOST_LINES:,} more")
        return "\n".join([f"Schema of {counted(len(self), 'column')}", *lines])

    def _repr_html_(self) -> str:
        return box("Schema", [counted(len(self), "column")], self.html_table())

    def html_table(self) -> str:
        """The columns as an HTML table, for notebooks."""
        rows = [
            (c.name, "?" if c.dtype is None else format_type(c.dtype), " ".join(c.notes()))
            for c in self
        ]
        return table(("column", "type", "notes"), rows)


def _is_jsonable(properties: Mapping[str, Any]) -> bool:
    try:
        json.dumps(dict(properties), allow_nan=False)
    except (TypeError, ValueError, RecursionError):
        return False
    return True


def _has_any(column: ColumnSchema, tags: Iterable[str] | str) -> bool:
    wanted = [tags] if isinstance(tags, str) else list(tags)
    return any(set(normalise_tags(t)) <= set(column.tags) for t in wanted)
