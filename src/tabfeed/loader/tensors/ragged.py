"""Ragged columns as tensors: gathered and padded where they are, in a few calls for a chunk.

The same as `tabfeed.loader.read.ragged` and `tabfeed.loader.assemble.batch_ops.pad_lists` do in
NumPy, bit for bit. Values are moved as integers of their width, since torch gathers those on every
device.
"""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import torch

from tabfeed.loader.assemble.batch_ops import pad_lists
from tabfeed.loader.read.arrow_columns import Lists

__all__ = [
    "as_words",
    "filling",
    "gather_ragged",
    "longest_row",
    "numpy_dtype",
    "pad_any",
    "pad_ragged",
]

Tensor = torch.Tensor
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


def longest_row(lists: Lists) -> int:
    """Values in the longest row; waits for a GPU."""
    offsets: Any = lists.offsets
    if isinstance(offsets, Tensor):
        return int(offsets.diff().max()) if len(offsets) > 1 else 0
    return int(np.diff(offsets).max(initial=0))


def pad_any(lists: Lists, width: int) -> Any:
    """Ragged rows as a matrix filled with 0, on their device."""
    values: Any = lists.values
    if isinstance(values, Tensor):
        return pad_ragged(values, cast(Any, lists.offsets), width, 0)
    return pad_lists(lists, width)
