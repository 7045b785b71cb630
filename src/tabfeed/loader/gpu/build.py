"""A pipeline whose batches are made on a GPU: which reader, how much memory, which streams.

Everything happens beside the model: reading on a stream for each thread, putting together on
another. When the training thread takes the first batch of a chunk, its current stream is made to
wait for that chunk's event, and told to the allocator as a user of the memory, so that nothing is
written again before the model has read it. The program itself waits for nothing.

The order of rows is that of the CPU, since both follow the same plan.
"""

from __future__ import annotations

import logging
import warnings
from dataclasses import dataclass, replace
from functools import cached_property, partial
from importlib.util import find_spec
from typing import Any, TypeVar, cast

import torch

from tabfeed.errors import TabfeedWarning
from tabfeed.loader.assemble.batch_ops import op_bytes
from tabfeed.loader.assemble.chunk import ChunkMaker
from tabfeed.loader.gpu.auto_reader import AutoPipeline, Backends
from tabfeed.loader.gpu.batch_ops import GpuOps
from tabfeed.loader.gpu.buffers import DeviceBuffers, width_groups_of
from tabfeed.loader.gpu.delivery import GpuStages, for_host
from tabfeed.loader.gpu.devices import check_device, free_bytes, on_device
from tabfeed.loader.gpu.fallback_sizes import ASIDE, check_room
from tabfeed.loader.gpu.gather import GpuChunkMaker
from tabfeed.loader.gpu.host_fallback import fallback_pipeline
from tabfeed.loader.gpu.memory_plan import MemoryRequest, least, plan_memory
from tabfeed.loader.gpu.parquet.cudf_blocks import CudfBlockReader, why_not_cudf
from tabfeed.loader.gpu.parquet.encoded_blocks import (
    EncodedRow,
    encoded_row,
    kinds_of,
    why_not_unpacked,
)
from tabfeed.loader.gpu.parquet.encoded_pages import UnsupportedError
from tabfeed.loader.gpu.parquet.file_dtypes import Reading, as_in_files
from tabfeed.loader.gpu.parquet.unpack import DecodeStreams, Unpacker
from tabfeed.loader.gpu.pipeline import GpuPipeline
from tabfeed.loader.gpu.staging_plan import StagingPlan
from tabfeed.loader.options import GpuOptions
from tabfeed.loader.pipeline import Pipeline
from tabfeed.loader.plan.order import Plan
from tabfeed.loader.read.arrow_columns import Layout
from tabfeed.loader.read.block_window import Ahead
from tabfeed.loader.read.blocks import BlockReader
from tabfeed.loader.tensors.scripted import prepare

__all__ = ["memory_for", "on_gpu"]

B = TypeVar("B")
_log = logging.getLogger("tabfeed")


def memory_for(options: GpuOptions, device: torch.device, buffer_size: Any = None) -> int:
    """Bytes that a loader may hold on a GPU."""
    total = torch.cuda.get_device_properties(device).total_memory
    return options.memory(total=total, free=free_bytes(device), buffer_size=buffer_size)


def on_gpu(
    pipeline: Pipeline[B], device: torch.device, options: GpuOptions, held: int | None = None
) -> Pipeline[B]:
    """The same batches, made on a GPU.

    Parameters
    ----------
    feed
        Makes them in the computer's memory.
    device
        The GPU.
    options
        Reader and memory.
    held
        As for `MemoryRequest`, if it is another number than usual.
    """
    check_device(device)
    stages = pipeline.stages
    reader, maker = stages.reader, stages.maker
    if not isinstance(reader, BlockReader) or not isinstance(maker, ChunkMaker):
        return pipeline
    with on_device(device):
        made = _made(pipeline, reader.layout, device, options, held)
    if not isinstance(made, AutoPipeline):  # which will say so by itself
        _log.info("reader: %s", made.reader_choice)
    return made


def _made(
    pipeline: Pipeline[Any],
    layout: Layout,
    device: torch.device,
    options: GpuOptions,
    held: int | None,
) -> Pipeline[Any]:
    ops = GpuOps.of(pipeline.stages.ops, layout, device)
    row_bytes = layout.row_bytes + op_bytes(pipeline.stages.ops, layout)
    memory = memory_for(options, device, pipeline.options.buffer_size)
    check_room(pipeline, max(memory, memory_for(options, device)), row_bytes)
    if ops is None or not layout.groups:
        what = "columns of lists are put together" if ops is not None else "an operator works"
        plain = fallback_pipeline(pipeline, device, memory, row_bytes)
        choice = _not_there(f"{what} in the computer's memory", options)
        return replace(plain, reader_choice=choice)
    build = _Build(pipeline, device, ops, memory - ops.table_bytes, row_bytes, held)
    if options.reader == "auto":
        return _auto(build)
    on_gpu, why = _as_asked(options, build)
    made = build(on_gpu)
    if made is None and on_gpu:
        made, why = build(False), "Arrow: the GPU needs more device_memory to decode"
    if made is None:
        return build.on_host()
    if isinstance(made.stages.reader, CudfBlockReader):
        reason = build.unpacking if isinstance(build.unpacking, str) else "memory is too small"
        why = f"pylibcudf: as asked for; tabfeed's own way is not open, since {reason}"
    return replace(made, reader_choice=why)


