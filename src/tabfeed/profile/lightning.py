"""A callback for Lightning."""

from __future__ import annotations

from typing import Any

from lightning.pytorch.callbacks import Callback

from tabfeed.profile.collect.batches import EpochTimer
from tabfeed.profile.profiler import Profiler

__all__ = ["ProfilerCallback"]


class ProfilerCallback(Callback):
    """Profiles ``trainer.fit``.

    Parameters
    ----------
    profiler
        The profiler to use; a new one by default, as `callback.profiler`.
    """

    def __init__(self, profiler: Profiler | None = None) -> None:
        self.profiler = profiler or Profiler("Lightning")
        self._epoch: EpochTimer | None = None

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Start."""
        self.profiler.start()

    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        """An epoch starts."""
        self._epoch = self.profiler.start_epoch(trainer.train_dataloader)

    def on_train_batch_start(
        self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int
    ) -> None:
        """A batch arrived."""
        if self._epoch is not None:
            self._epoch.arrived(batch)

    def on_train_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """The next batch is requested."""
        if self._epoch is not None:
            self._epoch.requested()

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """The epoch ends."""
        if self._epoch is not None:
            self._epoch.finish()

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """Stop."""
        self.profiler.stop()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """Stop, and keep what was recorded until now."""
        self.profiler.stop()
