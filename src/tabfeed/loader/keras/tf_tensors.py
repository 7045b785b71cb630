"""Arrays as tensors, in their own memory where TensorFlow can use it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tabfeed.loader.keras.fields import Array, Field

__all__ = ["as_tensor", "build_entry", "put", "put_on_device"]

_ALIGNMENT = 64


def as_tensor(array: Array) -> tf.Tensor:
    """The array's own memory as a tensor, where TensorFlow can use it; a copy otherwise."""
    shareable = array.size and array.flags.c_contiguous and array.flags.writeable
    if shareable and array.ctypes.data % _ALIGNMENT == 0:
        return tf.experimental.dlpack.from_dlpack(array.__dlpack__())
    return tf.convert_to_tensor(array)


def put(arrays: Sequence[Array]) -> list[tf.Tensor]:
    """Arrays as tensors."""
    return [as_tensor(array) for array in arrays]


def put_on_device(arrays: Sequence[Array]) -> list[tf.Tensor]:
    """The same, on the device of the scope it is called in."""
    return [tf.identity(as_tensor(array)) for array in arrays]


def build_entry(field: Field, parts: Sequence[Any]) -> Any:
    """The tensor of a field from those it is made of."""
    if field.form == "ragged":
        return tf.RaggedTensor.from_row_splits(parts[0], parts[1], validate=False)
    if field.form == "sparse":
        return tf.SparseTensor(*parts)
    return tuple(parts) if field.form == "pair" else parts[0]
