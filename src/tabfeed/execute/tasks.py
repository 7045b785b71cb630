"""The functions that run on a worker, how work is sent to it, and how a reduction is divided.

The functions know nothing of the cluster: a payload and bytes in, bytes out. Errors raised inside
them name the task.

A function is sent as a `Payload`. A worker keeps it for the whole run and unpacks it at its first
task, so a vocabulary inside is moved and unpacked once per worker, not once per task. Large arrays
travel beside the pickle (protocol 5), so they are not copied into or out of it on any machine they
pass. Results travel as plain bytes: a task that runs again can't find its input changed by the
first attempt, and the size of a result is known. What can't be pickled is found before the run
starts, and the error names the path to it.
"""

from __future__ import annotations

import functools
import os
import pickle
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import pyarrow.fs as pafs

from tabfeed.errors import ClusterError, TabfeedError

_MAX_DEPTH = 12


def pack(what: Any, **options: Any) -> bytes:
    """Pickle anything, also lambdas and functions of the main module."""
    cloudpickle = sys.modules.get("cloudpickle")  # comes with Dask
    dumps = pickle.dumps if cloudpickle is None else cloudpickle.dumps
    return bytes(dumps(what, protocol=5, **options))


def unpack(data: bytes) -> Any:
    """Unpickle what `pack` returned."""
    return pickle.loads(data)


class Payload:
    """A function and the data it holds, sent once per worker.

    Examples
    --------
    >>> Payload.of(len).open()([1, 2])
    2
    >>> Payload.of(threading.Lock())
    Traceback (most recent call last):
        ...
    tabfeed.errors.ClusterError: the work cannot be sent to other processes: cannot pickle \
'_thread.lock' object, found in lock
    """

    def __init__(self, data: Any, arrays: Sequence[Any] = ()) -> None:
        self.data, self.arrays = data, list(arrays)
        self._opened: list[Any] = []
        self._lock = threading.Lock()

    @classmethod
    def of(cls, what: Any) -> Payload:
        """Pack something, or raise an error that names what can't be sent."""
        arrays: list[pickle.PickleBuffer] = []
        try:
            return cls(pack(what, buffer_callback=arrays.append), arrays)
        except Exception as e:  # any __reduce__ or __getstate__ may raise anything
            path = " of ".join(reversed(list(_path_to_culprit(what))))
            raise ClusterError(
                f"the work cannot be sent to other processes: {e}, found in {path}"
            ) from e

    def open(self) -> Any:
        """The function; unpacked at the first call."""
        with self._lock:
            if not self._opened:
                self._opened.append(pickle.loads(self.data, buffers=self.arrays))
        return self._opened[0]

    def __len__(self) -> int:
        return sum(memoryview(part).nbytes for part in (self.data, *self.arrays))

    def __sizeof__(self) -> int:
        return object.__sizeof__(self) + len(self)

    def __reduce__(self) -> tuple[type[Payload], tuple[Any, list[Any]]]:
        apart = pickle.PickleBuffer
        return Payload, (apart(self.data), [apart(array) for array in self.arrays])


def _path_to_culprit(what: Any) -> Iterator[str]:
    """The names of nested objects, down to the one that can't be pickled."""
    seen: set[int] = set()
    name = type(what).__name__
    for _ in range(_MAX_DEPTH):
        seen.add(id(what))
        bad = next((p for p in _parts(what) if id(p[1]) not in seen and not _packs(p[1])), None)
        if bad is None:
            break
        if hasattr(what, "parents") and hasattr(what, "op"):  # a node, which the user wrote
            yield repr(what)
        name, what = bad
    yield name if type(what).__name__ == name else f"{name} ({type(what).__name__})"


def _packs(what: Any) -> bool:
    try:
        pack(what)
    except Exception:  # whatever was raised, this object caused it
        return False
    return True


def _parts(what: Any) -> Iterator[tuple[str, Any]]:
    """The objects inside an object: attributes, items, closure variables."""
    if isinstance(what, dict):
        yield from ((str(k), v) for k, v in what.items())
    elif isinstance(what, list | tuple | set | frozenset):
        yield from ((type(v).__name__, v) for v in what)
    else:
        if hasattr(what, "__self__"):
            yield type(what.__self__).__name__, what.__self__
        for cell in getattr(what, "__closure__", None) or ():
            yield getattr(what, "__qualname__", "closure"), cell.cell_contents
        for name in getattr(type(what), "__slots__", ()):
            if hasattr(what, name) and name != "__weakref__":
                yield name, getattr(what, name)
        yield from vars(what).items() if hasattr(what, "__dict__") else ()


@runtime_checkable
class Splits(Protocol):
    """A ``partial`` whose results can be split into merge groups, each merged on its own.

    Groups let many workers merge at the same time. A group too large for one worker is cut further,
    into hash partitions: equal keys are in the same partition of every result, so no worker ever
    holds a whole group.
    """

    @property
    def groups(self) -> Sequence[str]:
        """The readable name of each group: ``fit/Categorify/C1``."""
        ...

    def split(self, result: Any) -> list[Any]:
        """A result split into one part per group; None for an empty part."""
        ...

    def merge_group(self, group: int, a: Any, b: Any) -> Any:
        """Merge two neighbouring parts of one group."""
        ...

    def cut(self, group: int, part: Any, count: int) -> list[Any]:
        """A part cut into `count` hash partitions."""
        ...

    def assemble(self, parts: Iterable[tuple[int, Any]]) -> Any:
        """One result from groups and their merged parts, taken one at a time."""
        ...


