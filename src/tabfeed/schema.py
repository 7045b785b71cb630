"""What a table's columns are: names, types, roles, ranges.

`ColumnSchema` and `Schema` are values: they never change, they compare by content, and
every "change" returns a new one. Types are Arrow's. Roles are tags: a loader finds
the label by `Tags.TARGET`, an operator marks its output `Tags.CATEGORICAL`.

`Schema.to_json` is tabfeed's own format; `tabfeed.schema_formats` reads and writes the
files that older tools leave beside their data.
"""

from __future__ import annotations

import copy
import enum
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from html import escape
from types import MappingProxyType
from typing import Any

import pyarrow as pa

from tabfeed.dtypes import as_arrow_type, format_type, is_list_type, leaf_type, parse_type
from tabfeed.errors import ColumnNotFoundError, DuplicateColumnError, SchemaError

__all__ = ["ColumnSchema", "Domain", "Schema", "Tags"]


class Tags(str, enum.Enum):
    """Roles a column can have. Any other string may serve as a tag too."""

    CATEGORICAL = "categorical"
    CONTINUOUS = "continuous"
    LIST = "list"
    SEQUENCE = "sequence"
    TEXT = "text"
    TOKENIZED = "tokenized"
    TIME = "time"
    EMBEDDING = "embedding"
    ID = "id"
    USER = "user"
    ITEM = "item"
    SESSION = "session"
    CONTEXT = "context"
    TARGET = "target"
    REGRESSION = "regression"
    CLASSIFICATION = "classification"
    BINARY = "binary"
    MULTI_CLASS = "multi_class"

    def __str__(self) -> str:
        return self.value


# Names that older schemas use for two roles at once.
_COMPOUND: dict[str, tuple[str, ...]] = {
    "user_id": ("user", "id"),
    "item_id": ("item", "id"),
    "session_id": ("session", "id"),
    "text_tokenized": ("text", "tokenized"),
    "binary_classification": ("binary", "classification"),
    "multi_class_classification": ("multi_class", "classification"),
}
_EXCLUSIVE = [("categorical", "continuous"), ("regression", "classification")]


def normalise_tags(tags: Iterable[str] | str) -> tuple[str, ...]:
    """Lower-case, split compounds, drop repeats, sort."""
    given = [tags] if isinstance(tags, str) else list(tags)
    flat: set[str] = set()
    for tag in given:
        text = tag.value if isinstance(tag, Tags) else str(tag).strip().lower()
        flat.update(_COMPOUND.get(text, (text,)))
    known = {t.value: t for t in Tags}
    return tuple(known.get(t, t) for t in sorted(flat))


@dataclass(frozen=True)
class Domain:
    """The smallest and largest value a column can take; `name` links columns that share one."""

    min: int | float | None = None
    max: int | float | None = None
    name: str | None = None


