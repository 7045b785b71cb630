"""Shuffled batches, ahead of the training loop.

`tabfeed.loader.torch` and `tabfeed.loader.jax` hold the loaders for these frameworks; no
framework is imported before its own module is.
"""

from __future__ import annotations

from tabfeed.loader.assemble.batch_ops import EmbeddingOperator, Padding

__all__ = ["EmbeddingOperator", "Padding"]
