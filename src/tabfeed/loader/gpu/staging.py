"""Blocks for a GPU: decoded by Arrow into page-locked memory, copied there whole, in file order.

A block stays in its staging buffer in host memory until the first chunk needs it. So reading ahead
takes no device memory, and no thread waits for a copy: the chunk's stream does.

The permutation is drawn with the block and applied when chunks are made: a GPU gathers rows much
faster than they can be read. Columns without a matrix (lists, extras) stay in host memory, and are
permuted there.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from tabfeed.loader.gpu.buffers import DeviceBuffer, DeviceBuffers, WidthGroup
from tabfeed.loader.gpu.devices import on_device
from tabfeed.loader.plan import Epoch
from tabfeed.loader.read.arrow_columns import Layout
from tabfeed.loader.read.blocks import Block, BlockReader
from tabfeed.loader.read.decoder_processes import (
    DecoderProcess,
    DecoderProcesses,
    StagingBuffer,
    StagingBuffers,
)
from tabfeed.loader.read.partition_reader import ReadsParts
from tabfeed.loader.read.process_blocks import DecodeRequest, StagingSlice, decoders_of, decoding
from tabfeed.trace import span

__all__ = ["GpuBlock", "GpuBlockReader", "copy_to_device", "lock_pages", "unlock_pages"]

Array = npt.NDArray[Any]
Tensor = torch.Tensor
_FEW = 3  # threads that decode until processes have started
_TICK = 0.002


def lock_pages(memory: Array) -> None:
    """Lock the pages of some memory, so that a GPU copies from it asynchronously."""
    runtime: Any = torch.cuda.cudart()  # type: ignore[no-untyped-call]
    torch.cuda.check_error(runtime.cudaHostRegister(memory.ctypes.data, memory.nbytes, 0))


def unlock_pages(memory: Array) -> None:
    """Unlock such memory."""
    runtime: Any = torch.cuda.cudart()  # type: ignore[no-untyped-call]
    runtime.cudaHostUnregister(memory.ctypes.data)


@dataclass
class GpuBlock:
    """Rows for a GPU, and the rest of their columns in host memory.

    Attributes
    ----------
    rows
        How many.
    order
        Row ``i`` is row ``order[i]`` in file order; None if it is not shuffled.
    device_buffer
        Holds its rows on the GPU, in file order; None as long as they are in a staging buffer.
    staging_buffer
        Holds them before.
    host
        The columns without a matrix, permuted.
    encoded
        Describes the staging buffer if it holds bytes of files instead of rows.
    """

    rows: int
    order: Array | None = None
    device_buffer: DeviceBuffer | None = None
    staging_buffer: StagingBuffer | None = None
    host: Block | None = None
    encoded: Any = None

    def pairs(
        self, device_buffer: DeviceBuffer, width_groups: Iterable[WidthGroup]
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Each part of a device buffer, with the part of the staging buffer that fills it."""
        assert self.staging_buffer is not None
        at = 0
        for width_group in width_groups:
            end = at + width_group.columns * width_group.width * self.rows
            part = self.staging_buffer.memory[at:end].view(f"i{width_group.width}")
            whole = torch.from_numpy(part.reshape(width_group.columns, self.rows))
            yield device_buffer.matrix(width_group, self.rows), whole
            at = end


def copy_to_device(
    blocks: Sequence[GpuBlock],
    device_buffers: DeviceBuffers,
    stream: Any,
    unpack: Callable[[Sequence[GpuBlock]], None] | None = None,
) -> None:
    """Copy blocks that are still in staging buffers to the GPU, on `stream`, in one call.

    Parameters
    ----------
    blocks
        Some of which may be there already.
    device_buffers
        The destination.
    stream
        The stream to queue the copies on.
    unpack
        Copies and decodes encoded blocks.
    """
    encoded = [
        block for block in blocks if block.device_buffer is None and block.encoded is not None
    ]
    with on_device(device_buffers.device):
        if encoded and unpack is not None:
            unpack(encoded)
        if waiting := [block for block in blocks if block.device_buffer is None]:
            _copy(waiting, device_buffers, stream)


def _copy(waiting: Sequence[GpuBlock], device_buffers: DeviceBuffers, stream: Any) -> None:
    """Copy blocks from their staging buffers."""
    with torch.cuda.stream(stream):
        taken = device_buffers.take(stream, len(waiting))
        pairs = zip(waiting, taken, strict=True)
        copies = [
            pair
            for block, device_buffer in pairs
            for pair in block.pairs(device_buffer, device_buffers.width_groups)
        ]
        to, source = zip(*copies, strict=True)
        torch._foreach_copy_(to, source, non_blocking=True)  # type: ignore[no-untyped-call,unused-ignore]
        event = stream.record_event()
    for block, device_buffer in zip(waiting, taken, strict=True):
        assert block.staging_buffer is not None
        device_buffer.ready = block.staging_buffer.used = event
        block.device_buffer, block.staging_buffer = device_buffer, None


