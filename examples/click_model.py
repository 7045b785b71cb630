"""A small model of clicks in PyTorch, for the examples: embeddings and numbers, dense layers."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn


class ClickModel(nn.Module):
    """A table of embeddings for each category; these and the numbers through dense layers.

    Parameters
    ----------
    sizes
        Rows and width of each table, in the order of the columns of `cats`.
    numbers
        How many numbers there are.
    """

    def __init__(self, sizes: Sequence[tuple[int, int]], numbers: int) -> None:
        super().__init__()
        self.tables = nn.ModuleList([nn.Embedding(rows, width) for rows, width in sizes])
        width = sum(width for _, width in sizes) + numbers
        self.dense = nn.Sequential(
            nn.Linear(width, 128), nn.ReLU(), nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 1)
        )

    def forward(self, cats: torch.Tensor, conts: torch.Tensor) -> torch.Tensor:
        """The log-odds of a click."""
        looked_up = [table(cats[:, i]) for i, table in enumerate(self.tables)]
        return self.dense(torch.cat([*looked_up, conts], dim=1)).squeeze(1)
