"""TensorFlow: Keras's loader, NumPy arrays as tensors without a copy, and `tf.data`.

Set ``TF_MEMORY_ALLOCATION`` before importing this to limit TensorFlow's share of the GPU:
``"8192"`` is megabytes, ``"0.5"`` a share of the memory that is free.

Two ways lead from a batch's arrays to tensors. A loop over the loader gets tensors made through
DLPack, in the background. An epoch that TensorFlow runs itself (``fit``, `as_tf_dataset`) gets the
arrays through a `tf.numpy_function`, which uses their memory; only a small number per batch goes
through the slower `Dataset.from_generator`, which knows when an iterator is gone. Both copy only
arrays that do not begin at a multiple of 64 bytes: TensorFlow ends the process on such a tensor.
"""

from __future__ import annotations

import os
import warnings

from tabfeed.budget import gpu_memory
from tabfeed.errors import ArgumentError, MissingExtraError, TabfeedWarning

try:
    import tensorflow as tf
except ImportError as e:
    raise MissingExtraError("tensorflow", "TensorFlow loaders") from e

__all__ = ["KerasSequenceLoader", "KerasSequenceValidater", "configure_tensorflow"]


def configure_tensorflow(memory_allocation: float | str | None = None, device: int = 0) -> None:
    """Limit TensorFlow's share of a GPU; without a GPU nothing happens.

    Parameters
    ----------
    memory_allocation
        Megabytes, or a share of the free memory up to 1; by default what the environment variable
        ``TF_MEMORY_ALLOCATION`` says, and no limit if it says nothing.
    device
        Which GPU.
    """
    given = (
        os.environ.get("TF_MEMORY_ALLOCATION") if memory_allocation is None else memory_allocation
    )
    if given is None:
        return
    amount = _amount(given)
    gpus = tf.config.list_physical_devices("GPU")
    if device >= len(gpus):
        return
    try:
        tf.config.set_logical_device_configuration(
            gpus[device],
            [tf.config.LogicalDeviceConfiguration(memory_limit=_megabytes(amount, device))],
        )
    except RuntimeError:
        warnings.warn(
            f"TF_MEMORY_ALLOCATION is {given!r}, but TensorFlow has started and taken the GPU's "
            "memory already: set it and import tabfeed.loader.tensorflow before the first tensor",
            TabfeedWarning,
            stacklevel=2,
        )


def _amount(given: float | str) -> float:
    try:
        amount = float(given)
    except ValueError:
        amount = 0.0
    if amount <= 0:
        raise ArgumentError(
            f"TF_MEMORY_ALLOCATION is {given!r}; it must be megabytes (8192) or a share of the "
            "free memory (0.5)"
        )
    return amount


def _megabytes(amount: float, device: int) -> int:
    if amount > 1:
        return int(amount)
    memory = gpu_memory(device)
    if memory is None:
        raise ArgumentError(
            f"TF_MEMORY_ALLOCATION is a share, {amount}, but the driver does not say how much "
            "memory is free; give megabytes"
        )
    return max(1, int(amount * memory.free) // 2**20)


configure_tensorflow()  # first: what comes next may start TensorFlow one day

from tabfeed.loader.keras import KerasSequenceLoader, KerasSequenceValidater  # noqa: E402
