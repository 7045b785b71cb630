"""From a chunk's buffers to the tensors of its batches."""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import numpy as np
import torch

from tabfeed.loader.assemble.chunk import Chunk
from tabfeed.loader.read.arrow_columns import Lists
from tabfeed.loader.tensors.scripted import cut_all
from tabfeed.trace import span

__all__ = ["as_tensor", "batch_sizes", "collector_paused", "cut_lists", "cut_rows"]

Tensor = torch.Tensor


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
    of objects at once: that took a third of the time. None of them can be garbage yet. All threads
    share one collector: the first thread to pause it notes whether it was on, the last one switches
    it on again.
    """
    _pause.begin()
    try:
        yield
    finally:
        _pause.end()


class _Pause:
    """How many threads pause the collector, and whether it is to run afterwards."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._count, self._was_on = 0, False

    def begin(self) -> None:
        with self._lock:
            if self._count == 0:
                self._was_on = gc.isenabled()
                gc.disable()
            self._count += 1

    def end(self) -> None:
        with self._lock:
            self._count = max(0, self._count - 1)
            if self._count == 0 and self._was_on:
                self._was_on = False
                gc.enable()

    def forked(self) -> None:
        """Reset in a forked child, which has none of the threads that paused it."""
        if self._count and self._was_on:
            gc.enable()
        self.__init__()  # type: ignore[misc]


_pause = _Pause()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_pause.forked)


def batch_sizes(chunk: Chunk) -> list[int]:
    """Rows of each batch."""
    sizes: list[int] = np.diff(chunk.bounds).tolist()
    return sizes


def cut_rows(tensor: Tensor, chunk: Chunk) -> Sequence[Tensor]:
    """The rows of each batch."""
    return cut_all([tensor], batch_sizes(chunk))[0]


def cut_lists(lists: Lists, chunk: Chunk, device: torch.device) -> list[tuple[Tensor, Tensor]]:
    """(values, offsets) of each batch; offsets are one more than rows and begin with 0.

    Both are copied to the device once for the whole chunk.
    """
    values, firsts = as_tensor(lists.values, device), _offsets_at(lists, chunk.bounds)
    offsets = as_tensor(_cut_offsets(lists, chunk), device)
    own = torch.unsafe_split_with_sizes(offsets, [size + 1 for size in batch_sizes(chunk)])
    return [
        (values[first:last], cut) for (first, last), cut in zip(pairwise(firsts), own, strict=True)
    ]


def _offsets_at(lists: Lists, places: Any) -> list[int]:
    """The offsets at some rows, in host memory; waits for a GPU."""
    offsets: Any = lists.offsets
    if isinstance(offsets, Tensor):
        places = as_tensor(places, offsets.device)
    found: list[int] = offsets[places].tolist()
    return found


def _cut_offsets(lists: Lists, chunk: Chunk) -> Any:
    """The offsets of each batch, from 0 on, one batch after the other.

    Examples
    --------
    >>> lists = Lists(np.arange(4), np.array([0, 2, 2, 4]))
    >>> _cut_offsets(lists, Chunk(np.array([0, 2, 3])))
    array([0, 2, 2, 0, 2])
    """
    sizes = np.diff(chunk.bounds) + 1  # a batch's last offset is the next one's first
    places = np.arange(sizes.sum()) - np.repeat(np.arange(chunk.steps), sizes)
    firsts = np.repeat(chunk.bounds[:-1], sizes)
    offsets: Any = lists.offsets
    if isinstance(offsets, Tensor):
        places, firsts = as_tensor(np.stack([places, firsts]), offsets.device)
    return offsets[places] - offsets[firsts]
