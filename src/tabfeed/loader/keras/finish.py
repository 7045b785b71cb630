"""The last step, in the background: arrays of a batch become tensors of the backend."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import keras
import numpy as np

from tabfeed.loader.chunk import Chunk
from tabfeed.loader.keras_fields import PARTS, Array, Cutter, Field
from tabfeed.trace import span

__all__ = ["Finish", "FinishOnDevice", "find_converter", "on_accelerator", "weights_of"]


@dataclass(frozen=True)
class Finish:
    """Chunks to ``(dict of tensors, labels)`` of the backend.

    Attributes
    ----------
    cutter
        Gives the arrays of each batch.
    convert
        Makes an entry from its arrays.
    labels
        How many of the entries, from the last, are labels.
    device
        Where tensors shall be; None lets Keras decide.
    weights
        Of rows, by their label.
    """

    cutter: Cutter
    convert: Callable[[Field, Sequence[Array]], Any]
    labels: int
    device: str | None
    weights: Mapping[int, float] | None

    def __call__(self, chunk: Chunk) -> list[Any]:
        """The batches of a chunk."""
        with device_scope(self.device):
            return [self._batch(arrays) for arrays in self.cutter(chunk)]

    def _batch(self, arrays: Sequence[Array]) -> Any:
        entries: list[Any] = []
        at = 0
        for field in self.cutter.fields:
            parts = arrays[at : at + PARTS[field.form]]
            entries.append(self.convert(field, parts))
            at += len(parts)
        return self._assemble(entries, arrays[-1])

    def _assemble(self, entries: Sequence[Any], last: Array) -> Any:
        """One batch from its entries and the array of its last label."""
        inputs = len(entries) - self.labels
        names = [field.name for field in self.cutter.fields[:inputs]]
        x, y = dict(zip(names, entries, strict=False)), list(entries[inputs:])
        batch = (x, _one_or_all(y))
        if self.weights is None:
            return batch
        return (*batch, keras.ops.convert_to_tensor(weights_of(last, self.weights)))


@dataclass(frozen=True)
class FinishOnDevice(Finish):
    """The same, where tensors do not lie in the computer's own memory.

    Each buffer of a chunk is copied whole, and its columns are cut on the device: forty small
    copies a batch would take longer than the model's step.
    """

    def __call__(self, chunk: Chunk) -> list[Any]:
        """The batches of a chunk."""
        with device_scope(self.device):
            columns = self._columns(chunk)
            cut = pairwise(chunk.bounds.tolist())
            return [
                self._on_device(arrays, columns, low, high)
                for arrays, (low, high) in zip(self.cutter(chunk), cut, strict=True)
            ]

    def _columns(self, chunk: Chunk) -> dict[str, Any]:
        """Scalar columns ``(rows, 1)`` on the device."""
        found: dict[str, Any] = {}
        for group in self.cutter.groups:
            with span("copy", rows=chunk.rows):
                whole = keras.ops.convert_to_tensor(chunk.matrices[group.name][:, :, None])
            found.update(zip(group.columns, keras.ops.unstack(whole, axis=0), strict=True))
        return found

    def _on_device(
        self, arrays: Sequence[Array], columns: Mapping[str, Any], low: int, high: int
    ) -> Any:
        entries: list[Any] = []
        at = 0
        for field in self.cutter.fields:
            parts = arrays[at : at + PARTS[field.form]]
            at += len(parts)
            if field.form == "scalar":
                entries.append(keras.ops.slice(columns[field.name], (low, 0), (high - low, 1)))
            else:
                entries.append(self.convert(field, parts))
        return self._assemble(entries, arrays[-1])


def device_scope(device: str | None) -> Any:
    """Where Keras makes tensors, inside a ``with``."""
    return nullcontext() if device is None else keras.device(device)


def _lies_in(device: str | None) -> str:
    """The device of tensors that Keras makes for `device`, in the backend's words."""
    with device_scope(device):
        tensor = keras.ops.convert_to_tensor(np.zeros(1, np.float32))
    return str(getattr(tensor, "device", "cpu")).lower()


def on_accelerator(device: str | None) -> bool:
    """Whether buffers should travel whole: to a GPU of torch, where a column is a free view.

    TensorFlow copies what a step needs itself. JAX makes a call of each cut, and is slower so.
    """
    return keras.backend.backend() == "torch" and "cpu" not in _lies_in(device)


def _one_or_all(labels: list[Any]) -> Any:
    if not labels:
        return None
    return labels[0] if len(labels) == 1 else labels


def weights_of(labels: Array, weights: Mapping[int, float]) -> Array:
    """The weight of each row by its label; a label without one weighs 1."""
    out = np.ones(len(labels), np.float32)
    for label, weight in weights.items():
        out[labels[:, 0] == label] = weight
    return out


def find_converter(device: str | None) -> Callable[[Field, Sequence[Array]], Any]:
    """What makes an entry of a batch from its arrays, on Keras's backend."""
    backend = keras.backend.backend()
    if backend == "tensorflow":
        from tabfeed.loader.tensorflow.tensors import to_device, to_tensor

        return to_tensor if device is None else to_device
    if backend == "torch" and "cpu" in _lies_in(device):
        return _to_torch()
    return _to_native


def _to_torch() -> Callable[[Field, Sequence[Array]], Any]:
    """The arrays' own memory; a hundred times quicker than Keras's own conversion."""
    from tabfeed.loader.torch.cut import as_tensor, choose_device

    cpu = choose_device("cpu")

    def convert(field: Field, parts: Sequence[Array]) -> Any:
        tensors = tuple(as_tensor(part, cpu) for part in parts)
        return tensors if len(tensors) > 1 else tensors[0]

    return convert


def _to_native(field: Field, parts: Sequence[Array]) -> Any:
    tensors = tuple(keras.ops.convert_to_tensor(part) for part in parts)
    return tensors if len(tensors) > 1 else tensors[0]
