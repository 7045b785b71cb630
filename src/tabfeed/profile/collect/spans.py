"""Spans as the profiler records them: with CPU time, and without the time of nested spans.

Threads only append to a deque; the profiler's own thread takes the spans out and sums them up, so
memory does not grow with the length of a run. Each span knows how long its thread was on a core and
how long it waited for one; the rest was waiting for a disk or a lock. A busy machine must not look
like a slow disk, nor a slow disk on it like slow decoding. The time of nested spans is subtracted,
so the times of a thread's stages add up.

Sums and readings over time take a fixed amount of memory however long the run. A full curve drops
every second point, and from then on skips every second reading: its shape stays right, only
coarser. Bins that are full become twice as wide. Of spans the sums are kept, and the latest ones.
"""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from collections.abc import Iterable
from typing import Any, NamedTuple

from tabfeed.profile.collect.processors import RunDelay

_clock = time.perf_counter_ns
_CLOCK_AGE = 20_000
_MAX_SPANS = 100_000  # a forked child inherits the log, where no thread drains it


class FinishedSpan(NamedTuple):
    """A span that has ended, in nanoseconds; `own`, `cpu` and `delay` are without nested spans.

    `cpu` is the time on a core, `delay` the time waiting for one.
    """

    name: str
    start: int
    end: int
    own: int
    cpu: int
    delay: int
    thread: str
    data: dict[str, Any]


class _Open:
    """A span in progress."""

    __slots__ = (
        "_cpu", "_data", "_delay", "_inner", "_inner_cpu", "_inner_delay", "_log", "_stack",
        "name", "start",
    )  # fmt: skip

    def __init__(self, log: SpanLog, name: str, data: dict[str, Any]) -> None:
        self._log = log
        self.name = name
        self._data = data
        self._inner = self._inner_cpu = self._inner_delay = 0

    def __enter__(self) -> None:
        self._stack = stack = self._log.stack()
        stack.append(self)
        self._cpu, self._delay = stack.core_times()
        self.start = _clock()

    def __exit__(self, *exc: object) -> None:
        stack = self._stack
        end = _clock()
        cpu, delay = stack.core_times()
        cpu, delay = cpu - self._cpu, delay - self._delay
        stack.pop()
        if stack:
            stack[-1]._inner += end - self.start
            stack[-1]._inner_cpu += cpu
            stack[-1]._inner_delay += delay
        self._log.entries.append(self.entry(end, cpu, delay, threading.current_thread().name))

    def entry(self, end: int, cpu: int, delay: int, thread: str) -> FinishedSpan:
        """The record of the span, ending now."""
        whole = end - self.start
        own = max(0, whole - self._inner)
        spent = max(0, cpu - self._inner_cpu)
        waited = max(0, delay - self._inner_delay)
        return FinishedSpan(self.name, self.start, end, own, spent, waited, thread, self._data)

    def unfinished(self, now: int, inside: int, thread: str) -> FinishedSpan:
        """The record of a span still open; only its own thread could read its CPU time."""
        self._inner += inside
        return self.entry(max(now, self.start), 0, 0, thread)


class _Stack(list[_Open]):
    """The open spans of a thread, outermost first."""

    def __init__(self) -> None:
        super().__init__()
        self._delay = RunDelay()
        self._read_at, self._cpu, self._waited = 0, 0, 0

    def core_times(self) -> tuple[int, int]:
        """Nanoseconds the thread was on a core, and waiting for one.

        Reading this clock takes microseconds, so a span that starts right after another shares its
        reading.
        """
        since = _clock() - self._read_at
        if since > _CLOCK_AGE:
            self._cpu, self._waited = time.thread_time_ns(), self._delay()
            self._read_at, since = _clock(), 0
        return self._cpu + since, self._waited


class SpanLog:
    """A `tabfeed.trace.Recorder` for profiling.

    Examples
    --------
    >>> from tabfeed.trace import recording, span
    >>> log = SpanLog()
    >>> with recording(log), span("read"), span("decode"):
    ...     pass
    >>> [entry.name for entry in log.entries]
    ['decode', 'read']
    """

    def __init__(self) -> None:
        self.entries: deque[FinishedSpan] = deque(maxlen=_MAX_SPANS)
        self._local = threading.local()
        self._stacks: dict[str, _Stack] = {}

    def span(self, name: str, data: dict[str, Any]) -> _Open:
        """A block that is recorded when it ends."""
        return _Open(self, name, data)

    def stack(self) -> _Stack:
        """The open spans of this thread, outermost first."""
        try:
            found: _Stack = self._local.stack
        except AttributeError:
            found = self._local.stack = _Stack()
            # Threads of different epochs share names; a thread that has ended has an empty stack.
            self._stacks[f"{threading.current_thread().name}\0{threading.get_ident()}"] = found
        return found

    def unfinished(self) -> list[FinishedSpan]:
        """Spans still open, as if they ended now; call it once, after recording."""
        now, out = _clock(), []
        for key, stack in list(self._stacks.items()):
            inside = 0
            for opened in reversed(list(stack)):
                out.append(opened.unfinished(now, inside, key.split("\0")[0]))
                inside = now - opened.start
        return out