@dataclass(frozen=True, repr=False)
class ColumnSchema:
    """One column.

    Parameters
    ----------
    name
        The column's name.
    dtype
        Its type: an Arrow type, a NumPy dtype or a name (``"int64"``, ``"list<float>"``).
        None when it is not known yet.
    tags
        Its roles, `Tags` or any strings.
    properties
        Anything else worth keeping; must be JSON-able to be saved.
    nullable
        Whether nulls may occur.
    value_count
        Fewest and most values in a row of a list column; None as the upper bound is open.
    domain
        Range of the values.
    embedding_size
        ``(cardinality, dimension)`` of the embedding table this column looks up.

    Examples
    --------
    >>> ColumnSchema("genres", "list<int64>", tags=[Tags.CATEGORICAL], value_count=(1, 5))
    genres: list<int64> [categorical] 1..5 values
    >>> ColumnSchema("x", "int64").with_tags("id") == ColumnSchema("x", "int64")
    False
    """

    name: str
    dtype: Any = None
    tags: tuple[str, ...] = ()
    properties: Mapping[str, Any] = field(default_factory=dict, hash=False)
    nullable: bool = True
    value_count: tuple[int, int | None] | None = None
    domain: Domain | None = None
    embedding_size: tuple[int, int] | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name:
            raise SchemaError(f"a column's name must be a non-empty string, not {self.name!r}")
        put = object.__setattr__
        put(self, "dtype", None if self.dtype is None else as_arrow_type(self.dtype))
        put(self, "tags", normalise_tags(self.tags))
        put(self, "properties", MappingProxyType(copy.deepcopy(dict(self.properties))))
        self._check_tags()
        self._check_value_count()
        if self.embedding_size is not None:
            cardinality, dimension = self.embedding_size
            put(self, "embedding_size", (int(cardinality), int(dimension)))

    def _check_tags(self) -> None:
        for a, b in _EXCLUSIVE:
            if a in self.tags and b in self.tags:
                raise SchemaError(f"column {self.name!r} cannot be both {a} and {b}")

    def _check_value_count(self) -> None:
        count = self.value_count
        if count is None and self.dtype is not None and pa.types.is_fixed_size_list(self.dtype):
            count = (self.dtype.list_size, self.dtype.list_size)
        if count is not None:
            low, high = count
            if low < 0 or (high is not None and high < low):
                raise SchemaError(f"value_count of column {self.name!r} is {count}: not a range")
            if self.dtype is not None and not self.is_list:
                raise SchemaError(
                    f"column {self.name!r} is {format_type(self.dtype)}: value_count is for lists"
                )
            count = (int(low), None if high is None else int(high))
        object.__setattr__(self, "value_count", count)

    # -- what it is ---------------------------------------------------------------

    @property
    def is_list(self) -> bool:
        """Whether a row holds a list."""
        return self.dtype is not None and is_list_type(self.dtype)

    @property
    def is_ragged(self) -> bool:
        """Whether lists may differ in length from row to row."""
        if not self.is_list:
            return False
        return self.value_count is None or self.value_count[0] != self.value_count[1]

    @property
    def leaf_dtype(self) -> pa.DataType | None:
        """The type of a single value, inside any lists."""
        return None if self.dtype is None else leaf_type(self.dtype)

    # -- other columns made from it -----------------------------------------------

    def with_name(self, name: str) -> ColumnSchema:
        """The same column under another name."""
        return replace(self, name=name)

    def with_dtype(self, dtype: Any) -> ColumnSchema:
        """The same column with another type; a value count that no longer fits goes."""
        arrow = as_arrow_type(dtype)
        keep = self.value_count if is_list_type(arrow) else None
        return replace(self, dtype=arrow, value_count=keep)

    def with_tags(self, tags: Iterable[str] | str) -> ColumnSchema:
        """With `tags` added; a tag that excludes an older one replaces it."""
        new = normalise_tags(tags)
        drop = {b for pair in _EXCLUSIVE for a, b in (pair, pair[::-1]) if a in new}
        return replace(self, tags=tuple(t for t in self.tags if t not in drop) + new)

    def without_tags(self, tags: Iterable[str] | str) -> ColumnSchema:
        """With `tags` removed."""
        gone = set(normalise_tags(tags))
        return replace(self, tags=tuple(t for t in self.tags if t not in gone))

    def with_properties(self, properties: Mapping[str, Any]) -> ColumnSchema:
        """With `properties` added or replaced."""
        return replace(self, properties={**self.properties, **properties})

    # -- text ---------------------------------------------------------------------

    def to_dict(self) -> dict[str, Any]:
        """As plain values, leaving out what is at its default."""
        out: dict[str, Any] = {"name": self.name}
        if self.dtype is not None:
            out["dtype"] = format_type(self.dtype)
        if self.tags:
            out["tags"] = [str(t) for t in self.tags]
        if self.properties:
            out["properties"] = copy.deepcopy(dict(self.properties))
        if not self.nullable:
            out["nullable"] = False
        if self.value_count is not None:
            out["value_count"] = list(self.value_count)
        if self.domain is not None:
            out["domain"] = {k: v for k, v in vars(self.domain).items() if v is not None}
        if self.embedding_size is not None:
            out["embedding_size"] = list(self.embedding_size)
        return out

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> ColumnSchema:
        """Read what `to_dict` made."""
        fields = dict(data)
        unknown = fields.keys() - cls.__dataclass_fields__.keys()
        if unknown or "name" not in fields:
            raise SchemaError(f"not a column schema: {dict(data)!r}")
        if "dtype" in fields:
            fields["dtype"] = parse_type(fields["dtype"])
        if "domain" in fields:
            fields["domain"] = Domain(**fields["domain"])
        for pair in ("value_count", "embedding_size"):
            if pair in fields:
                fields[pair] = tuple(fields[pair])
        return cls(**fields)

    def __reduce__(self) -> tuple[Callable[..., ColumnSchema], tuple[dict[str, Any]]]:
        return ColumnSchema.from_dict, (self.to_dict(),)

    def __repr__(self) -> str:
        parts = [f"{self.name}: {'?' if self.dtype is None else format_type(self.dtype)}"]
        parts.extend(self.notes())
        return " ".join(parts)

    def notes(self) -> list[str]:
        """Short remarks: tags, ranges, sizes."""
        notes = []
        if self.tags:
            notes.append(f"[{', '.join(str(t) for t in self.tags)}]")
        if not self.nullable:
            notes.append("not null")
        if self.value_count is not None:
            low, high = self.value_count
            span = f"{low}" if low == high else f"{low}..{'' if high is None else high}"
            notes.append(f"{span} values")
        if self.domain is not None and (self.domain.min is not None or self.domain.max is not None):
            low_text = "" if self.domain.min is None else f"{self.domain.min:,}"
            high_text = "" if self.domain.max is None else f"{self.domain.max:,}"
            notes.append(f"in {low_text}..{high_text}")
        if self.embedding_size is not None:
            notes.append("embedding {:,} x {}".format(*self.embedding_size))
        return notes


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
    tabfeed.errors.ColumnNotFoundError: there is no column 'C2' in the schema; did you mean 'C1'? (2 columns: label, C1)
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
                raise SchemaError(f"the type of column {column.name!r} is not known")
        return pa.schema([pa.field(c.name, c.dtype, nullable=c.nullable) for c in self])

    def to_json(self) -> str:
        """As JSON text, version and all."""
        body = {"tabfeed_schema": 1, "columns": [c.to_dict() for c in self]}
        return json.dumps(body, indent=2, allow_nan=False)

    @classmethod
    def from_json(cls, text: str) -> Schema:
        """Read what `to_json` wrote."""
        try:
            body = json.loads(text)
            version, columns = body["tabfeed_schema"], body["columns"]
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
        lines = [f"  {c!r}" for c in self]
        return f"Schema of {len(self)} columns" + "".join(f"\n{line}" for line in lines)

    def _repr_html_(self) -> str:
        rows = "".join(
            f"<tr><td>{escape(c.name)}</td>"
            f"<td><code>{escape('?' if c.dtype is None else format_type(c.dtype))}</code></td>"
            f"<td>{escape(' '.join(c.notes()))}</td></tr>"
            for c in self
        )
        return (
            f"<table><thead><tr><th>column</th><th>type</th><th>notes</th></tr></thead>"
            f"<tbody>{rows}</tbody></table>"
        )


def _has_any(column: ColumnSchema, tags: Iterable[str] | str) -> bool:
    wanted = [tags] if isinstance(tags, str) else list(tags)
    return any(set(normalise_tags(t)) <= set(column.tags) for t in wanted)
