"""What a saved workflow holds: every value is checked before an operator sees it.

A folder may come from anywhere, so neither its JSON nor its tables are believed. The structure of
``workflow.json`` and what tabfeed's operators learned are described here; arguments are checked
against the annotations of the operator's constructor. An error names the place in the file, such
as ``nodes[2].params.num_buckets``.

What users' operators keep is theirs to check.
"""

from __future__ import annotations

import inspect
import json
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import pyarrow as pa

from tabfeed import ops
from tabfeed.errors import ArtefactError
from tabfeed.ops.base import Operator
from tabfeed.ops.state.memory import SpilledTable

__all__ = [
    "check_body",
    "check_checksums",
    "check_params",
    "check_state",
    "require_shallow",
    "wrong",
]

Check = Callable[[Any, str], None]
_DEEPEST, _MOST_LOOPS = 100, 12
_LARGEST_POWER = 5_000  # of two; floats and their squares lie within 2 ** -2148 and 2 ** 2048


def wrong(at: str, expected: str, got: Any) -> ArtefactError:
    """The error for a value that is not what a saved workflow holds there."""
    return ArtefactError(f"{at}: expected {expected}, got {_shown(got)}")


def _shown(value: Any) -> str:
    if isinstance(value, pa.Table | SpilledTable):
        return f"a table of {', '.join(f'{f.name}: {f.type}' for f in value.schema) or 'nothing'}"
    if isinstance(value, dict | list | tuple) and len(value) > 5:
        return f"{'an object' if isinstance(value, dict) else 'a list'} of {len(value):,} entries"
    try:
        text = json.dumps(value)
    except (TypeError, ValueError):
        text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def require_shallow(body: Any, at: str) -> None:
    """Refuse JSON that is nested so deeply that no reader could follow."""
    level = [body]
    for _ in range(_DEEPEST):
        inner = [v for v in level if isinstance(v, dict | list)]
        level = [x for v in inner for x in (v.values() if isinstance(v, dict) else v)]
        if not level:
            return
    raise ArtefactError(f"{at}: values are nested more than {_DEEPEST} deep")


# -- words of the descriptions --------------------------------------------------------


def _text(value: Any, at: str) -> None:
    if not isinstance(value, str):
        raise wrong(at, "a text", value)


def _flag(value: Any, at: str) -> None:
    if not isinstance(value, bool):
        raise wrong(at, "true or false", value)


def _number(value: Any, at: str) -> None:
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise wrong(at, "a number", value)


def _whole(low: int | None = None, high: int | None = None) -> Check:
    span = "" if low is None else f" from {low}" if high is None else f" from {low} to {high}"

    def check(value: Any, at: str) -> None:
        fits = isinstance(value, int) and not isinstance(value, bool)
        if not fits or (low is not None and value < low) or (high is not None and value > high):
            raise wrong(at, f"an integer{span}", value)

    return check


def _either(*values: Any) -> Check:
    def check(value: Any, at: str) -> None:
        if value not in values:
            raise wrong(at, f"one of {', '.join(map(_shown, values))}", value)

    return check


def _or_null(inner: Check) -> Check:
    return lambda value, at: None if value is None else inner(value, at)


def _list(inner: Check, length: int | None = None) -> Check:
    def check(value: Any, at: str) -> None:
        if not isinstance(value, list | tuple) or (length is not None and len(value) != length):
            raise wrong(at, "a list" if length is None else f"a list of {length}", value)
        for i, entry in enumerate(value):
            inner(entry, f"{at}[{i}]")

    return check


def _by_name(inner: Check, names: Iterable[str] = ()) -> Check:
    """An object whose every value fits, and that has these names at least."""

    def check(value: Any, at: str) -> None:
        if not isinstance(value, dict):
            raise wrong(at, "an object", value)
        for name in names:
            if name not in value:
                raise ArtefactError(f"{at}: {name!r} is missing")
        for name, entry in value.items():
            _text(name, at)
            inner(entry, f"{at}.{name}")

    return check


def _record(**fields: Check) -> Check:
    """An object with these fields; more are passed over."""

    def check(value: Any, at: str) -> None:
        if not isinstance(value, dict):
            raise wrong(at.removesuffix(": "), "an object", value)
        for name, inner in fields.items():
            if name not in value:
                raise ArtefactError(f"{at.removesuffix(': ')}: {name!r} is missing")
            inner(value[name], f"{at}{name}" if at.endswith(" ") else f"{at}.{name}")

    return check


def _any(value: Any, at: str) -> None:
    """No check."""


# -- the structure ----------------------------------------------------------------------

_NODE = _record(
    id=_whole(0), operator=_text, params=_by_name(_any), parents=_list(_whole(0)),
    dependencies=_list(_whole(0)), fitted=_flag, state=_by_name(_any),
)  # fmt: skip
_CHECKSUMS = _by_name(_record(bytes=_whole(0), sha256=_text))
_BODY = _record(
    versions=_by_name(_text), input_schema=_by_name(_any), output=_whole(0), nodes=_list(_NODE)
)


