"""Memory for what pylibcudf decodes, and its streams: one bounded pool on each GPU.

What pylibcudf needs in passing comes from the GPU's current resource of rmm, which is the same for
a whole process. So all loaders share one pool, and its bound is the sum of what those that live
were granted: together they keep within their budgets. It grows when one comes. When one is gone
the next reading finds it smaller, and with the last one it goes, and what was there before is back.
A pool of another bound is another pool: readings that were begun end in the one they began in, and
as long as they last both are there.

A resource that the program has chosen by itself stays the current one. What is decoded lies in
memory of it then, as much as was granted; what is needed in passing is the program's own matter.
"""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from importlib import import_module
from itertools import count
from typing import Any, NamedTuple

import torch

from tabfeed.loader.gpu.devices import on_device

__all__ = ["Grant", "Reading"]


class Reading(NamedTuple):
    """What one reading needs.

    Attributes
    ----------
    own, stream
        A stream, as rmm and as torch see it.
    memory
        Where to put what is decoded.
    """

    own: Any
    stream: Any
    memory: Any


class Grant:
    """A loader's part of the memory, as long as anything refers to it.

    Parameters
    ----------
    device
        The GPU.
    nbytes
        How much.
    """

    def __init__(self, device: torch.device, nbytes: int) -> None:
        self._pool = _pool_of(device)
        self._pool.grant(self, nbytes)

    def reading(self) -> AbstractContextManager[Reading]:
        """What one reading needs, as long as it lasts."""
        return self._pool.reading()


@dataclass(eq=False)
class _Bounded:
    """Memory of bounded size, and how many readings that began with it are not at their end."""

    resource: Any
    readings: int = 0

    @property
    def free(self) -> bool:
        """Whether nobody uses it."""
        return not self.readings and not self.resource.get_allocated_bytes()


class _Pool:
    """The memory of all loaders on a GPU; threads may share it."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._lock = threading.Lock()
        self._numbers = count()
        self._granted: dict[int, int] = {}
        self._bound = 0
        self._now: _Bounded | None = None
        self._old: list[_Bounded] = []
        self._before: Any = None  # the resource that was current before ours
        self._streams: deque[tuple[Any, Any]] = deque()  # pairs that nobody uses at the moment

    def grant(self, whose: Any, nbytes: int) -> None:
        """Have more memory, until `whose` is gone."""
        number = next(self._numbers)
        self._granted[number] = nbytes
        weakref.finalize(whose, self._take_back, number).atexit = False
        with self._held():
            self._fit()

    def _take_back(self, number: int) -> None:
        """A loader is gone; this may be called in the midst of anything."""
        self._granted.pop(number, None)
        self._end()

    @contextmanager
    def _held(self) -> Iterator[None]:
        """Have the lock; the last loader may go meanwhile, and cannot wait for it."""
        with self._lock:
            yield
        self._end()

    def _end(self) -> None:
        """Let the pool go with the last loader, unless somebody has the lock, who will."""
        while self._bound and not self._granted and self._lock.acquire(blocking=False):
            try:
                self._fit()
            finally:
                self._lock.release()

    @contextmanager
    def reading(self) -> Iterator[Reading]:
        """What one reading needs, as long as it lasts."""
        with self._held():
            self._fit()
            memory = self._now
            assert memory is not None, "whoever reads was granted some"
            memory.readings += 1
        try:
            with self._lent_stream() as (own, stream):
                yield Reading(own, stream, memory.resource)
        finally:
            with self._held():
                memory.readings -= 1
                self._fit()  # a loader may have gone meanwhile
                self._forget()

    def _fit(self) -> None:
        """Have a pool of the size that was granted; the lock is held."""
        nbytes = sum(list(self._granted.values()))  # some of which may go meanwhile
        if nbytes == self._bound:
            return
        with on_device(self.device):
            new = self._bounded(nbytes)
        if self._now is not None:
            self._old.append(self._now)
        self._now, self._bound = new, nbytes
        self._forget()

    def _bounded(self, nbytes: int) -> _Bounded | None:
        """Memory of so many bytes, as the current resource if that is ours to choose."""
        mr, number = import_module("rmm").mr, self.device.index
        current = mr.get_per_device_resource(number)
        ours = self._now is not None and current is self._now.resource
        if not ours:
            self._before = current
        if not nbytes:
            if ours:
                mr.set_per_device_resource(number, self._before)
            return None
        # Unpooled, each allocation would stop the whole GPU.
        chosen = type(self._before) is not mr.CudaMemoryResource
        pool = self._before if chosen else mr.CudaAsyncMemoryResource(release_threshold=nbytes)
        limited = mr.LimitingResourceAdaptor(pool, allocation_limit=nbytes)
        if not chosen:
            mr.set_per_device_resource(number, limited)
        return _Bounded(limited)

    def _forget(self) -> None:
        """Let pools go that nobody uses any more; the lock is held.

        In their order: a reading also takes from those that became current after it began.
        """
        while self._old and self._old[0].free:
            del self._old[0]

    @contextmanager
    def _lent_stream(self) -> Iterator[tuple[Any, Any]]:
        """A stream as rmm and as torch see it.

        Streams are never given up: memory is kept by the stream that used it last, and one that
        ended with its thread would take the process down.
        """
        try:
            pair = self._streams.pop()
        except IndexError:
            pair = self._new_stream()
        try:
            yield pair
        finally:
            self._streams.append(pair)

    def _new_stream(self) -> tuple[Any, Any]:
        with on_device(self.device):
            stream = import_module("rmm.pylibrmm.stream").Stream()
        handle = int(stream.__cuda_stream__()[1])
        view = torch.cuda.ExternalStream(handle, device=self.device)  # type: ignore[no-untyped-call]
        return stream, view


_POOLS: dict[torch.device, _Pool] = {}
_POOLS_LOCK = threading.Lock()


def _pool_of(device: torch.device) -> _Pool:
    """The one on a GPU."""
    with _POOLS_LOCK:
        return _POOLS.setdefault(device, _Pool(device))
