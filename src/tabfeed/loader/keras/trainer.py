"""What `fit`, `evaluate` or `predict` was called with, and a callback that validates.

Keras takes the loader as a data adapter, and passes neither the model nor ``class_weight`` and
``sample_weight`` to an adapter. Weights would be ignored silently, and several labels would be
paired with outputs in the order of their sorted names. Keras has no public way to these, so
`labels_by_name` reads them from the frame of the running method.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Mapping, MutableMapping, Sequence
from contextlib import nullcontext
from typing import Any

import keras
import numpy as np

from tabfeed.errors import ArgumentError

__all__ = ["KerasSequenceValidater", "labels_by_name"]


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


_METHODS = ("fit", "evaluate", "predict")
_dict_keys: MutableMapping[Any, tuple[str, ...]] = weakref.WeakKeyDictionary()


def labels_by_name(loader: Any, labels: Sequence[str]) -> bool:
    """Whether the running `fit` or `evaluate` takes labels as a dict by name.

    Refuses arguments that Keras would ignore, and labels that no output is named for.
    """
    call = _running_call()
    if call is None or "y" not in call:  # predict takes no labels
        return False
    for prefix in ("", "val_"):
        if call.get(f"{prefix}x") is loader:
            _refuse_ignored(call, prefix)
    return len(labels) > 1 and _has_outputs_named(call["self"], loader, labels)


def _running_call() -> Mapping[str, Any] | None:
    """The arguments of the innermost `fit`, `evaluate` or `predict` of a model."""
    frame = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_name in _METHODS:
            found = frame.f_locals
            if isinstance(found.get("self"), keras.Model):
                return dict(found)
        if frame.f_back is None:
            return None
        frame = frame.f_back


def _refuse_ignored(call: Mapping[str, Any], prefix: str) -> None:
    """Refuse what was given beside the loader; `prefix` tells validation data apart in `fit`."""
    if call.get(f"{prefix}y") is not None:
        raise ArgumentError(
            "y= does not reach a loader; give it the columns of the labels: "
            'KerasSequenceLoader(..., label_names=["click"])'
        )
    if not prefix and call.get("class_weight") is not None:
        raise ArgumentError(
            "fit(class_weight=...) does not reach a loader; give it to the loader: "
            "KerasSequenceLoader(..., class_weight={0: 1.0, 1: 5.0})"
        )
    if call.get(f"{prefix}sample_weight") is not None:
        raise ArgumentError(
            "sample_weight= does not reach a loader; give class_weight= to KerasSequenceLoader, or "
            "on TensorFlow add weights with loader.as_tf_dataset().map(...)"
        )


def _has_outputs_named(model: Any, loader: Any, labels: Sequence[str]) -> bool:
    """Whether each label is the name of an output.

    A model without a loss pairs labels and outputs in code of its own.
    """
    names = getattr(model, "output_names", None)
    if names is not None and not isinstance(model.output, dict):
        return set(labels) == set(names)
    if names is None and getattr(model, "loss", None) is None:
        return False
    keys = _keys_by_running(model, loader) if names is None else tuple(model.output)
    if keys and not set(labels) <= set(keys):
        raise ArgumentError(
            f"the model's outputs are {', '.join(keys)}, the loader's labels "
            f"{', '.join(labels)}; name outputs as the labels are, so that they can be paired"
        )
    return bool(keys)


def _keys_by_running(model: Any, loader: Any) -> tuple[str, ...]:
    """The keys of a model's outputs; none if they are no dict.

    Only a functional model knows its outputs before it runs, so others run once, on one batch.
    """
    if model not in _dict_keys:
        strategy = getattr(model, "distribute_strategy", None)  # variables belong to it
        with strategy.scope() if strategy else nullcontext():
            outputs = model(loader.peek()[0], training=False)
        _dict_keys[model] = tuple(outputs) if isinstance(outputs, dict) else ()
    return _dict_keys[model]
