"""Several torch operations in one call.

Each operation that Python calls releases the GIL, and then waits until the thread that took it
releases it again. A TorchScript function does so once, however many operations it runs. If this
version of torch or Python has no TorchScript, the plain function runs: the same result, with more
waiting.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import cache, wraps
from typing import ParamSpec, TypeVar

import torch

__all__ = ["copy_all", "cut_each", "fill_table", "gather_all", "lay_copy_runs", "prepare"]

P = ParamSpec("P")
T = TypeVar("T")
Tensor = torch.Tensor
_ALONE = 2**15 - 1  # numbers: with more of them torch would use other threads too
_COMPILERS: list[Callable[[], object]] = []


def prepare() -> None:
    """Compile all of them, on the thread that makes a loader, before any other runs.

    Compiling warns, and warnings can only be silenced for all threads at once.
    """
    for compiled in _COMPILERS:
        compiled()


def _scripted(function: Callable[P, T]) -> Callable[P, T]:
    """The same function, compiled by TorchScript, if possible, before its first call."""

    @cache
    def compiled() -> Callable[P, T]:
        try:
            # That TorchScript is deprecated. A temporary filter would apply to all threads.
            warnings.filterwarnings("ignore", message=".*torch.jit", category=DeprecationWarning)
            script: Callable[P, T] = torch.jit.script(function)
        except (AttributeError, NotImplementedError, RuntimeError):
            return function
        return script

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        return compiled()(*args, **kwargs)

    _COMPILERS.append(compiled)
    return call


@_scripted
def gather_all(
    wholes: list[Tensor],
    width_groups: list[int],
    casts: list[Tensor],
    counts: list[list[int]],
    places: Tensor,
) -> list[Tensor]:
    """Rows at some positions of some matrices, on their device, cast and split.

    Parameters
    ----------
    wholes
        ``(columns, rows)``.
    width_groups
        Which row of `places` belongs to each.
    casts
        Any tensor of the dtype to cast to.
    counts
        How many columns belong to each part, in order.
    places
        In page-locked memory.

    Examples
    --------
    >>> whole = torch.tensor([[5, 6, 7], [8, 9, 10]], dtype=torch.int32)
    >>> places = torch.tensor([[2, 0]], dtype=torch.int32)
    >>> gather_all([whole], [0], [torch.empty(0, dtype=torch.int64)], [[1, 1]], places)
    [tensor([[7, 5]]), tensor([[10,  8]])]
    """
    found = places.to(wholes[0].device, non_blocking=True)
    out: list[Tensor] = []
    for i in range(len(wholes)):
        part = wholes[i].index_select(1, found[width_groups[i]])
        part = part.to(casts[i].dtype)
        if len(counts[i]) == 1:
            out.append(part)
        else:
            out.extend(list(torch.unsafe_split_with_sizes(part, counts[i])))
    return out


@_scripted
def cut_each(tensors: list[Tensor], sizes: list[int]) -> list[list[Tensor]]:
    """Pieces of so many rows of some tensors; see `tabfeed.loader.tensors.cut.cut_all`."""
    out: list[list[Tensor]] = []
    for tensor in tensors:
        out.append(list(torch.unsafe_split_with_sizes(tensor, sizes)))
    return out


@_scripted
def copy_all(to: Tensor, parts: list[Tensor], table: Tensor) -> Tensor:
    """Copy some bytes one behind the other, and `table` to their device.

    Examples
    --------
    >>> to = torch.zeros(4, dtype=torch.uint8)
    >>> parts = [torch.tensor([5, 6], dtype=torch.uint8), torch.tensor([7], dtype=torch.uint8)]
    >>> copy_all(to, parts, torch.tensor([1, 2])), to
    (tensor([1, 2]), tensor([5, 6, 7, 0], dtype=torch.uint8))
    """
    at = 0
    for part in parts:
        to.narrow(0, at, part.numel()).copy_(part, non_blocking=True)
        at += part.numel()
    return table.to(to.device, non_blocking=True)


@_scripted
def fill_table(
    table: Tensor,
    known: list[list[Tensor]],
    places: list[Tensor],
    starts: list[list[int]],
) -> None:
    """Fill a table of the pages of some row groups, with addresses in place of offsets.

    Parameters
    ----------
    table
        One row for each of `tabfeed.loader.gpu.parquet.encoded_pages.ROWS`, and a column for each
        page.
    known
        For each row group its `Pages`: the table, and each page's column and whether it is coded.
    places
        The addresses at which its columns begin.
    starts
        The addresses of its bytes, and of the decompressed ones.

    Examples
    --------
    >>> pages = torch.tensor([[5], [0], [7], [0], [0], [0], [1], [2]], dtype=torch.int32)
    >>> table = torch.zeros((8, 1), dtype=torch.int64)
    >>> column, coded = torch.tensor([1], dtype=torch.int32), torch.tensor([1], dtype=torch.int32)
    >>> fill_table(table, [[pages, column, coded]], [torch.tensor([300, 400])], [[10, 20]])
    >>> table[:, 0].tolist()
    [15, 0, 27, 0, 0, 0, 401, 22]
    """
    done = 0
    for i in range(len(known)):
        pages, column, coded = known[i]
        at, to = starts[i]
        part = table.narrow(1, done, pages.size(1))
        for row in range(pages.size(0)):  # all at once, torch would use other threads too
            part.select(0, row).copy_(pages.select(0, row))
        part.select(0, 0).add_(at)
        part.select(0, 2).add_(to)
        part.select(0, 6).add_(places[i].index_select(0, column))
        part.select(0, 7).add_(coded.to(part.dtype).mul_(to))
        done += pages.size(1)


@_scripted
def lay_copy_runs(
    places: Tensor,
    orders: list[Tensor],
    firsts: list[list[int]],
    copy_runs: list[list[int]],
    most: int = _ALONE,
) -> None:
    """Write the positions of the rows of some copy runs to their places in a chunk.

    Parameters
    ----------
    places
        For each width group, one for each place of the chunk.
    orders
        The permutation of each run's block: row ``i`` is row ``order[i]`` in file order.
    firsts
        For each width group, the position of the first row of each run's block.
    copy_runs
        Which rows go where: the fields of `tabfeed.loader.plan.CopyRun`.
    most
        Numbers that are written at a time.

    Examples
    --------
    Rows 1 and 2 of a block to the end of one batch of three, rows 3 and 4 to that of the next:

    >>> from tabfeed.loader.plan import CopyRun
    >>> places = torch.zeros((1, 6), dtype=torch.int32)
    >>> run = CopyRun(7, start=1, src_stride=2, steps=2, width=2, position=1, dst_stride=3)
    >>> order = torch.tensor([4, 0, 3, 1, 2], dtype=torch.int32)
    >>> lay_copy_runs(places, [order], [[100]], [list(run)])
    >>> places.tolist()
    [[0, 100, 103, 0, 101, 102]]
    """
    for width_group in range(len(firsts)):
        out = places[width_group]
        for i in range(len(copy_runs)):
            _, start, pitch, steps, width, place, stride = copy_runs[i]
            wide, high = min(width, most), max(1, most // max(1, width))
            for row in range(0, steps, high):
                rows = min(high, steps - row)
                for column in range(0, width, wide):
                    size = [rows, min(wide, width - column)]
                    source = orders[i][start + row * pitch + column :]
                    to = out[place + row * stride + column :].as_strided(size, [stride, 1])
                    to.copy_(source.as_strided(size, [pitch, 1]))
                    to.add_(firsts[width_group][i])