@dataclass
class GpuBlockReader:
    """Reads blocks onto staging buffers; threads may share it.

    Parameters
    ----------
    host
        Reads blocks of the same layout in host memory.
    width_groups
        How columns lie in a staging buffer.
    staging_buffers
        The destination.
    processes
        How many processes decode; 0 if the threads themselves do.
    workers_per_block
        How many processes decode one block.
    device
        The GPU.
    """

    host: BlockReader
    width_groups: tuple[WidthGroup, ...]
    staging_buffers: StagingBuffers
    processes: int = 0
    workers_per_block: int = 1
    device: torch.device = torch.device("cpu")  # noqa: RUF009 - it does not change
    _verified: set[int] = field(default_factory=set)
    _decode_here: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(_FEW))

    @property
    def parts(self) -> ReadsParts:
        """Reads partitions."""
        return self.host.parts

    def reading(self, parts: ReadsParts) -> GpuBlockReader:
        """The same for another reader of the same partitions."""
        if parts is self.host.parts:
            return self
        return replace(self, host=self.host.reading(parts), processes=0)

    @cached_property
    def _decoders(self) -> DecoderProcesses | None:
        return (
            decoders_of(self.host, self.staging_buffers, self.processes) if self.processes else None
        )

    @cached_property
    def _scalars(self) -> BlockReader:
        return replace(self.host, layout=Layout(self.host.layout.groups))

    @cached_property
    def _rest(self) -> BlockReader | None:
        rest = self.host.layout.rest
        return replace(self.host, layout=rest) if rest.columns else None

    def read(self, epoch: Epoch, numbers: Sequence[int]) -> list[GpuBlock]:
        """Some blocks of an epoch."""
        with on_device(self.device):  # for the calls that allocate and query staging buffers
            return [self._read(epoch, number) for number in numbers]

    def _read(self, epoch: Epoch, number: int) -> GpuBlock:
        partitions, rows = epoch.partitions(number), epoch.block_rows(number)
        staging_buffer, slices = self.staging_buffers.take(), self._slices(rows)
        with self._borrowed() as decoders:
            if decoders:
                quick = self._verified.issuperset(partitions)
                with decoding(
                    decoders, staging_buffer, DecodeRequest(partitions, rows, slices, quick)
                ):
                    order = self.draw(epoch, number)  # while processes decode
            else:
                matrices = {s.group: s.on(staging_buffer.memory, rows) for s in slices}
                self._scalars.fill(partitions, rows, None, matrices)
                order = self.draw(epoch, number)
        block = GpuBlock(rows, order, staging_buffer=staging_buffer)
        self._verified.update(partitions)
        if self._rest is not None:
            block.host = self._rest.fill(partitions, rows, epoch.permutation(number))
        return block

    def close(self) -> None:
        """End processes that are idle; the next block starts them again."""
        if self._decoders is not None:
            self._decoders.dismiss()

    def draw(self, epoch: Epoch, number: int) -> Array | None:
        """The permutation of a block; None if rows are not shuffled."""
        if not epoch.plan.shuffle:
            return None
        with span("plan"):
            order = self.host.pool.empty((epoch.block_rows(number),), np.int32)
            epoch.permutations.into(number, order)
        return order

    @contextmanager
    def _borrowed(self) -> Iterator[list[DecoderProcess]]:
        """Processes to decode a block; none if this thread is to do it.

        A few threads do so until the processes have started; more threads would only queue.
        """
        if self._decoders is None:
            yield []
            return
        while True:
            with self._decoders.borrow(self.workers_per_block) as decoders:
                if decoders:
                    yield decoders
                    return
            if not self._decoders.up and self._decode_here.acquire(timeout=_TICK):
                try:
                    yield []
                finally:
                    self._decode_here.release()
                return

    def _slices(self, rows: int) -> list[StagingSlice]:
        """Where in a staging buffer the groups lie: by width group, without gaps."""
        slices, at = [], 0
        for width_group in self.width_groups:
            for group, dtype in width_group.groups:
                slices.append(StagingSlice(group.name, at, len(group.columns), dtype))
                at += len(group.columns) * dtype.itemsize * rows
        return slices
