"""The core of every loader: epochs, position, state. Knows no framework.

A `Pipeline` turns a dataset into finished batches, made by threads with a function the framework's
adapter gives (`finish`: a chunk to a list of batches). The training thread takes a finished
batch from a list; once in a chunk it takes the next list.

`Pipeline` keeps no reference to the iterators it hands out: dropping one ends its threads.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any, Generic, NamedTuple, TypeVar

from tabfeed.errors import ArgumentError
from tabfeed.loader.assemble.chunk import Chunk
from tabfeed.loader.options import LoaderOptions, check_plan
from tabfeed.loader.plan.order import Plan
from tabfeed.loader.plan.shard import Shard
from tabfeed.loader.prefetch import Prefetch
from tabfeed.loader.read.block_window import BlockWindow
from tabfeed.loader.read.remote_prefetch import reading_ahead
from tabfeed.loader.stages import Stages
from tabfeed.loader.state import Position, restore, save, split_plan
from tabfeed.user_functions import Guarded

__all__ = ["EpochIterator", "Mark", "Pipeline"]

B = TypeVar("B")
F = TypeVar("F", bound="Pipeline[Any]")
_NONE: Any = object()


class EpochIterator(Generic[B]):
    """Batches of one epoch from some step on.

    Parameters
    ----------
    stages
        How batches are made.
    position
        Where to begin.
    place
        Which rank of how many.
    options
        Threads and depth.
    on_batch
        Called after each batch with this iterator and the rows the batch had.
    """

    def __init__(
        self,
        stages: Stages[B],
        position: Position,
        place: Shard,
        options: LoaderOptions,
        on_batch: Callable[[EpochIterator[B], int], None],
    ) -> None:
        self._stages, self._options, self._on_batch = stages, options, on_batch
        self._rank = place
        self.begun = False
        self._sit_down(position)
        self._start()

    def _sit_down(self, position: Position) -> None:
        """Find the plan, the place and the step that a position means for this process."""
        self._begin, rank = position, self._rank
        self._epoch, workers = position.epoch, position.workers
        self._step, decode_stream = divmod(position.step + position.worker, workers)
        self._shift = decode_stream - position.worker
        self._place = Shard(rank.rank * workers + decode_stream, rank.world * workers)
        self._plan = split_plan(position.plan, workers)
        self._odd_from = self._plan.steps - len(self._plan.tail)
        self._regular = self._plan.rank_rows(0, *self._place) if self._odd_from else 0

    def _start(self) -> None:
        """Begin (again, in a forked child) at the current step."""
        plan, place = self._plan, self._place
        epoch = plan.epoch(self._epoch)
        first = self._step // plan.chunk
        stages, last_use = self._stages, epoch.last_use(place.rank, place.world)
        coming = sorted((n for n in last_use if last_use[n] >= first), key=last_use.__getitem__)
        parts = reading_ahead(
            stages.reader.parts,
            (part for block in coming for part in epoch.partitions(block)),
            self._options.fetched,
        )
        blocks = BlockWindow(
            stages.reading(epoch, place, parts, first),
            last_use,
            first,
            ahead=stages.ahead,
            on_close=getattr(parts, "close", None),
        )
        self._skip = self._step - first * plan.chunk
        self._ready: Iterator[B] = iter(())
        self._queued: deque[Any] = deque()
        self._prefetch = Prefetch(
            lambda number: stages.make(epoch, place, blocks, number),
            range(first, plan.chunks if self._step < plan.steps else first),
            workers=self._options.workers,
            depth=self._options.ahead,
            spare=blocks.read_ahead,
            on_stop=blocks.close,
        )

    def __iter__(self) -> Iterator[B]:
        return self

    def __next__(self) -> B:
        if self._prefetch.alone:
            self._start()
        batch = next(self._ready, _NONE)
        if batch is _NONE:
            batch = self._refill()
        rows = self._regular if self._step < self._odd_from else self._rows()
        self._step += 1
        self._on_batch(self, rows)
        return batch

    def _rows(self) -> int:
        return self._plan.rank_rows(self._step, *self._place)

    @property
    def position(self) -> Position:
        """The batch that comes next."""
        begin = self._begin
        step = self._step * begin.workers + self._shift
        return Position(begin.plan, begin.epoch, step, begin.workers, begin.worker)

    def _refill(self) -> B:
        batches = self._take()
        self._ready = iter(batches[self._skip :])
        self._skip = 0
        return next(self._ready)

    def _take(self) -> list[B]:
        """The batches of the next chunk."""
        return self._stages.arrive(self._next_chunk())

    def _next_chunk(self) -> Any:
        """The next chunk, and what is there of those after it queued."""
        queued, stages = self._queued, self._stages
        while not queued or (len(queued) <= stages.queue_ahead and self._prefetch.ready):
            if self._step < self._plan.steps:  # else there is none
                stages.let_catch_up()
            queued.append(stages.queue(next(self._prefetch)))
            self._prefetch.go_on()
        return queued.popleft()

    def state_dict(self) -> dict[str, Any]:
        """Where this iterator stands."""
        return save(self.position)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Stand where `state` says, in the pass that it says; at that pass's end, if it says so."""
        begin = self._begin
        position = restore(state, begin.plan).in_worker(begin.worker, begin.workers)
        check_plan(position.plan, self._options)
        if position != self.position:
            self._prefetch.close()
            self._sit_down(position)
            self._start()

    def close(self) -> None:
        """End the threads; there is no next batch after this."""
        self._prefetch.close()
        self._ready = iter(())
        self._queued.clear()


