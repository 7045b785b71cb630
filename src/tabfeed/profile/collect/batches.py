"""The times of an epoch, as seen by the loop that requests batches.

Only two times per step are recorded: when a batch was requested and when it arrived. Between them
the loop waits; from the arrival to the next request it computes. So waiting and computing add up to
the whole epoch, to the nanosecond.

Nothing else is done in each step, since code that runs once between two long steps finds its caches
cold and costs ten times what a benchmark of it shows. Rows are counted in the first steps and in
every eighth after that; tabfeed's loaders know theirs.

To count rows and bytes of any framework's batches, the first batch is walked: dicts, lists and
tuples down to arrays, which are all objects with a shape and a dtype. From then on rows are read at
the same position, which costs well under a microsecond per step.
"""

from __future__ import annotations

import os
import threading
import time
from array import array
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from math import prod
from typing import Any

from tabfeed.profile.collect.processors import CudaMarks, RunDelay

OUTSIDE, WAIT, COMPUTE = 0, 1, 2
_clock = time.perf_counter_ns
_UNKNOWN = -1
_FIRST, _EVERY = 64, 8


class LoopPhase:
    """What the training thread is doing, and since when; read by the sampling thread."""

    def __init__(self) -> None:
        self.epochs: list[EpochTimer] = []  # in progress, the innermost last
        self.thread = threading.get_ident()

    def at(self, time: int | None = None) -> int:
        """The phase now, or at a `time` shortly before."""
        if not self.epochs:
            return OUTSIDE
        innermost = self.epochs[-1]
        ask, got = innermost.ask, innermost.got
        waits = len(ask) > len(got)
        since = ask[-1] if waits else got[-1]
        if time is not None and time < since:
            waits = not waits
        return WAIT if waits else COMPUTE


class EpochTimer:
    """The times of one epoch.

    Parameters
    ----------
    source
        What is iterated.
    phase
        Shared with the sampling thread.
    device
        Marks on the accelerator's timeline, if there is one.
    inner
        Whether another epoch is in progress in this thread, so that its steps are the ones to
        count.
    begin
        When it began, if not now.
    """

    def __init__(
        self,
        source: Any,
        phase: LoopPhase,
        device: CudaMarks | None = None,
        *,
        inner: bool = False,
        begin: int | None = None,
    ) -> None:
        self.source = source
        self.inner = inner
        self.phase = phase
        self.device = device
        self.ask, self.got = array("q"), array("q")
        self.sizes: list[tuple[int, int]] = []  # (rows, bytes) of the measured batches
        self.first_batch: Any = None
        self.thread = threading.get_ident()
        self._count = RowCounter()
        self._counted: list[int | None] = []
        self._state = state_of(source)
        self._rows_given = 0 if self._state is None else -int(self._state.rows_given)
        self._measure_at = 1  # the next step whose batch is measured
        self._delay = RunDelay()
        self.cpu = -self._core_time()
        self.begin = _clock() if begin is None else begin
        self.end = 0
        self.ask.append(self.begin)
        if device is not None:
            device.requested()
        phase.thread = self.thread
        phase.epochs.append(self)

    def requested(self) -> None:
        """The loop requests a batch, which ends the step before."""
        self.ask.append(_clock())
        if self.device is not None:
            self.device.requested()

    def arrived(self, batch: Any) -> None:
        """The batch arrived."""
        got = self.got
        got.append(_clock())
        if self.device is not None:
            self.device.got()
        if len(got) >= self._measure_at:
            self._measure(batch, len(got))

    def _measure(self, batch: Any, steps: int) -> None:
        rows = self._count(batch)
        self._counted.append(rows)
        self._measure_at = steps + (1 if steps < _FIRST else _EVERY)
        if steps & (steps - 1) == 0:  # 1, 2, 4, 8, ...
            self.sizes.append((rows or 0, batch_bytes(batch)))
            if steps == 1 and not self.inner:
                self.first_batch = batch

    @property
    def rows(self) -> int | None:
        """All rows delivered, an estimate for long epochs of other loaders; None if unknown."""
        if self._state is not None and self._rows_given > 0:
            return self._rows_given
        known = [n for n in self._counted if n is not None]
        if len(known) < len(self._counted) or not known:
            return None
        later = known[_FIRST:]
        beyond = len(self.got) - _FIRST
        return sum(known[:_FIRST]) + (round(sum(later) / len(later) * beyond) if later else 0)

    def finish(self) -> None:
        """End the epoch; may be called again, and at any time."""
        if self.end:
            return
        self.end = _clock()
        if self in self.phase.epochs:
            self.phase.epochs.remove(self)
        if self.device is not None:
            self.device.ended()
        if self._state is not None:
            self._rows_given += int(self._state.rows_given)
        if self.thread == threading.get_ident():
            self.cpu += self._core_time()
        else:
            self.cpu = _UNKNOWN  # ended by another thread, whose CPU clock is not this one's
        self._delay.close()

    def _core_time(self) -> int:
        """Nanoseconds this thread was on a core or waiting for one."""
        return time.thread_time_ns() + self._delay()


