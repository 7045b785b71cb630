"""How arrays become tensors on each of Keras's backends, and on which device.

In host memory a tensor uses the array's memory, column by column: that costs a few microseconds
each, and `JAX` takes a whole batch in one call. On another device each buffer of a chunk is copied
whole, and columns are cut from it there: forty small copies a batch would take longer than the
model's step. torch cuts by views, from chunks that were put together on the GPU if they can be; for
JAX the cut of a batch is one compiled call. `Finish` does it, in the background.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np

from tabfeed.errors import ArgumentError, LoaderError
from tabfeed.loader.assemble.chunk import Chunk
from tabfeed.loader.keras.fields import Array, Cutter, Field, make_entries, weights_of
from tabfeed.loader.options import GpuOptions
from tabfeed.loader.pipeline import Pipeline

__all__ = ["Finish", "Tensors", "device_scope", "find_device", "find_tensors"]


# "gpu", "GPU:1", and as TensorFlow has them "/device:GPU:1", "/job:worker/task:0/device:GPU:1"
_NAME = re.compile(r"(?:.*/)?(?:device:)?(?P<kind>[a-z]\w*)(?::(?P<number>\d+))?", re.ASCII)


def as_entry(field: Field, tensors: Sequence[Any]) -> Any:
    """An entry of a batch: its tensor, or all of them."""
    return tensors[0] if len(tensors) == 1 else tuple(tensors)


@dataclass(frozen=True)
class Tensors:
    """From arrays to entries of a batch.

    Attributes
    ----------
    put
        The tensors of arrays.
    entry
        The entry of a field from the tensors it is made of.
    columns
        Where buffers travel whole: from those of a chunk, ``(columns, rows)``, and the bounds of
        its batches, for each batch the columns of all of them, ``(rows, 1)``.
    on_device
        Gives a pipeline whose chunks are made on the device, where that is possible.
    """

    put: Callable[[Sequence[Array]], Sequence[Any]]
    entry: Callable[[Field, Sequence[Any]], Any] = as_entry
    columns: Callable[[Sequence[Array], Sequence[int]], Sequence[Sequence[Any]]] | None = None
    on_device: Callable[[Pipeline[Any]], Pipeline[Any]] = lambda pipeline: pipeline


def find_device(device: Any) -> str | None:
    """The device a user means, as Keras calls it: one by its name, or a GPU by its number.

    None lets Keras decide.
    """
    if device is None:
        return None
    if not _NAME.fullmatch(_name(device)):
        raise ArgumentError(f'device is {device!r}; give "cpu", "gpu", "gpu:1" or a GPU\'s number')
    given = device if isinstance(device, str) else int(device)
    return _FINDERS.get(keras.backend.backend(), _name)(given)


def device_scope(device: str | None) -> Any:
    """Where Keras makes tensors, inside a ``with``."""
    return nullcontext() if device is None else keras.device(device)


def _lies_in(device: str | None) -> str:
    """The device of tensors that Keras makes for `device`, in the backend's words."""
    with device_scope(device):
        tensor = keras.ops.convert_to_tensor(np.zeros(1, np.float32))
    return str(getattr(tensor, "device", "cpu")).lower()


def on_cpu(device: str | None) -> bool:
    """Whether the model computes on the same cores that prepare its batches."""
    return "cpu" in _lies_in(device)


def find_tensors(device: str | None, options: GpuOptions) -> Tensors:
    """How tensors are made on Keras's backend, and on a GPU as `options` say."""
    return _KINDS.get(keras.backend.backend(), _any)(device, options)


# -- which device is meant ------------------------------------------------------------------


def _name(device: int | str) -> str:
    return device.lower() if isinstance(device, str) else f"gpu:{device}"


def _on_tensorflow(device: int | str) -> str:
    """TensorFlow itself would take the CPU for what is not there."""
    found = _NAME.fullmatch(_name(device))
    assert found is not None  # checked by `find_device`
    there = keras.distribution.list_devices(found["kind"])
    if not there:
        known = [kind for kind in ("cpu", "gpu", "tpu") if keras.distribution.list_devices(kind)]
        raise LoaderError(
            f"device is {device!r}, but TensorFlow finds none of that kind here, only "
            f"{', '.join(known)}"
        )
    if int(found["number"] or 0) >= len(there):
        raise LoaderError(
            f"device is {device!r}, but there are {len(there)} of that kind, from 0 on"
        )
    return device if isinstance(device, str) else _name(device)


