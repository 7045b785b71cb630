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
from tabfeed.loader.torch.gpu_lots import GpuLot, bring
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
            return [self.gather(plan, lots, self.bring(plan, lots), chunk)]

    def bring(self, plan: ChunkPlan, lots: Mapping[int, GpuLot]) -> Tensor:
        """Have the lots of a chunk copied to the GPU, and say how it is put together."""
        with self._turn:
            bring(list(lots.values()), self.slabs, self.copies)
        strips = [(_slab(lots[strip.lot]), strip) for strip in plan.strips]
        return self.slabs.runs(strips)

    def gather(
        self, plan: ChunkPlan, lots: Mapping[int, GpuLot], runs: Tensor, chunk: Chunk | None = None
    ) -> Chunk:
        """Queue the putting together of a chunk whose lots were brought."""
        chunk = chunk or Chunk(plan.bounds)
        with torch.cuda.stream(self.stream):
            slabs = [_slab(lot) for lot in lots.values()]
            for event in {slab.ready for slab in slabs}:
                if event is not None:
                    self.stream.wait_event(event)
            found = self.slabs.places(runs, plan.rows)
            for plane, places in zip(self.slabs.planes, found, strict=True):
                self._gather(chunk, plane, places)
            event = self.stream.record_event()
            for slab in slabs:
                slab.used = event
        return chunk

    def _gather(self, chunk: Chunk, plane: Plane, places: Tensor) -> None:
        for group, dtype, first in plane.spans():
            columns = range(first, first + len(group.columns))
            part: Any = self.slabs.gathered(plane, columns, places)
            if dtype.kind != "i":
                part = part.view(torch_dtype(dtype))
            if dtype != group.dtype:
                part = part.to(torch_dtype(group.dtype))
            if self.layout.matrices:
                chunk.matrices[group.name] = part
            else:
                chunk.columns.update(zip(group.columns, part.unbind(0), strict=True))

    def _rest(self, plan: ChunkPlan, lots: Mapping[int, GpuLot]) -> Chunk:
        layout = self.layout.rest
        if not layout.columns:
            return Chunk(plan.bounds)
        held: dict[int, Lot] = {n: lot.host for n, lot in lots.items() if lot.host is not None}
        return ChunkMaker(layout, self.host.pool).make_whole(plan, held)


def _slab(lot: GpuLot) -> Slab:
    assert lot.slab is not None, "it was brought"
    return lot.slab
