"""The last step, in the background: arrays of a batch become tensors of the backend."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import keras

from tabfeed.loader.assemble.chunk import Chunk
from tabfeed.loader.keras.backends import Tensors, device_scope
from tabfeed.loader.keras.fields import PARTS, Array, Cutter, Field, weights_of

__all__ = ["Finish"]


@dataclass(frozen=True)
class Finish:
    """Chunks to ``(dict of tensors, labels)`` of the backend.

    Attributes
    ----------
    fields
        The entries of a batch, labels last.
    cutter
        Gives the arrays of those entries that are not cut from whole buffers on the device.
    tensors
        Makes entries from them.
    labels
        How many of the entries are labels.
    device
        Where tensors shall be; None lets Keras decide.
    weights
        Of rows, by their label.
    """

    fields: tuple[Field, ...]
    cutter: Cutter
    tensors: Tensors
    labels: int
    device: str | None
    weights: Mapping[int, float] | None

    @property
    def asks(self) -> bool:
        """Whether it looks at values, and so would wait for a GPU."""
        return bool(self.cutter.limits)

    def __call__(self, chunk: Chunk) -> list[Any]:
        """The batches of a chunk."""
        with device_scope(self.device):
            cut = zip(self.cutter(chunk), self._from_buffers(chunk), strict=True)
            return [self._batch(arrays, ready) for arrays, ready in cut]

    def _from_buffers(self, chunk: Chunk) -> list[dict[str, Any]]:
        """For each batch the columns that are cut from buffers on the device, if any are."""
        groups = self.cutter.groups
        if self.tensors.columns is None or not groups:
            return [{} for _ in range(chunk.steps)]
        names = [name for group in groups for name in group.columns]
        matrices = [chunk.matrices[group.name] for group in groups]
        batches = self.tensors.columns(matrices, chunk.bounds.tolist())
        return [dict(zip(names, columns, strict=True)) for columns in batches]

    def _batch(self, arrays: Sequence[Array], ready: dict[str, Any]) -> Any:
        """One batch from the arrays that are left and the entries there are already."""
        made, at = self.tensors.put(arrays) if arrays else (), 0
        entries = {}
        for field in self.fields:
            if field.name in ready:
                entries[field.name] = ready[field.name]
            else:
                parts = PARTS[field.form]
                entries[field.name] = self.tensors.entry(field, made[at : at + parts])
                at += parts
        names = [field.name for field in self.fields[len(self.fields) - self.labels :]]
        labels = [entries.pop(name) for name in names]
        batch = (entries, _one_or_all(labels))
        return batch if self.weights is None else (*batch, self._weights(labels[-1]))

    def _weights(self, label: Any) -> Any:
        assert self.weights is not None  # asked for only where there are some
        if self.tensors.columns is not None:
            return _weights_there(label, self.weights)
        found = weights_of(keras.ops.convert_to_numpy(label), self.weights)
        return self.tensors.put([found])[0]


def _one_or_all(labels: list[Any]) -> Any:
    if not labels:
        return None
    return labels[0] if len(labels) == 1 else labels


def _weights_there(labels: Any, weights: Mapping[int, float]) -> Any:
    """The same as `weights_of`, on the device: to fetch labels from there would stop the model."""
    column = labels[:, 0]
    found, others = 0.0, 1.0
    for label, weight in weights.items():
        alike: Any = keras.ops.cast(column == label, "float32")
        found, others = found + alike * weight, others - alike
    return found + others if weights else keras.ops.ones_like(column)
