"""The ceiling: the same step, again and again, on one batch that is already there.

No input can make training faster than that, so what a run got of it is a measurement, not an
opinion. The step is the user's own and does train: measure on a model that may be changed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from tabfeed.errors import ArgumentError
from tabfeed.profile.collect.accelerator import cuda_in_use
from tabfeed.profile.collect.batch_sizes import arrays_of, batch_rows
from tabfeed.profile.run import Ceiling

__all__ = ["halve", "measure"]

_WARM_UP = 3
_LEAST = 5


def measure(
    step: Callable[[Any], Any], batch: Any, *, seconds: float = 1.0, halves: bool = False
) -> Ceiling:
    """Time `step` on `batch` for about `seconds`; with `halves` on half of its rows too."""
    if not callable(step):
        raise ArgumentError(f"step must be a function of a batch, not {type(step).__name__}")
    if seconds <= 0:
        raise ArgumentError(f"seconds is {seconds!r}; it must be above 0")
    mean, steps = _time(step, batch, seconds)
    half = _time(step, halve(batch), seconds)[0] if halves else None
    return Ceiling(mean, batch_rows(batch), steps, half)


def _time(step: Callable[[Any], Any], batch: Any, limit: float) -> tuple[float, int]:
    for _ in range(_WARM_UP):
        _settle(step(batch))
    start, steps, spent = time.perf_counter(), 0, 0.0
    result = None
    while steps < _LEAST or spent < limit:
        result = step(batch)
        steps += 1
        spent = time.perf_counter() - start
    _settle(result)
    return (time.perf_counter() - start) / steps, steps


def _settle(result: Any) -> None:
    """Wait for work that was only begun."""
    cuda = cuda_in_use()
    if cuda is not None:
        cuda.synchronize()
    for _, array in arrays_of(result):
        wait = getattr(array, "block_until_ready", None)
        if wait is not None:
            wait()


def halve(batch: Any) -> Any:
    """The first half of a batch's rows.

    Examples
    --------
    >>> import numpy as np
    >>> halve({"x": np.arange(4), "y": [np.arange(4)]})
    {'x': array([0, 1]), 'y': [array([0, 1])]}
    """
    rows = batch_rows(batch)
    if rows is None or rows < 2:
        raise ArgumentError(f"a batch of {rows} rows cannot be halved; leave halves=False")
    return _first(batch, rows, rows // 2)


def _first(part: Any, rows: int, kept: int) -> Any:
    if hasattr(part, "shape") and hasattr(part, "dtype"):
        return part[:kept] if len(part.shape) and int(part.shape[0]) == rows else part
    if isinstance(part, Mapping):
        return {key: _first(value, rows, kept) for key, value in part.items()}
    if isinstance(part, list | tuple):
        values = [_first(value, rows, kept) for value in part]
        return type(part)(*values) if hasattr(part, "_fields") else type(part)(values)
    return part
