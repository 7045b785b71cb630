"""Chunks on a GPU: rows gathered from lots there, in one call for each group, and cast.

All chunks are made on one stream beside the model's; lots that are still in the computer's memory
are copied on another, for which that one waits. The training thread makes its own stream wait for
the event after a chunk, when it takes the chunk's first batch; the program waits for nothing.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from tabfeed.loader.chunk import Chunk, ChunkMaker
from tabfeed.loader.columns import Layout
from tabfeed.loader.lots import Lot
from tabfeed.loader.plan import ChunkPlan
from tabfeed.loader.torch.gpu_buffers import Plane, Slab, Slabs, torch_dtype
from tabfeed.loader.torch.gpu_lots import GpuLot
from tabfeed.trace import span

__all__ = ["GpuChunkMaker"]

Tensor = torch.Tensor


@dataclass
class GpuChunkMaker:
    """Makes chunks of one layout on a GPU; threads may share it.

    Parameters
    ----------
    layout
        What a batch is made of.
    host
        Makes the columns without a matrix.
    slabs
        Where lots lie.
    stream
        The stream to gather on.
    copies
        The stream to copy lots on.
    """

    layout: Layout
    host: ChunkMaker
    slabs: Slabs
    stream: Any
    copies: Any
    _turn: Any = field(default_factory=threading.Lock)

    def make(self, plan: ChunkPlan, lots: Mapping[int, GpuLot]) -> list[Chunk]:
        """The rows of `plan`, once the work queued on the stream is done."""
        with span("gather", rows=plan.rows):
            chunk = self._rest(plan, lots)
            slabs = self._bring({strip.lot: lots[strip.lot] for strip in plan.strips})
            strips = [(slabs[strip.lot], strip) for strip in plan.strips]
            with torch.cuda.stream(self.stream):
                for plane in self.slabs.planes:
                    places = self.slabs.places(plane, strips, plan.rows)
                    self._gather(chunk, plane, places)
                event = self.stream.record_event()
            for slab in slabs.values():
                slab.used = event
        return [chunk]

    def _bring(self, lots: Mapping[int, GpuLot]) -> dict[int, Slab]:
        """The slabs of these lots; the stream waits until they are filled."""
        with self._turn, torch.cuda.stream(self.copies):
            slabs = {n: lot.bring(self.slabs, self.copies) for n, lot in lots.items()}
            for slab in slabs.values():
                if slab.ready is not None:  # else an earlier chunk waits for it
                    self.stream.wait_event(slab.ready)
                    slab.ready = None
        return slabs

    def _gather(self, chunk: Chunk, plane: Plane, places: Tensor) -> None:
        for group, dtype, first in plane.spans():
            columns = range(first, first + len(group.columns))
            found = self.slabs.gathered(plane, columns, places).view(torch_dtype(dtype))
            part: Any = found.to(torch_dtype(group.dtype))
            if self.layout.matrices:
                chunk.matrices[group.name] = part
            else:
                chunk.columns.update(zip(group.columns, part.unbind(0), strict=True))

    def _rest(self, plan: ChunkPlan, lots: Mapping[int, GpuLot]) -> Chunk:
        layout = Layout((), self.layout.lists, self.layout.fixed, self.layout.extras)
        if not layout.columns:
            return Chunk(plan.bounds)
        held: dict[int, Lot] = {n: lot.host for n, lot in lots.items() if lot.host is not None}
        return ChunkMaker(layout, self.host.pool).make_whole(plan, held)
