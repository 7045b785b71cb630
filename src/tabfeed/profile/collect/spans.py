"""Spans as the profiler records them: with CPU time, and without the time of nested spans.

Threads only append to a deque; the profiler's own thread takes the spans out and sums them up, so
memory does not grow with the length of a run. Each span knows how long its thread was on a core or
waiting for one; the rest was waiting for a disk or a lock, and a busy machine must not look like a
slow disk. The time of nested spans is subtracted, so the times of a thread's stages add up.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from typing import Any, NamedTuple

from tabfeed.profile.collect.proc import RunDelay

__all__ = ["FinishedSpan", "SpanLog"]

_clock = time.perf_counter_ns
_CLOCK_AGE = 20_000
_MAX_SPANS = 100_000  # a forked child inherits the log, where no thread drains it


class FinishedSpan(NamedTuple):
    """A span that has ended, in nanoseconds; `own` and `cpu` are without nested spans."""

    name: str
    start: int
    end: int
    own: int
    cpu: int
    thread: str
    data: dict[str, Any]


class _Open:
    """A span in progress."""

    __slots__ = ("_cpu", "_data", "_inner", "_inner_cpu", "_log", "_stack", "name", "start")

    def __init__(self, log: SpanLog, name: str, data: dict[str, Any]) -> None:
        self._log = log
        self.name = name
        self._data = data
        self._inner = self._inner_cpu = 0

    def __enter__(self) -> None:
        self._stack = stack = self._log.stack()
        stack.append(self)
        self._cpu = stack.core_time()
        self.start = _clock()

    def __exit__(self, *exc: object) -> None:
        stack = self._stack
        end, cpu = _clock(), stack.core_time() - self._cpu
        stack.pop()
        if stack:
            stack[-1]._inner += end - self.start
            stack[-1]._inner_cpu += cpu
        self._log.entries.append(self.entry(end, cpu, threading.current_thread().name))

    def entry(self, end: int, cpu: int, thread: str) -> FinishedSpan:
        """The record of the span, ending now."""
        whole = end - self.start
        own = max(0, whole - self._inner)
        spent = max(0, cpu - self._inner_cpu)
        return FinishedSpan(self.name, self.start, end, own, spent, thread, self._data)

    def unfinished(self, now: int, inside: int, thread: str) -> FinishedSpan:
        """The record of a span still open; only its own thread could read its CPU time."""
        self._inner += inside
        return self.entry(max(now, self.start), 0, thread)


class _Stack(list[_Open]):
    """The open spans of a thread, outermost first."""

    def __init__(self) -> None:
        super().__init__()
        self._delay = RunDelay()
        self._read_at, self._known = 0, 0

    def core_time(self) -> int:
        """Nanoseconds the thread was on a core or waiting for one.

        Reading this clock takes microseconds, so a span that starts right after another shares its
        reading.
        """
        since = _clock() - self._read_at
        if since > _CLOCK_AGE:
            self._known = time.thread_time_ns() + self._delay()
            self._read_at, since = _clock(), 0
        return self._known + since


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
