"""One column of a table: name, type, roles, range.

`ColumnSchema` is a value: it never changes, compares by content, and every "change" returns
a new one. Types are Arrow's. Roles are tags: a loader finds the label by `Tags.TARGET`, an
operator marks its output `Tags.CATEGORICAL`.
"""

from __future__ import annotations

import copy
import enum
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

import pyarrow as pa

from tabfeed.errors import SchemaError
from tabfeed.schema.dtypes import as_arrow_type, format_type, is_list_type, leaf_type, parse_type

__all__ = ["ColumnSchema", "Domain", "Tags", "normalise_tags"]


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
    """The smallest and largest value a column can take; `name` links columns that share one.

    An infinite bound is no bound, and kept as None.
    """

    min: int | float | None = None
    max: int | float | None = None
    name: str | None = None

    def __post_init__(self) -> None:
        for which in ("min", "max"):
            object.__setattr__(self, which, _bound(which, getattr(self, which)))


def _bound(which: str, value: Any) -> int | float | None:
    value = value.item() if hasattr(value, "item") else value  # a NumPy scalar
    if value is not None and (not isinstance(value, int | float) or value != value):
        raise SchemaError(f"the {which} of a domain is {value!r}; it must be a number or None")
    return None if value in (math.inf, -math.inf) else value


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
    dtype: Any = field(default=None, hash=False)  # Arrow: equal lists may differ in hash
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
        if not (self.dtype is None or isinstance(self.dtype, pa.DataType)):
            put(self, "dtype", as_arrow_type(self.dtype))
        put(self, "tags", normalise_tags(self.tags))
        put(self, "properties", MappingProxyType(copy.deepcopy(dict(self.properties))))
        self._check_tags()
        self._check_value_count()
        if self.embedding_size is not None:
            put(self, "embedding_size", self._pair("embedding_size", self.embedding_size))

    def _pair(self, what: str, value: Any) -> tuple[int, int]:
        try:
            first, second = value
            return int(first), int(second)
        except (TypeError, ValueError):
            raise SchemaError(
                f"{what} of column {self.name!r} is {value!r}: not two whole numbers"
            ) from None

    def _check_tags(self) -> None:
        for a, b in _EXCLUSIVE:
            if a in self.tags and b in self.tags:
                raise SchemaError(f"column {self.name!r} cannot be both {a} and {b}")

    def _check_value_count(self) -> None:
        count = None if self.value_count is None else tuple(self.value_count)
        fixed = self.dtype is not None and pa.types.is_fixed_size_list(self.dtype)
        size = (self.dtype.list_size, self.dtype.list_size) if fixed else None
        if count is not None:
            is_open = len(count) == 2 and count[1] is None
            low, high = self._pair("value_count", (count[0], count[0]) if is_open else count)
            if low < 0 or high < low:
                raise SchemaError(f"value_count of column {self.name!r} is {count}: not a range")
            count = (low, None if is_open else high)
            if (self.dtype is not None and not self.is_list) or (size or count) != count:
                raise SchemaError(
                    f"column {self.name!r} is {format_type(self.dtype)}: value_count {count} does "
                    "not fit it (it is for lists, and a fixed size is its own count)"
                )
        object.__setattr__(self, "value_count", count or size)

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
        variable = is_list_type(arrow) and not pa.types.is_fixed_size_list(arrow)
        keep = self.value_count if variable else None
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
        try:
            fields = {**data}
            if "dtype" in fields:
                fields["dtype"] = parse_type(fields["dtype"])
            if "domain" in fields:
                fields["domain"] = Domain(**fields["domain"])
            return cls(**fields)
        except (TypeError, AttributeError) as e:
            raise SchemaError(f"this is not a column of a schema: {data!r} ({e})") from e

    def __reduce__(self) -> tuple[type[ColumnSchema], tuple[Any, ...]]:
        values = {name: getattr(self, name) for name in self.__dataclass_fields__}
        return ColumnSchema, tuple({**values, "properties": dict(self.properties)}.values())

    def __repr__(self) -> str:
        parts = [f"{self.name}: {'?' if self.dtype is None else format_type(self.dtype)}"]
        parts.extend(self.notes())
        return " ".join(parts)

    def notes(self) -> list[str]:
        """Short descriptions of tags, ranges and sizes."""
        notes = []
        if self.tags:
            notes.append(f"[{', '.join(str(t) for t in self.tags)}]")
        if not self.nullable:
            notes.append("not null")
        if self.value_count is not None:
            low, high = self.value_count
            span = f"{low}..{'' if high is None else high} values"
            notes.append(counted(low, "value") if low == high else span)
        if self.domain is not None and (self.domain.min is not None or self.domain.max is not None):
            low_text = "" if self.domain.min is None else f"{self.domain.min:,}"
            high_text = "" if self.domain.max is None else f"{self.domain.max:,}"
            notes.append(f"in {low_text}..{high_text}")
        if self.embedding_size is not None:
            notes.append("embedding {:,} x {}".format(*self.embedding_size))
        return notes


def counted(number: int, noun: str) -> str:
    """A number and what it counts, in the singular or the plural."""
    return f"{number} {noun}" if number == 1 else f"{number:,} {noun}s"
