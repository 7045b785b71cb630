"""What the loader's threads did, added up by stage."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable
from typing import Any

from tabfeed.profile.collect.curves import Bins
from tabfeed.profile.collect.spans import Entry

__all__ = ["LABELS", "WAITING", "StageSums", "Sums", "describe"]

LABELS = {
    "read": "reading and decoding",
    "fetch": "fetching from storage",
    "transform": "transforming",
    "convert": "making arrays",
    "plan": "planning the order",
    "gather": "shuffling and gathering",
    "finish": "making batches",
    "copy": "copying to the device",
    "queue": "queueing work for the device",
    "chunk": "work in between",
    "ahead": "work in between, ahead",
    "share": "waiting for another thread",
    "full": "queue full",
    "wait": "waiting for data",
    "behind": "waiting for the model",
}
WAITING = ("share", "full", "wait", "behind")
_RECENT = 6000
_BIN_NS = 25_000_000


class Sums:
    """Of one stage in one thread: nanoseconds, nanoseconds on a core, spans, rows."""

    __slots__ = ("count", "cpu", "own", "rows")

    def __init__(self) -> None:
        self.own = self.cpu = self.count = self.rows = 0


class StageSums:
    """Sums by thread and stage, over time, and the latest spans one by one.

    Parameters
    ----------
    origin
        Where time begins, in nanoseconds of the monotonic clock.
    """

    def __init__(self, origin: int) -> None:
        self._origin = origin
        self.sums: dict[tuple[str, str], Sums] = {}
        self.what: Counter[str] = Counter()
        self.bins = Bins(_BIN_NS)
        self.first: dict[str, int] = {}
        self.last: dict[str, int] = {}
        self.recent: deque[Entry] = deque(maxlen=_RECENT)

    def add(self, entries: Iterable[Entry], until: int | None = None) -> None:
        """Take spans in; what ends after `until` is not of this run."""
        for entry in entries:
            if until is None or entry.start < until:
                self._add(entry)

    def _add(self, entry: Entry) -> None:
        name, start, end, own, cpu, thread, data = entry
        sums = self.sums.get((thread, name))
        if sums is None:
            sums = self.sums[thread, name] = Sums()
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

    def drain(self, entries: deque[Entry]) -> None:
        """Take in what other threads have appended so far."""
        while True:
            try:
                entry = entries.popleft()
            except IndexError:
                return
            self._add(entry)


def describe(what: Any) -> str:
    """A function or operator as a person would call it.

    Examples
    --------
    >>> describe(len), describe("abc".upper), describe(Counter())
    ('len', 'str.upper', 'Counter')
    """
    name = getattr(what, "__qualname__", None)
    if name is None:
        return type(what).__name__
    return str(name).split("<locals>.")[-1]
