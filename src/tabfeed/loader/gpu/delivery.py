"""How batches made on a GPU reach the training thread: an event, and who uses the memory.

Batches are queued on a stream beside the model's. When the training thread takes the first of
them, its own stream is made to wait for the event behind them and told to the allocator as a user
of their memory; the program waits for nothing.

The training thread itself queues them, a chunk ahead, once their blocks are there. Other threads
would do so in passing: but each of a dozen calls that it takes hands the interpreter over, and for
every one the training thread would wait. Where columns are put together in the computer's memory
(lists, what rides along), or values are looked at, that takes longer, and other threads do it.
"""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple, TypeVar

import torch

from tabfeed.loader.assemble.chunk import Chunk
from tabfeed.loader.gpu.devices import on_device
from tabfeed.loader.gpu.gather import mark_used
from tabfeed.loader.pipeline import Stages
from tabfeed.loader.plan.order import ChunkPlan, Epoch
from tabfeed.loader.plan.shard import Shard
from tabfeed.loader.read.block_window import BlockWindow
from tabfeed.loader.tensors.tree import tensors_in
from tabfeed.trace import span

__all__ = ["DeviceLease", "GpuStages", "Parts", "Ready", "StreamStages", "for_host", "timed_event"]

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
    """What a chunk will be made of.

    Attributes
    ----------
    plan
        Which rows.
    found
        The blocks they are of, on the GPU or on their way there.
    places
        Where they will lie.
    done
        To be called when the blocks are no longer needed.
    """

    plan: ChunkPlan
    found: dict[int, Any]
    places: Any
    done: Callable[[], None]


class Ready(NamedTuple):
    """Batches whose making is queued, the event after it, and a tensor of each memory they use."""

    batches: list[Any]
    event: Any
    owners: list[Any]


class DeviceLease:
    """Whose the memory of lots is: it is enough for one pass, and goes to the one begun last."""

    def __init__(self) -> None:
        self._lock = threading.RLock()  # the collector may end another pass while it is held
        self._whose: Callable[[], Any] = _nobody

    @property
    def taken(self) -> bool:
        """Whether a pass has it."""
        return self._whose() is not None

    def take(self, whose: Any) -> None:
        """Have it; whoever had it steps aside first."""
        with self._lock:
            before, self._whose = self._whose(), weakref.ref(whose)
        if before is not None and before is not whose:
            before.evict(self)

    def give_back(self, whose: Any) -> None:
        """Leave it to the next one."""
        with self._lock:
            if self._whose() is whose:
                self._whose = _nobody


def _nobody() -> None:
    return None


@dataclass(frozen=True)
class StreamStages(Stages[B]):
    """How a chunk of batches is made in the computer's memory, and copied to a GPU.

    Attributes
    ----------
    stream
        The stream on which that is queued.
    device
        The GPU.
    host
        The same in the computer's memory, for worker processes.
    latest
        The event at which the model comes to the chunk that arrived last; whoever waits for it
        rests. All who use the same memory share it.
    """

    stream: Any = None
    device: Any = None
    host: Any = None
    latest: deque[Any] = field(default_factory=partial(deque, maxlen=1))

    def make(self, epoch: Epoch, place: Shard, blocks: BlockWindow[Any], number: int) -> Any:
        """The batches of one chunk, on one rank, queued."""
        with on_device(self.device), torch.cuda.stream(self.stream):
            return self.queued(super().make(epoch, place, blocks, number))

    def queued(self, batches: list[B]) -> Ready:
        """Batches that were just queued on the stream, with what `arrive` needs to know."""
        return Ready(batches, self.stream.record_event(), list(_owners(batches)))

    def let_catch_up(self) -> None:
        """Wait until the model has come to the latest chunk, of this pass or one before.

        A program may be far ahead of its GPU, and all chunks in between would need memory there.
        """
        if self.latest and not self.latest[-1].query():  # which keeps the interpreter
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
        host = self.host and replace(self.host, finish=for_host(finish))
        return replace(self, finish=finish, host=host)

    def __reduce__(self) -> tuple[Any, ...]:
        return _same, (self.host,)  # streams stay in their process


@dataclass(frozen=True)
class GpuStages(StreamStages[B]):
    """How a chunk of batches is made on a GPU.

    Attributes
    ----------
    timed
        Whether events tell their time.
    here
        Whether the training thread queues what is to be done on the GPU.
    turn
        Which pass has the memory of blocks.
    """

    timed: bool = False
    here: bool = False
    turn: DeviceLease = field(default_factory=DeviceLease)

    @property
    def queue_ahead(self) -> int:  # type: ignore[override]
        """Chunks that are queued before they are needed, beside the next one."""
        return int(self.here)

    def make(self, epoch: Epoch, place: Shard, blocks: BlockWindow[Any], number: int) -> Any:
        """The batches of one chunk, on one rank: queued, or all that is needed for that."""
        if not self.here:
            return super().make(epoch, place, blocks, number)
        with span("plan"):
            plan = epoch.chunk(number, place.rank, place.world)
        found = blocks.get(copy_run.block for copy_run in plan.copy_runs)
        places = self._maker.bring(plan, found)
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
            self._maker.gather(chunk, made.found, made.places)
            for op in self.ops:
                op(chunk)
            ready = self.queued(self.cut(chunk))
            mark_used(made.found, ready.event)
            made.done()
            return ready

    def let_go(self) -> None:
        """Keep nothing of chunks that arrived: here nobody does."""

    def cut(self, chunk: Chunk) -> list[Any]:
        """The batches of a chunk that was just queued, on the training thread."""
        return self.finish(chunk)

    def queued(self, batches: list[B]) -> Ready:
        """Batches that were just queued on the stream, with what `arrive` needs to know."""
        event = timed_event(self.stream) if self.timed else self.stream.record_event()
        shared = self.here and getattr(self.finish, "only_cuts", False)
        return Ready(batches, event, list(_owners(batches[:1] if shared else batches)))


def for_host(finish: Any) -> Any:
    """The same, its batches in the computer's memory, if it says where they are to be."""
    if not hasattr(finish, "device"):
        return finish
    is_torch = isinstance(finish.device, torch.device)
    return replace(finish, device=torch.device("cpu") if is_torch else "cpu")


def timed_event(stream: Any) -> Any:
    """An event behind what is queued on a stream, which tells its time."""
    return stream.record_event(torch.cuda.Event(enable_timing=True))  # type: ignore[no-untyped-call]


def _same(stages: Stages[B]) -> Stages[B]:
    return stages


def _owners(batches: list[Any]) -> Iterator[torch.Tensor]:
    """One tensor for each piece of memory that batches use."""
    seen = set()
    for tensor in (part for whole in tensors_in(batches) for part in _plain(whole)):
        if tensor.is_cuda:
            place = tensor.untyped_storage().data_ptr()
            if place not in seen:
                seen.add(place)
                yield tensor


def _plain(tensor: Any) -> tuple[torch.Tensor, ...]:
    """What a tensor consists of."""
    if tensor.layout in _COMPRESSED:
        rows, columns = _COMPRESSED[tensor.layout]
        return rows(tensor), columns(tensor), tensor.values()
    if tensor.is_sparse:
        return tensor._indices(), tensor._values()
    if tensor.is_nested:
        values = tensor.values()
        return (values,) if tensor.layout == torch.strided else (values, tensor.offsets())
    return (tensor,)
