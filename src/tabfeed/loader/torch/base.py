"""What the torch loaders share: an iterable dataset over a `Pipeline`, and ``static_batch=True``.

With ``static_batch=True`` every batch comes in the same tensors, for CUDA graphs and
`torch.compile`. A captured graph reads from fixed addresses, and a compiled function expects fixed
shapes and strides. So each batch, when it is taken, is copied into the tensors of the first one, on
the current stream: after everything the model has queued on the batch before, and before what it
queues next. That is one more copy of each batch, on the device.

While a graph is captured, the loader's threads keep using the GPU, which CUDA forbids unless only
the capturing thread counts: ``torch.cuda.graph(graph, capture_error_mode="thread_local")``.
`torch.compile` sets this itself.

The price: the next batch overwrites a batch, so keep one with `clone`; and two iterators over one
loader would write into each other's batches.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Iterator
from functools import cache, partial
from types import FrameType
from typing import Any

import torch
from torch import distributed as dist
from torch.utils.data import IterableDataset, default_collate, get_worker_info

from tabfeed.errors import LoaderError
from tabfeed.loader.assemble.batch_ops import EmbeddingOperator, Padding
from tabfeed.loader.base_loader import BaseLoader
from tabfeed.loader.build import Assemble, Steps
from tabfeed.loader.options import GpuOptions
from tabfeed.loader.pipeline import Pipeline, Stages
from tabfeed.loader.read.arrow_columns import Layout
from tabfeed.loader.state import EpochIterator
from tabfeed.loader.tensors.device import finish_on_cpu
from tabfeed.loader.tensors.tree import tensors_in, with_tensors

__all__ = ["StaticBatch", "TorchBase", "ragged_after", "rank_and_world"]

Tensor = torch.Tensor


def rank_and_world(rank: int | None, world: int | None) -> tuple[int | None, int | None]:
    """As given, else those of the process group if there is one; the environment comes last."""
    if rank is None and world is None and dist.is_available() and dist.is_initialized():
        return dist.get_rank(), dist.get_world_size()
    return rank, world


class TorchBase(BaseLoader, IterableDataset[Any]):
    """An iterable dataset over a `Pipeline`.

    Worker processes of a `DataLoader` share each epoch's batches, and give them in host memory,
    whatever the device: a worker has no GPU of its own. A plain torch `DataLoader` starts new
    workers from this object for every epoch, so call `set_epoch` before each one, or use
    `DLDataLoader`, which counts epochs itself.
    """

    device: torch.device
    static: StaticBatch | None = None

    def _assembler(self, gpu: GpuOptions, cache: str | None) -> Assemble[Any]:
        """What assembles the pipeline: for a GPU, if the loader's device is one."""
        if cache == "device":
            from tabfeed.loader.gpu.resident.pipeline import resident_pipeline

            return partial(resident_pipeline, device=self.device, gpu=gpu)
        if self.device.type == "cuda":
            from tabfeed.loader.gpu.build import gpu_pipeline

            return partial(gpu_pipeline, device=self.device, gpu=gpu)
        return Pipeline

    def _keep_static(self, ragged: list[str]) -> None:
        """Give batches in the same tensors from now on; refuse those of different shapes."""
        if ragged:
            raise LoaderError(
                f"static_batch=True needs batches of one shape, and {', '.join(ragged)} "
                f"{'have' if len(ragged) > 1 else 'has'} rows of different lengths: make them of "
                "one length with Padding in transforms=, or in TorchAsyncItr with sparse_names=, "
                "sparse_max= and sparse_as_dense=True; or leave them out"
            )
        plan = self.pipeline.plan
        if any(rows != plan.batch for rows in plan.tail):
            last, rank = plan.rows % plan.batch, plan.batch // plan.ranks
            raise LoaderError(
                f"static_batch=True needs full batches, and {plan.rows:,} rows in batches of "
                f"{rank:,} leave {last:,} for the last one: give drop_last=True, which leaves them "
                'out, or last="wrap", which fills it up with rows from the start'
            )
        self.static = StaticBatch()

    def __iter__(self) -> Iterator[Any]:
        _check_not_collated(sys._getframe(1))
        info = get_worker_info()
        if info is None:
            batches = self.state.iterate()
            return batches if self.static is None else _StaticIterator(batches, self.static)
        if self.static is not None:
            raise LoaderError(
                "static_batch=True gives batches in tensors of this process, not of a worker's: "
                "use num_workers=0, which prepares batches in background threads"
            )
        _leave_inherited(os.getpid())
        host = _for_worker(self.pipeline.stages)
        return self.state.iterate(info.id, info.num_workers, stages=host)


