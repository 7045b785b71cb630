"""Decoded partitions kept for later epochs, in memory or on disk.

What fits is kept, what does not is read again: a budget is never exceeded, and the first
partitions read are the ones that stay, so that a second epoch finds as much as possible.

On disk a partition is an Arrow file, uncompressed, that is mapped rather than read: later epochs
cost page cache look-ups. The folder goes with the loader.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import threading
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tabfeed.loader.columns import Lists, Part
from tabfeed.loader.readers import ReadsParts

__all__ = ["DiskCache", "MemoryCache", "with_cache"]


class _ForkSafeLock:
    """A lock that a forked child finds open, whoever held it in the parent."""

    def __init__(self) -> None:
        self._lock, self._pid = threading.Lock(), os.getpid()

    def __enter__(self) -> None:
        if os.getpid() != self._pid:
            self._lock, self._pid = threading.Lock(), os.getpid()
        self._lock.acquire()

    def __exit__(self, *exc: object) -> None:
        self._lock.release()


def with_cache(reader: ReadsParts, kind: str | None, budget: int) -> ReadsParts:
    """The reader, with a cache before it if one was asked for."""
    if kind == "memory":
        return MemoryCache(reader, budget)
    return DiskCache(reader) if kind == "disk" else reader


class MemoryCache:
    """Keeps partitions in memory up to a budget.

    Parameters
    ----------
    reader
        Reads what is not kept.
    budget
        Most bytes to keep.
    """

    def __init__(self, reader: ReadsParts, budget: int) -> None:
        self._reader = reader
        self._left = budget
        self._kept: dict[int, Part] = {}
        self._lock = _ForkSafeLock()

    def read(self, number: int) -> Part:
        """A partition, from memory if it is there."""
        part = self._kept.get(number)
        if part is not None:
            return part
        part = self._reader.read(number)
        with self._lock:
            if number not in self._kept and part.nbytes <= self._left:
                self._left -= part.nbytes
                self._kept[number] = part
        return part

    def pieces(self, number: int) -> Iterator[Part]:
        """The same in one piece."""
        yield self.read(number)

    def __getstate__(self) -> dict[str, Any]:
        # A pickled copy begins empty: shipping the data would cost more than reading it.
        left = self._left + sum(p.nbytes for p in self._kept.values())
        return {"_reader": self._reader, "_left": left, "_kept": {}}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, _lock=_ForkSafeLock())


class DiskCache:
    """Keeps partitions as Arrow files in a folder of its own, as long as the disk has room.

    Parameters
    ----------
    reader
        Reads what is not kept.
    """

    def __init__(self, reader: ReadsParts) -> None:
        self._reader = reader
        self._folder: Path | None = None
        self._lock = _ForkSafeLock()
        self._full = False

    def read(self, number: int) -> Part:
        """A partition, from the folder if it is there."""
        path = self._path(number)
        if path.exists():
            return _load(path)
        part = self._reader.read(number)
        if not self._full:
            try:
                _save(part, path)
            except OSError:  # no room: go on without keeping more
                self._full = True
        return part

    def pieces(self, number: int) -> Iterator[Part]:
        """The same in one piece."""
        yield self.read(number)

    def _path(self, number: int) -> Path:
        with self._lock:
            if self._folder is None:
                self._folder = Path(tempfile.mkdtemp(prefix="tabfeed-cache-"))
                weakref.finalize(self, _remove, self._folder, os.getpid())
        return self._folder / f"{number}.arrow"

    def __getstate__(self) -> dict[str, Any]:
        return {"_reader": self._reader}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, _folder=None, _lock=_ForkSafeLock(), _full=False)


def _remove(folder: Path, owner: int) -> None:
    if os.getpid() == owner:  # a forked copy must not take its parent's files away
        shutil.rmtree(folder, ignore_errors=True)


def _save(part: Part, path: Path) -> None:
    """Write under another name first: a reader never sees half a file."""
    arrays: dict[str, pa.Array] = {}
    for name, array in part.scalars.items():
        arrays[f"scalar:{name}"] = _as_arrow(array)
    for name, lists in part.lists.items():
        arrays[f"list:{name}"] = pa.LargeListArray.from_arrays(
            lists.offsets, _as_arrow(lists.values)
        )
    arrays.update({f"extra:{name}": array for name, array in part.extras.items()})
    table = pa.table(arrays, metadata={"rows": str(part.rows)})
    partial = path.with_name(f"{path.name}.{os.getpid()}.{threading.get_ident()}")
    try:
        with pa.ipc.new_file(partial, table.schema) as file:
            file.write_table(table)
        partial.replace(path)
    finally:
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)


def _as_arrow(array: npt.NDArray[Any]) -> pa.Array:
    if array.dtype == np.bool_:
        array = array.view(np.uint8)
    if array.ndim == 2:
        return pa.FixedSizeListArray.from_arrays(_as_arrow(array.ravel()), array.shape[1])
    return pa.array(array)


def _load(path: Path) -> Part:
    table = pa.ipc.open_file(pa.memory_map(str(path))).read_all()
    part = Part(int(table.schema.metadata[b"rows"]))
    for key in table.column_names:
        kind, _, name = key.partition(":")
        column = table.column(key)
        array = column.chunk(0) if column.num_chunks else pa.array([], column.type)
        if kind == "scalar":
            part.scalars[name] = _from_arrow(array)
        elif kind == "list":
            part.lists[name] = Lists(array.values.to_numpy(), array.offsets.to_numpy())
        else:
            part.extras[name] = array
    return part


def _from_arrow(array: pa.Array) -> npt.NDArray[Any]:
    if pa.types.is_fixed_size_list(array.type):
        width = array.type.list_size
        return np.asarray(array.flatten().to_numpy()).reshape(-1, width)
    return np.asarray(array.to_numpy())
