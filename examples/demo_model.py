"""The demo's model: a table of embeddings for each category, then two dense layers."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from tabfeed import Dataset
from tabfeed.loader.torch import TorchAsyncItr


@dataclass(frozen=True)
class EpochResult:
    """What one pass over the data gave."""

    loss: float
    auc: float
    rate: float


@dataclass(frozen=True)
class Trained:
    """What training gave, and how fast the data came."""

    epochs: list[EpochResult]
    loader_rate: float
    waited: float


class ClickModel(nn.Module):
    """Embeddings and numbers, side by side, through two dense layers."""

    def __init__(self, sizes: Sequence[tuple[int, int]], numbers: int) -> None:
        super().__init__()
        self.tables = nn.ModuleList([nn.Embedding(n, d) for n, d in sizes])
        width = sum(d for _, d in sizes) + numbers
        self.dense = nn.Sequential(
            nn.Linear(width, 128), nn.ReLU(), nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 1)
        )

    def forward(self, cats: torch.Tensor, conts: torch.Tensor) -> torch.Tensor:
        """The log-odds of a click."""
        looked_up = [table(cats[:, i]) for i, table in enumerate(self.tables)]
        return self.dense(torch.cat([*looked_up, conts], dim=1)).squeeze(1)


def train(
    train_data: Dataset,
    valid_data: Dataset,
    cats: list[str],
    conts: list[str],
    sizes: dict[str, tuple[int, int]],
    *,
    batch_size: int,
    epochs: int,
) -> Trained:
    """Train, and look at rows the model has not seen after each epoch."""
    torch.manual_seed(0)
    columns = {"cats": cats, "conts": conts, "labels": ["label"], "device": "cpu"}
    loader = TorchAsyncItr(train_data, batch_size=batch_size, shuffle=True, **columns)
    valid = TorchAsyncItr(valid_data, batch_size=4 * batch_size, **columns)
    # Columns come sorted by name, as the sizes do.
    model = ClickModel([(n, min(16, d)) for n, d in sizes.values()], len(conts))
    optimiser = torch.optim.Adam(model.parameters(), lr=3e-3)
    loss_of = nn.BCEWithLogitsLoss()
    results, waited, whole = [], 0.0, 0.0
    for _ in range(epochs):
        losses, start = [], time.perf_counter()
        batches = iter(loader)
        while True:
            asked = time.perf_counter()
            batch = next(batches, None)
            waited += time.perf_counter() - asked
            if batch is None:
                break
            x_cat, x_cont, y = batch
            loss = loss_of(model(x_cat, x_cont), y)
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            losses.append(loss.item())
        seconds = time.perf_counter() - start
        whole += seconds
        last_tenth = losses[-max(1, len(losses) // 10) :]
        rate = train_data.num_rows / seconds
        results.append(EpochResult(float(np.mean(last_tenth)), evaluate(model, valid), rate))
    return Trained(results, loader_rate(loader), waited / whole)


@torch.no_grad()
def evaluate(model: ClickModel, loader: TorchAsyncItr) -> float:
    """The area under the ROC curve."""
    scores, labels = [], []
    for x_cat, x_cont, y in loader:
        scores.append(model(x_cat, x_cont))
        labels.append(y)
    score, label = torch.cat(scores).numpy(), torch.cat(labels).numpy()
    rank = np.empty(len(score))
    rank[np.argsort(score, kind="stable")] = np.arange(1, len(score) + 1)
    clicks = label.sum()
    return float(
        (rank[label == 1].sum() - clicks * (clicks + 1) / 2) / (clicks * (len(label) - clicks))
    )


def loader_rate(loader: TorchAsyncItr) -> float:
    """Rows a second with nobody training."""
    start, rows = time.perf_counter(), 0
    for _, _, y in loader:
        rows += len(y)
    return rows / (time.perf_counter() - start)


def stock_loader_rate(
    data: Dataset, cats: list[str], conts: list[str], *, batch_size: int, seconds: float = 3.0
) -> float:
    """Rows a second of torch's own DataLoader over tensors in memory, for a few seconds."""
    table = data.read(0, [*cats, *conts, "label"])
    columns = [
        torch.from_numpy(np.asarray(table[c]).astype(np.float32)) for c in table.column_names
    ]
    loader = DataLoader(TensorDataset(torch.stack(columns, 1)), batch_size=batch_size, shuffle=True)
    start, rows = time.perf_counter(), 0
    for (batch,) in loader:
        rows += len(batch)
        if time.perf_counter() - start > seconds:
            break
    return rows / (time.perf_counter() - start)
