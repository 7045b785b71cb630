"""Chunks on a GPU: rows gathered from lots there, in one call, and cast.

All chunks are made on one stream beside the model's. The training thread makes its own stream wait
for the event after a chunk, when it takes the chunk's first batch; the program waits for nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from numpy.lib.stride_tricks import as_strided

from tabfeed.loader.chunk import Chunk, ChunkMaker
from tabfeed.loader.columns import Layout
from tabfeed.loader.lots import Lot
from tabfeed.loader.plan import ChunkPlan, Strip
from tabfeed.loader.torch.gpu_buffers import Plane, Slabs, torch_dtype
from tabfeed.loader.torch.gpu_lots import GpuLot
from tabfeed.trace import span

__all__ = ["GpuChunkMaker"]

Tensor = torch.Tensor
Array = npt.NDArray[Any]


@dataclass
class GpuChunkMaker:
    """Makes chunks of one layout on a GPU; threads may share it.

    Parameters
    ----------
    layout
        What a batch is made of.
    host
        Makes the columns without a matrix.
    slabs, planes
        Where lots lie.
    stream
        The stream to work on.
    """

    layout: Layout
    host: ChunkMaker
    slabs: Slabs
    planes: tuple[Plane, ...]
    stream: Any

    def make(self, plan: ChunkPlan, lots: Mapping[int, GpuLot]) -> list[Chunk]:
        """The rows of `plan`, once the work queued on the stream is done."""
        with span("gather", rows=plan.rows):
            chunk = self._rest(plan, lots)
            places = {plane: self._places(plane, plan, lots) for plane in self.planes}
            slabs = {lots[strip.lot].slab for strip in plan.strips}
            with torch.cuda.stream(self.stream):
                for slab in slabs:
                    self.stream.wait_event(slab.ready)
                for plane in self.planes:
                    self._gather(chunk, plane, places[plane])
                event = self.stream.record_event()
            for slab in slabs:
                slab.used = event
        return [chunk]

    def _gather(self, chunk: Chunk, plane: Plane, places: Array) -> None:
        # Pinned through torch, which keeps that memory until the stream has read it.
        index = torch.from_numpy(places).pin_memory().to(self.slabs.device, non_blocking=True)
        found = plane.split(self.slabs.gathered(plane, index))
        for group, dtype in plane.groups:
            part = found[group.name].view(torch_dtype(dtype)).to(torch_dtype(group.dtype))
            if self.layout.matrices:
                chunk.matrices[group.name] = part
            else:
                chunk.columns.update(zip(group.columns, part.unbind(0), strict=True))

    def _places(self, plane: Plane, plan: ChunkPlan, lots: Mapping[int, GpuLot]) -> Array:
        """Where on the GPU the row of each place of the chunk lies."""
        large = self.slabs.planes[plane].numel() >= 2**31
        out = np.empty(plan.rows, np.int64 if large else np.int32)
        for strip in plan.strips:
            lot = lots[strip.lot]
            base = lot.slab.number * plane.columns * self.slabs.rows + lot.offset
            rows = np.arange(lot.rows) if lot.index is None else lot.index
            source = _spaced(rows[strip.start :], strip.pitch, strip)
            to = _spaced(out[strip.place :], strip.stride, strip)
            np.add(source, base, out=to, casting="unsafe")
        return out

    def _rest(self, plan: ChunkPlan, lots: Mapping[int, GpuLot]) -> Chunk:
        layout = Layout((), self.layout.lists, self.layout.fixed, self.layout.extras)
        if not layout.columns:
            return Chunk(plan.bounds)
        held: dict[int, Lot] = {n: lot.host for n, lot in lots.items() if lot.host is not None}
        return ChunkMaker(layout, self.host.pool).make_whole(plan, held)


def _spaced(array: Array, distance: int, strip: Strip) -> Array:
    """``(steps, width)``: a view of places that lie `distance` rows apart."""
    (step,) = array.strides
    return as_strided(array, (strip.steps, strip.width), (distance * step, step))
