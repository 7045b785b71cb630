"""The last step, in the background: arrays of a batch become tensors of the backend."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tabfeed.loader.chunk import Chunk
from tabfeed.loader.keras.backends import Tensors, device_scope
from tabfeed.loader.keras_fields import PARTS, Array, Cutter

__all__ = ["Finish", "weights_of"]


@dataclass(frozen=True)
class Finish:
    """Chunks to ``(dict of tensors, labels)`` of the backend.

    Attributes
    ----------
    cutter
        Gives the arrays of each batch.
    tensors
        Makes entries from them.
    labels
        How many of the entries, from the last, are labels.
    device
        Where tensors shall be; None lets Keras decide.
    weights
        Of rows, by their label.
    """

    cutter: Cutter
    tensors: Tensors
    labels: int
    device: str | None
    weights: Mapping[int, float] | None

    def __call__(self, chunk: Chunk) -> list[Any]:
        """The batches of a chunk."""
        with device_scope(self.device):
            cut = zip(self.cutter(chunk), self._from_buffers(chunk), strict=True)
            return [self._batch(arrays, ready) for arrays, ready in cut]

    def _from_buffers(self, chunk: Chunk) -> list[dict[str, Any]]:
        """For each batch the columns that are cut from buffers on the device, if any are."""
        found: list[dict[str, Any]] = [{} for _ in range(chunk.steps)]
        if self.tensors.columns is None:
            return found
        bounds = tuple(chunk.bounds.tolist())
        for group in self.cutter.groups:
            batches = self.tensors.columns(chunk.matrices[group.name], bounds)
            for ready, columns in zip(found, batches, strict=True):
                ready.update(zip(group.columns, columns, strict=True))
        return found

    def _batch(self, arrays: Sequence[Array], ready: dict[str, Any]) -> Any:
        """One batch from all its arrays and the entries there are already."""
        todo, at = [], 0
        for field in self.cutter.fields:
            parts = PARTS[field.form]
            if field.name not in ready:
                todo += arrays[at : at + parts]
            at += parts
        if self.weights is not None:
            todo.append(weights_of(arrays[-1], self.weights))
        made = self.tensors.put(todo)
        batch = self._assemble(made, ready)
        return batch if self.weights is None else (*batch, made[-1])

    def _assemble(self, made: Sequence[Any], ready: dict[str, Any]) -> tuple[Any, Any]:
        entries, at = {}, 0
        for field in self.cutter.fields:
            if field.name in ready:
                entries[field.name] = ready[field.name]
            else:
                parts = PARTS[field.form]
                entries[field.name] = self.tensors.entry(field, made[at : at + parts])
                at += parts
        names = [field.name for field in self.cutter.fields]
        labels = [entries.pop(name) for name in names[len(names) - self.labels :]]
        return entries, _one_or_all(labels)


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
