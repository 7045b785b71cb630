"""Lots on a GPU: decoded by Arrow into page-locked memory, copied whole, left in file order.

The permutation travels along as 32-bit numbers and is applied when chunks are made: a GPU gathers
rows much faster than they can be read. Columns without a matrix (lists, what rides along) stay in
the computer's memory and are permuted there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch

from tabfeed.loader.buffers import BufferPool
from tabfeed.loader.columns import Group, Layout
from tabfeed.loader.lots import Lot, LotReader
from tabfeed.loader.plan import Epoch
from tabfeed.loader.readers import ReadsParts
from tabfeed.loader.torch.gpu_buffers import GpuBlocks, ThreadStreams, pinned_bytes
from tabfeed.trace import span

__all__ = ["GpuLot", "GpuLotReader", "torch_dtype"]

Tensor = torch.Tensor
_ALIGN = 256


def torch_dtype(dtype: np.dtype[Any]) -> torch.dtype:
    """The same in torch's terms."""
    return torch.from_numpy(np.empty(0, dtype)).dtype


class GpuLot:
    """Rows on a GPU, and the rest of their columns in the computer's memory.

    Attributes
    ----------
    matrices
        ``(columns, rows)`` by group: views of one block.
    index
        Row ``i`` of the lot is column ``index[i]`` of the matrices; None if they lie in order.
    ready
        The event after which the GPU has all of it.
    host
        The columns without a matrix.
    """

    def __init__(self, blocks: GpuBlocks, block: Tensor, rows: int) -> None:
        self._blocks, self.block = blocks, block
        self.rows = rows
        self.matrices: dict[str, Tensor] = {}
        self.index: Tensor | None = None
        self.ready: Any = None
        self.host: Lot | None = None
        self.used: Any = None  # the event after the latest use
        self.held: Any = None  # memory of the computer's that must live until `ready`

    def __del__(self) -> None:
        event = self.used or self.ready
        if event is not None:  # else it was never filled: something went wrong on the way
            self._blocks.give(self.block, event)


@dataclass
class LotShape:
    """How the groups of a lot, and its permutation, lie in a block."""

    groups: tuple[Group, ...]
    dtypes: dict[str, np.dtype[Any]]

    def nbytes(self, rows: int) -> int:
        """Bytes that so many rows take."""
        sizes = [len(g.columns) * self.dtypes[g.name].itemsize * rows for g in self.groups]
        return sum(_aligned(size) for size in [*sizes, 4 * rows])

    def carve(self, block: Tensor, rows: int) -> tuple[dict[str, Tensor], Tensor]:
        """The matrices and the index within a block."""
        matrices, at = {}, 0
        for group in self.groups:
            kind = self.dtypes[group.name]
            size = len(group.columns) * kind.itemsize * rows
            flat = block[at : at + size].view(torch_dtype(kind))
            matrices[group.name] = flat.view(len(group.columns), rows)
            at += _aligned(size)
        return matrices, block[at : at + 4 * rows].view(torch.int32)


def _aligned(nbytes: int) -> int:
    return -(-nbytes // _ALIGN) * _ALIGN


@dataclass
class GpuLotReader:
    """Makes lots on a GPU; threads may share it.

    Parameters
    ----------
    host
        Reads lots of the same layout in the computer's memory.
    blocks
        Memory on the GPU.
    streams
        A stream for each thread.
    """

    host: LotReader
    blocks: GpuBlocks
    streams: ThreadStreams
    shape: LotShape
    pinned: BufferPool = field(default_factory=lambda: BufferPool(allocate=pinned_bytes))

    @property
    def parts(self) -> ReadsParts:
        """Reads partitions."""
        return self.host.parts

    def reading(self, parts: ReadsParts) -> GpuLotReader:
        """The same for another reader of the same partitions."""
        return replace(self, host=self.host.reading(parts))

    def read(self, epoch: Epoch, numbers: Sequence[int]) -> list[GpuLot]:
        """Some lots of an epoch."""
        return [self._read(epoch, number) for number in numbers]

    def _read(self, epoch: Epoch, number: int) -> GpuLot:
        with span("plan"):
            index = epoch.permutation(number)
        partitions, rows = epoch.partitions(number), epoch.lot_rows(number)
        lot = self._scalars(partitions, rows, index)
        rest = Layout((), self.host.layout.lists, self.host.layout.fixed, self.host.layout.extras)
        if rest.columns:
            lot.host = replace(self.host, layout=rest).fill(partitions, rows, index)
        return lot

    def _scalars(self, partitions: Sequence[int], rows: int, index: Any) -> GpuLot:
        layout = Layout(self.host.layout.groups)
        held = replace(self.host, layout=layout, pool=self.pinned).fill(partitions, rows, None)
        stream = self.streams.get()
        lot = GpuLot(self.blocks, self.blocks.take(stream), rows)
        lot.matrices, places = self.shape.carve(lot.block, rows)
        with span("copy", rows=rows), torch.cuda.stream(stream):
            for name, matrix in lot.matrices.items():
                matrix.copy_(torch.from_numpy(held.matrices[name]), non_blocking=True)
            if index is not None:
                lot.index = places
                order = self.pinned.empty((rows,), np.int32)
                order[:] = index
                places.copy_(torch.from_numpy(order), non_blocking=True)
            lot.ready = stream.record_event()
            stream.synchronize()  # the page-locked memory may be written again after this
        return lot
