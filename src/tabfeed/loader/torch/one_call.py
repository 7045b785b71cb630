"""Several torch operations in one call.

Each operation that Python calls hands the interpreter over and has to get it back, and then waits
for whichever thread has it meanwhile. A function that torch runs by itself (TorchScript) does so
once, whatever it consists of. Where torch cannot do that any more, or not with this Python, the
function is run as it stands: the same result, and more waiting.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import cache
from typing import Any

import torch

__all__ = ["copy_all", "cut_all", "gather_all"]

Tensor = torch.Tensor
_FEW = 64  # more pieces take longer to hand over than there is to gain


def gather_all(
    wholes: list[Tensor],
    planes: list[int],
    casts: list[Tensor],
    counts: list[list[int]],
    places: Tensor,
) -> list[Tensor]:
    """Rows at some places of some matrices, on their device, cast and parted.

    Parameters
    ----------
    wholes
        ``(columns, rows)``.
    planes
        Which row of `places` belongs to each.
    casts
        Any tensor of the dtype that it shall become.
    counts
        How many columns belong together, one after the other.
    places
        In page-locked memory.

    Examples
    --------
    >>> whole = torch.tensor([[5, 6, 7], [8, 9, 10]], dtype=torch.int32)
    >>> places = torch.tensor([[2, 0]], dtype=torch.int32)
    >>> gather_all([whole], [0], [torch.empty(0, dtype=torch.int64)], [[1, 1]], places)
    [tensor([[7, 5]]), tensor([[10,  8]])]
    """
    found: list[Tensor] = _as_one(_gather_all)(wholes, planes, casts, counts, places)
    return found


def cut_all(tensors: list[Tensor], sizes: list[int]) -> list[list[Tensor]]:
    """Pieces of so many rows of some tensors of one device, which they share their memory with.

    Unlike `split`, this does not note that one tensor is a view of the other, which takes time;
    nobody sees the whole tensor.

    Examples
    --------
    >>> [[part.tolist() for part in parts] for parts in cut_all([torch.arange(3)], [2, 1])]
    [[[0, 1], [2]]]
    """
    worth_it = len(sizes) <= _FEW and any(tensor.is_cuda for tensor in tensors)
    cut: list[list[Tensor]] = (_as_one(_cut_all) if worth_it else _cut_all)(tensors, sizes)
    return cut


def copy_all(to: Tensor, parts: list[Tensor], table: Tensor) -> Tensor:
    """Copy some bytes one behind the other, and say what `table` is on their device.

    Examples
    --------
    >>> to = torch.zeros(4, dtype=torch.uint8)
    >>> parts = [torch.tensor([5, 6], dtype=torch.uint8), torch.tensor([7], dtype=torch.uint8)]
    >>> copy_all(to, parts, torch.tensor([1, 2])), to
    (tensor([1, 2]), tensor([5, 6, 7, 0], dtype=torch.uint8))
    """
    found: Tensor = _as_one(_copy_all)(to, parts, table)
    return found


@cache
def _as_one(function: Callable[..., Any]) -> Callable[..., Any]:
    """The same function, run without Python if that can be had."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that there may be none some day
            scripted: Callable[..., Any] = torch.jit.script(function)
    except (AttributeError, NotImplementedError, RuntimeError):
        return function
    return scripted


def _gather_all(
    wholes: list[Tensor],
    planes: list[int],
    casts: list[Tensor],
    counts: list[list[int]],
    places: Tensor,
) -> list[Tensor]:
    found = places.to(wholes[0].device, non_blocking=True)
    out: list[Tensor] = []
    for i in range(len(wholes)):
        part = wholes[i].index_select(1, found[planes[i]])
        part = part.to(casts[i].dtype)
        if len(counts[i]) == 1:
            out.append(part)
        else:
            out.extend(list(torch.unsafe_split_with_sizes(part, counts[i])))
    return out


def _cut_all(tensors: list[Tensor], sizes: list[int]) -> list[list[Tensor]]:
    out: list[list[Tensor]] = []
    for tensor in tensors:
        out.append(list(torch.unsafe_split_with_sizes(tensor, sizes)))
    return out


def _copy_all(to: Tensor, parts: list[Tensor], table: Tensor) -> Tensor:
    at = 0
    for part in parts:
        to.narrow(0, at, part.numel()).copy_(part, non_blocking=True)
        at += part.numel()
    return table.to(to.device, non_blocking=True)
