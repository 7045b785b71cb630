"""A callback for fastai.

The copy to the device counts as waiting, since fastai makes it before callbacks run.
"""

from __future__ import annotations

import warnings

from tabfeed.profile.collect.batches import EpochTimer
from tabfeed.profile.profiler import Profiler

# fastai uses deprecated names of torch, which users can't change
warnings.filterwarnings("ignore", category=DeprecationWarning, module=r"(fastai|torch)\b")
from fastai.callback.core import Callback  # type: ignore[import-untyped]  # noqa: E402

__all__ = ["ProfilerCallback"]


class ProfilerCallback(Callback):  # type: ignore[misc]
    """Profiles ``learn.fit``; only training, not validation.

    Parameters
    ----------
    profiler
        The profiler to use; a new one by default, as `callback.profiler`.
    """

    def __init__(self, profiler: Profiler | None = None) -> None:
        super().__init__()
        self.profiler = profiler or Profiler("fastai")
        self._epoch: EpochTimer | None = None

    def before_fit(self) -> None:
        """Start."""
        self.profiler.start()

    def before_train(self) -> None:
        """An epoch starts."""
        self._epoch = self.profiler.start_epoch(self.learn.dls.train)

    def before_batch(self) -> None:
        """A batch arrived."""
        if self._epoch is not None and self.learn.training:
            self._epoch.arrived((self.learn.xb, self.learn.yb))

    def after_batch(self) -> None:
        """The next batch is requested."""
        if self._epoch is not None and self.learn.training:
            self._epoch.requested()

    def after_train(self) -> None:
        """The epoch ends."""
        if self._epoch is not None:
            self._epoch.finish()

    def after_fit(self) -> None:
        """Stop."""
        self.profiler.stop()
