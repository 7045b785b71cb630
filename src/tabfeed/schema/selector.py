"""Which columns: by name, by pattern, by group, by tag, by type.

A selector says what is wanted without having seen the data; `ColumnSelector.resolve`
answers with names once there is a schema. Selectors are values: adding and
subtracting makes new ones.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from tabfeed.errors import ArgumentError, ColumnNotFoundError
from tabfeed.schema.dtypes import as_arrow_type
from tabfeed.schema.schema import Schema

__all__ = ["ColumnSelector"]

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
        dtype_list = dtypes if isinstance(dtypes, list | tuple) else [dtypes]
        put = object.__setattr__
        put(self, "names", tuple(flat))
        put(self, "subgroups", (*groups, *_split_groups([_as_group(g) for g in subgroups])[1]))
        put(self, "tags", _tags(tags))
        put(self, "dtypes", tuple(as_arrow_type(d) for d in dtype_list))
        put(self, "excluded", tuple(excluded))

    @classmethod
    def of(cls, what: ColumnSelector | Iterable[Any] | str) -> ColumnSelector:
        """A selector from a name, a list of names and groups, or a selector."""
        return what if isinstance(what, ColumnSelector) else cls(what)

    def resolve(self, schema: Schema, *, where: str = "the data") -> list[str]:
        """The names chosen from `schema`: those named in the order given, then those found."""
        chosen: dict[str, None] = {}
        for name in self.names:
            chosen.update(dict.fromkeys(_match(name, schema, where)))
        for group in self.subgroups:
            for name in group:
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
        return [
            n for n in dict.fromkeys(names) if n not in schema and not fnmatch.filter(columns, n)
        ]

    def groups(self, schema: Schema, *, where: str = "the data") -> list[tuple[str, ...]]:
        """As groups: each subgroup whole, every other column a group of one, in order."""
        named = self.resolve(schema, where=where)
        whole = [tuple(m for n in g for m in _match(n, schema, where)) for g in self.subgroups]
        grouped = {name for group in whole for name in group}
        singles: list[tuple[str, ...]] = [
            (n,) for n in named if n not in grouped or n in self.names
        ]
        return singles + [g for g in whole if set(g) <= set(named)]

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


def _as_group(group: Any) -> list[Any]:
    return [group] if isinstance(group, str) else list(group)


def _tags(tags: Iterable[str] | str) -> tuple[str, ...]:
    """Tags as given, lower-case; a compound such as ``user_id`` stays one, and asks for both."""
    given = [tags] if isinstance(tags, str) else list(tags)
    return tuple(dict.fromkeys(str(t).strip().lower() for t in given))


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