class Reduction:
    """A partial and its merge, divided into the partial's merge groups, or a single one."""

    def __init__(self, partial: Callable[[Any], Any], merge: Callable[[Any, Any], Any]) -> None:
        self.partial, self.merge = partial, merge
        self._splits = partial if isinstance(partial, Splits) else None

    @property
    def groups(self) -> Sequence[str]:
        """The name of each merge group."""
        return ["merge"] if self._splits is None else self._splits.groups

    def split(self, result: Any) -> list[Any]:
        """A result split by group."""
        return [result] if self._splits is None else self._splits.split(result)

    def merge_group(self, group: int, a: Any, b: Any) -> Any:
        """Merge two neighbours, either of which may be None."""
        if a is None or b is None:
            return b if a is None else a
        return self.merge(a, b) if self._splits is None else self._splits.merge_group(group, a, b)

    def cut(self, group: int, part: Any, count: int) -> list[Any]:
        """A part cut into hash partitions; all in the first if it can't be cut."""
        if self._splits is None or part is None:
            return [part, *[None] * (count - 1)]
        return self._splits.cut(group, part, count)

    def assemble(self, parts: Iterable[tuple[int, Any]]) -> Any:
        """The whole result."""
        if self._splits is not None:
            return self._splits.assemble(parts)
        return next(part for _, part in parts if part is not None)


@dataclass(frozen=True)
class Titled:
    """A function whose tasks are called ``title/part_0``, ``title/part_1``, ..."""

    title: str
    fn: Callable[[Any], Any]

    def __call__(self, item: Any) -> Any:
        """Call the function."""
        return self.fn(item)


def task_name(fn: Any, item: Any, number: int) -> str:
    """The readable name of a task: what `fn.task_name` returns, or the number of the item.

    Examples
    --------
    >>> task_name(Titled("read", len), "item", 17)
    'read/part_17'
    """
    if hasattr(fn, "task_name"):
        return str(fn.task_name(item))
    return f"{fn.title if isinstance(fn, Titled) else 'work'}/part_{number}"


# -- on a worker ------------------------------------------------------------------------


def receive(payload: Payload) -> Payload:
    """Deliver the payload that all other tasks of a run take, once per worker."""
    return payload


def call(payload: Payload, name: str, item: bytes) -> bytes:
    """Run ``fn(item)``."""
    with _named(name):
        return pack(payload.open()(unpack(item)))


def summarise(payload: Payload, name: str, item: bytes) -> bytes:
    """Run ``partial(item)``."""
    with _named(name):
        return pack(payload.open().partial(unpack(item)))


def merge_run(payload: Payload, name: str, *summaries: bytes) -> list[bytes]:
    """Merge neighbouring summaries, left to right, and split the result into merge groups."""
    with _named(name):
        work = payload.open()
        return [pack(p) for p in work.split(functools.reduce(work.merge, map(unpack, summaries)))]


def sizes(parts: list[bytes]) -> list[int]:
    """Bytes of each part."""
    return [len(part) for part in parts]


def cut_group(payload: Payload, name: str, group: int, count: int, part: bytes) -> list[bytes]:
    """Cut a part of a group into hash partitions."""
    with _named(name):
        return [pack(p) for p in payload.open().cut(group, unpack(part), count)]


def merge_group(payload: Payload, name: str, group: int, *parts: bytes) -> bytes:
    """Merge neighbouring parts of a group, left to right."""
    with _named(name):
        merge = functools.partial(payload.open().merge_group, group)
        return pack(functools.reduce(merge, map(unpack, parts)))


def merge_picked(payload: Payload, name: str, group: int, *runs: list[bytes]) -> bytes:
    """Merge the parts of a group in several runs."""
    return merge_group(payload, name, group, *(parts[group] for parts in runs))


@contextmanager
def _named(name: str) -> Iterator[None]:
    """Make errors raised inside name the task."""
    try:
        yield
    except TabfeedError as e:
        e.args = (f"{name}: {e.args[0] if e.args else e}", *e.args[1:])
        raise
    except Exception as e:
        said = "; ".join([str(e), *getattr(e, "__notes__", ())])
        raise ClusterError(f"{name} failed: {type(e).__name__}: {said}") from e


# -- checks before a run ----------------------------------------------------------------


def find_missing(files: Sequence[tuple[str, pafs.FileSystem, str, int]]) -> str | None:
    """The first of these files (name, filesystem, path, size) that differs from the client's."""
    for name, filesystem, path, size in files:
        try:
            info = filesystem.get_file_info(path)
        except OSError as e:
            return f"{name} ({e})"
        if info.type != pafs.FileType.File:
            return name
        if info.size is not None and size > 0 and info.size != size:
            return f"{name} as it is there: it has {info.size:,} bytes here, not {size:,}"
    return None


def see_folder(filesystem: pafs.FileSystem, path: str, word: str) -> str | None:
    """Why this process can't write into a folder in which the client left a file named `word`."""
    try:
        if filesystem.get_file_info(f"{path}/{word}").type != pafs.FileType.File:
            return "it is not there"
        mine = f"{path}/{word}-{os.getpid()}"
        with filesystem.open_output_stream(mine) as sink:
            sink.write(b"x")
        filesystem.delete_file(mine)
    except OSError as e:
        return str(e)
    return None


def find_suspects(token: str, dask_scheduler: Any = None) -> list[str]:
    """On the scheduler: the keys of a run's tasks under which workers died, the worst first."""
    tasks = [t for t in dask_scheduler.tasks.values() if t.suspicious and token in str(t.key)]
    return [str(t.key) for t in sorted(tasks, key=lambda t: -t.suspicious)]
