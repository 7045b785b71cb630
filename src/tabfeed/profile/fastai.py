"""A callback for fastai.

The copy to the device counts as waiting, since fastai makes it before callbacks hear of the batch.
"""

from __future__ import annotations

import warnings

from tabfeed.profile.collect.batches import Pass
from tabfeed.profile.profiler import Profiler

# fastai's, of torch: not the user's to mend
warnings.filterwarnings("ignore", category=DeprecationWarning, module=r"(fastai|torch)\b")
from fastai.callback.core import Callback  # type: ignore[import-untyped]  # noqa: E402

__all__ = ["ProfilerCallback"]


class ProfilerCallback(Callback):  # type: ignore[misc]
    """Profiles ``learn.fit``; only training, not validation.

    Parameters
    ----------
    profiler
        Where to keep what is seen; a new one by default, as `callback.profiler`.
    """

    def __init__(self, profiler: Profiler | None = None) -> None:
        super().__init__()
        self.profiler = profiler or Profiler("fastai")
        self._pass: Pass | None = None

    def before_fit(self) -> None:
        """Begin."""
        self.profiler.start()

    def before_train(self) -> None:
        """A pass begins."""
        self._pass = self.profiler._open_pass(self.learn.dls.train)

    def before_batch(self) -> None:
        """A batch is there."""
        if self._pass is not None and self.learn.training:
            self._pass.arrived((self.learn.xb, self.learn.yb))

    def after_batch(self) -> None:
        """The next one is asked for."""
        if self._pass is not None and self.learn.training:
            self._pass.asked()

    def after_train(self) -> None:
        """The pass is over."""
        if self._pass is not None:
            self._pass.finish()

    def after_fit(self) -> None:
        """Stop."""
        self.profiler.stop()
