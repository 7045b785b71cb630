"""From a chunk's buffers to the tensors of its batches.

Ragged columns are gathered and padded where they are, in a few calls for a chunk: the same as
`tabfeed.loader.read.blocks` and `tabfeed.loader.assemble.batch_ops.pad_lists` do in NumPy, bit for
bit. Values are moved as integers of their width, since torch gathers those on every device.
"""

from __future__ import annotations

import gc
import os
import threading
from itertools import pairwise
from typing import Any, cast

import numpy as np
import torch

from tabfeed.loader.assemble.chunk import Chunk
from tabfeed.loader.read.arrow_columns import Lists
from tabfeed.loader.tensors.scripted import cut_each
from tabfeed.trace import span

__all__ = [
    "as_tensor",
    "as_words",
    "collector_paused",
    "cut_all",
    "cut_lists",
    "filling",
    "gather_ragged",
    "numpy_dtype",
    "pad_ragged",
]

Tensor = torch.Tensor
_FEW = 64  # batches: converting more pieces takes longer than a call in TorchScript saves


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


class CollectorPause:
    """Keeps the garbage collector from running over tensors that are just being made.

    It runs after every 700 new objects, and small batches of many columns are tens of thousands
    of objects at once: that took a third of the time. None of them can be garbage yet. All threads
    share one collector: the first thread to pause it notes whether it was on, the last one switches
    it on again.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._count, self._was_on = 0, False

    def __enter__(self) -> None:
        with self._lock:
            if self._count == 0:
                self._was_on = gc.isenabled()
                gc.disable()
            self._count += 1

    def __exit__(self, *_: object) -> None:
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


collector_paused = CollectorPause()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=collector_paused.forked)


def cut_all(tensors: list[Tensor], chunk: Chunk) -> list[list[Tensor]]:
    """The rows of each batch of some tensors on one device; they share the tensors' memory.

    Unlike `split`, this does not record that a piece is a view, which takes time; the whole tensor
    is not used any more.

    Examples
    --------
    >>> chunk = Chunk(np.array([0, 2, 3]))
    >>> [[part.tolist() for part in parts] for parts in cut_all([torch.arange(3)], chunk)]
    [[[0, 1], [2]]]
    """
    sizes = chunk.sizes
    if len(sizes) <= _FEW and any(tensor.is_cuda for tensor in tensors):
        return cut_each(tensors, sizes)
    return [list(torch.unsafe_split_with_sizes(tensor, sizes)) for tensor in tensors]


def cut_lists(lists: Lists, chunk: Chunk, device: torch.device) -> list[tuple[Tensor, Tensor]]:
    """(values, offsets) of each batch; offsets are one more than rows and begin with 0.

    Both are copied to the device once for the whole chunk.
    """
    values, firsts = as_tensor(lists.values, device), _offsets_at(lists, chunk.bounds)
    offsets = as_tensor(_cut_offsets(lists, chunk), device)
    own = torch.unsafe_split_with_sizes(offsets, [size + 1 for size in chunk.sizes])
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


_WORDS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def as_words(tensor: Tensor) -> Tensor:
    """The same bits as signed integers, which all torch operations support."""
    return tensor.view(_WORDS[tensor.element_size()])


def numpy_dtype(dtype: torch.dtype) -> np.dtype[Any]:
    """The NumPy dtype of a torch dtype."""
    found: np.dtype[Any] = torch.empty(0, dtype=dtype).numpy().dtype
    return found


def filling(value: float, dtype: np.dtype[Any]) -> int:
    """The bits of `value` in a dtype, as NumPy would fill an array with it."""
    width = dtype.itemsize
    return int(np.full(1, value, dtype=dtype).view(f"i{width}")[0])


def gather_ragged(lists: Lists, index: Tensor) -> Lists:
    """Ragged rows in another order.

    Examples
    --------
    >>> rows = Lists(torch.tensor([1, 2, 3, 4]), torch.tensor([0, 2, 2, 4]))
    >>> gather_ragged(rows, torch.tensor([2, 0]))
    Lists(values=tensor([3, 4, 1, 2]), offsets=tensor([0, 2, 4]))
    """
    values, old = cast(Any, lists.values), cast(Any, lists.offsets)
    starts = old[:-1].index_select(0, index)
    ends = old[1:].index_select(0, index)
    offsets = torch.zeros(len(index) + 1, dtype=torch.int64, device=values.device)
    torch.cumsum(ends - starts, 0, out=offsets[1:])
    total = int(offsets[-1])  # the size to allocate: the only thing to wait for
    where = torch.repeat_interleave(starts - offsets[:-1], ends - starts, output_size=total)
    where += torch.arange(total, device=values.device)
    found = as_words(values).index_select(0, where).view(values.dtype)
    return Lists(cast(Any, found), cast(Any, offsets))


def pad_ragged(values: Tensor, offsets: Tensor, width: int, fill: int) -> Tensor:
    """Ragged rows as a matrix: shorter rows filled on the right, longer ones cut.

    Parameters
    ----------
    values, offsets
        The rows.
    width
        Values in each row.
    fill
        The bits of the fill value; see `filling`.

    Examples
    --------
    >>> pad_ragged(torch.tensor([1, 2, 3, 4]), torch.tensor([0, 3, 3, 4]), 2, 0)
    tensor([[1, 2],
            [0, 0],
            [4, 0]])
    """
    along = torch.arange(width, device=values.device)
    inside = along < offsets.diff()[:, None]
    words = as_words(values)
    shape = (*inside.shape, *values.shape[1:])
    if not len(values):
        return torch.full(shape, fill, dtype=words.dtype, device=values.device).view(values.dtype)
    where = (offsets[:-1, None] + along).clamp_(max=len(values) - 1)
    found = words.index_select(0, where.reshape(-1)).view(shape)
    inside = inside.view(*inside.shape, *[1] * (values.dim() - 1))
    return found.masked_fill_(~inside, fill).view(values.dtype)
