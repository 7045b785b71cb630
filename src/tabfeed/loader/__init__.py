"""Shuffled batches, ahead of the training loop.

The loaders are in the module of their framework: `Loader`, `TorchAsyncItr` and `DLDataLoader` in
`tabfeed.loader.torch`, `Loader` in `tabfeed.loader.jax`, `KerasSequenceLoader` in
`tabfeed.loader.keras` and `tabfeed.loader.tensorflow`. No framework is imported before its own
module is.
"""

from __future__ import annotations

from tabfeed.loader.assemble.batch_ops import EmbeddingOperator, Padding

__all__ = ["EmbeddingOperator", "Padding"]
