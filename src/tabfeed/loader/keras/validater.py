"""The callback that validates after each epoch."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np

__all__ = ["KerasSequenceValidater"]


class KerasSequenceValidater(keras.callbacks.Callback):  # type: ignore[misc,unused-ignore]
    """Evaluates the model on a loader after each epoch; the history then has ``val_*``.

    Metrics are reset before, and are afterwards as training left them.
    ``fit(validation_data=loader)`` does the same.

    Parameters
    ----------
    dataloader
        What to evaluate on: a `KerasSequenceLoader`, or anything else ``model.evaluate`` takes.
    """

    def __init__(self, dataloader: Any) -> None:
        super().__init__()
        self.dataloader = dataloader

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Evaluate, and add what came out to `logs`."""
        variables = [v for metric in self.model.metrics for v in metric.variables]
        kept = [np.array(keras.ops.convert_to_numpy(v)) for v in variables]
        found = self.model.evaluate(self.dataloader, verbose=0, return_dict=True)
        for variable, value in zip(variables, kept, strict=True):
            variable.assign(value)
        if logs is not None:
            logs.update({f"val_{name}": value for name, value in found.items()})
