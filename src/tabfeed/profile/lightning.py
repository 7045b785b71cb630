"""A callback for Lightning."""

from __future__ import annotations

from typing import Any

from lightning.pytorch.callbacks import Callback

from tabfeed.profile.collect.batches import Pass
from tabfeed.profile.profiler import Profiler

__all__ = ["ProfilerCallback"]


class ProfilerCallback(Callback):
    """Profiles ``trainer.fit``.

    Parameters
    ----------
    profiler
        Where to keep what is seen; a new one by default, as `callback.profiler`.
    """

    def __init__(self, profiler: Profiler | None = None) -> None:
        self.profiler = profiler or Profiler("Lightning")
        self._pass: Pass | None = None

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Begin."""
        self.profiler.start()

    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        """A pass begins."""
        self._pass = self.profiler._open_pass(trainer.train_dataloader)

    def on_train_batch_start(
        self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int
    ) -> None:
        """A batch is there."""
        if self._pass is not None:
            self._pass.arrived(batch)

    def on_train_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """The next one is asked for."""
        if self._pass is not None:
            self._pass.asked()

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """The pass is over."""
        if self._pass is not None:
            self._pass.finish()

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """Stop."""
        self.profiler.stop()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """Stop; what was seen until now is kept."""
        self.profiler.stop()
