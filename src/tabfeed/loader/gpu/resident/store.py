"""A whole dataset on a GPU: ``(columns, rows)`` in the files' own dtypes, in file order.

Background threads fill it partition by partition, through page-locked memory and on one stream:
the one on which batches are cut later. If an epoch ends before all rows are there, the next epoch
goes on from what has arrived. Ragged columns arrive in parts, which are concatenated once all are
there; their size is only known then, so it is counted as they arrive.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import torch

from tabfeed.errors import LoaderError
from tabfeed.loader.gpu.buffers import WidthGroup, torch_dtype
from tabfeed.loader.read.arrow_columns import Layout, Lists
from tabfeed.loader.read.blocks import Block, BlockReader
from tabfeed.loader.read.buffers import BufferPool
from tabfeed.trace import span

__all__ = ["Size", "Store", "gigabytes", "too_large"]

Tensor = torch.Tensor
_WORDS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_TICK = 0.5


def gigabytes(count: int) -> str:
    """An amount of memory as a person reads it."""
    return f"{count / 1e9:,.3g} GB" if count >= 10**7 else f"{count / 1e6:,.3g} MB"


def too_large(needed: int, allowed: int, rows: int) -> LoaderError:
    """The error for a dataset that does not fit."""
    return LoaderError(
        f'cache="device" needs {gigabytes(needed)} on the GPU for {rows:,} rows, and '
        f"device_memory allows {gigabytes(allowed)}: raise device_memory if the GPU has room, load "
        'fewer columns or rows, or stream them with cache=None, "memory" or "disk"'
    )


@dataclass(frozen=True)
class Size:
    """Bytes on the GPU.

    Attributes
    ----------
    known
        Needed for columns of known length and for scratch, before anything is read.
    allowed
        The limit for everything.
    """

    known: int
    allowed: int


class Store:
    """All rows of a dataset on a GPU; threads may share it.

    Parameters
    ----------
    layout
        The columns.
    width_groups
        How scalars lie in memory.
    sizes
        Rows of each partition.
    stream
        The stream on which it is filled and read.
    size
        How much memory it may use.
    """

    def __init__(
        self,
        layout: Layout,
        width_groups: Sequence[WidthGroup],
        sizes: Sequence[int],
        stream: Any,
        size: Size,
    ) -> None:
        self.layout, self.width_groups, self.stream, self._size = (
            layout,
            tuple(width_groups),
            stream,
            size,
        )
        self._sizes = tuple(sizes)
        self._starts = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
        self.rows = int(self._starts[-1])
        self.matrices: dict[WidthGroup, Tensor] = {}
        self.fixed: dict[str, Tensor] = {}
        self.lists: dict[str, Lists] = {}
        self._offsets: dict[str, Tensor] = {}
        self._values: dict[str, dict[int, Tensor]] = {name: {} for name, _ in layout.lists}
        self._pinned: BufferPool | None = None
        self._changed = threading.Condition()
        self._missing = set(range(len(self._sizes)))
        self._reading: set[int] = set()
        self._ragged_bytes = 0
        self._process = os.getpid()
        self.whole = False

    # -- filling ----------------------------------------------------------------------

    def add(self, number: int, reader: BlockReader) -> None:
        """Read a partition unless it was read; wait if another thread is reading it."""
        if not self._claim(number):
            return
        try:
            if self._sizes[number]:
                self._fill(number, reader)
            self._done(number, there=True)
        except BaseException:
            self._done(number, there=False)
            raise

    def check_process(self) -> None:
        """Refuse a forked copy of the process: it has no GPU."""
        if os.getpid() != self._process:
            raise LoaderError(
                'cache="device" keeps the data on the GPU of the process that made the loader; '
                "use num_workers=0, which prepares batches in background threads"
            )

    def no_room(self) -> LoaderError:
        """The error for a GPU that has no memory left for the next batches."""
        return LoaderError(
            'the GPU has no memory left for the next batches: with cache="device" it holds all '
            f"rows, which takes {gigabytes(self._size.known)} with batches on their way, and "
            "evicting them would change their order. Leave that much free beside the model and "
            'resume from state_dict(), or use cache=None, "memory" or "disk"'
        )

    def _claim(self, number: int) -> bool:
        self.check_process()
        with self._changed:
            while number in self._reading:
                self._changed.wait(_TICK)
            if number not in self._missing:
                return False
            if self._pinned is None:
                self._allocate()
            self._reading.add(number)
        return True

    def _done(self, number: int, *, there: bool) -> None:
        with self._changed:
            self._reading.discard(number)
            if there:
                self._missing.discard(number)
            self._changed.notify_all()

    def _allocate(self) -> None:
        device = self.stream.device
        try:
            with torch.cuda.stream(self.stream):
                for width_group in self.width_groups:
                    shape, dtype = (width_group.columns, self.rows), _WORDS[width_group.width]
                    self.matrices[width_group] = torch.empty(shape, dtype=dtype, device=device)
                for name, width, kind in self.layout.fixed:
                    shape = (self.rows, width)
                    self.fixed[name] = torch.empty(shape, dtype=torch_dtype(kind), device=device)
                for name, _ in self.layout.lists:
                    zeros = torch.zeros(self.rows + 1, dtype=torch.int64, device=device)
                    self._offsets[name] = zeros
        except torch.cuda.OutOfMemoryError as e:
            self.matrices, self.fixed, self._offsets = {}, {}, {}
            raise LoaderError(
                f'cache="device" needs {gigabytes(self._size.known)} on the GPU, more than is '
                'free: free some, or use cache=None, "memory" or "disk"'
            ) from e
        self._pinned = BufferPool(allocate=_pinned)

    def _fill(self, number: int, reader: BlockReader) -> None:
        rows, start = self._sizes[number], int(self._starts[number])
        assert self._pinned is not None
        held = {p: self._pinned.empty((p.columns, rows), f"i{p.width}") for p in self.width_groups}
        block = reader.fill([number], rows, None, _by_group(held))
        self._count(block)
        place = slice(start, start + rows)
        with span("copy", rows=rows), torch.cuda.stream(self.stream):
            for width_group, whole in held.items():
                there = self.matrices[width_group][:, place]
                there.copy_(torch.from_numpy(whole), non_blocking=True)
            for name, array in block.fixed.items():
                self.fixed[name][place].copy_(torch.from_numpy(array))
            for name, lists in block.lists.items():
                lengths = torch.from_numpy(np.diff(lists.offsets))
                self._offsets[name][start + 1 : start + rows + 1].copy_(lengths)
                self._values[name][number] = torch.from_numpy(lists.values).to(self.stream.device)
            self.stream.synchronize()  # the page-locked memory may be overwritten after this

    def _count(self, block: Block) -> None:
        """Refuse as soon as ragged columns take more than is allowed."""
        coming = sum(lists.values.nbytes for lists in block.lists.values())
        with self._changed:
            # While the parts of a column are concatenated, it is there twice.
            largest = -(-(self._ragged_bytes + coming) // max(1, len(self.layout.lists)))
            needed = self._size.known + self._ragged_bytes + coming + largest
            if needed > self._size.allowed:
                raise too_large(needed, self._size.allowed, self.rows)
            self._ragged_bytes += coming

    def finish(self) -> None:
        """Make it ready for gathering, after all partitions were added; once is enough."""
        with self._changed:
            if self.whole:
                return
            with torch.cuda.stream(self.stream):
                for name, dtype in self.layout.lists:
                    self.lists[name] = self._concatenated(name, dtype)
                self.stream.synchronize()
            self._offsets, self._values, self._pinned = {}, {}, None
            self.whole = True

    def _concatenated(self, name: str, dtype: np.dtype[Any]) -> Lists:
        """The parts of a ragged column end to end, and where its rows begin."""
        parts = self._values[name]
        values = [parts.pop(number) for number in sorted(parts)]
        whole = (
            torch.cat(values)
            if values
            else torch.empty(0, dtype=torch_dtype(dtype), device=self.stream.device)
        )
        offsets = self._offsets.pop(name).cumsum_(0)
        return Lists(cast(Any, whole), cast(Any, offsets))


def _by_group(held: dict[WidthGroup, npt.NDArray[Any]]) -> dict[str, npt.NDArray[Any]]:
    """The part of each group, in its dtype."""
    return {
        group.name: whole[at : at + len(group.columns)].view(dtype)
        for width_group, whole in held.items()
        for group, dtype, at in width_group.spans()
    }


def _pinned(nbytes: int) -> Any:
    """Page-locked memory, from which a GPU copies asynchronously."""
    return torch.empty(nbytes, dtype=torch.uint8, pin_memory=True).numpy()
