"""What `fit`, `evaluate` or `predict` was called with, for a loader that Keras asks for batches.

Keras takes the loader as a data adapter, and passes neither the model nor ``class_weight`` and
``sample_weight`` to an adapter. Weights would be ignored without a word, and several labels would
be paired with outputs in the order of their sorted names. Keras has no public way to these,
so they are read from the frame of the running method.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any

import keras

from tabfeed.errors import ArgumentError

__all__ = ["labels_by_name"]

_METHODS = ("fit", "evaluate", "predict")


def labels_by_name(loader: Any, labels: Sequence[str]) -> bool:
    """Whether the running `fit` or `evaluate` takes labels as a dict by name.

    Refuses weights that Keras would ignore, and labels that no output is named for.
    """
    call = _running_call()
    if call is None:
        return False
    if call.get("x") is loader:
        _refuse_weights(call)
    return len(labels) > 1 and _has_outputs_named(call["self"], labels)


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


def _refuse_weights(call: Mapping[str, Any]) -> None:
    if call.get("class_weight") is not None:
        raise ArgumentError(
            "fit(class_weight=...) does not reach a loader; give it to the loader: "
            "KerasSequenceLoader(..., class_weight={0: 1.0, 1: 5.0})"
        )
    if call.get("sample_weight") is not None:
        raise ArgumentError(
            "sample_weight= does not reach a loader; give class_weight= to KerasSequenceLoader, or "
            "on TensorFlow add weights with loader.as_tf_dataset().map(...)"
        )


def _has_outputs_named(model: Any, labels: Sequence[str]) -> bool:
    """Whether each label is the name of an output.

    A functional model knows its outputs. Of others only a dict of losses says their names.
    """
    names = getattr(model, "output_names", None)
    if names is None:
        loss = getattr(model, "loss", None)
        return isinstance(loss, dict) and set(labels) <= set(loss)
    if not isinstance(model.output, dict):
        return set(labels) == set(names)
    if not set(labels) <= set(model.output):
        raise ArgumentError(
            f"the model's outputs are {', '.join(model.output)}, the loader's labels "
            f"{', '.join(labels)}; name outputs as the labels are, so that they can be paired"
        )
    return True