def check_body(body: Any, at: str) -> None:
    """Refuse a ``workflow.json`` of another structure; each node comes after those it needs."""
    _BODY(body, f"{at}: ")
    loops = sum(node["operator"] == "tabfeed.ops.loop:Loop" for node in body["nodes"])
    if loops > _MOST_LOOPS:  # one in another multiply
        raise ArtefactError(f"{at}: nodes: {loops} parts are repeated; {_MOST_LOOPS} may be")
    known: set[int] = set()
    for i, node in enumerate(body["nodes"]):
        for kind in ("parents", "dependencies"):
            for k, number in enumerate(node[kind]):
                if number not in known:
                    raise wrong(f"{at}: nodes[{i}].{kind}[{k}]", "the id of a node before", number)
        if node["id"] in known:
            raise wrong(f"{at}: nodes[{i}].id", "an id of its own", node["id"])
        known.add(node["id"])
    if body["output"] not in known:
        raise wrong(f"{at}: output", "the id of a node", body["output"])


def check_checksums(listed: Any, at: str) -> None:
    """Refuse a ``checksums.json`` of another structure."""
    _CHECKSUMS(listed, at)


# -- arguments ----------------------------------------------------------------------------


def check_params(kind: type[Operator], params: Mapping[str, Any], at: str) -> None:
    """Check the arguments of one of tabfeed's operators against its constructor's annotations."""
    hints = typing.get_type_hints(kind.__init__)
    if hasattr(kind, "from_params"):
        hints |= typing.get_type_hints(kind.from_params)
    for name, parameter in inspect.signature(kind).parameters.items():
        if parameter.default is parameter.empty and name not in params:
            raise ArtefactError(f"{at}: {name!r} is missing")
    for name, value in params.items():
        if name not in hints:
            raise ArtefactError(f"{at}.{name}: {kind.__name__} has no such argument")
        _check_hint(value, hints[name], f"{at}.{name}")


def _check_hint(value: Any, hint: Any, at: str) -> None:
    if not _fits(value, hint):
        entries: Any = None
        if isinstance(value, Mapping):
            entries = value.items()
        elif isinstance(value, list | tuple):
            entries = enumerate(value)
        for key, entry in entries or ():  # name the entry that is wrong, where only one is
            inner = _inner(hint, isinstance(value, Mapping))
            if inner is not None and not _fits(entry, inner):
                place = f"{at}.{key}" if isinstance(value, Mapping) else f"{at}[{key}]"
                raise wrong(place, _in_words(inner), entry)
        raise wrong(at, _in_words(hint), value)


def _inner(hint: Any, mapping: bool) -> Any:
    """What the entries of a mapping or list should be."""
    for option in _options(hint):
        origin, arguments = typing.get_origin(option), typing.get_args(option)
        if arguments and isinstance(origin, type):
            if mapping and issubclass(origin, Mapping):
                return arguments[1]
            if not mapping and issubclass(origin, Iterable) and not issubclass(origin, Mapping):
                return arguments[0]
    return None


def _options(hint: Any) -> Sequence[Any]:
    union = typing.get_origin(hint) in (typing.Union, types.UnionType)
    return typing.get_args(hint) if union else (hint,)


def _fits(value: Any, hint: Any) -> bool:
    """Whether a value is what an annotation says, as Python's own operators would take it."""
    options = _options(hint)
    if len(options) > 1:
        return any(_fits(value, o) for o in options)
    if hint is Any:
        return True
    if hint in (None, type(None)):
        return value is None
    if hint is int:
        return isinstance(value, int) or (isinstance(value, float) and value.is_integer())
    if hint is float:
        return isinstance(value, int | float)
    if hint is bool:
        return isinstance(value, int)
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is None:
        return isinstance(value, hint)
    if issubclass(origin, Callable):  # type: ignore[arg-type]
        return callable(value)
    if issubclass(origin, Mapping):
        return isinstance(value, Mapping) and all(
            _fits(k, arguments[0]) and _fits(v, arguments[1]) for k, v in value.items()
        )
    if issubclass(origin, tuple):
        return isinstance(value, list | tuple) and all(_fits(v, arguments[0]) for v in value)
    if isinstance(value, pa.Array):
        return True
    return isinstance(value, list | tuple) and all(_fits(v, arguments[0]) for v in value)


_WORDS: dict[Any, str] = {
    int: "an integer", float: "a number", bool: "true or false", str: "a text",
    type(None): "null", Any: "anything",
}  # fmt: skip


def _in_words(hint: Any) -> str:
    found = []
    for option in _options(hint):
        origin = typing.get_origin(option)
        if option in _WORDS:
            found.append(_WORDS[option])
        elif origin is None:
            found.append(f"a {option.__name__}")
        elif issubclass(origin, Callable):  # type: ignore[arg-type]
            found.append("a function")
        else:
            found.append("an object" if issubclass(origin, Mapping) else "a list")
    return " or ".join(dict.fromkeys(found))


# -- what was learned -----------------------------------------------------------------------

_INT64, _UINT64 = 2**63, 2**64
_EXACT = _or_null(_list(_whole(), 2))
_LENGTH = _or_null(_whole(0, 2**31 - 1))