def _check_not_collated(caller: FrameType) -> None:
    """Refuse a `DataLoader` that would stack batches as if they were rows, as it does by default.

    Only the local variables of the code that requests the iterator show this. Those of other
    callers are not read: Python would keep them, and so the loader, until the caller returns.
    """
    if "auto_collation" not in caller.f_code.co_varnames:
        return
    names = caller.f_locals
    if names.get("auto_collation") is True and names.get("collate_fn") is default_collate:
        raise LoaderError(
            "this DataLoader would stack whole batches, since its batch_size is not None, and give "
            "each tensor one dimension more: use DLDataLoader(loader), or "
            "DataLoader(loader, batch_size=None)"
        )


@cache
def _leave_inherited(process: int) -> None:
    """Exempt inherited objects from garbage collection in a worker process; once.

    Some of them are garbage, and end threads when collected, as TensorFlow's iterators do. A forked
    process has none of those threads, and would crash.
    """
    gc.freeze()


def _for_worker(stages: Stages[Any]) -> Stages[Any] | None:
    """The same batches in host memory: a worker process has no GPU of its own.

    None if they cannot be made there; the stages themselves raise then.
    """
    if hasattr(stages, "host"):
        found: Stages[Any] | None = stages.host
        return found
    return stages.finishing(finish_on_cpu(stages.finish))


# -- static_batch=True ----------------------------------------------------------------------------


def ragged_after(layout: Layout, steps: Steps) -> list[str]:
    """The columns whose rows are of different lengths after all steps.

    Examples
    --------
    >>> import numpy as np
    >>> layout = Layout(lists=(("words", np.dtype(np.int64)), ("tags", np.dtype(np.int64))))
    >>> ragged_after(layout, Steps(chunks=(Padding(4, columns=["words"]),)))
    ['tags']
    """
    names = [name for name, _ in layout.lists]
    for op in steps.chunks:
        if isinstance(op, Padding):
            names = [n for n in names if op.columns is not None and n not in op.columns]
        elif isinstance(op, EmbeddingOperator) and op.lookup_key in names:
            names.append(op.embedding_name)
    return names


class StaticBatch:
    """The tensors that every batch is copied into.

    Examples
    --------
    >>> static = StaticBatch()
    >>> first = static.take((torch.tensor([1, 2]), None))
    >>> second = static.take((torch.tensor([3, 4]), None))
    >>> second[0].tolist(), second[0].data_ptr() == first[0].data_ptr()
    ([3, 4], True)
    """

    def __init__(self) -> None:
        self._held: list[Tensor] = []

    def take(self, batch: Any) -> Any:
        """The same batch in these tensors; other values stay as they are."""
        found = list(tensors_in(batch))
        if not self._held:
            self._held = [_like(tensor) for tensor in found]
        shapes = [tuple(t.shape) for t in found]
        expected = [tuple(t.shape) for t in self._held]
        if shapes != expected:
            raise LoaderError(
                f"static_batch=True, and a batch has tensors of the shapes {shapes} where those "
                f"before had {expected}; use drop_last=True, and functions that keep shapes"
            )
        for dtype in {tensor.dtype for tensor in found}:  # those of one dtype in one call
            places = [i for i, tensor in enumerate(found) if tensor.dtype == dtype]
            torch._foreach_copy_(
                [self._held[i] for i in places], [found[i] for i in places], non_blocking=True
            )
        return with_tensors(batch, iter(self._held))

    def __reduce__(self) -> tuple[Any, ...]:
        return StaticBatch, ()  # a copy has tensors of its own


def _like(tensor: Tensor) -> Tensor:
    """A tensor of its own memory without gaps; columns stay contiguous where they are."""
    if tensor.dim() == 2 and tensor.stride(0) < tensor.stride(1):
        return torch.empty_like(tensor.t(), memory_format=torch.contiguous_format).t()
    return torch.empty_like(tensor, memory_format=torch.contiguous_format)


class _StaticIterator(Iterator[Any]):
    """Batches of an epoch, each in the same tensors."""

    def __init__(self, batches: EpochIterator[Any], static: StaticBatch) -> None:
        self._batches, self._static = batches, static
        self.state_dict, self.load_state_dict = batches.state_dict, batches.load_state_dict
        self.close = batches.close

    def __next__(self) -> Any:
        return self._static.take(next(self._batches))
