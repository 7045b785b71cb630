"""What PyTorch users expect beside the loader."""

from __future__ import annotations

from tabfeed.framework_utils.torch.grow import grow_embedding

__all__ = ["grow_embedding"]
