"""How much a fit may hold in memory, and where the rest goes.

All counters of a fit share one `Memory`. Each reports its size; when the sum passes the
limit, the largest writes itself to disk. The folder is unique to the fit and is removed
with it, also when the fit fails; after a hard kill the next run removes it
(`tabfeed.io.temporary`).
"""

from __future__ import annotations

import threading
import weakref
from pathlib import Path
from typing import Protocol

from tabfeed.io.temporary import TemporaryFolder

__all__ = ["Memory", "Spills"]

_LEAST_KEPT, _MOST_KEPT = 1 << 20, 64 << 20


class Spills(Protocol):
    """Something that can move what it holds to disk."""

    def nbytes(self) -> int:
        """Bytes held in memory."""
        ...

    def spill(self) -> None:
        """Move them to disk."""
        ...


class Memory:
    """A limit in bytes, shared by everything that a fit holds.

    Examples
    --------
    >>> memory = Memory(1_000_000)
    >>> memory.limit
    1000000
    >>> memory.close()
    """

    def __init__(self, limit: int | None = None, *, folder: str | None = None) -> None:
        self.limit = limit
        self._parent = folder
        self._spilled: TemporaryFolder | None = None
        self._held: weakref.WeakSet[Spills] = weakref.WeakSet()
        self._lock = threading.RLock()
        self._files = 0

    def hold(self, what: Spills) -> None:
        """Count `what` against the limit from now on."""
        with self._lock:
            self._held.add(what)

    def settle(self) -> None:
        """Spill the largest holders until what is left fits into a quarter of the limit.

        The rest is for the work itself: the partitions being read, a merge's copies.
        """
        if self.limit is None:
            return
        with self._lock:
            sizes = {h: h.nbytes() for h in self._held}
            while sum(sizes.values()) > self.limit // 4 and any(sizes.values()):
                largest = max(sizes, key=lambda h: sizes[h])
                largest.spill()
                sizes[largest] = 0

    def allows_grouping(self, nbytes: int) -> bool:
        """Whether tables of so many bytes may be grouped in memory, which takes many times that."""
        return self.limit is None or nbytes <= self.limit // 16

    def may_keep(self, nbytes: int) -> bool:
        """Whether a finished table of so many bytes may stay in memory after the fit.

        An eighth of the limit, and 64 MiB at most: there may be many such tables.
        """
        room = _MOST_KEPT if self.limit is None else min(self.limit // 8, _MOST_KEPT)
        return nbytes <= max(room, _LEAST_KEPT)

    def new_file(self, suffix: str = ".parquet") -> Path:
        """A path nobody else uses, in the spill folder."""
        with self._lock:
            if self._spilled is None:
                self._spilled = TemporaryFolder(self._parent)
            self._files += 1
            return self._spilled.path / f"{self._files:06d}{suffix}"

    def close(self) -> None:
        """Remove the spill folder."""
        with self._lock:
            if self._spilled is not None:
                self._spilled.remove()
                self._spilled = None

    def __reduce__(self) -> tuple[type[Memory], tuple[int | None]]:
        return Memory, (self.limit,)
