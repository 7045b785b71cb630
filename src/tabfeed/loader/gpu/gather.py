"""Chunks on a GPU: rows gathered from blocks there, in one call for each dtype, and cast.

All chunks are made on one stream beside the model's. Blocks that are still in host memory are
copied on another stream, for which the first one waits. When the training thread takes the first
batch of a chunk, its own stream waits for the event after that chunk. No thread waits.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import groupby
from typing import Any, cast

import torch

from tabfeed.loader.assemble.chunk import Chunk, ChunkMaker
from tabfeed.loader.gpu.buffers import DeviceBuffer, DeviceBuffers, torch_dtype
from tabfeed.loader.gpu.parquet.file_dtypes import GroupPiece
from tabfeed.loader.gpu.staging import GpuBlock, copy_to_device
from tabfeed.loader.plan import ChunkPlan
from tabfeed.loader.read.arrow_columns import Group, Layout
from tabfeed.loader.read.blocks import Block
from tabfeed.loader.tensors.scripted import gather_all
from tabfeed.trace import span

__all__ = ["GpuChunkMaker", "mark_used"]

Tensor = torch.Tensor


@dataclass
class GpuChunkMaker:
    """Makes chunks of one layout on a GPU; threads may share it.

    Parameters
    ----------
    layout
        The columns of a batch.
    host
        Makes the columns without a matrix.
    device_buffers
        Hold blocks.
    stream
        The stream to gather on.
    copies
        The stream to copy blocks on.
    unpack
        Decodes encoded blocks, if there are any.
    pieces
        The groups of device buffers that are only part of a batch's group, by name.
    """

    layout: Layout
    host: ChunkMaker
    device_buffers: DeviceBuffers
    stream: Any
    copies: Any
    unpack: Callable[[Sequence[GpuBlock]], None] | None = None
    pieces: Mapping[str, GroupPiece] = field(default_factory=dict)
    _lock: Any = field(default_factory=threading.Lock)

    def make(self, plan: ChunkPlan, blocks: Mapping[int, GpuBlock]) -> list[Chunk]:
        """The rows of `plan`, valid once the work queued on the stream is done."""
        with span("gather", rows=plan.rows), torch.cuda.stream(self.stream):
            chunk = self._rest(plan, blocks)
            self.gather(chunk, blocks, self.copy_blocks(plan, blocks))
            mark_used(blocks, self.stream.record_event())
            return [chunk]

    def copy_blocks(self, plan: ChunkPlan, blocks: Mapping[int, GpuBlock]) -> Tensor:
        """Queue copies of a chunk's blocks to the GPU; gives the positions of its rows there."""
        with self._lock:
            copy_to_device(list(blocks.values()), self.device_buffers, self.copies, self.unpack)
        found = [(blocks[copy_run.block], copy_run) for copy_run in plan.copy_runs]
        return self.device_buffers.places(
            [(_device_buffer(block), block.order, copy_run) for block, copy_run in found], plan.rows
        )

    def gather(self, chunk: Chunk, blocks: Mapping[int, GpuBlock], places: Tensor) -> None:
        """Queue the gathering of a chunk whose blocks were copied; `stream` must be current."""
        self._wait_for([_device_buffer(block) for block in blocks.values()])
        found: list[Any] = gather_all(*self._runs, places)
        for group, part in zip(self._groups, found, strict=True):
            if not self.layout.matrices:
                chunk.columns.update(zip(group.columns, part.unbind(0), strict=True))
            elif group.name in self.pieces:
                self._join(chunk, self.pieces[group.name], part)
            else:
                chunk.matrices[group.name] = part

    def _join(self, chunk: Chunk, piece: GroupPiece, part: Tensor) -> None:
        """Copy some rows of a matrix into the whole."""
        matrices = cast(dict[str, Tensor], chunk.matrices)
        if piece.group not in matrices:
            matrices[piece.group] = part.new_empty((piece.of, part.shape[1]))
        matrices[piece.group].index_copy_(0, self._rows[piece], part)

    @cached_property
    def _rows(self) -> dict[GroupPiece, Tensor]:
        """The row numbers of each piece, on the GPU."""
        device = self.device_buffers.device
        return {piece: torch.tensor(piece.rows, device=device) for piece in self.pieces.values()}

    def _wait_for(self, device_buffers: list[DeviceBuffer]) -> None:
        """Let the stream wait until device buffers are filled: once for each suffices."""
        new = [device_buffer for device_buffer in device_buffers if not device_buffer.awaited]
        for event in {device_buffer.ready for device_buffer in new}:
            self.stream.wait_event(event)
        for device_buffer in new:
            device_buffer.awaited = True

    @cached_property
    def _groups(self) -> list[Group]:
        """All groups, in the order of width groups."""
        return [
            group
            for width_group in self.device_buffers.width_groups
            for group, _ in width_group.groups
        ]

    @cached_property
    def _runs(self) -> tuple[list[Tensor], list[int], list[Tensor], list[list[int]]]:
        """What to gather at once: adjacent groups that are cast to the same dtype.

        For each such run: its columns, the number of its width group, a tensor of the dtype to cast
        to, and how many columns each of its groups has.
        """
        wholes, width_groups, casts, counts = [], [], [], []
        for number, width_group in enumerate(self.device_buffers.width_groups):
            kinds = groupby(width_group.spans(), key=lambda span: (span[1], span[0].dtype))
            for (dtype, becomes), run in kinds:
                spans = list(run)
                sizes = [len(group.columns) for group, _, _ in spans]
                first = spans[0][2]
                wholes.append(
                    self.device_buffers.columns(
                        width_group, dtype, range(first, first + sum(sizes))
                    )
                )
                width_groups.append(number)
                casts.append(torch.empty(0, dtype=torch_dtype(becomes)))
                counts.append(sizes)
        return wholes, width_groups, casts, counts

    def _rest(self, plan: ChunkPlan, blocks: Mapping[int, GpuBlock]) -> Chunk:
        layout = self.layout.rest
        if not layout.columns:
            return Chunk(plan.bounds, first_step=plan.first_step)
        held: dict[int, Block] = {
            n: block.host for n, block in blocks.items() if block.host is not None
        }
        return ChunkMaker(layout, self.host.pool).make_whole(plan, held)


def mark_used(blocks: Mapping[int, GpuBlock], event: Any) -> None:
    """Let whatever overwrites these blocks wait for an event."""
    for block in blocks.values():
        _device_buffer(block).used = event


def _device_buffer(block: GpuBlock) -> DeviceBuffer:
    assert block.device_buffer is not None, "it was copied"
    return block.device_buffer
