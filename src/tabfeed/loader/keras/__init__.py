"""Keras 3, on any backend: `KerasSequenceLoader` feeds ``model.fit``, ``evaluate`` and ``predict``.

The loader is two things to Keras. It is a `keras.utils.PyDataset`, so that ``loader[i]`` is batch
``i`` of the epoch and everything that knows such datasets knows this one. And it is a data adapter,
which gives Keras whole epochs in its backend's own way; that is the fast way, since batches then
come in the order they were planned and prepared in, while Keras takes single batches of a
`PyDataset`, in an order drawn by ``fit(shuffle=True)``. So the loader's own ``shuffle`` decides,
and that of ``fit`` changes nothing. What was given up: Keras does not pass ``class_weight`` to an
adapter; give it to the loader instead.

What a training step costs in the training thread is taking a finished batch from a list. Tensors
are made in the background: in place where the backend can use the array's memory, and on a GPU from
buffers copied whole; see `backends`. JAX compiles a step for each size of batch: ``drop_last=True``
or ``last="wrap"`` spares it a second time for a short last one.

An epoch begins with its first batch, not when an iterator is made: Keras makes one more iterator at
the end of each epoch than it uses.
"""

from __future__ import annotations

from tabfeed.errors import MissingExtraError

try:
    import keras  # noqa: F401
except ImportError as e:
    raise MissingExtraError("keras", "Keras loaders") from e

from tabfeed.loader.keras.sequence import KerasSequenceLoader, KerasSequenceValidater

__all__ = ["KerasSequenceLoader", "KerasSequenceValidater"]
