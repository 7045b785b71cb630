"""Builds a pipeline whose batches are made on a GPU: what decodes, how much memory, which streams.

Everything happens beside the model: each decoding thread has a stream of its own, chunks are put
together on another. When the training thread takes the first batch of a chunk, its current stream
waits for that chunk's event, and the allocator learns that this stream uses the memory, so nothing
is overwritten before the model has read it. No thread waits for the GPU.

The order of rows is the CPU's, since both follow the same plan.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, partial
from importlib.util import find_spec
from typing import Any, Generic, TypeVar, cast

import torch

from tabfeed.errors import TabfeedWarning
from tabfeed.loader.assemble.batch_ops import op_bytes
from tabfeed.loader.assemble.chunk import ChunkMaker
from tabfeed.loader.gpu.auto_reader import AutoPipeline, Backends
from tabfeed.loader.gpu.batch_ops import GpuOps
from tabfeed.loader.gpu.buffers import DeviceBuffers, WidthGroup, width_groups_of
from tabfeed.loader.gpu.delivery import GpuStages, fallback_pipeline
from tabfeed.loader.gpu.devices import free_bytes, on_device
from tabfeed.loader.gpu.gather import GpuChunkMaker
from tabfeed.loader.gpu.memory_plan import (
    FALLBACK_SHARE,
    MemoryRequest,
    StagingPlan,
    check_room,
    least_bytes,
    plan_memory,
    plan_staging,
)
from tabfeed.loader.gpu.parquet.cudf_blocks import CudfBlockReader, why_not_cudf
from tabfeed.loader.gpu.parquet.encoded_blocks import (
    EncodedBlockReader,
    EncodedRow,
    encoded_row,
    kinds_of,
    why_not_unpacked,
)
from tabfeed.loader.gpu.parquet.encoded_pages import UnsupportedError
from tabfeed.loader.gpu.parquet.file_dtypes import BlockSource, as_in_files
from tabfeed.loader.gpu.parquet.unpack import DecodeStreams, Unpacker
from tabfeed.loader.gpu.pipeline import GpuPipeline
from tabfeed.loader.gpu.staging import GpuBlockReader, lock_pages, unlock_pages
from tabfeed.loader.options import GpuOptions, LoaderOptions
from tabfeed.loader.pipeline import Pipeline, Stages
from tabfeed.loader.plan import Plan
from tabfeed.loader.read.blocks import BlockReader
from tabfeed.loader.read.decoder_processes import StagingBuffers
from tabfeed.loader.tensors.device import check_device, finish_on_cpu
from tabfeed.loader.tensors.scripted import prepare

__all__ = ["GpuBuilder", "block_reader", "gpu_pipeline", "memory_for"]

B = TypeVar("B")
T = TypeVar("T")
_log = logging.getLogger("tabfeed")


def memory_for(options: GpuOptions, device: torch.device, buffer_size: Any = None) -> int:
    """Bytes that a loader may hold on a GPU."""
    total = torch.cuda.get_device_properties(device).total_memory
    return options.memory(total=total, free=free_bytes(device), buffer_size=buffer_size)


def gpu_pipeline(
    stages: Stages[B],
    plan: Plan,
    options: LoaderOptions,
    *,
    device: torch.device,
    gpu: GpuOptions,
    held: int | None = None,
) -> Pipeline[B]:
    """A pipeline whose batches are made on a GPU, as far as its memory and operators allow.

    Parameters
    ----------
    stages, plan, options
        How the same batches would be made in host memory, and their order.
    device
        The GPU.
    gpu
        Reader and memory.
    held
        `MemoryRequest.held_chunks`, if it is another number than usual.
    """
    check_device(device)
    with on_device(device):
        made = _chosen(stages, plan, options, device, gpu, held)
    if not isinstance(made, AutoPipeline):  # which logs its choices itself
        _log.info("reader: %s", made.reader_choice)
    return made


def _chosen(
    stages: Stages[Any],
    plan: Plan,
    options: LoaderOptions,
    device: torch.device,
    gpu: GpuOptions,
    held: int | None,
) -> Pipeline[Any]:
    layout = cast(BlockReader, stages.reader).layout
    ops = GpuOps.of(stages.ops, layout, device)
    row_bytes = layout.row_bytes + op_bytes(stages.ops, layout)
    memory = memory_for(gpu, device, options.buffer_size)
    check_room(plan, max(memory, memory_for(gpu, device)), row_bytes)
    if ops is None or not layout.groups:
        what = "list columns are assembled" if ops is not None else "an operator works"
        fallback = fallback_pipeline(stages, plan, options, device, memory, row_bytes)
        choice = _arrow_since(f"{what} in host memory", gpu)
        return replace(fallback, reader_choice=choice)
    left = memory - ops.table_bytes
    builder = GpuBuilder(stages, plan, options, device, ops, left, row_bytes, held)
    if gpu.reader == "auto":
        return _auto(builder)
    on_gpu, why = _as_requested(gpu, builder)
    made = builder.build(on_gpu)
    if made is None and on_gpu:
        made, why = builder.build(False), "Arrow: the GPU needs more device_memory to decode"
    if made is None:
        return builder.on_host()
    if isinstance(made.stages.reader, CudfBlockReader):
        reason = builder.page_rows.why_not or "memory is too small"
        why = f"pylibcudf: as requested; tabfeed's own decoder cannot be used: {reason}"
    return replace(made, reader_choice=why)


def block_reader(
    plan: StagingPlan,
    host: BlockReader,
    width_groups: tuple[WidthGroup, ...],
    device: torch.device,
) -> GpuBlockReader | EncodedBlockReader:
    """Reads into staging buffers what `host` reads in host memory.

    Parameters
    ----------
    plan
        How many staging buffers, and what fills them.
    host
        Reads the same blocks.
    width_groups
        How columns lie in a staging buffer.
    device
        The GPU that copies from there.
    """
    lock, unlock = (_called_on(device, call) for call in (lock_pages, unlock_pages))
    buffers = StagingBuffers(plan.nbytes, plan.count, lock, unlock)
    if plan.encoded:
        arrow = GpuBlockReader(host, width_groups, buffers, device=device)
        return EncodedBlockReader(arrow, plan.processes, plan.workers_per_block)
    return GpuBlockReader(
        host, width_groups, buffers, plan.processes, plan.workers_per_block, device
    )


def _called_on(device: torch.device, call: Callable[[Any], None]) -> Callable[[Any], None]:
    """The same function, with a GPU as the current one of whichever thread calls it."""

    def called(memory: Any) -> None:
        with on_device(device):
            call(memory)

    return called


@dataclass(frozen=True)
class _Tried(Generic[T]):
    """What came of an attempt: a value, or None and the reason."""

    value: T | None
    why_not: str = ""


@dataclass(frozen=True)
class GpuBuilder:
    """Builds pipelines whose batches are made on a GPU, within so many bytes.

    Attributes
    ----------
    stages, plan, options, held
        As for `gpu_pipeline`.
    device, ops
        The GPU, and the operators for it.
    memory
        Bytes that are left beside the operators' tables.
    row_bytes
        About what a row of a batch takes.
    """

    stages: Stages[Any]
    plan: Plan
    options: LoaderOptions
    device: torch.device
    ops: GpuOps
    memory: int
    row_bytes: int
    held: int | None = None

    def for_plan(self, plan: Plan) -> GpuBuilder:
        """The same for another plan of the same rows, perhaps saved with other ranks."""
        plan = replace(plan, chunk=self.plan.chunk, ranks=self.options.shard.world)
        return replace(self, plan=plan)

    def remake(self, on_gpu: bool, plan: Plan) -> Pipeline[Any]:
        """A pipeline for another plan, made in the first way for which memory is enough."""
        builder = self.for_plan(plan)
        return builder.build(on_gpu) or builder.build(False) or builder.on_host()

    def fallback(self, memory: int) -> Pipeline[Any]:
        """A pipeline whose batches are copied, within so many bytes."""
        return fallback_pipeline(
            self.stages, self.plan, self.options, self.device, memory, self.row_bytes
        )

    @property
    def arrow(self) -> BlockSource:
        """Reads what Arrow decodes."""
        return BlockSource(cast(BlockReader, self.stages.reader))

    @cached_property
    def in_files(self) -> _Tried[BlockSource]:
        """Reads what the GPU decodes, in the dtypes of the files."""
        try:
            return _Tried(as_in_files(self.arrow.reader))
        except UnsupportedError as e:
            return _Tried(None, str(e))

    @cached_property
    def narrow(self) -> BlockSource:
        """The same for our own decoder: ids that fit have 32 bits."""
        return as_in_files(self.arrow.reader, narrow=True)

    @cached_property
    def page_rows(self) -> _Tried[EncodedRow]:
        """How large rows are in files whose pages our own decoder can decode."""
        if self.in_files.value is None:
            return _Tried(None, self.in_files.why_not)
        reader = self.narrow.reader
        if (reason := why_not_unpacked(self.device, kinds_of(reader))) is not None:
            return _Tried(None, reason)
        try:
            return _Tried(encoded_row(reader))
        except UnsupportedError as e:
            return _Tried(None, str(e))

    def why_not(self) -> str | None:
        """Why the GPU cannot decode; None if it can. May take seconds, to load the decoders."""
        if self.in_files.value is None:
            return self.in_files.why_not
        with on_device(self.device):
            return why_not_cudf() if self.page_rows.value is None else None

    def need(self, source: BlockSource) -> MemoryRequest:
        """What memory is needed for."""
        layout = source.reader.layout
        need = MemoryRequest.of(self.plan, layout, source.reader.dtypes)
        finish = self.stages.finish
        return replace(
            need,
            batch_bytes=need.batch_bytes + self.ops.row_bytes,
            scratch_bytes=need.scratch_bytes + source.joining,
            on_training_thread=not (layout.rest.columns or getattr(finish, "asks", False)),
            held_chunks=need.held_chunks if self.held is None else self.held,
        )

    def on_host(self) -> Pipeline[Any]:
        """A pipeline whose chunks are made in host memory, and copied."""
        enough = -(-(least_bytes(self.need(self.arrow)) + self.ops.table_bytes) // 10**6)
        made = self.fallback(self.memory + self.ops.table_bytes)
        choice = (
            "Arrow: batches are made in host memory and copied; to make them on the GPU, "
            f'give device_memory="{enough}MB" or more'
        )
        return replace(made, reader_choice=choice)

    @cached_property
    def spare(self) -> Pipeline[Any]:
        """A pipeline beside one that is made on the GPU, or after it: with little memory."""
        return self.fallback(self.memory // FALLBACK_SHARE)

    def build(self, on_gpu: bool, spare_batches: int = 0) -> Pipeline[Any] | None:
        """A pipeline for which the GPU decodes, or Arrow does; None if memory is too small.

        `spare_batches` is that of `MemoryRequest`.
        """
        try:
            with on_device(self.device):
                return self._fitting(on_gpu, spare_batches)
        except torch.OutOfMemoryError:  # less is free than the driver says
            return None

    def _fitting(self, on_gpu: bool, spare_batches: int) -> Pipeline[Any] | None:
        def built(decoder: str, source: BlockSource, **more: Any) -> Pipeline[Any] | None:
            need = replace(self.need(source), decoder=decoder, spare_batches=spare_batches, **more)
            return self._built(source, need)

        if not on_gpu:
            return built("arrow", self.arrow)
        if self.in_files.value is None:
            return None
        made = None
        if (row := self.page_rows.value) is not None:
            made = built(
                "pages", self.narrow, encoded_bytes=row.encoded, decompressed_bytes=row.decompressed
            )
        if made is None and why_not_cudf() is None:
            made = built("cudf", self.in_files.value)
        return made

    def _built(self, source: BlockSource, need: MemoryRequest) -> Pipeline[Any] | None:
        stages, options, reader = self.stages, self.options, source.reader
        maker = cast(ChunkMaker, stages.maker)
        plan = plan_memory(need, self.memory)
        if plan is None:
            return None
        prepare()
        width_groups = width_groups_of(reader.layout.groups, reader.dtypes)
        streams: Any = [torch.cuda.Stream(self.device) for _ in range(2)]  # type: ignore[no-untyped-call]
        device_buffers = DeviceBuffers(
            self.device, width_groups, plan.block_rows, plan.blocks, streams[0]
        )
        staging = plan_staging(need, plan, options, reader)
        blocks: Any = block_reader(staging, reader, width_groups, self.device)
        unpack = None
        if plan.cudf_calls:
            blocks = CudfBlockReader(blocks, device_buffers, plan.cudf_bytes, plan.cudf_calls)
        elif plan.decode_streams:
            encoded, decompressed = need.encoded_block
            together = plan.blocks_per_call
            decode_streams = DecodeStreams(
                plan.decode_streams, together * encoded, together * decompressed
            )
            unpack = Unpacker(device_buffers, decode_streams, kinds_of(reader))
        chunks = GpuChunkMaker(
            reader.layout, maker, device_buffers, streams[0], streams[1], unpack, source.pieces
        )
        made: GpuStages[Any] = GpuStages(
            blocks,
            chunks,
            stages.finish,
            self.ops.ops,
            ahead=staging.ahead(plan),
            stream=chunks.stream,
            device=self.device,
            host=replace(stages, finish=finish_on_cpu(stages.finish)),
            on_training_thread=need.on_training_thread,
        )
        threads = options.threads or 2 + plan.cudf_calls + staging.threads
        depth = min(plan.depth, options.depth or plan.depth)
        options = replace(options, threads=threads, depth=depth)
        return GpuPipeline(
            made,
            replace(self.plan, chunk=plan.steps),
            options,
            spare=self.spare,
            remake=partial(self.remake, need.decoder != "arrow"),
        )


def _auto(builder: GpuBuilder) -> Pipeline[Any]:
    """Arrow, with the GPU in reserve where it could decode the same."""
    made = builder.build(False, spare_batches=1)
    if made is None:
        return builder.on_host()
    reason = builder.in_files.why_not
    if not reason and not any(map(_is_installed, ("nvidia.libnvcomp", "pylibcudf"))):
        reason = "no decoder for GPUs is installed; pip install tabfeed[gpu]"
    if not reason:
        return AutoPipeline(
            made.stages,
            made.plan,
            made.options,
            spare=builder.spare,
            backends=_backends(builder),
        )
    return replace(made, reader_choice=f"Arrow: {reason}")


def _backends(builder: GpuBuilder) -> Backends:
    """Arrow leaves room for the copy of a batch, which is made before the GPU decodes."""
    return Backends(
        lambda on_gpu: builder.build(on_gpu, spare_batches=int(not on_gpu)),
        builder.why_not,
        lambda plan: _backends(builder.for_plan(plan)),
    )


def _is_installed(module: str) -> bool:
    """Whether a module is installed, without loading it."""
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # the package that would hold it is not installed
        return False


def _as_requested(gpu: GpuOptions, builder: GpuBuilder) -> tuple[bool, str]:
    """Whether the GPU decodes, where the user has chosen the reader; and why."""
    if gpu.reader == "arrow":
        return False, "Arrow: as requested"
    reason = builder.why_not()
    if reason is None:
        return True, "the GPU: as requested"
    return False, _arrow_since(reason, gpu)


def _arrow_since(reason: str, gpu: GpuOptions) -> str:
    """Why Arrow decodes, as a choice; a warning too if the user has chosen the GPU."""
    if gpu.reader == "cudf":
        warnings.warn(f"reading with Arrow: {reason}", TabfeedWarning, stacklevel=7)
    return f"Arrow: {reason}"
