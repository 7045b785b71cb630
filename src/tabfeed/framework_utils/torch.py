"""For PyTorch: an embedding table that grows with a vocabulary.

`tabfeed.Workflow.update` appends new values behind the old ids and says by how many rows
each table must grow. The rows that were trained stay as they are.
"""

from __future__ import annotations

from typing import Any, TypeVar

from tabfeed.errors import ArgumentError, MissingExtraError

try:
    import torch
    from torch import nn
except ImportError as e:
    raise MissingExtraError("torch", "Helpers for PyTorch models") from e

__all__ = ["grow_embedding"]

Table = TypeVar("Table", nn.Embedding, nn.EmbeddingBag)


def grow_embedding(
    table: Table, rows: int, *, std: float | None = None, seed: int | None = None
) -> Table:
    """A table with `rows` more rows behind those of `table`.

    Parameters
    ----------
    table
        The table; it is not changed.
    rows
        How many rows to add; 0 gives `table` itself.
    std
        Deviation of the new values around 0; that of the old values by default.
    seed
        Seed for the new values; PyTorch's global generator when not given.

    Examples
    --------
    >>> old = nn.Embedding(3, 2)
    >>> new = grow_embedding(old, 2)
    >>> new.weight.shape, bool((new.weight[:3] == old.weight).all())
    (torch.Size([5, 2]), True)
    """
    if rows < 0:
        raise ArgumentError(f"rows is {rows}; tables grow, they do not shrink")
    if rows == 0:
        return table
    old = table.weight.detach()
    spread = float(old.std()) if std is None and old.numel() > 1 else (std or 0.0)
    generator = None if seed is None else torch.Generator().manual_seed(seed)
    fresh = torch.randn(rows, old.shape[1], generator=generator, dtype=torch.float32) * spread
    weight = torch.cat([old, fresh.to(old.dtype).to(old.device)])
    options = {
        name: getattr(table, name)
        for name in ("padding_idx", "max_norm", "norm_type", "scale_grad_by_freq", "sparse", "mode",
                     "include_last_offset")
        if hasattr(table, name)
    }  # fmt: skip
    make: Any = type(table).from_pretrained
    new: Table = make(weight, freeze=not table.weight.requires_grad, **options)
    new.train(table.training)
    return new
