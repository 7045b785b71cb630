"""Sums and readings over time, in a fixed amount of memory however long the run.

A full curve drops every second point, and from then on skips every second reading: its shape stays
right, only coarser. Bins that are full become twice as wide. Of spans the sums are kept, and the
latest ones.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable
from typing import Any

from tabfeed.profile.collect.spans import FinishedSpan

__all__ = ["Bins", "Curve", "StageSums", "StageTotal", "describe"]


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
    """Totals of one stage in one thread: nanoseconds, nanoseconds on a core, spans, rows."""

    __slots__ = ("count", "cpu", "own", "rows")

    def __init__(self) -> None:
        self.own = self.cpu = self.count = self.rows = 0


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
        self.first: dict[str, int] = {}
        self.last: dict[str, int] = {}
        self.recent: deque[FinishedSpan] = deque(maxlen=_RECENT)

    def add(self, entries: Iterable[FinishedSpan], until: int | None = None) -> None:
        """Add spans; those that start after `until` don't belong to the run."""
        for entry in entries:
            if until is None or entry.start < until:
                self._add(entry)

    def _add(self, entry: FinishedSpan) -> None:
        name, start, end, own, cpu, thread, data = entry
        sums = self.sums.get((thread, name))
        if sums is None:
            sums = self.sums[thread, name] = StageTotal()
        sums.own += own
        sums.cpu += min(cpu, own)
        sums.count += 1
        if data:
            sums.rows += data.get("rows") or 0
            if "what" in data:
                self.what[describe(data["what"])] += own
        if start < self.first.setdefault(thread, start):
            self.first[thread] = start
        if end > self.last.get(thread, 0):
            self.last[thread] = end
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