_MAX_POINTS = 2048
_MAX_BINS = 240


class Curve:
    """Values over time.

    Examples
    --------
    >>> curve = Curve(most=4)
    >>> for t in range(9):
    ...     curve.add(t, 10.0 * t)
    >>> curve.points
    [(0, 0.0), (4, 40.0), (8, 80.0)]
    """

    def __init__(self, most: int = _MAX_POINTS) -> None:
        self._most = most
        self._every = 1
        self._seen = 0
        self.points: list[tuple[int, float]] = []

    def add(self, time: int, value: float) -> None:
        """Add a reading."""
        if self._seen % self._every == 0:
            if len(self.points) == self._most:
                del self.points[1::2]
                self._every *= 2
            if self._seen % self._every == 0:
                self.points.append((time, value))
        self._seen += 1


class Bins:
    """Sums by name over equal stretches of time, which get longer as the run does.

    Examples
    --------
    >>> bins = Bins(width=10, most=2)
    >>> bins.add("read", 0, 10, 5.0)
    >>> bins.add("read", 15, 25, 4.0)
    >>> bins.width, bins.sums
    (20, {'read': {0: 7.0, 1: 2.0}})
    """

    def __init__(self, width: int, most: int = _MAX_BINS) -> None:
        self.width = width
        self._most = most
        self.sums: dict[str, dict[int, float]] = {}

    def add(self, name: str, start: int, end: int, amount: float) -> None:
        """Spread an amount evenly from `start` to `end`."""
        start = max(0, start)
        end = max(end, start + 1)
        while (end - 1) // self.width >= self._most:
            self._merge()
        sums = self.sums.setdefault(name, {})
        first = start // self.width
        if end <= (first + 1) * self.width:  # the common case
            sums[first] = sums.get(first, 0.0) + amount
            return
        for number in range(start // self.width, (end - 1) // self.width + 1):
            low, high = max(start, number * self.width), min(end, (number + 1) * self.width)
            sums[number] = sums.get(number, 0.0) + amount * (high - low) / (end - start)

    def _merge(self) -> None:
        self.width *= 2
        for name, sums in self.sums.items():
            merged: dict[int, float] = {}
            for number, value in sums.items():
                merged[number // 2] = merged.get(number // 2, 0.0) + value
            self.sums[name] = merged


_RECENT = 6000
_BIN_NS = 25_000_000


class StageTotal:
    """Totals of one stage in one thread: spans, rows, and nanoseconds.

    Of the nanoseconds `own` are all, `cpu` those on a core, `delay` those waiting for one.
    """

    __slots__ = ("count", "cpu", "delay", "own", "rows")

    def __init__(self) -> None:
        self.own = self.cpu = self.delay = self.count = self.rows = 0


class StageSums:
    """Sums of spans by thread and stage and over time, and the latest spans themselves.

    Parameters
    ----------
    origin
        The start of the run, in nanoseconds of the monotonic clock.
    """

    def __init__(self, origin: int) -> None:
        self._origin = origin
        self.sums: dict[tuple[str, str], StageTotal] = {}
        self.what: Counter[str] = Counter()
        self.bins = Bins(_BIN_NS)
        self.recent: deque[FinishedSpan] = deque(maxlen=_RECENT)

    def add(self, entries: Iterable[FinishedSpan], until: int | None = None) -> None:
        """Add spans; those that start after `until` don't belong to the run."""
        for entry in entries:
            if until is None or entry.start < until:
                self._add(entry)

    def _add(self, entry: FinishedSpan) -> None:
        name, start, end, own, cpu, delay, thread, data = entry
        sums = self.sums.get((thread, name))
        if sums is None:
            sums = self.sums[thread, name] = StageTotal()
        sums.own += own
        sums.cpu += min(cpu, own)
        sums.delay += min(delay, own - min(cpu, own))
        sums.count += 1
        if data:
            sums.rows += data.get("rows") or 0
            if "what" in data:
                self.what[describe(data["what"])] += own
        if thread.startswith("tabfeed-loader"):
            self.bins.add(name, start - self._origin, end - self._origin, own)
        self.recent.append(entry)

    def drain(self, entries: deque[FinishedSpan]) -> None:
        """Add what other threads have appended so far."""
        while True:
            try:
                entry = entries.popleft()
            except IndexError:
                return
            self._add(entry)


def describe(what: Any) -> str:
    """The readable name of a function or operator.

    Examples
    --------
    >>> describe(len), describe("abc".upper), describe(Counter())
    ('len', 'str.upper', 'Counter')
    """
    name = getattr(what, "__qualname__", None)
    if name is None:
        return type(what).__name__
    return str(name).split("<locals>.")[-1]
