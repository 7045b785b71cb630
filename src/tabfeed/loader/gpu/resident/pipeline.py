"""``cache="device"``: the whole dataset on the GPU, permuted and cut there.

The threads that will make batches read everything before the first one. The order does not depend
on whether rows are there already, so a state means the same in every run. From then on an epoch
costs a permutation and a gather for each chunk; no file is read.

The order is one permutation of all rows, which follows from seed and epoch and is the same on every
rank. A rank takes its slice of each global batch, and wraps around at the end where ``last=`` needs
more rows than there are. Every rank holds all rows, since it may need any of them.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, TypeVar, cast

import numpy as np
import torch

from tabfeed.budget import cpu_count
from tabfeed.errors import LoaderError, TabfeedWarning
from tabfeed.loader.assemble.chunk import Chunk
from tabfeed.loader.gpu.batch_ops import GpuOps
from tabfeed.loader.gpu.buffers import torch_dtype, width_groups_of
from tabfeed.loader.gpu.build import memory_for
from tabfeed.loader.gpu.delivery import GpuStages
from tabfeed.loader.gpu.devices import free_bytes, on_device
from tabfeed.loader.gpu.memory_plan import (
    RESIDENT_ORDERS,
    MemoryRequest,
    plan_resident,
    resident_bytes,
)
from tabfeed.loader.gpu.resident.permute import (
    AT_ONCE,
    WORKING_BYTES,
    epoch_words,
    index_dtype,
    permutation,
)
from tabfeed.loader.gpu.resident.store import Size, Store, too_large
from tabfeed.loader.options import GpuOptions, LoaderOptions, Shard
from tabfeed.loader.pipeline import Ahead, BlockWindow, Pipeline, Stages
from tabfeed.loader.plan import Epoch, Plan
from tabfeed.loader.read.blocks import BlockReader
from tabfeed.loader.read.partition_reader import ReadsParts
from tabfeed.loader.state import LoaderState
from tabfeed.loader.tensors.cut import gather_ragged
from tabfeed.loader.tensors.device import check_device
from tabfeed.trace import span

__all__ = ["ResidentReader", "ResidentStages", "resident_pipeline"]

B = TypeVar("B")
Tensor = torch.Tensor
_DEPTH = 3
_MOST_THREADS = 12
_BLOCKS_AT_ONCE = 64
_CHOICE = "Arrow: all rows are read once and stay on the GPU, where batches are cut from them"


class _NoPartitions:
    """The partitions left to read when all are on the GPU: none."""

    remote = False


@dataclass
class ResidentReader:
    """Reads blocks into the store, each partition once."""

    host: BlockReader
    store: Store

    @property
    def parts(self) -> ReadsParts:
        """Reads partitions."""
        return cast(ReadsParts, _NoPartitions()) if self.store.whole else self.host.parts

    def reading(self, parts: ReadsParts) -> ResidentReader:
        """The same for another reader of the same partitions."""
        if isinstance(parts, _NoPartitions):
            return self
        return replace(self, host=self.host.reading(parts))

    def close(self) -> None:
        """Nothing to do: it starts no processes."""

    def read(self, epoch: Epoch, numbers: Sequence[int]) -> list[None]:
        """Read the partitions of some blocks into the store."""
        if not self.store.whole:
            with on_device(self.store.stream.device):
                for number in numbers:
                    for partition in epoch.partitions(number):
                        self.store.add(partition, self.host)
        return [None] * len(numbers)


class _Run(NamedTuple):
    """Positions in a permutation: `steps` runs of `width`, each `stride` after the one before."""

    start: int
    steps: int
    width: int
    stride: int


def _runs(plan: Plan, shard: Shard, number: int) -> Iterator[_Run]:
    """The positions that a rank takes for a chunk."""
    first = number * plan.chunk
    last, regular = min(first + plan.chunk, plan.steps), plan.steps - len(plan.tail)
    even = range(first, max(first, min(last, regular)))
    for steps in [even, *(range(t, t + 1) for t in range(even.stop, last))]:
        if steps:
            rows = plan.step_rows(steps.start)
            start = plan.rows_until(steps.start) + rows * shard.rank // shard.world
            yield _Run(start, len(steps), plan.rank_rows(steps.start, *shard), rows)


class _Orders:
    """The permutations of the latest epochs, drawn at first use."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._held: dict[tuple[int, int], Tensor] = {}

    def get(self, epoch: Epoch, device: torch.device) -> Tensor:
        """The order of all rows in an epoch; call it on the stream that uses it."""
        words = epoch_words(epoch)
        with self._lock:
            if words not in self._held:
                while len(self._held) >= RESIDENT_ORDERS:
                    del self._held[next(iter(self._held))]
                with span("plan", rows=epoch.plan.rows):
                    self._held[words] = permutation(epoch.plan.rows, words, device)
            return self._held[words]


