"""How batches made on a GPU reach the training thread: an event, and who uses the memory.

Batches are queued on a stream beside the model's. When the training thread takes the first of
them, its own stream waits for the event behind them, and the allocator learns that this stream uses
their memory. No thread waits.

The training thread itself queues them, a chunk ahead, once their blocks are there. Background
threads could do it, but it takes a dozen calls, each of which releases the GIL, and the training
thread would wait for it each time. Where columns are assembled in host memory (lists, extras) or
values are checked, it takes longer, and background threads do it.
"""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, fields, replace
from functools import partial
from typing import Any, NamedTuple, TypeVar

import torch

from tabfeed.loader.assemble.chunk import Chunk
from tabfeed.loader.gpu.devices import on_device
from tabfeed.loader.gpu.gather import mark_used
from tabfeed.loader.gpu.memory_plan import fit_copies
from tabfeed.loader.options import LoaderOptions, Shard
from tabfeed.loader.pipeline import BlockWindow, Pipeline, Stages
from tabfeed.loader.plan import ChunkPlan, Epoch, Plan
from tabfeed.loader.tensors.device import finish_on_cpu
from tabfeed.loader.tensors.tree import tensors_in
from tabfeed.trace import span

__all__ = [
    "DeviceLease",
    "GpuStages",
    "Parts",
    "Ready",
    "StreamStages",
    "fallback_pipeline",
    "timed_event",
]

B = TypeVar("B")
R = TypeVar("R", bound="StreamStages[Any]")
_BY_ROW = (torch.Tensor.crow_indices, torch.Tensor.col_indices)
_BY_COLUMN = (torch.Tensor.ccol_indices, torch.Tensor.row_indices)
_COMPRESSED: dict[torch.layout, Any] = {
    torch.sparse_csr: _BY_ROW,
    torch.sparse_bsr: _BY_ROW,
    torch.sparse_csc: _BY_COLUMN,
    torch.sparse_bsc: _BY_COLUMN,
}


class Parts(NamedTuple):
    """What the training thread needs to queue a chunk.

    Attributes
    ----------
    plan
        Which rows.
    blocks
        The blocks they are from, on the GPU or on their way there.
    places
        The positions of the rows there.
    done
        To be called when the blocks are no longer needed.
    """

    plan: ChunkPlan
    blocks: dict[int, Any]
    places: Any
    done: Callable[[], None]


class Ready(NamedTuple):
    """Queued batches, the event behind them, and a tensor of each memory they use."""

    batches: list[Any]
    event: Any
    owners: list[Any]


class DeviceLease:
    """Which iterator has the memory of blocks: enough for one, it goes to the one begun last."""

    def __init__(self) -> None:
        self._lock = threading.RLock()  # garbage collection may end another iterator meanwhile
        self._holder: Callable[[], Any] = _no_holder

    @property
    def taken(self) -> bool:
        """Whether an iterator holds it."""
        return self._holder() is not None

    def take(self, holder: Any) -> None:
        """Give it to an iterator; the one before is evicted."""
        with self._lock:
            before, self._holder = self._holder(), weakref.ref(holder)
        if before is not None and before is not holder:
            before.evict(self)

    def give_back(self, holder: Any) -> None:
        """Free it for the next iterator."""
        with self._lock:
            if self._holder() is holder:
                self._holder = _no_holder


def _no_holder() -> None:
    return None


@dataclass(frozen=True)
class StreamStages(Stages[B]):
    """How a chunk of batches is made in host memory and copied to a GPU.

    Attributes
    ----------
    stream
        The stream for the copies.
    device
        The GPU.
    host
        The same in host memory, for worker processes.
    latest
        The event at which the model reaches the chunk that arrived last; waiting for it blocks
        without spinning. Shared by all stages that use the same memory.
    """

    stream: Any = None
    device: Any = None
    host: Any = None
    latest: deque[Any] = field(default_factory=partial(deque, maxlen=1))

    def make(self, epoch: Epoch, shard: Shard, blocks: BlockWindow[Any], number: int) -> Any:
        """The batches of one chunk, on one rank, queued."""
        with on_device(self.device), torch.cuda.stream(self.stream):
            return self.queued(super().make(epoch, shard, blocks, number))

    def queued(self, batches: list[B]) -> Ready:
        """Batches that were just queued on the stream, with what `arrive` needs."""
        return Ready(batches, self.stream.record_event(), list(_owners(batches)))

    def let_catch_up(self) -> None:
        """Wait until the model has reached the latest chunk, of this epoch or one before.

        Python may run far ahead of the GPU, and all chunks in between would need memory there.
        """
        if self.latest and not self.latest[-1].query():  # which keeps the GIL
            with span("behind"):
                self.latest[-1].synchronize()

    def arrive(self, made: Any) -> list[B]:
        """Let the stream of the training thread wait for the batches."""
        current = torch.cuda.current_stream(self.device)
        current.wait_event(made.event)
        for tensor in made.owners:
            tensor.record_stream(current)
        event = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
        self.latest.append(current.record_event(event))
        batches: list[B] = made.batches
        return batches

    def finishing(self: R, finish: Any) -> R:
        """The same chunks, cut into batches by another function."""
        host = self.host and replace(self.host, finish=finish_on_cpu(finish))
        return replace(self, finish=finish, host=host)

    def __reduce__(self) -> tuple[Any, ...]:
        return _same, (self.host,)  # streams stay in their process


