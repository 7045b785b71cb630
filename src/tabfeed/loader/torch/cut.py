"""From a chunk's buffers to the tensors of its batches."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from tabfeed.loader.chunk import Chunk
from tabfeed.loader.columns import Lists
from tabfeed.trace import span

__all__ = ["as_tensor", "batch_sizes", "choose_device", "collector_paused", "cut_lists", "cut_rows"]

Tensor = torch.Tensor


def choose_device(device: Any) -> torch.device:
    """What a user calls a device: a GPU by its number; by default the GPU, if there is one."""
    if device is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    return torch.device("cuda", device) if isinstance(device, int) else torch.device(device)


def as_tensor(array: Any, device: torch.device) -> Tensor:
    """The same memory as a tensor, or a copy of it on the device, queued on the current stream."""
    if isinstance(array, Tensor):
        return array
    tensor = torch.from_numpy(array)
    if device.type == "cpu":
        return tensor
    with span("copy"):
        if device.type == "cuda":
            return tensor.pin_memory().to(device, non_blocking=True)
        return tensor.to(device)


@contextmanager
def collector_paused() -> Iterator[None]:
    """Keep the garbage collector from running over tensors that are just being made.

    It runs after every 700 new objects, and small batches of many columns are tens of thousands
    at once: that took a third of the time. None of them can be garbage yet.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def batch_sizes(chunk: Chunk) -> list[int]:
    """Rows of each batch."""
    sizes: list[int] = np.diff(chunk.bounds).tolist()
    return sizes


def cut_rows(tensor: Tensor, chunk: Chunk) -> Sequence[Tensor]:
    """The rows of each batch."""
    # Unlike `split`, this does not note that one tensor is a view of the other, which takes time;
    # nobody sees the whole tensor.
    cut: Sequence[Tensor] = torch.unsafe_split_with_sizes(tensor, batch_sizes(chunk))
    return cut


def cut_lists(lists: Lists, chunk: Chunk, device: torch.device) -> list[tuple[Tensor, Tensor]]:
    """(values, offsets) of each batch; offsets are one more than rows and begin with 0."""
    values, offsets = as_tensor(lists.values, device), lists.offsets
    out = []
    for low, high in zip(chunk.bounds[:-1].tolist(), chunk.bounds[1:].tolist(), strict=True):
        first, last = int(offsets[low]), int(offsets[high])
        own = as_tensor(offsets[low : high + 1] - first, device)
        out.append((values[first:last], own))
    return out
