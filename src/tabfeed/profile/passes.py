"""One pass over batches, seen from the loop that asks for them.

Only two times a step are kept, when a batch was asked for and when it was there. Between the two
the loop waits; from there to the next question it computes. So the two add up to the pass, to the
nanosecond, with nothing between them unseen.
"""

from __future__ import annotations

import os
import threading
import time
from array import array
from collections.abc import Callable, Iterator
from typing import Any, Protocol

from tabfeed.profile.proc import RunDelay
from tabfeed.profile.sizes import RowCounter, batch_bytes

__all__ = ["COMPUTE", "OUTSIDE", "WAIT", "Pass", "Phase", "Watch", "WatchIterator"]

OUTSIDE, WAIT, COMPUTE = 0, 1, 2
_clock = time.perf_counter_ns
_UNKNOWN = -1


class Phase:
    """What the training thread is doing, and since when, for another thread to look at."""

    __slots__ = ("now", "since", "thread")

    def __init__(self) -> None:
        self.now = OUTSIDE
        self.since = 0
        self.thread = threading.get_ident()

    def at(self, time: int) -> int:
        """What it was doing a moment ago: this, or what comes before this."""
        if time >= self.since or self.now == OUTSIDE:
            return self.now
        return COMPUTE if self.now == WAIT else WAIT


class Device(Protocol):
    """Marks on the accelerator's own time line."""

    def asked(self) -> None:
        """The host asks for a batch."""
        ...

    def got(self) -> None:
        """The host has a batch."""
        ...

    def ended(self) -> None:
        """The pass is over."""
        ...


class _NoDevice:
    def asked(self) -> None:
        return None

    def got(self) -> None:
        return None

    def ended(self) -> None:
        return None


class Pass:
    """The times of one pass.

    Parameters
    ----------
    source
        What is iterated.
    phase
        Shared with the sampling thread.
    device
        Marks on the accelerator's time line.
    inner
        Whether another pass is under way in this thread, so that steps count there.
    """

    def __init__(
        self,
        source: Any,
        phase: Phase,
        device: Device | None = None,
        *,
        inner: bool = False,
        begin: int | None = None,
    ) -> None:
        self.source = source
        self.inner = inner
        self.phase = phase
        self.device = device or _NoDevice()
        self.ask = array("q")
        self.got = array("q")
        self.rows = array("q")
        self.sizes: list[tuple[int, int]] = []  # (rows, bytes) of the batches that were looked at
        self.first_batch: Any = None
        self.begin = _clock() if begin is None else begin
        self.end = 0
        self.thread = threading.get_ident()
        self._delay = RunDelay()
        self.cpu = -self._core_time()
        self._count = _rows_of(source)
        phase.thread = self.thread
        phase.now = WAIT
        self._begin_asking()

    def _begin_asking(self) -> None:
        self.ask.append(self.begin)
        self.device.asked()

    def asked(self) -> None:
        """The loop asks for a batch; the step before it is over."""
        now = _clock()
        self.ask.append(now)
        self.device.asked()
        phase = self.phase
        phase.since = now
        phase.now = WAIT

    def arrived(self, batch: Any) -> None:
        """The batch is there."""
        now = _clock()
        self.got.append(now)
        self.device.got()
        rows = self._count(batch)
        self.rows.append(_UNKNOWN if rows is None else rows)
        steps = len(self.got)
        if steps & (steps - 1) == 0:  # 1, 2, 4, 8, ...
            self.sizes.append((rows or 0, batch_bytes(batch)))
            if steps == 1 and not self.inner:
                self.first_batch = batch
        phase = self.phase
        phase.since = now
        phase.now = COMPUTE

    def finish(self) -> None:
        """The pass is over; may be called again, and at any time."""
        if not self.end:
            self.end = _clock()
            self.device.ended()
            if self.thread == threading.get_ident():
                self.cpu += self._core_time()
            else:
                self.cpu = _UNKNOWN  # ended by another thread: its clock says nothing of ours
            self._delay.close()
            self.phase.now = OUTSIDE if not self.inner else COMPUTE

    def _core_time(self) -> int:
        """Nanoseconds this thread was on a core, or wanted to be."""
        return time.thread_time_ns() + self._delay()


def _rows_of(source: Any) -> Callable[[Any], int | None]:
    """How to count rows: our own loaders know, other batches are looked at."""
    feed = feed_of(source)
    if feed is None:
        return RowCounter()
    before = feed.rows_given

    def count(batch: Any) -> int | None:
        nonlocal before
        now = feed.rows_given
        rows, before = now - before, now
        return int(rows) if rows > 0 else guess(batch)

    guess = RowCounter()  # with worker processes only the copies there know
    return count


def feed_of(source: Any) -> Any:
    """The core of a loader of ours, also inside a torch DataLoader; None for any other."""
    for holder in (source, getattr(source, "dataset", None)):
        for name in ("feed", "_feed"):
            feed = getattr(holder, name, None)
            if hasattr(feed, "rows_given") and hasattr(feed, "recipe"):
                return feed
        if hasattr(holder, "rows_given") and hasattr(holder, "recipe"):
            return holder
    return None


class WatchIterator:
    """Batches of one pass, and their times."""

    def __init__(self, source: Any, open_pass: Callable[[Any], Pass]) -> None:
        self._pass = open_pass(source)
        self._pid = os.getpid()
        self._asked = True
        try:
            self._iterator = iter(source)
        except BaseException:
            self._pass.finish()
            raise

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        watched = self._pass
        if self._asked:
            self._asked = False
        else:
            watched.asked()
        try:
            batch = next(self._iterator)
        except BaseException:  # the end, or an error: either way the pass is over
            watched.finish()
            raise
        watched.arrived(batch)
        return batch

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "_iterator":
            raise AttributeError(name)
        return getattr(self._iterator, name)

    def close(self) -> None:
        """End the pass, and the iterator under it if that can be closed."""
        self._pass.finish()
        close = getattr(self._iterator, "close", None)
        if close is not None:
            close()

    def __del__(self) -> None:
        # After an early `break`. A forked child's copy says nothing of the parent's time.
        if hasattr(self, "_pass") and os.getpid() == getattr(self, "_pid", None):
            self._pass.finish()


class Watch:
    """An iterable that behaves as its source does and tells the profiler of each step.

    Attributes that are not its own are the source's, so ``prof.watch(loader).dataset`` works.
    """

    def __init__(self, source: Any, open_pass: Callable[[Any], Pass]) -> None:
        self._source = source
        self._open_pass = open_pass

    def __iter__(self) -> WatchIterator:
        return WatchIterator(self._source, self._open_pass)

    def __len__(self) -> int:
        return len(self._source)

    def __getattr__(self, name: str) -> Any:
        if name in ("_source", "_open_pass"):
            raise AttributeError(name)
        return getattr(self._source, name)
