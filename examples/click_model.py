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


class OneTableModel(nn.Module):
    """The same with all categories in one table, each its own run of rows: 26 look-ups are one.

    Only rows that were looked up get a gradient (``sparse=True``); with dense ones, every step
    would write all rows of the table.

    Parameters
    ----------
    rows
        Rows of each category, in the order of the columns of `cats`.
    numbers
        How many numbers there are.
    width
        Of a vector.
    layers
        Widths of the dense layers.
    """

    first: torch.Tensor

    def __init__(
        self,
        rows: Sequence[int],
        numbers: int,
        width: int = 16,
        layers: Sequence[int] = (128, 128, 128),
    ) -> None:
        super().__init__()
        self.table = nn.Embedding(sum(rows), width, sparse=True)
        self.register_buffer("first", torch.tensor([0, *rows[:-1]]).cumsum(0))
        parts: list[nn.Module] = []
        before = len(rows) * width + numbers
        for after in layers:
            parts += [nn.Linear(before, after), nn.ReLU()]
            before = after
        self.dense = nn.Sequential(*parts, nn.Linear(before, 1))

    def forward(self, cats: torch.Tensor, conts: torch.Tensor) -> torch.Tensor:
        """The log-odds of a click."""
        looked_up = self.table(cats + self.first).flatten(1)
        return self.dense(torch.cat([looked_up, conts], dim=1)).squeeze(1)