@dataclass(frozen=True)
class ResidentStages(GpuStages[B]):
    """How a chunk of batches is cut from the rows on the GPU.

    Attributes
    ----------
    store
        Holds all rows.
    orders
        Holds permutations.
    """

    store: Any = None
    orders: _Orders = field(default_factory=_Orders)

    def make(self, epoch: Epoch, shard: Shard, blocks: BlockWindow[Any], number: int) -> Any:
        """The batches of one chunk, on one rank: queued, not done."""
        self.store.check_process()
        try:
            with on_device(self.device):
                if not self.store.whole:
                    self._fill(epoch, blocks)
                with torch.cuda.stream(self.stream):
                    return self.queued(self.finished([self._chunk(epoch, shard, number)]))
        except RuntimeError as e:
            if not isinstance(e, torch.OutOfMemoryError) and "out of memory" not in str(e):
                raise
            raise self.store.no_room() from e

    def _fill(self, epoch: Epoch, blocks: BlockWindow[Any]) -> None:
        """Read the missing partitions, together with the other threads."""
        for low in range(0, epoch.blocks, _BLOCKS_AT_ONCE):
            blocks.get(range(low, min(epoch.blocks, low + _BLOCKS_AT_ONCE)))
        self.store.finish()

    def _chunk(self, epoch: Epoch, shard: Shard, number: int) -> Chunk:
        with span("plan"):
            runs = list(_runs(epoch.plan, shard, number))
            sizes = np.repeat([run.width for run in runs], [run.steps for run in runs])
            bounds = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
            found = [self._places(run, epoch.plan.delivered) for run in runs]
            places = found[0] if len(found) == 1 else torch.cat(found)
        with span("gather", rows=len(places)):
            return self._gathered(Chunk(bounds), self._index(epoch, places))

    def _places(self, run: _Run, delivered: int) -> Tensor:
        how: Any = {"device": self.device, "dtype": index_dtype(delivered)}
        steps = torch.arange(run.steps, **how) * run.stride + run.start
        places = (steps[:, None] + torch.arange(run.width, **how)).reshape(-1)
        end = run.start + (run.steps - 1) * run.stride + run.width
        return places.remainder_(self.store.rows) if end > self.store.rows else places

    def _index(self, epoch: Epoch, places: Tensor) -> Tensor:
        """The rows at these positions."""
        if not epoch.plan.shuffle:
            return places.to(index_dtype(self.store.rows))
        return self.orders.get(epoch, self.device).index_select(0, places)

    def _gathered(self, chunk: Chunk, index: Tensor) -> Chunk:
        store = self.store
        held: Any = chunk  # holds tensors where, on the CPU, it holds arrays
        for width_group, whole in store.matrices.items():
            found = whole.index_select(1, index)
            for group, dtype, at in width_group.spans():
                part = found[at : at + len(group.columns)].view(torch_dtype(dtype))
                part = part.to(torch_dtype(group.dtype))
                if store.layout.matrices:
                    held.matrices[group.name] = part
                else:
                    held.columns.update(zip(group.columns, part.unbind(0), strict=True))
        for name, rows in store.fixed.items():
            held.columns[name] = rows.index_select(0, index)
        for name, lists in store.lists.items():
            held.lists[name] = gather_ragged(lists, index)
        return chunk

    def __reduce__(self) -> tuple[Any, ...]:
        raise LoaderError(
            'a loader with cache="device" has its data on the GPU and cannot be sent to another '
            "process: use num_workers=0, which prepares batches in background threads, or create "
            "the loader there"
        )


