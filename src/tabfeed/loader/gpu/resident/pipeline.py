"""``cache="device"``: the whole dataset on the GPU, permuted and cut there.

Everything is read before the first batch, by the threads that will make batches: the order is the
same whether it is there or not, so a state means the same in every run. From then on an epoch costs
a permutation and a gather for each chunk; no file is read.

The order is one permutation of all rows, which follows from seed and epoch and is the same on every
rank; a rank takes its places of each global batch of it, and wraps around at its end where
``last=`` asks for more rows than there are. Every rank holds all rows: a rank may need any of them.
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
from tabfeed.loader.gpu.devices import check_device, free_bytes, on_device
from tabfeed.loader.gpu.memory_plan import MemoryRequest
from tabfeed.loader.gpu.resident.permute import (
    AT_ONCE,
    WORKING_BYTES,
    epoch_words,
    index_dtype,
    permutation,
)
from tabfeed.loader.gpu.resident.store import Size, Store, too_large
from tabfeed.loader.options import GpuOptions, LoaderOptions
from tabfeed.loader.pipeline import Pipeline
from tabfeed.loader.plan.order import Epoch, Plan
from tabfeed.loader.plan.shard import Shard
from tabfeed.loader.read.arrow_columns import Layout
from tabfeed.loader.read.block_window import Ahead, BlockWindow
from tabfeed.loader.read.blocks import BlockReader
from tabfeed.loader.read.partition_reader import ReadsParts
from tabfeed.loader.state import LoaderState
from tabfeed.loader.tensors.ragged import gather_ragged
from tabfeed.trace import span

__all__ = ["ResidentReader", "ResidentStages", "resident"]

B = TypeVar("B")
Tensor = torch.Tensor
_CHUNK_ROWS = 2**19
_DEPTH = 3
_MOST_THREADS = 12
_LOTS_AT_ONCE = 64
_ORDERS = 2  # permutations kept: an epoch that ends and one that begins
_CHOICE = "Arrow: all rows are read once and stay on the GPU, where batches are made of them"


class _Nothing:
    """The partitions that are still to be read when all are there."""

    remote = False


@dataclass
class ResidentReader:
    """Reads lots into the store; of those that are there it reads nothing."""

    host: BlockReader
    store: Store

    @property
    def parts(self) -> ReadsParts:
        """Reads partitions."""
        return cast(ReadsParts, _Nothing()) if self.store.whole else self.host.parts

    def reading(self, parts: ReadsParts) -> ResidentReader:
        """The same for another reader of the same partitions."""
        return self if isinstance(parts, _Nothing) else replace(self, host=self.host.reading(parts))

    def close(self) -> None:
        """Nothing to do: no process reads for it."""

    def read(self, epoch: Epoch, numbers: Sequence[int]) -> list[None]:
        """Have some lots in the store."""
        if not self.store.whole:
            with on_device(self.store.stream.device):
                for number in numbers:
                    for partition in epoch.partitions(number):
                        self.store.add(partition, self.host)
        return [None] * len(numbers)


class _Block(NamedTuple):
    """Places of a permutation: `steps` times `width`, each `pitch` after the one before."""

    start: int
    steps: int
    width: int
    pitch: int


def _blocks(plan: Plan, place: Shard, number: int) -> Iterator[_Block]:
    """The places that a rank takes for a chunk."""
    first = number * plan.chunk
    last, regular = min(first + plan.chunk, plan.steps), plan.steps - len(plan.tail)
    even = range(first, max(first, min(last, regular)))
    for steps in [even, *(range(t, t + 1) for t in range(even.stop, last))]:
        if steps:
            rows = plan.step_rows(steps.start)
            start = plan.rows_until(steps.start) + rows * place.rank // place.world
            yield _Block(start, len(steps), plan.rank_rows(steps.start, *place), rows)


class _Orders:
    """The permutations of some epochs, drawn when they are first asked for."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._held: dict[tuple[int, int], Tensor] = {}

    def get(self, epoch: Epoch, device: torch.device) -> Tensor:
        """The order of all rows in an epoch; to be called on the stream that uses it."""
        words = epoch_words(epoch)
        with self._lock:
            if words not in self._held:
                while len(self._held) >= _ORDERS:
                    del self._held[next(iter(self._held))]
                with span("plan", rows=epoch.plan.rows):
                    self._held[words] = permutation(epoch.plan.rows, words, device)
            return self._held[words]


