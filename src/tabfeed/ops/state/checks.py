"""What saved state looks like: every value is checked before an operator restores it.

A saved workflow may come from anywhere, so neither its JSON nor its tables are believed. A check is
a function of a value and its place in the file, such as ``nodes[2].state.summary``; it raises an
`tabfeed.errors.ArtefactError` that names the place.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import pyarrow as pa

from tabfeed.errors import ArtefactError
from tabfeed.ops.state.memory import SpilledTable

Check = Callable[[Any, str], None]
_LARGEST_POWER = 5_000  # of two; floats and their squares lie within 2 ** -2148 and 2 ** 2048


def wrong(at: str, expected: str, got: Any) -> ArtefactError:
    """The error for a value that is not what a saved workflow holds there."""
    return ArtefactError(f"{at}: expected {expected}, got {shown(got)}")


def shown(value: Any) -> str:
    """A value in an error message, in a few words."""
    if isinstance(value, pa.Table | SpilledTable):
        return f"a table of {', '.join(f'{f.name}: {f.type}' for f in value.schema) or 'nothing'}"
    if isinstance(value, dict | list | tuple) and len(value) > 5:
        return f"{'an object' if isinstance(value, dict) else 'a list'} of {len(value):,} entries"
    try:
        text = json.dumps(value)
    except (TypeError, ValueError):
        text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def a_text(value: Any, at: str) -> None:
    """A text."""
    if not isinstance(value, str):
        raise wrong(at, "a text", value)


def a_flag(value: Any, at: str) -> None:
    """True or false."""
    if not isinstance(value, bool):
        raise wrong(at, "true or false", value)


def a_number(value: Any, at: str) -> None:
    """A number, not a flag."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise wrong(at, "a number", value)


def an_integer(low: int | None = None, high: int | None = None) -> Check:
    """An integer between these limits."""
    span = "" if low is None else f" from {low}" if high is None else f" from {low} to {high}"

    def check(value: Any, at: str) -> None:
        fits = isinstance(value, int) and not isinstance(value, bool)
        if not fits or (low is not None and value < low) or (high is not None and value > high):
            raise wrong(at, f"an integer{span}", value)

    return check


def one_of(*values: Any) -> Check:
    """One of these values."""

    def check(value: Any, at: str) -> None:
        if value not in values:
            raise wrong(at, f"one of {', '.join(map(shown, values))}", value)

    return check


def or_null(inner: Check) -> Check:
    """Null, or what fits."""
    return lambda value, at: None if value is None else inner(value, at)


def list_of(inner: Check, length: int | None = None) -> Check:
    """A list whose every entry fits."""

    def check(value: Any, at: str) -> None:
        if not isinstance(value, list | tuple) or (length is not None and len(value) != length):
            raise wrong(at, "a list" if length is None else f"a list of {length}", value)
        for i, entry in enumerate(value):
            inner(entry, f"{at}[{i}]")

    return check


def by_name(inner: Check, names: Iterable[str] = ()) -> Check:
    """An object whose every value fits, and that has these names at least."""

    def check(value: Any, at: str) -> None:
        if not isinstance(value, dict):
            raise wrong(at, "an object", value)
        for name in names:
            if name not in value:
                raise ArtefactError(f"{at}: {name!r} is missing")
        for name, entry in value.items():
            a_text(name, at)
            inner(entry, f"{at}.{name}")

    return check


def record(**fields: Check) -> Check:
    """An object with these fields; more are passed over."""

    def check(value: Any, at: str) -> None:
        if not isinstance(value, dict):
            raise wrong(at.removesuffix(": "), "an object", value)
        for name, inner in fields.items():
            if name not in value:
                raise ArtefactError(f"{at.removesuffix(': ')}: {name!r} is missing")
            inner(value[name], f"{at}{name}" if at.endswith(" ") else f"{at}.{name}")

    return check


def anything(value: Any, at: str) -> None:
    """No check."""


# -- what operators learn --------------------------------------------------------------

_INT64, _UINT64 = 2**63, 2**64
_EXACT = or_null(list_of(an_integer(), 2))
_LENGTH = or_null(an_integer(0, 2**31 - 1))


