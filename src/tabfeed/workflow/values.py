"""Arguments and learned state as JSON, tables beside it as Parquet.

What JSON lacks is written as an object with one key that starts with ``$``. Functions and
classes are written as ``module:name`` and found again by importing that module, which
must be installed: an artefact holds no code. Modules of Python itself are refused, so that no
artefact can name ``os:system``.
"""

from __future__ import annotations

import functools
import importlib
import math
import shutil
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tabfeed.dtypes import as_arrow_type, format_type, parse_type
from tabfeed.errors import ArtefactError, SchemaError
from tabfeed.ops.stored import Stored
from tabfeed.selector import ColumnSelector

__all__ = ["Reader", "Writer", "import_path", "resolve"]


def import_path(what: Any, where: str) -> str:
    """``module:name`` of a function or class that can be imported again."""
    module, name = getattr(what, "__module__", None), getattr(what, "__qualname__", None)
    if isinstance(what, np.ufunc):
        module, name = "numpy", what.__name__
    if isinstance(what, functools.partial) or module is None or name is None:
        raise ArtefactError(f"{where}: {what!r} has no name to import it by; {_ADVICE}")
    if "<lambda>" in name or "<locals>" in name or module == "__main__":
        kind = "a lambda" if "<lambda>" in name else f"{name!r}, defined in {_place(module, name)},"
        raise ArtefactError(
            f"{where}: {kind} cannot be found again when the workflow is loaded; {_ADVICE}"
        )
    return f"{module}:{name}"


_ADVICE = (
    "put `def my_function(column): ...` into a module that can be imported where the workflow is "
    "loaded, and use `from my_module import my_function`"
)


def _place(module: str, name: str) -> str:
    return "another function" if "<locals>" in name else "the script itself (__main__)"


def resolve(path: Any, where: str) -> Any:
    """The function or class that an import path names."""
    module, _, name = str(path).partition(":")
    root = module.split(".")[0]
    if not name or root in sys.stdlib_module_names or root == "builtins":
        raise ArtefactError(f"{where}: {path!r} is not something an artefact may name")
    try:
        found: Any = importlib.import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError, ValueError) as e:
        raise ArtefactError(
            f"{where}: {path!r} cannot be imported here ({e}); install the package that defines it"
        ) from e
    if getattr(found, "__module__", module).split(".")[0] in sys.stdlib_module_names:
        raise ArtefactError(f"{where}: {path!r} is not something an artefact may name")
    return found


class Writer:
    """Turns values into JSON; tables become files of a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
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
            return {"$call": import_path(value, where)}
        try:
            return {"$type": format_type(as_arrow_type(value))}
        except SchemaError as e:
            raise ArtefactError(f"{where}: {value!r} cannot be saved") from e

    def mapping(self, value: Mapping[Any, Any], where: str) -> Any:
        """A dict; as pairs where its keys are not plain text."""
        if all(type(k) is str and not k.startswith("$") for k in value):
            return {k: self(v, where) for k, v in value.items()}
        return {"$dict": [[self(k, where), self(v, where)] for k, v in value.items()]}

    def _new(self) -> str:
        name = f"tables/{self._files:04d}.parquet"
        self._files += 1
        (self.folder / name).parent.mkdir(exist_ok=True)
        return name

    def stored(self, value: Stored) -> str:
        """A table that may lie on disk, as a file of the artefact."""
        name = self._new()
        value.copy_to(self.folder / name)
        return name

    def table(self, value: pa.Table | Path) -> str:
        """A table, or the Parquet file of one, as a file of the artefact."""
        name = self._new()
        path = self.folder / name
        if isinstance(value, Path):
            shutil.copyfile(value, path)
        else:
            pq.write_table(value, path, compression="zstd")
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
    (Stored, lambda w, v, at: {"$stored": w.stored(v)}),
    ((pa.Array, pa.ChunkedArray, np.ndarray), lambda w, v, at: {"$array": w.array(v)}),
    (pa.DataType, lambda w, v, at: {"$type": format_type(v)}),
    (ColumnSelector, lambda w, v, at: {"$selector": _selector_to_json(v)}),
]


class Reader:
    """Turns what `Writer` wrote back into values; `find` gives the path of a file by its name."""

    def __init__(self, find: Callable[[Any], Path]) -> None:
        self.find = find

    def open_table(self, name: Any) -> pa.Table:
        """A table of the artefact."""
        return pq.read_table(self.find(name))

    def __call__(self, value: Any, where: str) -> Any:
        """The value that was written."""
        if isinstance(value, list):
            return [self(v, where) for v in value]
        if not isinstance(value, dict):
            return value
        if len(value) == 1 and (key := next(iter(value))).startswith("$"):
            if key not in _READERS:
                raise ArtefactError(f"{where}: {key!r} is not something this tabfeed can read")
            return _READERS[key](self, value[key], where)
        return {k: self(v, where) for k, v in value.items()}


_READERS: dict[str, Callable[[Reader, Any, str], Any]] = {
    "$float": lambda r, v, at: float(v),
    "$tuple": lambda r, v, at: tuple(r(x, at) for x in v),
    "$dict": lambda r, v, at: {r(k, at): r(x, at) for k, x in v},
    "$table": lambda r, v, at: r.open_table(v),
    "$stored": lambda r, v, at: Stored(r.find(v)),
    "$array": lambda r, v, at: r.open_table(v).column("values").combine_chunks(),
    "$type": lambda r, v, at: parse_type(v),
    "$selector": lambda r, v, at: _selector_from_json(v),
    "$call": lambda r, v, at: resolve(v, at),
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