@dataclass(frozen=True)
class _Build:
    """Makes feeds whose batches are made on a GPU, within so many bytes."""

    pipeline: Pipeline[Any]
    device: torch.device
    ops: GpuOps
    memory: int
    row_bytes: int
    held: int | None = None

    def for_plan(self, plan: Plan) -> _Build:
        """The same for another plan of the same rows, perhaps of other ranks than there are now."""
        options = self.pipeline.options
        plan = replace(plan, chunk=self.pipeline.plan.chunk, ranks=options.shard.world)
        return replace(self, pipeline=replace(self.pipeline, plan=plan))

    def remake(self, on_gpu: bool, plan: Plan) -> Pipeline[Any]:
        """One for another plan, in whichever way there is memory for it."""
        build = self.for_plan(plan)
        return build(on_gpu) or build(False) or build.on_host()

    def copied(self, memory: int) -> Pipeline[Any]:
        """One whose batches are copied, within so many bytes."""
        return fallback_pipeline(self.pipeline, self.device, memory, self.row_bytes)

    @property
    def arrow(self) -> Reading:
        """Reads what Arrow decodes."""
        return Reading(cast(BlockReader, self.pipeline.stages.reader))

    @cached_property
    def in_files(self) -> Reading | str:
        """Reads what the GPU decodes; or why it cannot."""
        try:
            return as_in_files(self.arrow.reader)
        except UnsupportedError as e:
            return str(e)

    @cached_property
    def narrow(self) -> Reading:
        """The same for a GPU that unpacks files by itself: ids that fit have 32 bits."""
        return as_in_files(self.arrow.reader, narrow=True)

    def need(self, reading: Reading) -> MemoryRequest:
        """What memory is needed for."""
        layout = reading.reader.layout
        need = MemoryRequest.of(self.pipeline.plan, layout, reading.reader.dtypes)
        here = not (layout.rest.columns or getattr(self.pipeline.stages.finish, "asks", False))
        batch, passing = need.batch + self.ops.row_bytes, need.passing + reading.joining
        held = need.held if self.held is None else self.held
        return replace(need, batch=batch, passing=passing, here=here, held=held)

    def on_host(self) -> Pipeline[Any]:
        """One whose chunks are made in the computer's memory, and copied."""
        enough = -(-(least(self.need(self.arrow)) + self.ops.table_bytes) // 10**6)
        made = self.copied(self.memory + self.ops.table_bytes)
        choice = (
            "Arrow: batches are made in the computer's memory, and copied; to make them on the "
            f'GPU, give device_memory="{enough}MB" or more'
        )
        return replace(made, reader_choice=choice)

    @cached_property
    def spare(self) -> Pipeline[Any]:
        """The same beside one that is made on the GPU, or after it: with little memory."""
        return self.copied(self.memory // ASIDE)

    def why_not(self) -> str | None:
        """Why the GPU cannot decode; None if it can. May take seconds, to load what does."""
        if isinstance(self.in_files, str):
            return self.in_files
        with on_device(self.device):
            return why_not_cudf() if isinstance(self.unpacking, str) else None

    @cached_property
    def unpacking(self) -> EncodedRow | str:
        """How large rows are in files that the GPU can unpack by itself; or why it cannot."""
        if isinstance(self.in_files, str):
            return self.in_files
        reader = self.narrow.reader
        if (reason := why_not_unpacked(self.device, kinds_of(reader))) is not None:
            return reason
        try:
            return encoded_row(reader)
        except UnsupportedError as e:
            return str(e)

    def __call__(self, on_gpu: bool, copies: int = 0) -> Pipeline[Any] | None:
        """One for which the GPU decodes, or Arrow does; None if memory is too small.

        So many `copies` as `divide` is to leave room for.
        """
        try:
            with on_device(self.device):
                return self._found(on_gpu, copies)
        except torch.OutOfMemoryError:  # less is free than the driver says
            return None

    def _found(self, on_gpu: bool, copies: int) -> Pipeline[Any] | None:
        if not on_gpu:
            return self._built("arrow", self.arrow, self.need(self.arrow), copies)
        if isinstance(self.in_files, str):
            return None
        made = None
        if not isinstance(self.unpacking, str):
            encoded, plain = self.unpacking
            need = replace(self.need(self.narrow), encoded=encoded, plain=plain)
            made = self._built("packed", self.narrow, need, copies)
        if made is None and why_not_cudf() is None:
            made = self._built("cudf", self.in_files, self.need(self.in_files), copies)
        return made

    def _built(
        self, how: str, reading: Reading, need: MemoryRequest, copies: int
    ) -> Pipeline[Any] | None:
        pipeline, reader = self.pipeline, reading.reader
        maker = cast(ChunkMaker, pipeline.stages.maker)
        share = plan_memory(need, self.memory, how=how, copies=copies)
        if share is None:
            return None
        prepare()
        width_groups = width_groups_of(reader.layout.groups, reader.dtypes)
        streams: Any = [torch.cuda.Stream(self.device) for _ in range(2)]  # type: ignore[no-untyped-call]
        device_buffers = DeviceBuffers(
            self.device, width_groups, share.rows, share.blocks, streams[0]
        )
        staging_buffers = StagingPlan.of(need, share, pipeline.options, reader)
        blocks: Any = staging_buffers.reader(reader, width_groups, self.device)
        unpack = None
        if share.readings:
            blocks = CudfBlockReader(blocks, device_buffers, share.decoding, share.readings)
        elif share.decode_streams:
            encoded, plain = need.encoded_block
            decode_streams = DecodeStreams(
                share.decode_streams, share.together * encoded, share.together * plain
            )
            unpack = Unpacker(device_buffers, decode_streams, kinds_of(reader))
        chunks = GpuChunkMaker(
            reader.layout, maker, device_buffers, streams[0], streams[1], unpack, reading.pieces
        )
        made = replace(self._stages(blocks, chunks, staging_buffers.ahead(share)), here=need.here)
        threads = pipeline.options.threads or 2 + share.readings + staging_buffers.threads
        depth = min(share.depth, pipeline.options.depth or share.depth)
        options = replace(pipeline.options, threads=threads, depth=depth)
        plan = replace(pipeline.plan, chunk=share.steps)
        return GpuPipeline(
            made, plan, options, spare=self.spare, remake=partial(self.remake, how != "arrow")
        )

    def _stages(self, blocks: Any, chunks: GpuChunkMaker, ahead: Ahead) -> GpuStages[Any]:
        stages = self.pipeline.stages
        return GpuStages(
            blocks,
            chunks,
            stages.finish,
            self.ops.ops,
            ahead=ahead,
            stream=chunks.stream,
            device=self.device,
            host=replace(stages, finish=for_host(stages.finish)),
        )


def _auto(build: _Build) -> Pipeline[Any]:
    """Arrow, with the GPU in reserve where it could decode the same."""
    made = build(False, copies=1)
    if made is None:
        return build.on_host()
    reason = build.in_files if isinstance(build.in_files, str) else None
    if reason is None and not any(map(_is_there, ("nvidia.libnvcomp", "pylibcudf"))):
        reason = "what decodes on a GPU is not installed; pip install tabfeed[gpu]"
    if reason is None:
        return AutoPipeline(
            made.stages, made.plan, made.options, spare=build.spare, backends=_backends(build)
        )
    return replace(made, reader_choice=f"Arrow: {reason}")


def _backends(build: _Build) -> Backends:
    """Arrow's way leaves room for the copy of a batch, which is made before the GPU takes over."""
    return Backends(
        lambda on_gpu: build(on_gpu, copies=int(not on_gpu)),
        build.why_not,
        lambda plan: _backends(build.for_plan(plan)),
    )


def _is_there(module: str) -> bool:
    """Whether a module is installed, without loading it."""
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # nor is what it would be in
        return False


def _as_asked(options: GpuOptions, build: _Build) -> tuple[bool, str]:
    """Whether the GPU decodes, where the user has said who shall; and why."""
    if options.reader == "arrow":
        return False, "Arrow: as asked for"
    reason = build.why_not()
    if reason is None:
        return True, "the GPU: as asked for"
    return False, _not_there(reason, options)


def _not_there(reason: str, options: GpuOptions) -> str:
    """Why Arrow decodes, as a choice; a warning too if the user has asked for the GPU."""
    if options.reader == "cudf":
        warnings.warn(f"reading with Arrow: {reason}", TabfeedWarning, stacklevel=7)
    return f"Arrow: {reason}"
