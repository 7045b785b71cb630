"""What a table's columns are, and which of them are meant.

A `Schema` is a value, like the `tabfeed.schema.column.ColumnSchema` it is made of: it never
changes, compares by content, and every "change" returns a new one. `Schema.to_json` is tabfeed's
own format; `tabfeed.schema.merlin` and `tabfeed.schema.tf_metadata` know those of older tools.

A `ColumnSelector` says which columns are wanted without having seen the data: by name, by pattern,
by group, by tag, by type. `ColumnSelector.resolve` answers with names once there is a schema.
"""

from __future__ import annotations

import fnmatch
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, ClassVar

import pyarrow as pa

from tabfeed.display import box, table
from tabfeed.errors import ArgumentError, ColumnNotFoundError, DuplicateColumnError, SchemaError
from tabfeed.schema.column import ColumnSchema, counted, normalise_tags
from tabfeed.schema.dtypes import as_arrow_type, format_type

__all__ = ["ColumnSelector", "Schema"]

_MOST_LINES = 60


class Schema:
    """The columns of a table, in order.

    Examples
    --------
    >>> schema = Schema([ColumnSchema("label", "float", tags="target"), ColumnSchema("C1")])
    >>> schema.select_by_tag("target").column_names
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
        return Schema(self[n] for n in ([names] if isinstance(names, str) else names))

    def excluding(self, names: Iterable[str] | str) -> Schema:
        """All but the named columns, which must exist."""
        return self.without(self.select(names).column_names)

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

    __or__ = __add__

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
        nullable = {c.name: c.nullable or pa.types.is_null(c.dtype) for c in self}
        return pa.schema([pa.field(c.name, c.dtype, nullable=nullable[c.name]) for c in self])

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


_PATTERN = frozenset("*?[")


@dataclass(frozen=True, init=False, repr=False)
class ColumnSelector:
    """A choice of columns.

    Parameters
    ----------
    names
        Column names. ``*`` and ``?`` are wildcards (``"C*"``). A list or tuple inside is a
        group: columns that an operator treats as one.
    subgroups
        More groups, each a sequence of names.
    tags
        Columns that carry any of these tags; ``user_id`` asks for both ``user`` and ``id``.
    dtypes
        Columns of any of these types (of their values, for lists).

    Examples
    --------
    >>> from tabfeed import ColumnSchema, Schema
    >>> schema = Schema([ColumnSchema("C1", "int64"), ColumnSchema("C2", "int64", tags="id"),
    ...                  ColumnSchema("I1", "float")])
    >>> ColumnSelector(["C*"]).resolve(schema)
    ['C1', 'C2']
    >>> (ColumnSelector("*") - ColumnSelector(tags="id")).resolve(schema)
    ['C1', 'I1']
    """

    names: tuple[str, ...]
    subgroups: tuple[tuple[str, ...], ...]
    tags: tuple[str, ...]
    dtypes: tuple[Any, ...]
    excluded: tuple[ColumnSelector, ...]
    _start: ClassVar[Callable[[ColumnSelector], Any] | None] = None  # set by the graph's module

    def __init__(
        self,
        names: Iterable[Any] | str | None = None,
        *,
        subgroups: Iterable[Sequence[str]] = (),
        tags: Iterable[str] | str = (),
        dtypes: Iterable[Any] | Any = (),
        excluded: Iterable[ColumnSelector] = (),
    ) -> None:
        flat, groups = _split_groups(names)
        as_groups = [[g] if isinstance(g, str) else list(g) for g in subgroups]
        given = [tags] if isinstance(tags, str) else tags
        dtype_list = dtypes if isinstance(dtypes, list | tuple) else [dtypes]
        put = object.__setattr__
        put(self, "names", tuple(flat))
        put(self, "subgroups", (*groups, *_split_groups(as_groups)[1]))
        # A compound such as user_id stays one, and asks for both.
        put(self, "tags", tuple(dict.fromkeys(str(t).strip().lower() for t in given)))
        put(self, "dtypes", tuple(as_arrow_type(d) for d in dtype_list))
        put(self, "excluded", tuple(excluded))

    @classmethod
    def of(cls, what: ColumnSelector | Iterable[Any] | str) -> ColumnSelector:
        """A selector from a name, a list of names and groups, or a selector."""
        return what if isinstance(what, ColumnSelector) else cls(what)

    def resolve(self, schema: Schema, *, where: str = "the data") -> list[str]:
        """The names chosen from `schema`: those named in the order given, then those found."""
        chosen: dict[str, None] = {}
        for name in chain(self.names, *self.subgroups):
            chosen.update(dict.fromkeys(_match(name, schema, where)))
        # Many selectors of one name each must not look through a wide schema each.
        tagged = schema.select_by_tag(self.tags) if self.tags else ()
        for column in schema if self.tags or self.dtypes else ():
            if column.name in tagged or (self.dtypes and column.leaf_dtype in self.dtypes):
                chosen[column.name] = None
        for selector in self.excluded:
            for name in selector.resolve(schema, where=where):
                chosen.pop(name, None)
        return list(chosen)

    def check_taken(self, schema: Schema, *, where: str = "the data") -> None:
        """Refuse a name that is to be taken away and is not there."""
        for selector in self.excluded:
            selector.resolve(schema, where=where)

    def absent(self, schema: Schema) -> list[str]:
        """Names and patterns that are to be taken away and that `schema` has no column for."""
        plain = [s for s in self.excluded if not s.excluded]
        names = (n for s in plain for n in (*s.names, *(m for g in s.subgroups for m in g)))
        columns = schema.column_names
        absent = (n for n in dict.fromkeys(names) if n not in schema)
        return [n for n in absent if not fnmatch.filter(columns, n)]

    def groups(self, schema: Schema, *, where: str = "the data") -> list[tuple[str, ...]]:
        """As groups: each subgroup whole, every other column a group of one, in order."""
        named = self.resolve(schema, where=where)
        whole = [tuple(m for n in g for m in _match(n, schema, where)) for g in self.subgroups]
        grouped = {name for group in whole for name in group}
        alone: list[tuple[str, ...]] = [(n,) for n in named if n not in grouped or n in self.names]
        return alone + [g for g in whole if set(g) <= set(named)]

    def __rshift__(self, what: Any) -> Any:
        """A graph that starts here: what `what` makes of these columns."""
        return NotImplemented if self._start is None else self._start() >> what

    def __add__(self, other: Any) -> Any:
        if not isinstance(other, ColumnSelector | str | list | tuple):
            return NotImplemented  # a node of a graph adds itself
        right = ColumnSelector.of(other)
        if self.excluded or right.excluded:
            raise ArgumentError("selectors with columns taken away cannot be added; subtract last")
        return ColumnSelector(
            [*self.names, *right.names],
            subgroups=[*self.subgroups, *right.subgroups],
            tags=[*self.tags, *right.tags],
            dtypes=[*self.dtypes, *right.dtypes],
        )

    def __radd__(self, other: Any) -> ColumnSelector:
        both: ColumnSelector = ColumnSelector.of(other) + self
        return both

    def __sub__(self, other: Any) -> ColumnSelector:
        return ColumnSelector(
            self.names,
            subgroups=self.subgroups,
            tags=self.tags,
            dtypes=self.dtypes,
            excluded=[*self.excluded, ColumnSelector.of(other)],
        )

    def __repr__(self) -> str:
        parts: list[str] = [
            *(repr(n) for n in self.names),
            *(repr(list(g)) for g in self.subgroups),
        ]
        text = f"[{', '.join(parts)}]" if parts else ""
        if self.tags:
            text += f"{', ' if text else ''}tags={list(self.tags)}"
        if self.dtypes:
            text += f"{', ' if text else ''}dtypes={[str(d) for d in self.dtypes]}"
        minus = "".join(f" - {s!r}" for s in self.excluded)
        return f"ColumnSelector({text}){minus}"


def _split_groups(names: Iterable[Any] | str | None) -> tuple[list[str], list[tuple[str, ...]]]:
    if names is None:
        return [], []
    if isinstance(names, str):
        return [names], []
    flat: list[str] = []
    groups: list[tuple[str, ...]] = []
    for item in names:
        if isinstance(item, str):
            flat.append(item)
        elif isinstance(item, list | tuple) and all(isinstance(n, str) for n in item):
            groups.append(tuple(item))
        else:
            raise ArgumentError(
                f"a selection holds column names and lists of column names, not {item!r}"
            )
    return flat, groups


def _match(name: str, schema: Schema, where: str) -> list[str]:
    if name in schema:
        return [name]
    if not _PATTERN.isdisjoint(name):
        found = fnmatch.filter(schema.column_names, name)
        if found or name == "*":
            return found
    raise ColumnNotFoundError(name, schema.column_names, where=where)
