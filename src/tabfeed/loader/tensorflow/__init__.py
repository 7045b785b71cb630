"""TensorFlow: Keras's loader, NumPy arrays as tensors without a copy, and `tf.data`.

Set ``TF_MEMORY_ALLOCATION`` before importing this to limit TensorFlow's share of the GPU:
``"8192"`` is megabytes, ``"0.5"`` a share of the memory that is free.

Two ways lead from a batch's arrays to tensors. A loop over the loader gets tensors made through
DLPack, in the background. A pass that TensorFlow runs itself (``fit``, `as_tf_dataset`) hands the
arrays to a `tf.numpy_function`, which takes their memory over; only a small number per batch goes
through the slower `Dataset.from_generator`, which knows when an iterator is gone. Both copy only
what does not begin at a multiple of 64 bytes: TensorFlow ends the process on a tensor that does
not.
"""

from __future__ import annotations

from tabfeed.errors import MissingExtraError

try:
    import tensorflow  # noqa: F401
except ImportError as e:
    raise MissingExtraError("tensorflow", "TensorFlow loaders") from e

from tabfeed.loader.tensorflow.memory import configure_tensorflow

configure_tensorflow()  # first: what comes next may start TensorFlow one day

from tabfeed.loader.keras import KerasSequenceLoader, KerasSequenceValidater  # noqa: E402

__all__ = ["KerasSequenceLoader", "KerasSequenceValidater", "configure_tensorflow"]
