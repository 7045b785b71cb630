"""Chunks for JAX that torch makes on the GPU, where both are installed.

JAX runs all work for a GPU in one queue, so it cannot copy and compute beside the model; torch has
streams. So if torch sees the same GPU, chunks are made as they are for torch
(`tabfeed.loader.gpu.build`), in the background, and JAX takes over the finished buffers in place
(DLPack), without a copy. JAX itself only cuts them into columns: one compiled call a batch, by the
training thread when it reaches the chunk.

Columns are read in the dtypes of their files, and 64-bit numbers are shortened on the GPU if JAX
has only 32 bits: so the GPU can decode them, and Arrow's values need not be checked first. The
range of integers is computed there too, on the same stream, and checked when the chunk has arrived.
The check matters: taking over a wider buffer, JAX would truncate numbers silently.

The price: no reader is chosen while training. That choice needs to know how long steps wait for
batches, which JAX does not tell; so Arrow decodes, unless ``reader="cudf"``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any, NamedTuple

import torch

from tabfeed.errors import LoaderError
from tabfeed.loader.assemble.chunk import Chunk
from tabfeed.loader.gpu.build import gpu_pipeline
from tabfeed.loader.gpu.delivery import GpuStages
from tabfeed.loader.gpu.memory_plan import FALLBACK_SHARE
from tabfeed.loader.gpu.pipeline import GpuPipeline, no_memory
from tabfeed.loader.jax.device_chunks import NotOnDeviceError
from tabfeed.loader.jax.transfer import JaxTransfer, check_32_bits, has_64_bits
from tabfeed.loader.options import GpuOptions
from tabfeed.loader.pipeline import Pipeline
from tabfeed.loader.read.arrow_columns import Group
from tabfeed.trace import span

__all__ = ["made_by_torch"]

Tensor = torch.Tensor
_UNKNOWN = "Arrow: how long steps wait for batches is not to be had from JAX"
_SHORT = {torch.int64: torch.int32, torch.uint64: torch.uint32, torch.float64: torch.float32}
_HALF = 2**63
_HELD = 6  # chunks: of torch's one queued, one on its way and two being cut; what two are cut into


class _Range(NamedTuple):
    """The smallest and the largest integer of each column of a buffer, on its way from the GPU.

    Attributes
    ----------
    group
        The name of the buffer.
    ends
        ``(2, columns)``.
    above
        What is to be added to each.
    """

    group: str
    ends: Tensor
    above: int = 0

    def numbers(self) -> list[list[int]]:
        """The smallest ones and the largest ones, once they are there."""
        return [[end + self.above for end in ends] for ends in self.ends.tolist()]


def _shorten(matrices: dict[str, Any]) -> list[_Range]:
    """Queue that buffers of 64 bits get 32; whoever uses them looks at the ranges first.

    Examples
    --------
    >>> buffers = {"ids": torch.tensor([[1, 2**31]]), "x": torch.tensor([[0.5]])}
    >>> [(found.group, found.numbers()) for found in _shorten(buffers)]
    [('ids', [[1], [2147483648]])]
    >>> buffers["ids"].dtype, buffers["x"].dtype
    (torch.int32, torch.float32)
    """
    ranges = []
    for name, matrix in matrices.items():
        short = _SHORT.get(matrix.dtype)
        if short is None:
            continue
        if not short.is_floating_point:
            if matrix.shape[1]:
                ranges.append(_range(name, matrix))
            matrix = matrix.view(torch.int64).to(torch.int32).view(short)
        matrices[name] = matrix.to(short)
    return ranges


def _range(name: str, matrix: Tensor) -> _Range:
    """Unsigned numbers are moved down by half of all there are: torch compares signed ones only."""
    above = _HALF if matrix.dtype == torch.uint64 else 0
    numbers = matrix.view(torch.int64) ^ -_HALF if above else matrix
    ends = torch.stack(torch.aminmax(numbers, dim=1))
    return _Range(name, ends.to("cpu", non_blocking=True), above)


@dataclass(frozen=True, kw_only=True)
class _JaxStages(GpuStages[Any]):
    """Chunks made by torch, and cut by JAX when they are there.

    Attributes
    ----------
    transfer
        Gives JAX the finished buffers.
    groups
        The columns of each buffer.
    """

    transfer: JaxTransfer
    groups: tuple[Group, ...]

    def let_go(self) -> None:
        """Keep nothing of chunks that arrived."""
        self.transfer.forget()

    def cut(self, chunk: Chunk) -> list[Any]:
        """The chunk as it is, but for the width of numbers, and the ranges of those."""
        return [(chunk, [] if has_64_bits() else _shorten(chunk.matrices))]

    def arrive(self, made: Any) -> list[Any]:
        """The batches of a chunk, which was queued when the one before it arrived.

        A cut that is queued before its data are there would hold up the model's steps.
        """
        made.event.synchronize()
        ((chunk, ranges),) = made.batches
        for found in ranges:
            group = next(g for g in self.groups if g.name == found.group)
            check_32_bits(group.columns, group.dtype.kind, *found.numbers())
        with span("queue"):
            batches: list[Any] = self.finish(chunk)
        return batches


def made_by_torch(
    pipeline: Pipeline[Any],
    transfer: JaxTransfer,
    groups: tuple[Group, ...],
    options: GpuOptions,
    copied: Callable[[int], Pipeline[Any]],
) -> Pipeline[Any]:
    """The same batches from chunks that torch makes; `NotOnDeviceError` if it can't.

    Parameters
    ----------
    pipeline
        Makes them of chunks in host memory.
    transfer
        Gives JAX the finished buffers.
    groups
        The columns of each buffer.
    options
        Reader and memory.
    copied
        Gives a pipeline of batches that are copied, within the memory divided by a number: for
        other iterators, and if the GPU has no memory left, or not enough to begin with.
    """
    number = int(transfer.there.local_hardware_id or 0)
    if not torch.cuda.is_available() or number >= torch.cuda.device_count():
        raise NotOnDeviceError("PyTorch, which makes batches on a GPU, does not see this one")
    stages: Any = pipeline.stages
    if stages.reader.layout.rest.columns:
        raise NotOnDeviceError("there are list or text columns")
    if getattr(stages.finish, "asks", False):
        raise NotOnDeviceError("ids are compared with the sizes of their feature columns")
    reader = "arrow" if options.reader == "auto" else options.reader
    try:
        made = gpu_pipeline(
            stages,
            pipeline.plan,
            pipeline.options,
            device=torch.device("cuda", number),
            gpu=replace(options, reader=reader),
            held=_HELD,
        )
    except (LoaderError, RuntimeError) as e:  # JAX itself may have the memory
        if isinstance(e, RuntimeError) and not no_memory(e):
            raise
        raise NotOnDeviceError(str(e)) from e
    ours = _for_jax(made, copied, transfer, groups)
    if isinstance(ours, GpuPipeline) and options.reader == "auto":
        ours = replace(ours, reader_choice=_UNKNOWN)
    return ours


def _for_jax(
    made: Pipeline[Any],
    copied: Callable[[int], Pipeline[Any]],
    transfer: JaxTransfer,
    groups: tuple[Group, ...],
) -> Pipeline[Any]:
    """What torch makes as JAX takes it; copies, if torch can make but these."""
    stages: Any = made.stages
    if (
        not isinstance(made, GpuPipeline)
        or not isinstance(stages, GpuStages)
        or not stages.on_training_thread
    ):
        return replace(copied(1), reader_choice=made.reader_choice)
    remake = made.remake
    parts = {f.name: getattr(stages, f.name) for f in fields(stages)}
    return GpuPipeline(
        _JaxStages(**parts, transfer=transfer, groups=groups),
        made.plan,
        made.options,
        made.reader_choice,
        spare=copied(FALLBACK_SHARE),
        remake=lambda plan: _for_jax(remake(plan), copied, transfer, groups),
    )
