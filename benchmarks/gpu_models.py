"""The two models that the GPU benchmark trains, written the way one would on today's hardware.

Both look up 26 embeddings of 16 numbers and put them beside 13 continuous columns. The first is a
tabular model of layers 512 and 256 with batch normalisation, trained by Adam in large batches; the
second has three layers of 128 and plain SGD, with dense or sparse gradients of its embeddings.

In the second all tables are one, and the ids of each column begin where those of the one before
end: 26 look-ups and 26 updates are one each. Apart, launching them took Python about as long as the
GPU needed for the step, or longer. A step can be captured, too (`captured`): then it is launched
in one call.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

__all__ = ["Batch", "Step", "Tabular", "captured", "loss_of", "make_adam", "make_sgd", "stepper"]

Batch = tuple[Tensor, Tensor, Tensor]
Step = Callable[[Batch], None]

_DIMENSION, _NUMBERS = 16, 13


class Tables(nn.Module):
    """A table for each column of ids; gradients are as large as the tables."""

    def __init__(self, sizes: Sequence[int]) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(size + 1, _DIMENSION) for size in sizes)

    def forward(self, cats: Tensor) -> Tensor:
        """The vectors of a row, side by side."""
        return torch.cat([table(cats[:, i]) for i, table in enumerate(self.tables)], dim=1)


class OneTable(nn.Module):
    """All of them in one; sparse gradients are those of the rows that were looked up."""

    starts: Tensor

    def __init__(self, sizes: Sequence[int], *, sparse: bool) -> None:
        super().__init__()
        rows = torch.tensor([size + 1 for size in sizes])
        self.register_buffer("starts", rows.cumsum(0) - rows)
        self.table = nn.Embedding(int(rows.sum()), _DIMENSION, sparse=sparse)

    def forward(self, cats: Tensor) -> Tensor:
        """The vectors of a row, side by side."""
        return self.table(cats + self.starts).flatten(1)


class Tabular(nn.Module):
    """Embeddings and numbers through some layers to one logit.

    Parameters
    ----------
    embed
        Gives the vectors of a row, side by side.
    inputs
        How many numbers those and the rest are.
    layers
        Widths.
    normalise
        Whether batches are, after each layer.
    """

    def __init__(
        self, embed: nn.Module, inputs: int, layers: Sequence[int], *, normalise: bool
    ) -> None:
        super().__init__()
        self.embed = embed
        widths = [inputs, *layers]
        parts: list[nn.Module] = []
        for before, after in zip(widths, layers, strict=False):
            parts += [nn.Linear(before, after), nn.ReLU()]
            if normalise:
                parts.append(nn.BatchNorm1d(after))
        self.body = nn.Sequential(*parts, nn.Linear(widths[-1], 1))

    def forward(self, cats: Tensor, conts: Tensor) -> Tensor:
        """One logit a row."""
        return self.body(torch.cat([self.embed(cats), conts], dim=1)).squeeze(1)


def _inputs(sizes: Sequence[int]) -> int:
    return len(sizes) * _DIMENSION + _NUMBERS


def loss_of(model: nn.Module, batch: Batch) -> Tensor:
    """Binary cross-entropy."""
    cats, conts, label = batch
    return nn.functional.binary_cross_entropy_with_logits(model(cats, conts), label)


def make_adam(sizes: Sequence[int], device: str) -> tuple[nn.Module, torch.optim.Optimizer]:
    """The model of layers 512 and 256, and Adam in one kernel."""
    model = Tabular(Tables(sizes), _inputs(sizes), [512, 256], normalise=True).to(device)
    return model, torch.optim.Adam(model.parameters(), lr=1e-3, fused=True)


def make_sgd(
    sizes: Sequence[int], device: str, *, sparse: bool
) -> tuple[nn.Module, torch.optim.Optimizer]:
    """The model of three layers of 128, and SGD."""
    embed = OneTable(sizes, sparse=sparse)
    model = Tabular(embed, _inputs(sizes), [128, 128, 128], normalise=False).to(device)
    return model, torch.optim.SGD(model.parameters(), lr=1e-2, fused=None if sparse else True)


def stepper(model: nn.Module, optimiser: torch.optim.Optimizer) -> Step:
    """One step of training."""

    def step(batch: Batch) -> None:
        optimiser.zero_grad(set_to_none=True)
        loss_of(model, batch).backward()
        optimiser.step()

    return step


def captured(step: Step, example: Batch) -> Step:
    """The same as a CUDA graph: Python launches it in one call, whatever it consists of.

    Parameters
    ----------
    step
        What to capture.
    example
        A batch; those of another shape are trained on without a graph.
    """
    held = tuple(torch.empty_like(t).copy_(t) for t in example)
    beside: torch.cuda.Stream = torch.cuda.Stream()
    beside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(beside):
        for _ in range(3):  # what is made once only is not to be in the graph
            step(held)
    torch.cuda.current_stream().wait_stream(beside)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        step(held)

    def replay(batch: Batch) -> None:
        if batch[2].shape != held[2].shape:
            step(batch)
            return
        for to, part in zip(held, batch, strict=True):
            to.copy_(part, non_blocking=True)
        graph.replay()

    return replay