# -- the pipeline ---------------------------------------------------------------------------------


class ResidentPipeline(Pipeline[B]):
    """A pipeline whose rows all lie on a GPU."""

    def start(self) -> LoaderState[B]:
        """A position at the first batch of epoch 0, from which epochs are read."""
        return ResidentState(self)


class ResidentState(LoaderState[B]):
    """The state of a loader whose rows all lie on a GPU."""

    def release_memory(self) -> None:
        """Refuse: no other copy of the rows is kept."""
        raise LoaderError(
            'cache="device" keeps all rows on the GPU, and evicting them would change their '
            'order: use cache=None, "memory" or "disk"'
        )


def resident_pipeline(
    stages: Stages[B], plan: Plan, options: LoaderOptions, *, device: torch.device, gpu: GpuOptions
) -> Pipeline[B]:
    """A pipeline of rows that all stay on a GPU and are shuffled as a whole.

    Parameters
    ----------
    stages, plan, options
        How batches would be made in host memory, and their order.
    device
        The GPU.
    gpu
        Memory; the reader is Arrow's, since everything is read once.
    """
    check_gpu(device)
    reader = cast(BlockReader, stages.reader)
    if reader.layout.extras:
        raise LoaderError(
            f'cache="device" keeps tensors on the GPU, and extras={reader.layout.extras} are not '
            'tensors: leave them out, or use cache="memory"'
        )
    if gpu.reader == "cudf":
        why = 'with cache="device" everything is read once'
        warnings.warn(f"reading with Arrow: {why}", TabfeedWarning, stacklevel=5)
    ops = GpuOps.of(stages.ops, reader.layout, device)
    if ops is None:
        raise LoaderError(
            f'cache="device" cannot run {", ".join(map(repr, stages.ops))} on the GPU; leave '
            'it out, or use cache="memory"'
        )
    plan, size = _fitting(plan, reader, ops, _allowed(gpu, device))
    stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    width_groups = width_groups_of(reader.layout.groups, reader.dtypes)
    store = Store(reader.layout, width_groups, plan.sizes, stream, size)
    threads = options.threads or max(2, min(_MOST_THREADS, cpu_count() * 3 // 4))
    blocks: Any = ResidentReader(reader, store)
    made = ResidentStages(
        blocks,
        stages.maker,
        stages.finish,
        ops.ops,
        ahead=Ahead(plan.epoch(0).blocks),  # of what is read nothing is given back
        stream=stream,
        device=device,
        store=store,
    )
    options = replace(options, threads=threads, depth=options.depth or _DEPTH)
    return ResidentPipeline(made, plan, options, _CHOICE)


def check_gpu(device: torch.device) -> None:
    """Refuse a device that is not a GPU, or not found."""
    if device.type != "cuda":
        raise LoaderError(
            f'cache="device" keeps the data on a GPU, and device is {str(device)!r}: use '
            'cache="memory" or "disk", or device="cuda" where there is a GPU'
        )
    check_device(device)


def _allowed(gpu: GpuOptions, device: torch.device) -> int:
    """Bytes that may be used: as given, else half of the free ones."""
    if gpu.device_memory is not None:
        return memory_for(gpu, device)
    return free_bytes(device) // 2


def _fitting(plan: Plan, reader: BlockReader, ops: GpuOps, allowed: int) -> tuple[Plan, Size]:
    """The plan with chunks as large as they may be, and what it needs; refused if nothing fits."""
    need = MemoryRequest.of(plan, reader.layout, reader.dtypes)
    need = replace(need, batch_bytes=need.batch_bytes + ops.row_bytes)
    resident = resident_bytes(
        plan,
        reader.layout,
        need.block_bytes,
        index_bytes=index_dtype(plan.rows).itemsize,
        sort_bytes=WORKING_BYTES * min(plan.rows, AT_ONCE),
    )
    steps, known = plan_resident(need, resident + ops.table_bytes, allowed, _DEPTH)
    if known > allowed:
        raise too_large(known, allowed, plan.rows)
    return replace(plan, whole=True, chunk=steps), Size(known, allowed)
