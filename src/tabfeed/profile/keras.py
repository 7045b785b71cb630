"""A callback for Keras 3, on any backend.

On the torch backend Keras takes a batch before it tells callbacks of the step, and waiting shows.
On TensorFlow and JAX the batch is taken inside the step: there the callback times whole steps, and
the input, if given as `data`, alone for a moment when training ends; the two are then compared.
"""

from __future__ import annotations

import time
from itertools import islice
from typing import Any

import keras

from tabfeed.profile.collect.batches import Pass
from tabfeed.profile.profiler import Profiler
from tabfeed.profile.run import Part

__all__ = ["ProfilerCallback"]

_BATCHES = 50
_SECONDS = 1.0


class ProfilerCallback(keras.callbacks.Callback):  # type: ignore[misc]
    """Profiles ``model.fit``.

    Parameters
    ----------
    profiler
        Where to keep what is seen; a new one by default, as `callback.profiler`.
    data
        What is given to `fit`, to be timed alone afterwards where waiting cannot be seen.
    """

    def __init__(self, profiler: Profiler | None = None, *, data: Any = None) -> None:
        super().__init__()
        self.profiler = profiler or Profiler("Keras")
        self._data = data
        self._pass: Pass | None = None
        self._asked = True

    def on_train_begin(self, logs: Any = None) -> None:
        """Begin."""
        self.profiler._waits_seen = keras.backend.backend() == "torch"
        self.profiler.start()

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """A pass begins."""
        source = self._data if self._data is not None else "Keras"
        self._pass = self.profiler._open_pass(source)
        self._asked = True

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        """A batch is there."""
        if self._pass is not None:
            self._pass.arrived(None)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """The next one is asked for."""
        if self._pass is not None:
            self._pass.asked()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """The pass is over."""
        if self._pass is not None:
            self._pass.finish()

    def on_train_end(self, logs: Any = None) -> None:
        """Stop, and time the input alone if that is what it takes."""
        self.profiler.stop()
        if not self.profiler._waits_seen and self._data is not None:
            each = _seconds_alone(self._data)
            if each is not None:
                self.profiler._parts = [Part("the input alone", "input", each)]


def _seconds_alone(data: Any) -> float | None:
    """Seconds a batch when nothing is trained."""
    start, count = time.perf_counter(), 0
    for _ in islice(iter(data), _BATCHES):
        count += 1
        if time.perf_counter() - start > _SECONDS:
            break
    return (time.perf_counter() - start) / count if count else None
