"""What the torch loaders share: an iterable dataset over a `Pipeline`."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Iterator
from functools import cache, partial
from types import FrameType
from typing import TYPE_CHECKING, Any

from torch import device as Device
from torch import distributed as dist
from torch.utils.data import IterableDataset, default_collate, get_worker_info

from tabfeed.errors import LoaderError
from tabfeed.loader.base_loader import BaseLoader
from tabfeed.loader.build import Assemble
from tabfeed.loader.options import GpuOptions
from tabfeed.loader.pipeline import Pipeline, Stages
from tabfeed.loader.state import EpochIterator
from tabfeed.loader.tensors.device import finish_on_cpu

if TYPE_CHECKING:
    from tabfeed.loader.torch.static import StaticBatch

__all__ = ["TorchBase", "rank_and_world"]


def rank_and_world(rank: int | None, world: int | None) -> tuple[int | None, int | None]:
    """As given, else those of the process group if there is one; the environment comes last."""
    if rank is None and world is None and dist.is_available() and dist.is_initialized():
        return dist.get_rank(), dist.get_world_size()
    return rank, world


class TorchBase(BaseLoader, IterableDataset[Any]):
    """What the torch loaders share: an iterable dataset over a `Pipeline`.

    Worker processes of a `DataLoader` share each epoch's batches, and give them in host memory,
    whatever the device: a worker has no GPU of its own. A plain torch `DataLoader` starts new
    workers from this object for every epoch, so call `set_epoch` before each one, or use
    `DLDataLoader`, which counts epochs itself.
    """

    device: Device
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
        """Give batches in the same tensors from now on, unless some column is ragged."""
        from tabfeed.loader.torch.static import StaticBatch, check_full

        check_full(self.pipeline, ragged)
        self.static = StaticBatch()

    def __iter__(self) -> Iterator[Any]:
        _check_not_collated(sys._getframe(1))
        batches = self._batches()
        if self.static is None:
            return batches
        from tabfeed.loader.torch.static import StaticIterator

        return StaticIterator(batches, self.static)

    def _batches(self) -> EpochIterator[Any]:
        info = get_worker_info()
        if info is None:
            return self.state.iterate()
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