def _on_torch(device: int | str) -> str:
    from tabfeed.loader.tensors.device import check_device, choose_device

    found = choose_device(_name(device).replace("gpu", "cuda"))
    if found.type == "cuda":
        check_device(found)
    try:
        _lies_in(str(found))
    except Exception as e:  # of any type: each kind of device has its own
        raise LoaderError(f"device is {device!r}, but torch cannot use such a device here") from e
    return str(found)


def _on_jax(device: int | str) -> str:
    from tabfeed.loader.jax.transfer import find_device as find

    found = find(_name(device) if isinstance(device, str) else device)
    return f"{found.platform}:{found.id}"


# -- how tensors are made there -------------------------------------------------------------


def _tensorflow(device: str | None, _: GpuOptions) -> Tensors:
    """TensorFlow copies to a GPU what a step needs itself."""
    from tabfeed.loader.keras.tf_data import build_entry, put, put_on_device

    return Tensors(put if device is None else put_on_device, build_entry)


def _torch(device: str | None, options: GpuOptions) -> Tensors:
    from tabfeed.loader.tensors.device import TorchTransfer

    transfer = TorchTransfer(_lies_in(device))

    def put(arrays: Sequence[Array]) -> Sequence[Any]:
        return [transfer(array) for array in arrays]

    def made_there(pipeline: Pipeline[Any]) -> Pipeline[Any]:
        from tabfeed.loader.gpu.build import gpu_pipeline

        parts = (pipeline.stages, pipeline.plan, pipeline.options)
        return gpu_pipeline(*parts, device=transfer.device, gpu=options)

    if transfer.device.type == "cpu":
        return Tensors(put)
    if transfer.device.type != "cuda":
        return Tensors(put, columns=transfer.columns)
    return Tensors(put, columns=transfer.columns, on_device=made_there)


def _jax(device: str | None, options: GpuOptions) -> Tensors:
    from tabfeed.loader.jax.device_chunks import on_device
    from tabfeed.loader.jax.transfer import JaxTransfer

    transfer = JaxTransfer(column=(1,))  # to where Keras makes tensors: `Finish` sees to that

    def made_there(pipeline: Pipeline[Any]) -> Pipeline[Any]:
        with device_scope(device):
            groups = pipeline.stages.finish.cutter.groups  # type: ignore[attr-defined]
            return on_device(pipeline, transfer, groups, options)

    if on_cpu(device):
        return Tensors(transfer)
    return Tensors(transfer, columns=transfer.columns, on_device=made_there)


def _any(device: str | None, _: GpuOptions) -> Tensors:
    def put(arrays: Sequence[Array]) -> Sequence[Any]:
        return [keras.ops.convert_to_tensor(array) for array in arrays]

    return Tensors(put)


_FINDERS = {"tensorflow": _on_tensorflow, "torch": _on_torch, "jax": _on_jax}
_KINDS = {"tensorflow": _tensorflow, "torch": _torch, "jax": _jax}


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
        The device of the tensors; None lets Keras decide.
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
        made = self.tensors.put(arrays) if arrays else ()
        entries = make_entries(self.fields, made, self.tensors.entry, ready)
        names = [field.name for field in self.fields[len(self.fields) - self.labels :]]
        labels = [entries.pop(name) for name in names]
        batch = (entries, (labels or [None])[0] if len(labels) < 2 else labels)
        if self.weights is None:
            return batch
        if self.tensors.columns is not None:
            return (*batch, _weights_there(labels[-1], self.weights))
        weights = weights_of(keras.ops.convert_to_numpy(labels[-1]), self.weights)
        return (*batch, self.tensors.put([weights])[0])


def _weights_there(labels: Any, weights: Mapping[int, float]) -> Any:
    """The same as `weights_of`, on the device: to fetch labels from there would stop the model."""
    column = labels[:, 0]
    found, others = 0.0, 1.0
    for label, weight in weights.items():
        alike: Any = keras.ops.cast(column == label, "float32")
        found, others = found + alike * weight, others - alike
    return found + others if weights else keras.ops.ones_like(column)