@dataclass(frozen=True)
class ResidentStages(GpuStages[B]):
    """How a chunk of batches is cut from what lies on the GPU.

    Attributes
    ----------
    store
        Where everything lies.
    """

    store: Any = None
    orders: _Orders = field(default_factory=_Orders)

    def make(self, epoch: Epoch, place: Shard, blocks: BlockWindow[Any], number: int) -> Any:
        """The batches of one chunk, on one rank: queued, not done."""
        self.store.check_process()
        try:
            with on_device(self.device):
                if not self.store.whole:
                    self._fill(epoch, blocks)
                with torch.cuda.stream(self.stream):
                    return self.queued(self.finished([self._chunk(epoch, place, number)]))
        except RuntimeError as e:
            if not isinstance(e, torch.OutOfMemoryError) and "out of memory" not in str(e):
                raise
            raise self.store.no_room() from e

    def _fill(self, epoch: Epoch, blocks: BlockWindow[Any]) -> None:
        """Read what is missing, together with the other threads."""
        for low in range(0, epoch.blocks, _LOTS_AT_ONCE):
            blocks.get(range(low, min(epoch.blocks, low + _LOTS_AT_ONCE)))
        self.store.close_up()

    def _chunk(self, epoch: Epoch, place: Shard, number: int) -> Chunk:
        with span("plan"):
            blocks = list(_blocks(epoch.plan, place, number))
            sizes = np.repeat([b.width for b in blocks], [b.steps for b in blocks])
            bounds = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
            found = [self._places(block, epoch.plan.delivered) for block in blocks]
            places = found[0] if len(found) == 1 else torch.cat(found)
        with span("gather", rows=len(places)):
            return self._gathered(Chunk(bounds), self._index(epoch, places))

    def _places(self, block: _Block, delivered: int) -> Tensor:
        how: Any = {"device": self.device, "dtype": index_dtype(delivered)}
        steps = torch.arange(block.steps, **how) * block.pitch + block.start
        places = (steps[:, None] + torch.arange(block.width, **how)).reshape(-1)
        end = block.start + (block.steps - 1) * block.pitch + block.width
        return places.remainder_(self.store.rows) if end > self.store.rows else places

    def _index(self, epoch: Epoch, places: Tensor) -> Tensor:
        """Which rows are at these places."""
        if not epoch.plan.shuffle:
            return places.to(index_dtype(self.store.rows))
        return self.orders.get(epoch, self.device).index_select(0, places)

    def _gathered(self, chunk: Chunk, index: Tensor) -> Chunk:
        store = self.store
        held: Any = chunk  # tensors, where on the CPU arrays are
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
            'a loader with cache="device" has its data on the GPU and cannot go to another '
            "process: use num_workers=0, which prepares batches in background threads, or make the "
            "loader there"
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
        """Refuse: what lies there is all there is."""
        raise LoaderError(
            'with cache="device" all rows lie on the GPU, and cannot be given up without changing '
            'their order: use cache=None, "memory" or "disk"'
        )


def resident(pipeline: Pipeline[B], device: torch.device, options: GpuOptions) -> Pipeline[B]:
    """The same rows, all of them kept on a GPU and shuffled as a whole.

    Parameters
    ----------
    feed
        Makes batches in the computer's memory.
    device
        The GPU.
    options
        Memory; the reader is Arrow's, since everything is read once.
    """
    check_gpu(device)
    stages, reader = pipeline.stages, pipeline.stages.reader
    if not isinstance(reader, BlockReader):
        raise LoaderError('cache="device" was given to a loader that is on a GPU already')
    if reader.layout.extras:
        raise LoaderError(
            f'cache="device" keeps tensors on the GPU, and extras= are none: {reader.layout.extras}'
            '; leave them out, or use cache="memory"'
        )
    if options.reader == "cudf":
        why = 'with cache="device" everything is read once'
        warnings.warn(f"reading with Arrow: {why}", TabfeedWarning, stacklevel=5)
    ops = GpuOps.of(stages.ops, reader.layout, device)
    if ops is None:
        raise LoaderError(
            f'cache="device" cannot run {", ".join(map(repr, stages.ops))} on the GPU; leave '
            'it out, or use cache="memory"'
        )
    plan, size = _fitting(pipeline.plan, reader, ops, _allowed(options, device))
    stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    width_groups = width_groups_of(reader.layout.groups, reader.dtypes)
    store = Store(reader.layout, width_groups, plan.sizes, stream, size)
    threads = pipeline.options.threads or max(2, min(_MOST_THREADS, cpu_count() * 3 // 4))
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
    return ResidentPipeline(made, plan, _with(pipeline.options, threads), _CHOICE)


def check_gpu(device: torch.device) -> None:
    """Refuse what is no GPU, or is not there."""
    if device.type != "cuda":
        raise LoaderError(
            f'cache="device" keeps the data on a GPU, and device is {str(device)!r}: use '
            'cache="memory" or "disk", or device="cuda" where there is a GPU'
        )
    check_device(device)


def _with(options: LoaderOptions, threads: int) -> LoaderOptions:
    return replace(options, threads=threads, depth=options.depth or _DEPTH)


def _allowed(options: GpuOptions, device: torch.device) -> int:
    """Bytes that may be used: as given, else half of what is free."""
    if options.device_memory is not None:
        return memory_for(options, device)
    return free_bytes(device) // 2


def _fitting(plan: Plan, reader: BlockReader, ops: GpuOps, allowed: int) -> tuple[Plan, Size]:
    """The plan with chunks as large as they may be, and what it needs; refused if nothing fits."""
    layout = reader.layout
    need = MemoryRequest.of(plan, layout, reader.dtypes)
    need = replace(need, batch=need.batch + ops.row_bytes)
    known = _without_chunks(plan, layout, need.block) + ops.table_bytes
    steps = max(plan.chunk, _CHUNK_ROWS // need.batch_rows)
    while steps > 1 and known + need.chunks_bytes(steps, _DEPTH) > allowed:
        steps = steps * 3 // 4
    known += need.chunks_bytes(steps, _DEPTH)
    if known > allowed:
        raise too_large(known, allowed, plan.rows)
    return replace(plan, whole=True, chunk=steps), Size(known, allowed)


def _without_chunks(plan: Plan, layout: Layout, scalars: int) -> int:
    """Bytes for all rows, as far as it is known before they are read, their order, and working."""
    row = scalars + sum(n * d.itemsize for _, n, d in layout.fixed) + 8 * len(layout.lists)
    working = 2 * max(plan.sizes) * scalars  # a partition on its way
    if plan.shuffle:
        row += _ORDERS * index_dtype(plan.rows).itemsize
        working = max(working, WORKING_BYTES * min(plan.rows, AT_ONCE))
    return plan.rows * row + working
