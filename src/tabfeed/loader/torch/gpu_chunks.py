"""Chunks on a GPU: rows gathered from lots there, cast, and laid side by side.

All chunks are made on one stream beside the model's. The training thread makes its own stream wait
for the event after a chunk, when it takes the chunk's first batch; the program waits for nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from tabfeed.loader.chunk import Chunk, ChunkMaker
from tabfeed.loader.columns import Layout
from tabfeed.loader.lots import Lot
from tabfeed.loader.plan import ChunkPlan, Strip
from tabfeed.loader.torch.gpu_lots import GpuLot, torch_dtype
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
    stream
        The stream to work on.
    """

    layout: Layout
    host: ChunkMaker
    stream: Any
    device: torch.device

    def make(self, plan: ChunkPlan, lots: Mapping[int, GpuLot]) -> list[Chunk]:
        """The rows of `plan`, once the work queued on the stream is done."""
        with span("gather", rows=plan.rows), torch.cuda.stream(self.stream):
            chunk = self._rest(plan, lots)
            used = [lots[number] for number in {s.lot for s in plan.strips}]
            for lot in used:
                self.stream.wait_event(lot.ready)
            for group in self.layout.groups:
                shape = (len(group.columns), plan.rows)
                out = torch.empty(shape, dtype=torch_dtype(group.dtype), device=self.device)
                for strip in plan.strips:
                    _lay(strip, lots[strip.lot], group.name, out)
                if self.layout.matrices:
                    chunk.matrices[group.name] = out  # type: ignore[assignment]
                else:
                    chunk.columns.update(zip(group.columns, out, strict=True))
            event = self.stream.record_event()
            for lot in used:
                lot.used = event
        return [chunk]

    def _rest(self, plan: ChunkPlan, lots: Mapping[int, GpuLot]) -> Chunk:
        layout = Layout((), self.layout.lists, self.layout.fixed, self.layout.extras)
        if not layout.columns:
            return Chunk(plan.bounds)
        held: dict[int, Lot] = {n: lot.host for n, lot in lots.items() if lot.host is not None}
        return ChunkMaker(layout, self.host.pool).make_whole(plan, held)


def _lay(strip: Strip, lot: GpuLot, group: str, out: Tensor) -> None:
    """Gather the rows of a strip into their places, with a cast."""
    source = lot.matrices[group]
    if lot.index is not None:
        places = _spaced(lot.index[strip.start :], strip.pitch, strip).reshape(-1)
        rows = source.index_select(1, places).view(len(source), strip.steps, strip.width)
    else:
        rows = _spaced(source[:, strip.start :], strip.pitch, strip)
    _spaced(out[:, strip.place :], strip.stride, strip).copy_(rows)


def _spaced(tensor: Tensor, distance: int, strip: Strip) -> Tensor:
    """``(..., steps, width)``: a view of places that lie `distance` rows apart."""
    *across, along = tensor.stride()
    shape = (*tensor.shape[:-1], strip.steps, strip.width)
    return tensor.as_strided(shape, (*across, distance * along, along), tensor.storage_offset())