def check_moments(value: Any, at: str) -> None:
    """Count, exact sums and range of a column."""
    record(count=an_integer(0), sum=_EXACT, squares=_EXACT, min=or_null(a_number),
            max=or_null(a_number))(value, at)  # fmt: skip
    for name in ("sum", "squares"):
        if value[name] is not None:
            number, power = value[name]
            if max(abs(power), number.bit_length() + power) > _LARGEST_POWER:
                raise wrong(f"{at}.{name}", "a sum of floats", value[name])
    if value["count"] and (value["min"] is None or value["max"] is None):
        raise ArtefactError(f"{at}: {value['count']} values have a min and a max")


def check_range(value: Any, at: str) -> None:
    """The smallest and the largest value of a column of numbers."""
    floats = isinstance(value, list | tuple) and any(isinstance(v, float) for v in value)
    list_of(or_null(a_number if floats else an_integer(-_INT64, _UINT64 - 1)), 2)(value, at)
    low, high = value
    if floats and low is not None and high is not None and low <= high:
        return
    if (low is None) != (high is None) or (
        low is not None and (low > high or (low < 0 and high >= _INT64))
    ):
        raise wrong(at, "the smallest and the largest value", value)


def check_lengths(value: Any, at: str) -> None:
    """The shortest and the longest list of a column."""
    list_of(_LENGTH, 2)(value, at)
    if (value[0] is None) != (value[1] is None):
        raise wrong(at, "the shortest and the longest length", value)


def _is_number(dtype: pa.DataType) -> bool:
    return bool(pa.types.is_integer(dtype) or pa.types.is_floating(dtype))


def _table(columns: Callable[[pa.Schema, str], None], *, on_disk: bool) -> Check:
    """A table whose columns fit; one that is looked up whole, or one that may lie on disk."""

    def check(value: Any, at: str) -> None:
        if not isinstance(value, SpilledTable if on_disk else pa.Table):
            raise wrong(at, "a table", value)
        names = value.schema.names
        if len(set(names)) != len(names):
            raise wrong(at, "columns of different names", value)
        columns(value.schema, at)

    return check


def _counted(schema: pa.Schema, at: str) -> None:
    """Values ``v0``, ``v1``, ... and how often each occurs."""
    wanted = [*(f"v{i}" for i in range(max(1, len(schema) - 1))), "count"]
    if schema.names != wanted or schema.types[-1] != pa.int64():
        got = ", ".join(f"{f.name}: {f.type}" for f in schema)
        raise ArtefactError(f"{at}: expected a table of v0, ..., count: int64, got {got}")


def check_vocabulary(value: Any, at: str) -> None:
    """Values and counts in memory, without nulls."""
    _table(_counted, on_disk=False)(value, at)
    single = len(value.schema) == 2
    if value.column("count").null_count or (single and value.column("v0").null_count):
        raise ArtefactError(f"{at}: a vocabulary has no nulls")


def _groups(keys: int, numbers: Sequence[str]) -> Check:
    """A table of groups: its keys, and these columns of numbers."""

    def columns(schema: pa.Schema, at: str) -> None:
        have = set(schema.names)
        for name in [*(f"k{i}" for i in range(keys)), *numbers]:
            if name not in have:
                raise ArtefactError(f"{at}: the table has no column {name!r}")
            if name in numbers and not _is_number(schema.field(name).type):
                raise ArtefactError(
                    f"{at}: column {name!r} of the table is {schema.field(name).type}, not a number"
                )

    return _table(columns, on_disk=True)


def check_counts(value: Any, at: str) -> None:
    """A table of values and counts, which may be on disk."""
    _table(_counted, on_disk=True)(value, at)


def check_groups(state: Any, at: str, groups: Mapping[str, int], of: str, *, extra: int) -> None:
    """Tables of groups by name, each with the statistics of every value column."""
    table = _table(lambda schema, at: None, on_disk=True)
    by_name(table, groups)(state.get("summary"), f"{at}.summary")
    list_of(a_text)(state.get(of), f"{at}.{of}")
    kinds = ("n", "sum", "low", "squares", "rest", "last", "min", "max")
    numbers = ["rows", *(f"{k}{i}" for i in range(len(state[of])) for k in kinds)]
    for name, table in state["summary"].items():
        if name in groups:
            _groups(groups[name] + extra, numbers)(table, f"{at}.summary.{name}")
