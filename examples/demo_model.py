"""The demo's training step, on the model of `click_model.py`, and the two ways to feed it."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
import torch
from click_model import OneTableModel
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from tabfeed import Dataset
from tabfeed.loader.torch import TorchAsyncItr
from tabfeed.profile import Profiler

BATCH = 8_192
DIMENSIONS = 8

Batch = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


@dataclass(frozen=True)
class Columns:
    """Which columns are what, and how many ids each category has."""

    cats: list[str]
    conts: list[str]
    label: str
    ids: list[int]


@dataclass(frozen=True)
class Trained:
    """One epoch of training: the model, its step, where the time went, the loss in the end."""

    model: OneTableModel
    step: Callable[[Batch], float]
    prof: Profiler
    loss: float


def training_step(model: OneTableModel) -> Callable[[Batch], float]:
    """What is done with each batch; gives the loss."""
    optimisers = [
        torch.optim.SparseAdam(list(model.table.parameters()), lr=3e-3),
        torch.optim.Adam(model.dense.parameters(), lr=3e-3),
    ]
    loss_of = nn.BCEWithLogitsLoss()

    def step(batch: Batch) -> float:
        cats, conts, labels = batch
        loss = loss_of(model(cats, conts), labels)
        model.zero_grad()
        loss.backward()
        for optimiser in optimisers:
            optimiser.step()
        return loss.item()

    return step


def train(name: str, feed: Iterable[Batch], columns: Columns) -> Trained:
    """One epoch of a new model, under the profiler's eyes."""
    torch.set_num_threads(max(1, (os.cpu_count() or 2) - 1))  # a core is left for what feeds it
    torch.manual_seed(0)
    model = OneTableModel(columns.ids, len(columns.conts), DIMENSIONS, layers=(128, 64))
    step = training_step(model)
    with Profiler(name) as prof:
        losses = [step(batch) for batch in prof.watch(feed)]
    return Trained(model, step, prof, float(np.mean(losses[-10:])))


@torch.no_grad()
def evaluate(model: OneTableModel, batches: Iterable[Batch]) -> float:
    """The area under the ROC curve."""
    scored = [(model(cats, conts), labels) for cats, conts, labels in batches]
    score, label = (torch.cat(parts).numpy() for parts in zip(*scored, strict=True))
    rank = np.empty(len(score))
    rank[np.argsort(score, kind="stable")] = np.arange(1, len(score) + 1)
    clicks = label.sum()
    return float(
        (rank[label == 1].sum() - clicks * (clicks + 1) / 2) / (clicks * (len(label) - clicks))
    )


def tabfeed_loader(data: Dataset, columns: Columns, *, shuffle: bool) -> TorchAsyncItr:
    """Batches from the files, made ahead of the loop."""
    return TorchAsyncItr(
        data,
        batch_size=BATCH,
        cats=columns.cats,
        conts=columns.conts,
        labels=[columns.label],
        shuffle=shuffle,
        device="cpu",
    )


def row_by_row_loader(data: Dataset, columns: Columns) -> DataLoader[Batch]:
    """What most code begins with: all rows in memory, picked one by one, put together again."""
    cats, conts, labels = zip(*tabfeed_loader(data, columns, shuffle=False), strict=True)
    rows = TensorDataset(torch.cat(cats), torch.cat(conts), torch.cat(labels))
    return DataLoader(rows, batch_size=BATCH, shuffle=True)


def rate_alone(loader: TorchAsyncItr) -> float:
    """Rows a second of a loader with nobody training."""
    start, rows = time.perf_counter(), 0
    for _, _, labels in loader:
        rows += len(labels)
    return rows / (time.perf_counter() - start)
