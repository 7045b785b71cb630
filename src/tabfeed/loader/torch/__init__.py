"""PyTorch: `TorchAsyncItr` and `DLDataLoader`, and `Loader`, the dictionary of tensors.

All three stand on the same core. What they add is the last step, in the background: NumPy
buffers become tensors without a copy, and one `split` cuts all batches of a chunk.
"""

from __future__ import annotations

from tabfeed.errors import MissingExtraError

try:
    import torch  # noqa: F401
except ImportError as e:
    raise MissingExtraError("torch", "PyTorch loaders") from e

from tabfeed.loader.torch.dataloader import DLDataLoader
from tabfeed.loader.torch.dicts import Loader
from tabfeed.loader.torch.tuples import TorchAsyncItr

__all__ = ["DLDataLoader", "Loader", "TorchAsyncItr"]
