"""What runs on a worker: the few functions that a cluster's executor submits.

They know nothing of the cluster: a parcel and bytes in, bytes out. Whatever goes wrong inside
carries the task's name home.
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
    "cut_slot",
    "find_missing",
    "merge_picked",
    "merge_run",
    "merge_slot",
    "pick",
    "receive",
    "see_folder",
    "sizes",
    "summarise",
    "task_name",
]


@runtime_checkable
class Splits(Protocol):
    """A ``partial`` whose results can be cut into slots that are merged independently.

    Slots let many workers merge at a time. A slot that is too large for one worker is cut once
    more, into shares that no two results have in common, so that nobody ever holds all of it.
    """

    @property
    def slots(self) -> Sequence[str]:
        """Name of each slot, for people: ``fit/Categorify/C1``."""
        ...

    def split(self, result: Any) -> list[Any]:
        """A result cut into as many parts as there are slots; None where there is nothing."""
        ...

    def merge_slot(self, slot: int, a: Any, b: Any) -> Any:
        """Two neighbouring parts of one slot."""
        ...

    def cut(self, slot: int, part: Any, shares: int) -> list[Any]:
        """A part in shares: what belongs together is in the same share of every part."""
        ...

    def assemble(self, parts: Iterable[tuple[int, Any]]) -> Any:
        """One result from slots and their merged parts, taken one at a time, shares in turn."""
        ...


class Reduction:
    """A partial and its merge, in slots: its own, or one for everything."""

    def __init__(self, partial: Callable[[Any], Any], merge: Callable[[Any, Any], Any]) -> None:
        self.partial, self.merge = partial, merge
        self._splits = partial if isinstance(partial, Splits) else None

    @property
    def slots(self) -> Sequence[str]:
        """Name of each slot."""
        return ["merge"] if self._splits is None else self._splits.slots

    def split(self, result: Any) -> list[Any]:
        """A result by slots."""
        return [result] if self._splits is None else self._splits.split(result)

    def merge_slot(self, slot: int, a: Any, b: Any) -> Any:
        """Two neighbours; nothing and something is something."""
        if a is None or b is None:
            return b if a is None else a
        return self.merge(a, b) if self._splits is None else self._splits.merge_slot(slot, a, b)

    def cut(self, slot: int, part: Any, shares: int) -> list[Any]:
        """A part in shares; whole in the first where it cannot be cut."""
        if self._splits is None or part is None:
            return [part, *[None] * (shares - 1)]
        return self._splits.cut(slot, part, shares)

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
        """The function itself."""
        return self.fn(item)


def task_name(fn: Any, item: Any, number: int) -> str:
    """What a person calls this task: as `fn` says, or by the number of the item.

    Examples
    --------
    >>> task_name(Titled("read", len), "item", 17)
    'read/part_17'
    """
    if hasattr(fn, "task_name"):
        return str(fn.task_name(item))
    return f"{fn.title if isinstance(fn, Titled) else 'work'}/part_{number}"


# -- on a worker ------------------------------------------------------------------------


def receive(parcel: Payload) -> Payload:
    """What all other tasks of a run take, once for each worker."""
    return parcel


def call(parcel: Payload, name: str, item: bytes) -> bytes:
    """``fn(item)``."""
    with _named(name):
        return pack(parcel.open()(unpack(item)))


def summarise(parcel: Payload, name: str, item: bytes) -> bytes:
    """``partial(item)``."""
    with _named(name):
        return pack(parcel.open().partial(unpack(item)))


def merge_run(parcel: Payload, name: str, *summaries: bytes) -> list[bytes]:
    """Neighbouring summaries merged, left to right, and cut into slots."""
    with _named(name):
        work = parcel.open()
        return [pack(p) for p in work.split(functools.reduce(work.merge, map(unpack, summaries)))]


def sizes(name: str, parts: list[bytes]) -> list[int]:
    """Bytes of each part."""
    return [len(part) for part in parts]


def pick(name: str, parts: list[bytes], number: int) -> bytes:
    """One of several parts."""
    return parts[number]


def cut_slot(parcel: Payload, name: str, slot: int, shares: int, part: bytes) -> list[bytes]:
    """A part in shares."""
    with _named(name):
        return [pack(p) for p in parcel.open().cut(slot, unpack(part), shares)]


def merge_slot(parcel: Payload, name: str, slot: int, *parts: bytes) -> bytes:
    """Neighbouring parts of a slot merged, left to right."""
    with _named(name):
        merge = functools.partial(parcel.open().merge_slot, slot)
        return pack(functools.reduce(merge, map(unpack, parts)))


def merge_picked(parcel: Payload, name: str, slot: int, *runs: list[bytes]) -> bytes:
    """The same, of all parts that some runs have."""
    return merge_slot(parcel, name, slot, *(parts[slot] for parts in runs))


@contextmanager
def _named(name: str) -> Iterator[None]:
    """Errors raised inside name the task."""
    try:
        yield
    except TabfeedError as e:
        e.args = (f"{name}: {e.args[0] if e.args else e}", *e.args[1:])
        raise
    except Exception as e:
        said = "; ".join([str(e), *getattr(e, "__notes__", ())])
        raise ClusterError(f"{name} failed: {type(e).__name__}: {said}") from e


# -- looking around before the run ------------------------------------------------------


def find_missing(files: Sequence[tuple[str, pafs.FileSystem, str, int]]) -> str | None:
    """Which of these files (name, filesystem, path, size) is not here as the client saw it."""
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
    """Why this process cannot use a folder in which the client left a file named `word`."""
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
