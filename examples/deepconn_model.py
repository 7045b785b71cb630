"""The text model of `deepconn.py`, its training loop, and batches fed from Python.

After DeepCoNN (arXiv 1701.04783): two towers read the user's and the item's texts by word
embeddings, a convolution, the largest answer of each filter and a dense layer; a factorisation
machine over both makes the rating.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from tabfeed.profile import Profiler

WORD = re.compile(r"\w+")
OOV = 2  # where Categorify puts words it does not know
USER, ITEM, RATING = "user_text", "item_text", "rating"


@dataclass(frozen=True)
class Sizes:
    """How large the model is."""

    longest: int
    dimension: int
    filters: int
    window: int
    latent: int = 50
    factors: int = 8


class Tower(nn.Module):
    """What a text says, as a few numbers."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.convolution = nn.Conv1d(sizes.dimension, sizes.filters, sizes.window)
        self.dense = nn.Linear(sizes.filters, sizes.latent)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        """From (rows, words, dimension) to (rows, latent)."""
        answers = torch.relu(self.convolution(words.transpose(1, 2)))
        return torch.relu(self.dense(answers.max(dim=2).values))


class DeepConn(nn.Module):
    """A rating from a user's text and an item's."""

    def __init__(self, words: int, sizes: Sizes) -> None:
        super().__init__()
        self.embedding = nn.Embedding(words, sizes.dimension, padding_idx=0)
        self.users, self.items = Tower(sizes), Tower(sizes)
        self.linear = nn.Linear(2 * sizes.latent, 1)
        self.factors = nn.Parameter(torch.randn(2 * sizes.latent, sizes.factors) * 0.01)

    def forward(self, users: torch.Tensor, items: torch.Tensor) -> torch.Tensor:
        """From two (rows, words) of ids to (rows,)."""
        towers = self.users(self.embedding(users)), self.items(self.embedding(items))
        both = torch.cat(towers, dim=1)
        pairs = (both @ self.factors) ** 2 - both**2 @ self.factors**2
        return self.linear(both).squeeze(1) + pairs.sum(dim=1) / 2


class Trainer:
    """A model, and the step that trains it. Nothing in the step waits for the GPU."""

    def __init__(self, words: int, sizes: Sizes, device: str) -> None:
        torch.manual_seed(0)
        self.model = DeepConn(words, sizes).to(device)
        self.optimiser = torch.optim.Adam(self.model.parameters(), lr=1e-3)
        self.device = device

    def step(self, batch: Any) -> None:
        """Train on one batch."""
        texts, rating = batch
        loss = nn.functional.mse_loss(self.model(texts[USER], texts[ITEM]), rating)
        self.optimiser.zero_grad()
        loss.backward()
        self.optimiser.step()

    def train(self, batches: Any, epochs: int, profiler: Profiler) -> float:
        """Train, watched by a profiler; the seconds until the GPU is done with the last step."""
        left, start = epochs * len(batches), time.perf_counter()
        with profiler:
            for _ in range(epochs):
                for batch in profiler.watch(batches):
                    self.step(batch)
                    left -= 1
                    if not left:  # within the loop, so that the profiler counts it
                        self.wait()
            return time.perf_counter() - start

    def wait(self) -> None:
        """Wait for all that was asked of the GPU."""
        if self.device != "cpu":
            torch.cuda.synchronize()

    @torch.no_grad()
    def error(self, batches: Iterable[Any]) -> float:
        """Root mean square error."""
        rows, total = 0, torch.zeros((), device=self.device)
        for texts, rating in batches:
            total += ((self.model(texts[USER], texts[ITEM]) - rating) ** 2).sum()
            rows += len(rating)
        return float((total / rows).sqrt())


class FedFromPython:
    """Batches made of Python lists in the training loop: look up, cut, fill, convert, copy.

    Parameters
    ----------
    texts
        The users' texts and the items'.
    ratings
        One for each of them.
    ids
        The id of each word.
    batch_size, longest, device
        What a batch shall be like, and where.
    """

    def __init__(
        self,
        texts: dict[str, list[str]],
        ratings: np.ndarray[Any, Any],
        ids: dict[str, int],
        *,
        batch_size: int,
        longest: int,
        device: str,
    ) -> None:
        self.texts, self.ratings, self.ids = texts, ratings, ids
        self.batch_size, self.longest, self.device = batch_size, longest, device
        self._random = np.random.default_rng(0)

    def __len__(self) -> int:
        return -(-len(self.ratings) // self.batch_size)

    def __iter__(self) -> Iterator[Any]:
        order = self._random.permutation(len(self.ratings))
        for start in range(0, len(order), self.batch_size):
            chosen = order[start : start + self.batch_size]
            words = {name: self._ids(texts, chosen) for name, texts in self.texts.items()}
            yield words, torch.from_numpy(self.ratings[chosen]).to(self.device)

    def _ids(self, texts: Sequence[str], chosen: Iterable[int]) -> torch.Tensor:
        rows = [self.encode(texts[i]) for i in chosen]
        return torch.from_numpy(np.array(rows, np.int32)).to(self.device)

    def encode(self, text: str) -> list[int]:
        """The ids of a text's words, cut and filled."""
        found = [self.ids.get(word, OOV) for word in WORD.findall(text)[: self.longest]]
        return found + [0] * (self.longest - len(found))
