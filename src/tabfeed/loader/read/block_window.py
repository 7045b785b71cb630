"""Reading ahead within one epoch: blocks, and the bytes of remote partitions.

A `BlockWindow` reads each block once for all chunks that need it. Whichever chunk comes first reads
it; threads that would have nothing to do read those that are needed next, as long as memory allows;
a block goes when the last chunk that needs it is done.

Threads that decode are as many as there are cores; connections are as many as the network wants. So
`ReadAhead` requests the bytes of the remote partitions that come next early, up to a budget, in the
order in which they will be needed; a thread that reads one finds it there or on its way.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from tabfeed.errors import LoaderError
from tabfeed.loader.read.arrow_columns import Part
from tabfeed.trace import span

__all__ = ["Ahead", "BeginsParts", "BlockWindow", "ReadAhead", "reading_ahead"]

_TICK = 0.5
L = TypeVar("L")


@dataclass(frozen=True)
class Ahead:
    """How blocks are read before chunks need them.

    Attributes
    ----------
    blocks
        How many may be there before a chunk asks for them.
    together
        How many to read in one go, where a reader is faster so.
    most
        How many may be there in all, those that chunks are made of included, for any to be read
        early; no limit if None.
    by_all
        Whether a thread that makes a chunk, and finds that others are reading what it needs,
        reads for later meanwhile. With few threads that keeps all of them busy; with many it
        would only delay the chunk.
    """

    blocks: int = 1
    together: int = 1
    by_all: bool = True
    most: int | None = None


class BlockWindow(Generic[L]):
    """Blocks for the chunks of one epoch.

    Parameters
    ----------
    read
        Reads some blocks.
    last_use
        The last chunk that needs each block.
    first_chunk
        Where the iterator begins.
    ahead
        How to read ahead.
    on_close
        Called when it is closed; must not wait.
    """

    def __init__(
        self,
        read: Callable[[Sequence[int]], Sequence[L]],
        last_use: dict[int, int],
        first_chunk: int = 0,
        *,
        ahead: Ahead | None = None,
        on_close: Callable[[], None] | None = None,
    ) -> None:
        self._read_blocks = read
        self._last_use = last_use
        self._ahead = ahead or Ahead()
        self._changed = threading.Condition()
        self._blocks: dict[int, L | BaseException] = {}
        self._reading: set[int] = set()
        self._upcoming = deque(sorted(last_use, key=last_use.__getitem__))
        self._early: set[int] = set()  # blocks read before any chunk needed them
        self._low = first_chunk  # every chunk before this one is done
        self._done: set[int] = set()
        self._closed = False
        self._on_close = on_close

    def get(self, numbers: Iterable[int]) -> dict[int, L]:
        """These blocks, read here unless another thread has them or is reading them."""
        wanted = list(dict.fromkeys(numbers))
        found: dict[int, L] = {}
        while len(found) < len(wanted):
            missing = [n for n in wanted if n not in found]
            claimed = self._collect_or_claim(missing, found)
            if claimed:
                self._read(claimed)
        return found

    def _collect_or_claim(self, missing: list[int], found: dict[int, L]) -> list[int]:
        """Take what is there; name some to read, or wait if others are reading all of them."""
        with self._changed:
            if self._closed:
                raise LoaderError("the loader was closed")
            blocks = self._blocks  # `close` may put another in its place, without the lock
            there = [n for n in missing if n in blocks]
            for number in there:
                block = blocks[number]
                if isinstance(block, BaseException):
                    raise block
                found[number] = block
                self._early.discard(number)
            free = [n for n in missing if n not in found and n not in self._reading]
            if free:
                return self._claim(free[: self._ahead.together])
            if len(there) == len(missing):
                return []
            if self._ahead.by_all and (early := self._claim_early()):
                return early
            with span("share"):
                self._changed.wait(_TICK)
        return []

    def _claim(self, numbers: list[int]) -> list[int]:
        self._reading.update(numbers)
        return numbers

    def read_ahead(self, begun: Callable[[], None] = lambda: None) -> bool:
        """Read blocks that later chunks need, if there is room for them; whether any were.

        Parameters
        ----------
        begun
            Called when there is room, before they are read.
        """
        with self._changed:
            numbers = [] if self._closed else self._claim_early()
        if numbers:
            begun()
            self._read(numbers)
        return bool(numbers)

    def _claim_early(self) -> list[int]:
        """The next blocks that no thread has begun to read: as many as go together, or none."""
        room = self._ahead.blocks - len(self._early)
        count = min(self._ahead.together, self._ahead.blocks)
        if self._ahead.most is not None:
            room = min(room, self._ahead.most - len(self._blocks) - len(self._reading))
        if room < count:
            return []
        numbers: list[int] = []
        while self._upcoming and len(numbers) < count:
            number = self._upcoming.popleft()
            if self._wanted(number):
                numbers.append(number)
        self._early.update(numbers)
        return self._claim(numbers)

    def _wanted(self, number: int) -> bool:
        """Whether no thread has begun to read a block, and some chunk still needs it."""
        begun = number in self._blocks or number in self._reading
        return not begun and self._last_use[number] >= self._low

    def _read(self, numbers: list[int]) -> None:
        try:
            blocks: Sequence[L | BaseException] = self._read_blocks(numbers)
        except BaseException as e:
            blocks = [e] * len(numbers)
        with self._changed:
            if not self._closed:  # else their memory is another's to have
                self._blocks.update(zip(numbers, blocks, strict=True))
            self._reading.difference_update(numbers)
            self._changed.notify_all()

    def done(self, chunk: int) -> None:
        """A chunk has what it needs: blocks that no later chunk needs may go."""
        with self._changed:
            self._done.add(chunk)
            while self._low in self._done:
                self._done.remove(self._low)
                self._low += 1
            low, blocks = self._low, self._blocks
            for number in [n for n in blocks if self._last_use.get(n, low - 1) < low]:
                del blocks[number]

    def close(self) -> None:
        """Read nothing more, keep nothing; a thread that asks gets an error. Waits for nothing."""
        self._closed = True
        self._blocks = {}  # whose memory another thread may be waiting for
        if self._on_close is not None:
            self._on_close()


# -- remote partitions ----------------------------------------------------------------------------


class BeginsParts(Protocol):
    """A reader that can begin to fetch partitions before they are read."""

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
    """The reader for one epoch, reading ahead where that helps.

    Parameters
    ----------
    reader
        Reads a partition.
    coming
        The partitions of the epoch, about in the order in which they will be read.
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
        The partitions, about in the order in which they will be read.
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
