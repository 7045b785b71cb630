"""Lots on a GPU: decoded by Arrow into page-locked memory, copied whole, left in file order.

The permutation stays in the computer's memory and is applied when chunks are made: a GPU gathers
rows much faster than they can be read. Columns without a matrix (lists, what rides along) stay
there as well, and are permuted there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt
import torch

from tabfeed.loader.buffers import BufferPool
from tabfeed.loader.columns import Layout
from tabfeed.loader.lots import Lot, LotReader
from tabfeed.loader.plan import Epoch
from tabfeed.loader.readers import ReadsParts
from tabfeed.loader.torch.gpu_buffers import Plane, Slab, Slabs, ThreadStreams, pinned_bytes
from tabfeed.trace import span

__all__ = ["GpuLot", "GpuLotReader"]

Index = npt.NDArray[np.int64]


@dataclass
class GpuLot:
    """Rows on a GPU, and the rest of their columns in the computer's memory.

    Attributes
    ----------
    slab, offset
        Where its rows lie, in file order.
    rows
        How many.
    index
        Row ``i`` of the lot is row ``index[i]`` there; None if they are in order.
    host
        The columns without a matrix, permuted.
    """

    slab: Slab
    offset: int
    rows: int
    index: Index | None
    host: Lot | None = None


@dataclass
class GpuLotReader:
    """Makes lots on a GPU; threads may share it.

    Parameters
    ----------
    host
        Reads lots of the same layout in the computer's memory.
    slabs
        Memory on the GPU.
    planes
        How columns lie in it.
    streams
        A stream for each thread.
    """

    host: LotReader
    slabs: Slabs
    planes: tuple[Plane, ...]
    streams: ThreadStreams
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
        lot = GpuLot(self._filled(partitions, rows), 0, rows, index)
        layout = self.host.layout
        rest = Layout((), layout.lists, layout.fixed, layout.extras)
        if rest.columns:
            lot.host = replace(self.host, layout=rest).fill(partitions, rows, index)
        return lot

    def _filled(self, partitions: Sequence[int], rows: int) -> Slab:
        """A slab with the matrices of these partitions, one after the other."""
        held = {p: self.pinned.empty((p.columns, rows), f"i{p.width}") for p in self.planes}
        matrices = {
            group.name: part.view(dtype)
            for plane, whole in held.items()
            for (group, dtype), part in zip(plane.groups, plane.split(whole).values(), strict=True)
        }
        scalars = replace(self.host, layout=Layout(self.host.layout.groups))
        scalars.fill(partitions, rows, None, matrices)
        stream = self.streams.get()
        slab = self.slabs.take(stream)
        with span("copy", rows=rows), torch.cuda.stream(stream):
            for plane, whole in held.items():
                slab.matrix(plane)[:, :rows].copy_(torch.from_numpy(whole), non_blocking=True)
            slab.ready = stream.record_event()
            stream.synchronize()  # the page-locked memory may be written again after this
        return slab
