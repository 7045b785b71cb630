"""What a saved workflow holds: arguments and learned state as JSON, tables beside it as Parquet.

What JSON lacks is written as an object with one key that starts with ``$``. Functions are written
as ``module:name``; `tabfeed.workflow.trust` says which of them a loaded workflow may have.

A folder may come from anywhere, so its JSON is not believed. The structure of ``workflow.json`` is
described here; arguments are checked against the annotations of the operator's constructor; what
was learned is checked by the operator (`Operator.check_state`, with `tabfeed.ops.state.checks`). An
error names the place in the file, such as ``nodes[2].params.num_buckets``.
"""

from __future__ import annotations

import inspect
import math
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tabfeed.budget import free_memory
from tabfeed.errors import ArtefactError, SchemaError
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
)
from tabfeed.ops.state.memory import SpilledTable
from tabfeed.schema.dtypes import as_arrow_type, format_type, parse_type
from tabfeed.schema.schema import ColumnSelector
from tabfeed.workflow.trust import Trust, import_path


class Writer:
    """Turns values into JSON; tables become files of a folder.

    ``modules`` gathers the names of modules that functions come from.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.modules: set[str] = set()
        self._files = 0

    def __call__(self, value: Any, where: str) -> Any:
        """`value` as JSON can hold it. `where` is for the message if it cannot."""
        if isinstance(value, np.generic):
            value = value.item()
        if value is None or isinstance(value, bool | int):
            return value
        if isinstance(value, str):
            return str(value)
        if isinstance(value, float):
            return value if math.isfinite(value) else {"$float": repr(value)}
        for kind, write in _WRITERS:
            if isinstance(value, kind):
                return write(self, value, where)
        if callable(value) and not _is_dtype(value):
            name = import_path(value, where)
            if not isinstance(value, np.ufunc):
                self.modules.add(name.partition(":")[0])
            return {"$call": name}
        try:
            return {"$type": format_type(as_arrow_type(value))}
        except SchemaError as e:
            raise ArtefactError(f"{where}: {value!r} cannot be saved") from e

    def mapping(self, value: Mapping[Any, Any], where: str) -> Any:
        """A dict; as pairs where its keys are not plain text."""
        if all(type(k) is str and not k.startswith("$") for k in value):
            return {k: self(v, where) for k, v in value.items()}
        return {"$dict": [[self(k, where), self(v, where)] for k, v in value.items()]}

    def table(self, value: pa.Table | Path | SpilledTable) -> str:
        """A table, in memory or in a Parquet file, as a file of the artefact."""
        name = f"tables/{self._files:04d}.parquet"
        self._files += 1
        (self.folder / name).parent.mkdir(exist_ok=True)
        stored = value if isinstance(value, SpilledTable) else SpilledTable(value)
        stored.copy_to(self.folder / name)
        return name

    def array(self, value: Any) -> str:
        """An array as a table of one column."""
        array = value if isinstance(value, pa.Array | pa.ChunkedArray) else pa.array(value)
        return self.table(pa.table({"values": array}))


def _is_dtype(value: Any) -> bool:
    if not isinstance(value, type):
        return False
    return issubclass(value, np.generic | int | float | str | bytes) or (
        value.__module__.startswith("polars")
    )


_WRITERS: list[tuple[Any, Callable[[Writer, Any, str], Any]]] = [
    (tuple, lambda w, v, at: {"$tuple": [w(x, at) for x in v]}),
    (list, lambda w, v, at: [w(x, at) for x in v]),
    (Mapping, lambda w, v, at: w.mapping(v, at)),
    ((pa.Table, Path), lambda w, v, at: {"$table": w.table(v)}),
    (SpilledTable, lambda w, v, at: {"$stored": w.table(v)}),
    ((pa.Array, pa.ChunkedArray, np.ndarray), lambda w, v, at: {"$array": w.array(v)}),
    (pa.DataType, lambda w, v, at: {"$type": format_type(v)}),
    (ColumnSelector, lambda w, v, at: {"$selector": _selector_to_json(v)}),
]


class Reader:
    """Turns what `Writer` wrote back into values.

    Parameters
    ----------
    find
        From a file's name to its path; it refuses names of no file of the folder.
    trust
        Which functions may be named.
    """

    def __init__(self, find: Callable[[Any, str], Path], trust: Trust) -> None:
        self.find = find
        self.trust = trust

    def open_table(self, name: Any, where: str) -> pa.Table:
        """A table of the artefact, in memory; its text and offsets are checked as well."""
        path = self.find(name, where)
        with self._opening(path, where):
            _require_room(SpilledTable(path), path, where)
            table = pq.ParquetFile(path).read()
            table.validate(full=True)
        return table

    def open_stored(self, name: Any, where: str) -> SpilledTable:
        """A table of the artefact that stays on disk until it is used."""
        path = self.find(name, where)
        with self._opening(path, where):
            stored = SpilledTable.untrusted(path)
            _ = stored.nbytes
        return stored

    @contextmanager
    def _opening(self, path: Path, where: str) -> Iterator[None]:
        try:
            yield
        except (pa.ArrowException, OSError, UnicodeError) as e:
            raise ArtefactError(f"{where}: {path} cannot be read as Parquet: {e}") from e

    def __call__(self, value: Any, where: str) -> Any:
        """The value that was written."""
        if isinstance(value, list):
            return [self(v, f"{where}[{i}]") for i, v in enumerate(value)]
        if not isinstance(value, dict):
            return value
        if len(value) == 1 and (key := next(iter(value))).startswith("$"):
            if key not in _READERS:
                raise ArtefactError(f"{where}: {key!r} is not something this tabfeed can read")
            try:
                return _READERS[key](self, value[key], where)
            except (TypeError, ValueError, KeyError, AttributeError, OverflowError) as e:
                raise ArtefactError(f"{where}: this is not what {key} holds: {e!r}") from e
        return self.mapping(value, where)

    def mapping(self, value: Mapping[str, Any], where: str) -> dict[str, Any]:
        """The entries of an object, whatever their names are."""
        return {k: self(v, f"{where}.{k}") for k, v in value.items()}


def _require_room(stored: SpilledTable, path: Path, where: str) -> None:
    needed, free = stored.nbytes, free_memory()
    if needed > free:
        raise ArtefactError(
            f"{where}: {path} takes {needed / 1e9:.2g} GB in memory; {free / 1e9:.2g} GB are free"
        )


_READERS: dict[str, Callable[[Reader, Any, str], Any]] = {
    "$float": lambda r, v, at: float(v),
    "$tuple": lambda r, v, at: tuple(r(x, f"{at}[{i}]") for i, x in enumerate(v)),
    "$dict": lambda r, v, at: {r(k, at): r(x, f"{at}[{i}]") for i, (k, x) in enumerate(v)},
    "$table": lambda r, v, at: r.open_table(v, at),
    "$stored": lambda r, v, at: r.open_stored(v, at),
    "$array": lambda r, v, at: r.open_table(v, at).column("values").combine_chunks(),
    "$type": lambda r, v, at: parse_type(v),
    "$selector": lambda r, v, at: _selector_from_json(v),
    "$call": lambda r, v, at: r.trust.function(v, at),
}


def _selector_to_json(selector: ColumnSelector) -> dict[str, Any]:
    return {
        "names": list(selector.names),
        "subgroups": [list(g) for g in selector.subgroups],
        "tags": [str(t) for t in selector.tags],
        "dtypes": [format_type(t) for t in selector.dtypes],
        "excluded": [_selector_to_json(s) for s in selector.excluded],
    }


def _selector_from_json(data: dict[str, Any]) -> ColumnSelector:
    return ColumnSelector(
        data["names"],
        subgroups=data["subgroups"],
        tags=data["tags"],
        dtypes=[parse_type(t) for t in data["dtypes"]],
        excluded=[_selector_from_json(s) for s in data["excluded"]],
    )


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