class Mark(NamedTuple):
    """Where a feed stands: the next pass, the latest one, and the rows given so far."""

    upcoming: Position
    now: Position
    rows: int


class Pipeline(Generic[B]):
    """Batches of a dataset, epoch after epoch, with a position that can be saved.

    Parameters
    ----------
    stages
        How batches are made.
    plan
        The order.
    options
        Everything else.

    Attributes
    ----------
    reader_choice
        Where there was a choice of readers: which one reads, and why.
    """

    reader_choice = ""

    def __init__(self, stages: Stages[B], plan: Plan, options: LoaderOptions) -> None:
        self.stages = stages
        self.plan = plan
        self.options = options
        self.rows_given = 0
        self._next = Position(plan, 0, 0)  # where the next `iter` begins
        self._now = self._next  # where the latest iterator stands
        self._iterators: weakref.WeakSet[EpochIterator[B]] = weakref.WeakSet()

    def __len__(self) -> int:
        """Batches in an epoch, on every rank."""
        return self._next.plan.steps

    def __iter__(self) -> EpochIterator[B]:
        return self.iterate()

    def iterate(
        self,
        worker: int = 0,
        workers: int = 1,
        *,
        stages: Stages[Any] | None = None,
    ) -> EpochIterator[Any]:
        """Begin the next epoch, or go on where a loaded state stands.

        Parameters
        ----------
        worker, workers
            Within a process that is one of several workers of a rank: which, of how many.
        stages
            How to make these batches, if otherwise than the pipeline's own.
        """
        begin, options = self._begin().in_worker(worker, workers), self.options
        if workers > 1:
            options = replace(options, threads=max(1, options.workers // workers))
        iterator = self._iterator(stages or self.stages, begin, options)
        self._iterators.add(iterator)
        if begin.step + worker >= begin.steps:  # the other workers have the batches that are left
            self._next = Position(begin.plan, begin.epoch + 1, 0)
        return iterator

    def _iterator(
        self, stages: Stages[Any], begin: Position, options: LoaderOptions
    ) -> EpochIterator[Any]:
        return EpochIterator(stages, begin, options.place, options, self._on_batch)

    def finishing(self, finish: Callable[[Chunk], list[Any]]) -> Pipeline[Any]:
        """A feed of the same chunks at the same position, cut into batches by another function."""
        new: Pipeline[Any] = type(self)(self.stages.finishing(finish), self.plan, self.options)
        if self.reader_choice:
            new.reader_choice = self.reader_choice
        return new._standing_as(self)

    def _standing_as(self: F, other: Pipeline[Any]) -> F:
        """Stand where another feed of the same rows stands."""
        self._next, self._now = other._next, other._now
        return self

    def seek(self, step: int) -> EpochIterator[B]:
        """Batches of the epoch that comes next from `step` on, without moving on to it."""
        options = self.options
        at = self._next._replace(step=step)
        iterator = EpochIterator(self.stages, at, options.place, options, _ignore)
        self._iterators.add(iterator)
        return iterator

    def _begin(self) -> Position:
        begin = self._next
        if self.options.seed_fn is not None and begin.step == 0:
            seed = int(Guarded(self.options.seed_fn, "seed_fn")())
            begin = begin._replace(plan=replace(begin.plan, seed=seed))
        self._now = begin
        return begin

    def _on_batch(self, iterator: EpochIterator[B], rows: int) -> None:
        self.rows_given += rows
        self._now = iterator.position
        if not iterator.begun:  # a pass counts from its first batch: some code calls iter() twice
            iterator.begun = True
            self._next = Position(self._next.plan, self._now.epoch + 1, 0)

    def peek(self) -> B:
        """The first batch of the next pass, without moving on."""
        options = replace(self.options, threads=1, depth=1)
        ahead = EpochIterator(self.stages, self._next, options.place, options, _ignore)
        try:
            return next(ahead)
        finally:
            ahead.close()

    def steps_with(self, workers: int) -> int:
        """Batches each of `workers` processes of this rank gives in an epoch."""
        return split_plan(self._next.plan, workers).steps

    def lend(self, workers: int) -> Callable[[], None]:
        """Count the next pass as begun by copies of this loader in `workers` processes.

        Call what comes back once for each batch that they have given.
        """
        begin, place = self._next.in_worker(0, workers), self.options.place
        self._now, self._next = begin, Position(begin.plan, begin.epoch + 1, 0)
        plan = split_plan(begin.plan, workers)

        def took() -> None:
            step, decode_stream = divmod(self._now.step, workers)
            decode_stream += place.rank * workers
            self.rows_given += plan.rank_rows(step, decode_stream, place.world * workers)
            self._now = self._now._replace(step=self._now.step + 1)

        return took

    def check_workers(self, workers: int) -> None:
        """Refuse if `workers` processes cannot go on from where the next pass begins."""
        self._next.in_worker(0, workers)

    def mark(self) -> Mark:
        """What `go_back` needs to stand here again."""
        return Mark(self._next, self._now, self.rows_given)

    def go_back(self, mark: Mark) -> None:
        """Stand where this stood before; the rows that were given since will be given again."""
        chunk = self.plan.chunk  # another reader may have come meanwhile
        self._next, self._now = (
            place._replace(plan=replace(place.plan, chunk=chunk))
            for place in (mark.upcoming, mark.now)
        )
        self.rows_given = mark.rows

    def skip_epoch(self) -> None:
        """Count an epoch as done; somebody else did the reading."""
        self._now = self._next = Position(self._next.plan, self._next.epoch + 1, 0)

    @property
    def upcoming(self) -> Position:
        """Where the next `iter` begins."""
        return self._next

    @property
    def epoch(self) -> int:
        """The epoch of the latest batch, or the one that comes first."""
        return self._now.epoch

    def set_epoch(self, epoch: int) -> None:
        """The next `iter` begins this epoch; a loaded state within it is kept."""
        if isinstance(epoch, bool) or int(epoch) != epoch or epoch < 0:
            raise ArgumentError(f"epoch is {epoch!r}; it must be a whole number from 0")
        if self._next.epoch != epoch:
            self._next = Position(self._next.plan, int(epoch), 0)

    def state_dict(self) -> dict[str, Any]:
        """Where the latest iterator stands, as plain values."""
        return save(self._now)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """The next `iter` goes on where `state` stands, in constant time."""
        position = restore(state, self.plan).upcoming
        check_plan(position.plan, self.options)
        self._next = self._now = position

    def release_memory(self) -> None:
        """Give back what is held on a GPU: nothing, where batches are made in another way."""

    def close(self) -> None:
        """End the threads of all iterators, and processes that read for them."""
        for iterator in list(self._iterators):
            iterator.close()
        self.stages.reader.close()

    def __getstate__(self) -> dict[str, Any]:
        return {k: v for k, v in vars(self).items() if k != "_iterators"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, _iterators=weakref.WeakSet())


def _ignore(iterator: EpochIterator[Any], rows: int) -> None:
    return None
