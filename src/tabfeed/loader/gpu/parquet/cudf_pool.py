"""Memory in which pylibcudf decodes, and its streams: one bounded pool on each GPU.

pylibcudf takes scratch memory from the GPU's current rmm resource, which a whole process shares. So
all loaders share one pool, and its bound is the sum of the grants of those that exist: together
they keep within their budgets. The pool grows with a new loader. After a loader is gone, the next
reading shrinks it; with the last loader it goes, and the resource before it is restored. A pool
with another bound is another pool: readings end in the pool they began in, and until then both
exist.

A resource that the user's code has chosen stays the current one. Decoded data then take memory from
it, as much as was granted; its scratch memory is not bounded here.
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
        The rmm resource to decode into.
    """

    own: Any
    stream: Any
    memory: Any


class Grant:
    """A loader's part of the memory, as long as this object exists.

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
        """A stream and memory for one reading, inside a ``with``."""
        return self._pool.reading()


@dataclass(eq=False)
class _Bounded:
    """Memory of bounded size, and the readings in progress that began with it."""

    resource: Any
    readings: int = 0

    @property
    def free(self) -> bool:
        """Whether it is unused."""
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
        self._streams: deque[tuple[Any, Any]] = deque()  # pairs that are unused at the moment

    def grant(self, owner: Any, nbytes: int) -> None:
        """Enlarge the memory, until `owner` is garbage collected."""
        number = next(self._numbers)
        self._granted[number] = nbytes
        weakref.finalize(owner, self._take_back, number).atexit = False
        with self._held():
            self._fit()

    def _take_back(self, number: int) -> None:
        """A loader is gone; garbage collection may call this at any point."""
        self._granted.pop(number, None)
        self._end()

    @contextmanager
    def _held(self) -> Iterator[None]:
        """Hold the lock; the last loader may go meanwhile, and must not wait for it."""
        with self._lock:
            yield
        self._end()

    def _end(self) -> None:
        """Drop the pool with the last loader, unless another thread has the lock and will do it."""
        while self._bound and not self._granted and self._lock.acquire(blocking=False):
            try:
                self._fit()
            finally:
                self._lock.release()

    @contextmanager
    def reading(self) -> Iterator[Reading]:
        """A stream and memory for one reading, inside a ``with``."""
        with self._held():
            self._fit()
            memory = self._now
            assert memory is not None, "a reading belongs to a loader that has a grant"
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
        """Replace the pool by one of the granted size; the lock is held."""
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
        """Memory of so many bytes, as the current resource if the user has chosen none."""
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
        """Drop pools that are unused; the lock is held.

        In their order: a reading also uses pools that became current after it began.
        """
        while self._old and self._old[0].free:
            del self._old[0]

    @contextmanager
    def _lent_stream(self) -> Iterator[tuple[Any, Any]]:
        """A stream as rmm and as torch see it.

        Streams are never destroyed: memory belongs to the stream that used it last, and destroying
        that stream would crash the process.
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
    """The pool of a GPU."""
    with _POOLS_LOCK:
        return _POOLS.setdefault(device, _Pool(device))