@dataclass(frozen=True)
class GpuStages(StreamStages[B]):
    """How a chunk of batches is made on a GPU.

    Attributes
    ----------
    timed
        Whether events record their time.
    on_training_thread
        Whether the training thread queues the work on the GPU.
    turn
        Which iterator has the memory of blocks.
    """

    timed: bool = False
    on_training_thread: bool = False
    turn: DeviceLease = field(default_factory=DeviceLease)

    @property
    def queue_ahead(self) -> int:  # type: ignore[override]
        """Chunks that are queued before they are needed, beside the next one."""
        return int(self.on_training_thread)

    def make(self, epoch: Epoch, shard: Shard, blocks: BlockWindow[Any], number: int) -> Any:
        """The batches of one chunk, on one rank: queued, or all that `queue` needs."""
        if not self.on_training_thread:
            return super().make(epoch, shard, blocks, number)
        with span("plan"):
            plan = epoch.chunk(number, shard.rank, shard.world)
        found = blocks.get(copy_run.block for copy_run in plan.copy_runs)
        places = self._maker.copy_blocks(plan, found)
        return Parts(plan, found, places, partial(blocks.done, number))

    @property
    def _maker(self) -> Any:
        return self.maker  # on a GPU

    def queue(self, made: Any) -> Any:
        """Queue the making of a chunk, if that was left to the training thread."""
        if not isinstance(made, Parts):
            return made
        with (
            span("queue", rows=made.plan.rows),
            on_device(self.device),
            torch.cuda.stream(self.stream),
        ):
            chunk = Chunk(made.plan.bounds, first_step=made.plan.first_step)
            self._maker.gather(chunk, made.blocks, made.places)
            for op in self.ops:
                op(chunk)
            ready = self.queued(self.cut(chunk))
            mark_used(made.blocks, ready.event)
            made.done()
            return ready

    def let_go(self) -> None:
        """Free chunks that arrived; none are kept here."""

    def cut(self, chunk: Chunk) -> list[Any]:
        """The batches of a chunk that was just queued, on the training thread."""
        return self.finish(chunk)

    def queued(self, batches: list[B]) -> Ready:
        """Batches that were just queued on the stream, with what `arrive` needs."""
        event = timed_event(self.stream) if self.timed else self.stream.record_event()
        shared = self.on_training_thread and getattr(self.finish, "only_cuts", False)
        return Ready(batches, event, list(_owners(batches[:1] if shared else batches)))


def fallback_pipeline(
    stages: Stages[B],
    plan: Plan,
    options: LoaderOptions,
    device: torch.device,
    memory: int,
    row_bytes: int,
) -> Pipeline[B]:
    """A pipeline of batches that are made in host memory and copied on a stream of their own.

    Used where the GPU cannot make them, or may no longer.

    Parameters
    ----------
    stages
        Make them, and copy them to the GPU on whichever stream is current.
    device
        The GPU.
    plan, options, memory, row_bytes
        As for `fit_copies`.
    """
    plan, options = fit_copies(plan, options, memory, row_bytes)
    parts: dict[str, Any] = {field.name: getattr(stages, field.name) for field in fields(Stages)}
    host = replace(stages, finish=finish_on_cpu(stages.finish))
    stream: Any = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    made: Stages[B] = StreamStages(**parts, stream=stream, device=device, host=host)
    return Pipeline(made, plan, options)


def timed_event(stream: Any) -> Any:
    """An event behind the work queued on a stream, which records its time."""
    return stream.record_event(torch.cuda.Event(enable_timing=True))  # type: ignore[no-untyped-call]


def _same(stages: Stages[B]) -> Stages[B]:
    return stages


def _owners(batches: list[Any]) -> Iterator[torch.Tensor]:
    """One tensor for each storage that batches use."""
    seen = set()
    for tensor in (part for whole in tensors_in(batches) for part in _dense_parts(whole)):
        if tensor.is_cuda:
            place = tensor.untyped_storage().data_ptr()
            if place not in seen:
                seen.add(place)
                yield tensor


def _dense_parts(tensor: Any) -> tuple[torch.Tensor, ...]:
    """The dense tensors that a sparse, nested or plain tensor consists of."""
    if tensor.layout in _COMPRESSED:
        rows, columns = _COMPRESSED[tensor.layout]
        return rows(tensor), columns(tensor), tensor.values()
    if tensor.is_sparse:
        return tensor._indices(), tensor._values()
    if tensor.is_nested:
        values = tensor.values()
        return (values,) if tensor.layout == torch.strided else (values, tensor.offsets())
    return (tensor,)
