"""What PyTorch users expect beside the loader."""

from __future__ import annotations

from tabfeed.errors import MissingExtraError

try:
    import torch  # noqa: F401
except ImportError as e:
    raise MissingExtraError("torch", "Helpers for PyTorch models") from e

from tabfeed.framework_utils.torch.grow import grow_embedding

__all__ = ["grow_embedding"]
