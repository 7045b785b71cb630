"""Partitions of remote files, fetched before a thread comes to decode them.

Threads that decode are as many as there are cores; connections are as many as the network wants.
So the bytes of the partitions that come next are asked for early, up to a budget, in the order in
which they will be needed, and a thread that reads one finds it there or on its way.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Protocol

from tabfeed.loader.read.arrow_columns import Part

__all__ = ["BeginsParts", "ReadAhead", "reading_ahead"]


class BeginsParts(Protocol):
    """A reader that can be told what it will be asked for."""

    remote: bool

    def read(self, number: int) -> Part:
        """One partition, decoded."""
        ...

    def pieces(self, number: int) -> Iterator[Part]:
        """The same, a few columns at a time."""
        ...

    def begin(self, number: int) -> Sequence[Any]:
        """Begin to fetch a partition, as long as the result is held; each has ``nbytes``."""
        ...


def reading_ahead(reader: Any, coming: Iterable[int], budget: int) -> Any:
    """The reader for one pass, reading ahead where that helps.

    Parameters
    ----------
    reader
        Reads a partition.
    coming
        The partitions of the pass, in the order in which they will be asked for, about.
    budget
        Bytes that may be on their way, or lie fetched and not yet decoded.
    """
    if not getattr(reader, "remote", False):
        return reader
    return ReadAhead(reader, coming, budget)


class ReadAhead:
    """Reads partitions, the next ones begun already.

    Parameters
    ----------
    reader
        Reads a partition.
    order
        The partitions in the order in which they will be asked for, about.
    budget
        Most bytes to have fetched and not yet decoded; one partition at least.
    """

    def __init__(self, reader: BeginsParts, order: Iterable[int], budget: int) -> None:
        self._reader = reader
        self._coming = deque(order)
        self._left = budget
        self._held: dict[int, tuple[Sequence[Any], int]] = {}
        self._lock = threading.Lock()
        self._closed = False
        self._top_up()

    def read(self, number: int) -> Part:
        """A partition."""
        try:
            return self._reader.read(number)
        finally:
            self._release(number)

    def pieces(self, number: int) -> Iterator[Part]:
        """The same, a few columns at a time."""
        try:
            yield from self._reader.pieces(number)
        finally:
            self._release(number)

    def _release(self, number: int) -> None:
        with self._lock:
            _, nbytes = self._held.pop(number, ((), 0))
            self._left += nbytes
        self._top_up()

    def _top_up(self) -> None:
        """Begin what fits, and always one."""
        with self._lock:
            while self._coming and not self._closed and (self._left > 0 or not self._held):
                number = self._coming.popleft()
                begun = self._reader.begin(number)
                if begun:
                    nbytes = sum(fetch.nbytes for fetch in begun)
                    self._held[number] = (begun, nbytes)
                    self._left -= nbytes

    def close(self) -> None:
        """Fetch nothing more, let go of what is here. Takes no lock: it may run in a finaliser."""
        self._closed = True
        self._held = {}
