"""Spans as a profiler keeps them: with CPU time, less what is nested in them.

Threads append to a deque and do nothing else; the profiler's own thread takes the entries out and
adds them up, so that memory does not grow with the length of a run. Each span knows how long its
thread was on a core or waiting for one (what remains was waiting for a disk or a lock: a busy
machine must not look like a slow disk) and how much of it belongs to spans inside it, so that the
times of a thread's stages add up and nothing counts twice.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from typing import Any, NamedTuple

from tabfeed.profile.collect.proc import RunDelay

__all__ = ["Entry", "SpanLog"]

_clock = time.perf_counter_ns
_SOON = 20_000
_MOST = 100_000  # a forked child inherits the log, and nobody there takes entries out


class Entry(NamedTuple):
    """A span that has ended, in nanoseconds; `own` and `cpu` leave out the spans inside it."""

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

    def entry(self, end: int, cpu: int, thread: str) -> Entry:
        """What there is to keep, if it ended now."""
        whole = end - self.start
        own = max(0, whole - self._inner)
        spent = max(0, cpu - self._inner_cpu)
        return Entry(self.name, self.start, end, own, spent, thread, self._data)

    def unfinished(self, now: int, inside: int, thread: str) -> Entry:
        """What there is to keep of a span that goes on; its CPU time is not ours to read."""
        self._inner += inside
        return self.entry(max(now, self.start), 0, thread)


class _Stack(list[_Open]):
    """The spans one thread is in, outermost first."""

    def __init__(self) -> None:
        super().__init__()
        self._delay = RunDelay()
        self._read_at, self._known = 0, 0

    def core_time(self) -> int:
        """Nanoseconds the thread was on a core, or wanted to be.

        Where one span ends and the next begins, the clock is asked once: it takes microseconds.
        """
        since = _clock() - self._read_at
        if since > _SOON:
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
        self.entries: deque[Entry] = deque(maxlen=_MOST)
        self._local = threading.local()
        self._stacks: dict[str, _Stack] = {}

    def span(self, name: str, data: dict[str, Any]) -> _Open:
        """A block that is kept when it ends."""
        return _Open(self, name, data)

    def stack(self) -> _Stack:
        """The spans this thread is in, outermost first."""
        try:
            found: _Stack = self._local.stack
        except AttributeError:
            found = self._local.stack = _Stack()
            # Threads of different passes share names; one that has ended has an empty stack.
            self._stacks[f"{threading.current_thread().name}\0{threading.get_ident()}"] = found
        return found

    def unfinished(self) -> list[Entry]:
        """Spans still open, as if they ended now; ask once, when recording is over."""
        now, out = _clock(), []
        for key, stack in list(self._stacks.items()):
            inside = 0
            for opened in reversed(list(stack)):
                out.append(opened.unfinished(now, inside, key.split("\0")[0]))
                inside = now - opened.start
        return out
