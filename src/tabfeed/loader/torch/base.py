"""What the torch doors share: an iterable dataset over a `Pipeline`."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Iterator
from functools import cache
from types import FrameType
from typing import Any

from torch import device as Device
from torch import distributed as dist
from torch.utils.data import IterableDataset, default_collate, get_worker_info

from tabfeed.errors import LoaderError
from tabfeed.loader.base_loader import BaseLoader
from tabfeed.loader.gpu.build import on_gpu
from tabfeed.loader.gpu.delivery import for_host
from tabfeed.loader.gpu.resident.pipeline import resident
from tabfeed.loader.options import GpuOptions
from tabfeed.loader.pipeline import Pipeline, Stages
from tabfeed.loader.state import EpochIterator
from tabfeed.loader.torch.static import StaticBatch, StaticIterator, check_full

__all__ = ["TorchBase", "rank_and_world"]


def rank_and_world(rank: int | None, world: int | None) -> tuple[int | None, int | None]:
    """As given, else those of the process group if there is one; the environment comes last."""
    if rank is None and world is None and dist.is_available() and dist.is_initialized():
        return dist.get_rank(), dist.get_world_size()
    return rank, world


class TorchBase(BaseLoader, IterableDataset[Any]):
    """What the torch loaders share: an iterable dataset over a `Pipeline`.

    Within worker processes of a `DataLoader` they share each epoch's batches, and give them in the
    computer's memory, whatever the device: a worker has no GPU of its own. A plain torch
    `DataLoader` starts new workers from this object for every pass, so call `set_epoch` before
    each one, or use `DLDataLoader`, which counts by itself.
    """

    device: Device
    static: StaticBatch | None = None

    def _place(self, pipeline: Pipeline[Any], options: GpuOptions, cache: str | None) -> None:
        """Take a feed, on the GPU if the loader's device is one."""
        if cache == "device":
            self.pipeline = resident(pipeline, self.device, options)
        else:
            self.pipeline = (
                on_gpu(pipeline, self.device, options) if self.device.type == "cuda" else pipeline
            )

    def _keep_static(self, ragged: list[str]) -> None:
        """Give batches in the same tensors from now on, unless some column is ragged."""
        check_full(self.pipeline, ragged)
        self.static = StaticBatch()

    def __iter__(self) -> Iterator[Any]:
        _check_not_collated(sys._getframe(1))
        batches = self._batches()
        return batches if self.static is None else StaticIterator(batches, self.static)

    def _batches(self) -> EpochIterator[Any]:
        info = get_worker_info()
        if info is None:
            return self.state.iterate()
        _leave_inherited(os.getpid())
        host = _for_worker(self.pipeline.stages)
        return self.state.iterate(info.id, info.num_workers, stages=host)


def _check_not_collated(caller: FrameType) -> None:
    """Refuse a `DataLoader` that would stack batches as if they were rows, as it does by default.

    It says so nowhere but where it asks for an iterator. Variables of other callers are not looked
    at: Python would keep them, and so the loader, until the caller returns.
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
    """Have the collector of a worker process leave alone what it inherited; once.

    Some of that is garbage, and may end threads when it goes, as TensorFlow's iterators do. A
    forked process has none of those threads, and would crash on them.
    """
    gc.freeze()


def _for_worker(stages: Stages[Any]) -> Stages[Any] | None:
    """The same batches in the computer's memory: a worker process has no GPU of its own.

    None where there is no such way; the stages itself says so then.
    """
    if hasattr(stages, "host"):
        found: Stages[Any] | None = stages.host
        return found
    return stages.finishing(for_host(stages.finish))
