"""What a saved workflow holds: every value is checked before an operator sees it.

A folder may come from anywhere, so its JSON is not believed. The structure of ``workflow.json`` is
described here; arguments are checked against the annotations of the operator's constructor; what
was learned is checked by the operator (`Operator.check_state`, with `tabfeed.ops.state.checks`). An
error names the place in the file, such as ``nodes[2].params.num_buckets``.
"""

from __future__ import annotations

import inspect
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import pyarrow as pa

from tabfeed.errors import ArtefactError
from tabfeed.ops.base import Operator
from tabfeed.ops.state.checks import (
    a_flag,
    a_text,
    an_integer,
    anything,
    by_name,
    list_of,
    record,
    wrong,
)  # fmt: skip

__all__ = [
    "check_body",
    "check_checksums",
    "check_params",
    "require_shallow",
]

_DEEPEST, _MOST_LOOPS = 100, 12


def require_shallow(body: Any, at: str) -> None:
    """Refuse JSON that is nested so deeply that no reader could follow."""
    level = [body]
    for _ in range(_DEEPEST):
        inner = [v for v in level if isinstance(v, dict | list)]
        level = [x for v in inner for x in (v.values() if isinstance(v, dict) else v)]
        if not level:
            return
    raise ArtefactError(f"{at}: values are nested more than {_DEEPEST} deep")


# -- the structure ----------------------------------------------------------------------

_NODE = record(
    id=an_integer(0), operator=a_text, params=by_name(anything), parents=list_of(an_integer(0)),
    dependencies=list_of(an_integer(0)), fitted=a_flag, state=by_name(anything),
)  # fmt: skip
_CHECKSUMS = by_name(record(bytes=an_integer(0), sha256=a_text))
_BODY = record(
    versions=by_name(a_text),
    input_schema=by_name(anything),
    output=an_integer(0),
    nodes=list_of(_NODE),
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
