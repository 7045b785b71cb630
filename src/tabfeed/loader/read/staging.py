"""Memory in equal pieces, *staging buffers*, which other processes can fill.

All staging buffers lie in one piece of memory without a name, so that there is nothing to clean up
whatever becomes of a process. A staging buffer is free again when nothing refers to it and the
event that it was given, if any, has happened: a GPU may still be copying from it.
"""

from __future__ import annotations

import mmap
import os
import threading
from collections.abc import Callable
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Any

import numpy as np
import numpy.typing as npt

from tabfeed.errors import LoaderError

__all__ = ["StagingBuffer", "StagingBuffers", "attach"]

Array = npt.NDArray[Any]
_PAGE = 4096
_PATIENCE = 60.0


def attach(fd: int, nbytes: int) -> Array:
    """The memory behind a file descriptor; the process's own where there is none."""
    if fd < 0:
        return np.frombuffer(mmap.mmap(-1, nbytes), np.uint8)
    return np.frombuffer(mmap.mmap(fd, nbytes, flags=mmap.MAP_SHARED), np.uint8)


class StagingBuffer:
    """One piece, lent until nothing refers to it."""

    def __init__(self, staging_buffers: StagingBuffers, number: int) -> None:
        self._staging_buffers, self.number = staging_buffers, number
        self.used: Any = None  # an event after which its content is no longer needed

    @property
    def memory(self) -> Array:
        """Its bytes."""
        return self._staging_buffers.piece(self.number)

    def __del__(self) -> None:
        self._staging_buffers.give(self.number, self.used)


class StagingBuffers:
    """Some staging buffers of one size.

    Parameters
    ----------
    nbytes
        Size of each.
    count
        How many.
    prepare
        Called with the memory of a staging buffer before it is lent for the first time.
    release
        Called with the memory of each staging buffer that was prepared, before it goes.

    Examples
    --------
    >>> buffers = StagingBuffers(1000, 2)
    >>> one, two = buffers.take(), buffers.take()
    >>> one.memory.size, one.number, two.number
    (1000, 0, 1)
    >>> del one
    >>> buffers.take().number
    0
    """

    def __init__(
        self,
        nbytes: int,
        count: int,
        prepare: Callable[[Array], None] = lambda memory: None,
        release: Callable[[Array], None] = lambda memory: None,
    ) -> None:
        self.nbytes, self.count = nbytes, count
        self.spacing = -(-nbytes // _PAGE) * _PAGE
        total = max(1, self.spacing * count)
        self.fd = os.memfd_create("tabfeed-desks") if hasattr(os, "memfd_create") else -1
        if self.fd >= 0:
            os.ftruncate(self.fd, total)
        self._memory = attach(self.fd, total)
        self._prepare, self._release, self._prepared = prepare, release, 0
        self._lock = threading.Lock()
        self._free: SimpleQueue[tuple[int, Any]] = SimpleQueue()  # may be filled in a finaliser

    @property
    def total(self) -> int:
        """Bytes of all of them."""
        return len(self._memory)

    def piece(self, number: int) -> Array:
        """The bytes of a staging buffer."""
        return self._memory[number * self.spacing :][: self.nbytes]

    def take(self) -> StagingBuffer:
        """A staging buffer that may be written."""
        try:
            number, event = self._free.get_nowait()
        except Empty:
            if (new := self._next()) is not None:
                return StagingBuffer(self, new)
            number, event = self._wait()
        if event is not None and not event.query():  # which holds the GIL
            event.synchronize()
        return StagingBuffer(self, number)

    def _wait(self) -> tuple[int, Any]:
        """A staging buffer that comes free, and its event."""
        try:
            return self._free.get(timeout=_PATIENCE)
        except Empty:
            raise LoaderError(
                f"no staging buffer became free within {_PATIENCE:.0f} s; raise host_memory"
            ) from None

    def _next(self) -> int | None:
        """A staging buffer that was never used."""
        with self._lock:
            number = self._prepared
            if number >= self.count:
                return None
            self._prepared += 1
        self._prepare(self.piece(number))
        return number

    def give(self, number: int, event: Any) -> None:
        """Take a staging buffer back; it may be written after `event`. Safe inside a finaliser."""
        self._free.put((number, event))

    def __del__(self) -> None:
        with suppress(Exception):  # the interpreter may be half gone
            while not self._free.empty():
                _, event = self._free.get_nowait()
                if event is not None:
                    event.synchronize()
            for number in range(self._prepared):
                self._release(self.piece(number))
        if getattr(self, "fd", -1) >= 0:
            os.close(self.fd)
