"""Arguments and learned state as JSON, tables beside it as Parquet.

What JSON lacks is written as an object with one key that starts with ``$``. Functions are written
as ``module:name``; `tabfeed.workflow.trust` says which of them a loaded workflow may have.
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tabfeed.budget import free_memory
from tabfeed.errors import ArtefactError, SchemaError
from tabfeed.ops.state.memory import SpilledTable
from tabfeed.schema.dtypes import as_arrow_type, format_type, parse_type
from tabfeed.schema.selector import ColumnSelector
from tabfeed.workflow.trust import Trust, import_path

__all__ = ["Reader", "Writer"]


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

    def _new(self) -> str:
        name = f"tables/{self._files:04d}.parquet"
        self._files += 1
        (self.folder / name).parent.mkdir(exist_ok=True)
        return name

    def stored(self, value: SpilledTable) -> str:
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
    (SpilledTable, lambda w, v, at: {"$stored": w.stored(v)}),
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