def state_of(source: Any) -> Any:
    """The state of a tabfeed loader, also inside a torch DataLoader; None for other loaders."""
    for holder in (source, getattr(source, "dataset", None)):
        for name in ("state", "_state"):
            state = getattr(holder, name, None)
            if hasattr(state, "rows_given") and hasattr(state, "pipeline"):
                return state
        if hasattr(holder, "rows_given") and hasattr(holder, "pipeline"):
            return holder
    return None


class WatchIterator:
    """Iterates over a source and times one epoch."""

    def __init__(self, source: Any, start_epoch: Callable[[Any], EpochTimer]) -> None:
        self._epoch = start_epoch(source)
        self._pid = os.getpid()
        self._requested = True
        self._request, self._arrived = self._epoch.requested, self._epoch.arrived
        try:
            self._iterator = iter(source)
            self._next = self._iterator.__next__
        except BaseException:
            self._epoch.finish()
            raise

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        if self._requested:
            self._requested = False
        else:
            self._request()
        try:
            batch = self._next()
        except BaseException:  # the end or an error: the epoch is over
            self._epoch.finish()
            raise
        self._arrived(batch)
        return batch

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name in ("_iterator", "_epoch"):
            raise AttributeError(name)
        return getattr(self._iterator, name)

    def close(self) -> None:
        """End the epoch, and close the underlying iterator if it can be closed."""
        self._epoch.finish()
        close = getattr(self._iterator, "close", None)
        if close is not None:
            close()

    def __del__(self) -> None:
        # After an early `break`. A forked child must not end its copy of the parent's epoch.
        if hasattr(self, "_epoch") and os.getpid() == getattr(self, "_pid", None):
            self._epoch.finish()


class Watch:
    """An iterable that behaves like its source and reports each step to the profiler.

    Other attributes are those of the source, so ``prof.watch(loader).dataset`` works.
    """

    def __init__(self, source: Any, start_epoch: Callable[[Any], EpochTimer]) -> None:
        self._source = source
        self.start_epoch = start_epoch

    def __iter__(self) -> WatchIterator:
        return WatchIterator(self._source, self.start_epoch)

    def __len__(self) -> int:
        return len(self._source)

    def __getattr__(self, name: str) -> Any:
        if name in ("_source", "start_epoch"):
            raise AttributeError(name)
        return getattr(self._source, name)


Path = tuple[Any, ...]
_RAGGED = ("__values", "__offsets")


def arrays_of(batch: Any, path: Path = ()) -> Iterator[tuple[Path, Any]]:
    """Every array in a batch, with the keys that lead to it.

    Examples
    --------
    >>> import numpy as np
    >>> [path for path, _ in arrays_of(({"x": np.zeros(2), "y": [np.zeros(3)]}, None))]
    [(0, 'x'), (0, 'y', 0)]
    """
    if hasattr(batch, "shape") and hasattr(batch, "dtype"):
        yield path, batch
    elif isinstance(batch, Mapping):
        for key, value in batch.items():
            yield from arrays_of(value, (*path, key))
    elif isinstance(batch, list | tuple):
        for index, value in enumerate(batch):
            yield from arrays_of(value, (*path, index))


def _row_path(batch: Any) -> Path | None:
    """Where to read the rows: the first array of the most common length."""
    lengths: dict[Path, int] = {}
    for path, leaf in arrays_of(batch):
        with suppress(TypeError, ValueError, IndexError):  # an unknown shape, or none
            if not _is_ragged(path):
                lengths[path] = int(leaf.shape[0])
    if not lengths:
        return None
    rows = Counter(lengths.values()).most_common(1)[0][0]
    return next(path for path, n in lengths.items() if n == rows)


def _is_ragged(path: Path) -> bool:
    return bool(path) and isinstance(path[-1], str) and path[-1].endswith(_RAGGED)


def batch_rows(batch: Any) -> int | None:
    """The rows of a batch; None if unknown.

    Examples
    --------
    >>> import numpy as np
    >>> batch_rows({"words__values": np.zeros(9), "x": np.zeros((4, 2)), "y": np.zeros(4)})
    4
    >>> batch_rows("abc") is None
    True
    """
    return RowCounter()(batch)


def batch_bytes(batch: Any) -> int:
    """The bytes of all arrays in a batch.

    Examples
    --------
    >>> import numpy as np
    >>> batch_bytes([np.zeros(4, np.float32), {"y": np.zeros(4, np.int8)}])
    20
    """
    return sum(_array_bytes(array) for _, array in arrays_of(batch))


def _array_bytes(array: Any) -> int:
    known = getattr(array, "nbytes", None)
    if isinstance(known, int):
        return known
    size: Any = getattr(array.dtype, "itemsize", None) or getattr(array.dtype, "size", 0)
    try:
        return prod(int(n) for n in array.shape) * int(size)
    except (TypeError, ValueError):
        return 0


class RowCounter:
    """Counts the rows of batch after batch; None if unknown."""

    def __init__(self) -> None:
        self._path: Path | None = None
        self._searched = False

    def __call__(self, batch: Any) -> int | None:
        """The rows of this batch."""
        if self._path is None and not self._searched:
            self._path, self._searched = _row_path(batch), True
        if self._path is None:
            return None
        try:
            for key in self._path:
                batch = batch[key]
            return int(batch.shape[0])
        except (AttributeError, IndexError, KeyError, TypeError, ValueError):
            self._path, self._searched = None, False  # the structure changed: search again
            return None
