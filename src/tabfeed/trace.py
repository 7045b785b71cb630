"""Spans: how long each piece of work took, and on which thread.

Code marks its work with ``with span("decode", rows=n):``. By default the recorder does nothing and
costs one attribute look-up and an empty context manager; a profiler swaps in one that keeps the
spans. The recorder is process-wide rather than passed along, so that every stage is visible without
a parameter in every signature.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Protocol

__all__ = ["ListRecorder", "Recorder", "Span", "recording", "span"]


@dataclass(frozen=True, slots=True)
class Span:
    """One piece of work, in nanoseconds of the monotonic clock."""

    name: str
    start: int
    end: int
    thread: str
    data: dict[str, Any] = field(default_factory=dict)


class Recorder(Protocol):
    """Receives spans; a profiler implements this."""

    def span(self, name: str, data: dict[str, Any]) -> AbstractContextManager[None]:
        """A block whose work is recorded."""
        ...


class _NullRecorder:
    _no_span = nullcontext()  # one instance serves every call

    def span(self, name: str, data: dict[str, Any]) -> AbstractContextManager[None]:
        return self._no_span


class ListRecorder:
    """Keeps every span in a list; appending to a list is atomic, so threads may share it."""

    def __init__(self) -> None:
        self.spans: list[Span] = []

    @contextmanager
    def span(self, name: str, data: dict[str, Any]) -> Iterator[None]:
        """A block that is kept as a `Span` when it ends, also after an error."""
        start = time.perf_counter_ns()
        try:
            yield
        finally:
            end = time.perf_counter_ns()
            self.spans.append(Span(name, start, end, threading.current_thread().name, data))


_recorder: Recorder = _NullRecorder()


def span(name: str, **data: Any) -> AbstractContextManager[None]:
    """Mark the work done inside the ``with`` block."""
    return _recorder.span(name, data)


@contextmanager
def recording(recorder: Recorder) -> Iterator[None]:
    """Send every span of this process to `recorder` while the block runs.

    Examples
    --------
    >>> recorder = ListRecorder()
    >>> with recording(recorder):
    ...     with span("decode", rows=3):
    ...         pass
    >>> [(s.name, s.data) for s in recorder.spans]
    [('decode', {'rows': 3})]
    """
    global _recorder
    before, _recorder = _recorder, recorder
    try:
        yield
    finally:
        _recorder = before
