"""A callback for Keras 3, on any backend.

On the torch backend Keras fetches a batch before it calls the callbacks of the step, so waits are
visible. On TensorFlow and JAX it fetches the batch inside the step. There the callback times whole
steps and, if given `data`, the input alone for a moment after training, and compares the two.
"""

from __future__ import annotations

import time
from itertools import islice
from typing import Any

import keras

from tabfeed.profile.collect.batches import EpochTimer
from tabfeed.profile.profiler import Profiler
from tabfeed.profile.run import TimedPart

__all__ = ["ProfilerCallback"]

_BATCHES = 50
_SECONDS = 1.0


class ProfilerCallback(keras.callbacks.Callback):  # type: ignore[misc]
    """Profiles ``model.fit``.

    Parameters
    ----------
    profiler
        The profiler to use; a new one by default, as `callback.profiler`.
    data
        The input given to `fit`, to time it alone afterwards where waits are not visible.
    """

    def __init__(self, profiler: Profiler | None = None, *, data: Any = None) -> None:
        super().__init__()
        self.profiler = profiler or Profiler("Keras")
        self._data = data
        self._epoch: EpochTimer | None = None

    def on_train_begin(self, logs: Any = None) -> None:
        """Start."""
        self.profiler.waits_seen = keras.backend.backend() == "torch"
        self.profiler.start()

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """An epoch starts."""
        source = self._data if self._data is not None else "Keras"
        self._epoch = self.profiler.start_epoch(source)

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        """A batch arrived."""
        if self._epoch is not None:
            self._epoch.arrived(None)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """The next batch is requested."""
        if self._epoch is not None:
            self._epoch.requested()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """The epoch ends."""
        if self._epoch is not None:
            self._epoch.finish()

    def on_train_end(self, logs: Any = None) -> None:
        """Stop, and time the input alone if waits are not visible."""
        self.profiler.stop()
        if not self.profiler.waits_seen and self._data is not None:
            each = _seconds_alone(self._data)
            if each is not None:
                self.profiler.parts = [TimedPart("the input alone", "input", each)]


def _seconds_alone(data: Any) -> float | None:
    """Seconds per batch without training."""
    start, count = time.perf_counter(), 0
    for _ in islice(iter(data), _BATCHES):
        count += 1
        if time.perf_counter() - start > _SECONDS:
            break
    return (time.perf_counter() - start) / count if count else None