def _moments(value: Any, at: str) -> None:
    _record(count=_whole(0), sum=_EXACT, squares=_EXACT, min=_or_null(_number),
            max=_or_null(_number))(value, at)  # fmt: skip
    for name in ("sum", "squares"):
        if value[name] is not None:
            number, power = value[name]
            if max(abs(power), number.bit_length() + power) > _LARGEST_POWER:
                raise wrong(f"{at}.{name}", "a sum of floats", value[name])
    if value["count"] and (value["min"] is None or value["max"] is None):
        raise ArtefactError(f"{at}: {value['count']} values have a min and a max")


def _range(value: Any, at: str) -> None:
    floats = isinstance(value, list | tuple) and any(isinstance(v, float) for v in value)
    _list(_or_null(_number if floats else _whole(-_INT64, _UINT64 - 1)), 2)(value, at)
    low, high = value
    if floats and low is not None and high is not None and low <= high:
        return
    if (low is None) != (high is None) or (
        low is not None and (low > high or (low < 0 and high >= _INT64))
    ):
        raise wrong(at, "the smallest and the largest value", value)


def _lengths(value: Any, at: str) -> None:
    _list(_LENGTH, 2)(value, at)
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


def _vocabulary(value: Any, at: str) -> None:
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


def _check_keyed(state: Any, at: str, groups: Mapping[str, int], of: str, extra: int) -> None:
    """Tables of groups by name, each with the statistics of every value column."""
    table = _table(lambda schema, at: None, on_disk=True)
    _by_name(table, groups)(state.get("summary"), f"{at}.summary")
    _list(_text)(state.get(of), f"{at}.{of}")
    kinds = ("n", "sum", "low", "squares", "rest", "last", "min", "max")
    numbers = ["rows", *(f"{k}{i}" for i in range(len(state[of])) for k in kinds)]
    for name, table in state["summary"].items():
        if name in groups:
            _groups(groups[name] + extra, numbers)(table, f"{at}.summary.{name}")


def check_state(op: Operator, state: Mapping[str, Any], names: Sequence[str],
                groups: Sequence[Sequence[str]], at: str) -> None:  # fmt: skip
    """Check what one of tabfeed's operators learned of the columns `names`, grouped as `groups`."""
    if isinstance(op, ops.Normalize | ops.NormalizeMinMax):
        _record(summary=_by_name(_moments, names))(state, at)
    elif isinstance(op, ops.ReduceDtypeSize):
        _record(summary=_by_name(_range))(state, at)
    elif isinstance(op, ops.ValueCount):
        _record(summary=_by_name(_lengths))(state, at)
    elif isinstance(op, ops.FillMedian):
        counts = _or_null(_by_name(_table(_counted, on_disk=True)))
        _record(medians=_by_name(_number, names), counts=counts)(state, at)
    elif isinstance(op, ops.DataStats):
        counts = _or_null(_by_name(_table(_counted, on_disk=True)))
        _record(summary=_by_name(_any), counts=counts, output=_by_name(_any))(state, at)
    elif isinstance(op, ops.JoinGroupby | ops.TargetEncoding):
        sizes = {op.group_name(tuple(g)): len(g) for g in groups}
        if isinstance(op, ops.JoinGroupby):
            _check_keyed(state, at, sizes, "values", extra=0)
            _list(_either("int", "uint", "float"), len(state["values"]))(
                state.get("kinds"), f"{at}.kinds"
            )
        else:
            _check_keyed(state, at, sizes, "targets", extra=1)
    elif isinstance(op, ops.Categorify):
        _check_categorify(op, state, groups, at)


def _check_categorify(op: ops.Categorify, state: Mapping[str, Any],
                      groups: Sequence[Sequence[str]], at: str) -> None:  # fmt: skip
    wanted = {op.name_sep.join(g): len(g) if op.encode_type == "combo" else 1 for g in groups if g}
    table = _table(_counted, on_disk=True)
    extents = _by_name(_list(_list(_whole(0, 2**53), 2)))
    _record(groups=_list(_list(_text)), vocabularies=_by_name(_vocabulary, wanted),
            extents=extents, rest=_or_null(_by_name(_or_null(table))))(state, at)  # fmt: skip
    for i, group in enumerate(state["groups"]):
        if op.name_sep.join(group) not in state["vocabularies"]:
            raise ArtefactError(f"{at}.groups[{i}]: there is no vocabulary of {_shown(group)}")
    for name, values in wanted.items():
        vocabulary = state["vocabularies"][name]
        if len(vocabulary.schema) != values + 1:
            raise wrong(f"{at}.vocabularies.{name}", f"values of {values} columns", vocabulary)
    for name, runs in state["extents"].items():
        size = state["vocabularies"][name].num_rows if name in state["vocabularies"] else 0
        places = [0, *(place for place, _ in runs), size]
        ids = [at for _, at in runs]
        if places != sorted(places) or ids != sorted(ids):
            raise ArtefactError(f"{at}.extents.{name}: places and ids must ascend, within {size}")
