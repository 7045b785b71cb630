"""The functions that run on a worker, and how the work of a reduction is divided.

The functions know nothing of the cluster: a payload and bytes in, bytes out. Errors raised inside
them name the task.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import pyarrow.fs as pafs

from tabfeed.errors import ClusterError, TabfeedError
from tabfeed.execute.payload import Payload, pack, unpack

__all__ = [
    "Reduction",
    "Splits",
    "Titled",
    "call",
    "cut_group",
    "find_missing",
    "merge_group",
    "merge_picked",
    "merge_run",
    "pick",
    "receive",
    "see_folder",
    "sizes",
    "summarise",
    "task_name",
]


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


def sizes(name: str, parts: list[bytes]) -> list[int]:
    """Bytes of each part."""
    return [len(part) for part in parts]


def pick(name: str, parts: list[bytes], number: int) -> bytes:
    """One of several parts."""
    return parts[number]


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
