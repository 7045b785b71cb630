"""One pass over batches, seen from the loop that asks for them.

Only two times a step are kept, when a batch was asked for and when it was there. Between the two
the loop waits; from there to the next question it computes. So the two add up to the pass, to the
nanosecond, with nothing between them unseen.

What is done for each step is kept to that, since code that runs once between two long steps finds
its caches cold and costs ten times what a benchmark of it says. Rows are counted in the first steps
and in every eighth after that; our own loaders know theirs.
"""

from __future__ import annotations

import os
import threading
import time
from array import array
from collections.abc import Callable, Iterator
from typing import Any, Protocol

from tabfeed.profile.collect.batch_sizes import RowCounter, batch_bytes
from tabfeed.profile.collect.proc import RunDelay

__all__ = ["COMPUTE", "OUTSIDE", "WAIT", "Pass", "Phase", "Watch", "WatchIterator"]

OUTSIDE, WAIT, COMPUTE = 0, 1, 2
_clock = time.perf_counter_ns
_UNKNOWN = -1
_FIRST, _EVERY = 64, 8


class Phase:
    """What the training thread is doing, and since when, for another thread to look at."""

    def __init__(self) -> None:
        self.passes: list[Pass] = []  # under way, the innermost last
        self.thread = threading.get_ident()

    def at(self, time: int | None = None) -> int:
        """What it does now, or did a moment ago: this, or what comes before this."""
        if not self.passes:
            return OUTSIDE
        innermost = self.passes[-1]
        ask, got = innermost.ask, innermost.got
        waits = len(ask) > len(got)
        since = ask[-1] if waits else got[-1]
        if time is not None and time < since:
            waits = not waits
        return WAIT if waits else COMPUTE


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


class Pass:
    """The times of one pass.

    Parameters
    ----------
    source
        What is iterated.
    phase
        Shared with the sampling thread.
    device
        Marks on the accelerator's time line, if there is one.
    inner
        Whether another pass is under way in this thread, so that steps count there.
    begin
        When it began, if not now.
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
        self.device = device
        self.ask, self.got = array("q"), array("q")
        self.sizes: list[tuple[int, int]] = []  # (rows, bytes) of the batches that were walked
        self.first_batch: Any = None
        self.thread = threading.get_ident()
        self._count = RowCounter()
        self._counted: list[int | None] = []
        self._pipeline = pipeline_of(source)
        self._fed = 0 if self._pipeline is None else -int(self._pipeline.rows_given)
        self._look_at = 1  # the next step whose batch is looked at
        self._delay = RunDelay()
        self.cpu = -self._core_time()
        self.begin = _clock() if begin is None else begin
        self.end = 0
        self.ask.append(self.begin)
        if device is not None:
            device.asked()
        phase.thread = self.thread
        phase.passes.append(self)

    def asked(self) -> None:
        """The loop asks for a batch; the step before it is over."""
        self.ask.append(_clock())
        if self.device is not None:
            self.device.asked()

    def arrived(self, batch: Any) -> None:
        """The batch is there."""
        got = self.got
        got.append(_clock())
        if self.device is not None:
            self.device.got()
        if len(got) >= self._look_at:
            self._look(batch, len(got))

    def _look(self, batch: Any, steps: int) -> None:
        rows = self._count(batch)
        self._counted.append(rows)
        self._look_at = steps + (1 if steps < _FIRST else _EVERY)
        if steps & (steps - 1) == 0:  # 1, 2, 4, 8, ...
            self.sizes.append((rows or 0, batch_bytes(batch)))
            if steps == 1 and not self.inner:
                self.first_batch = batch

    @property
    def rows(self) -> int | None:
        """All rows given, in a long pass over foreign batches about; None if not known."""
        if self._pipeline is not None and self._fed > 0:
            return self._fed
        known = [n for n in self._counted if n is not None]
        if len(known) < len(self._counted) or not known:
            return None
        later = known[_FIRST:]
        beyond = len(self.got) - _FIRST
        return sum(known[:_FIRST]) + (round(sum(later) / len(later) * beyond) if later else 0)

    def finish(self) -> None:
        """The pass is over; may be called again, and at any time."""
        if self.end:
            return
        self.end = _clock()
        if self in self.phase.passes:
            self.phase.passes.remove(self)
        if self.device is not None:
            self.device.ended()
        if self._pipeline is not None:
            self._fed += int(self._pipeline.rows_given)
        if self.thread == threading.get_ident():
            self.cpu += self._core_time()
        else:
            self.cpu = _UNKNOWN  # ended by another thread: its clock says nothing of ours
        self._delay.close()

    def _core_time(self) -> int:
        """Nanoseconds this thread was on a core, or wanted to be."""
        return time.thread_time_ns() + self._delay()


def pipeline_of(source: Any) -> Any:
    """The core of a loader of ours, also inside a torch DataLoader; None for any other."""
    for holder in (source, getattr(source, "dataset", None)):
        for name in ("state", "_state"):
            feed = getattr(holder, name, None)
            if hasattr(feed, "rows_given") and hasattr(feed, "pipeline"):
                return feed
        if hasattr(holder, "rows_given") and hasattr(holder, "pipeline"):
            return holder
    return None


class WatchIterator:
    """Batches of one pass, and their times."""

    def __init__(self, source: Any, open_pass: Callable[[Any], Pass]) -> None:
        self._pass = open_pass(source)
        self._pid = os.getpid()
        self._asked = True
        self._ask, self._arrived = self._pass.asked, self._pass.arrived
        try:
            self._iterator = iter(source)
            self._next = self._iterator.__next__
        except BaseException:
            self._pass.finish()
            raise

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        if self._asked:
            self._asked = False
        else:
            self._ask()
        try:
            batch = self._next()
        except BaseException:  # the end, or an error: either way the pass is over
            self._pass.finish()
            raise
        self._arrived(batch)
        return batch

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name in ("_iterator", "_pass"):
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
