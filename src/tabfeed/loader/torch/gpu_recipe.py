"""How batches made on a GPU reach the training thread: an event, and who uses the memory.

Batches are queued on a stream beside the model's. When the training thread takes the first of
them, its own stream is made to wait for the event behind them and told to the allocator as a user
of their memory; the program waits for nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypeVar

import torch

from tabfeed.loader.base import Recipe
from tabfeed.loader.plan import Epoch
from tabfeed.loader.ranks import Place
from tabfeed.loader.shared_lots import SharedLots

__all__ = ["GpuRecipe", "Ready", "timed_event"]

B = TypeVar("B")


class Ready(NamedTuple):
    """Batches whose making is queued, the event after it, and a tensor of each memory they use."""

    batches: list[Any]
    event: Any
    owners: list[Any]


@dataclass(frozen=True)
class GpuRecipe(Recipe[B]):
    """How a chunk of batches is made on a GPU.

    Attributes
    ----------
    stream
        The stream on which chunks are put together.
    device
        The GPU.
    host
        The same in the computer's memory, for worker processes.
    timed
        Whether events tell their time.
    """

    stream: Any = None
    device: Any = None
    host: Any = None
    timed: bool = False

    def make(self, epoch: Epoch, place: Place, lots: SharedLots[Any], number: int) -> Any:
        """The batches of one chunk, on one rank: queued, not done."""
        with torch.cuda.stream(self.stream):
            return self.queued(super().make(epoch, place, lots, number))

    def queued(self, batches: list[B]) -> Ready:
        """Batches that were just queued on the stream, with what `arrive` needs to know."""
        event = timed_event(self.stream) if self.timed else self.stream.record_event()
        return Ready(batches, event, list(_owners(batches)))

    def arrive(self, made: Any) -> list[B]:
        """Let the stream of the training thread wait for the batches."""
        current = torch.cuda.current_stream(self.device)
        current.wait_event(made.event)
        for tensor in made.owners:
            tensor.record_stream(current)
        batches: list[B] = made.batches
        return batches

    def finishing(self, finish: Any) -> GpuRecipe[Any]:
        """The same chunks, cut into batches by another function."""
        host = self.host and replace(self.host, finish=replace(finish, device=torch.device("cpu")))
        return replace(self, finish=finish, host=host)

    def __reduce__(self) -> tuple[Any, ...]:
        return _same, (self.host,)  # streams stay in their process


def timed_event(stream: Any) -> Any:
    """An event behind what is queued on a stream, which tells its time."""
    return stream.record_event(torch.cuda.Event(enable_timing=True))  # type: ignore[no-untyped-call]


def _same(recipe: Recipe[B]) -> Recipe[B]:
    return recipe


def _owners(batches: list[Any]) -> Iterator[torch.Tensor]:
    """One tensor for each piece of memory that batches use."""
    seen = set()
    for tensor in _tensors(batches):
        if tensor.is_cuda:
            place = tensor.untyped_storage().data_ptr()
            if place not in seen:
                seen.add(place)
                yield tensor


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        if value.is_sparse:
            yield from (value._indices(), value._values())
        elif value.is_nested:
            nested: Any = value
            yield from (nested.values(), nested.offsets())
        else:
            yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from _tensors(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _tensors(item)
