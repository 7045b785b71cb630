"""Where a loader stands: its epoch and step, the rows given so far, the iterators that run.

An `EpochIterator` gives the batches of one epoch. Threads make them; the training thread takes a
finished batch from a list, and once in a chunk it takes the next list.

A `LoaderState` holds the `Pipeline` it reads with. All loaders keep one pipeline for good, except
on GPUs: there a state may go over to another pipeline of the same rows, between two chunks (see
`LoaderState.go_over`). The order of rows does not depend on who reads them, nor on the size of a
chunk, so positions stay what they are.

It keeps no strong reference to the iterators it gives: dropping one ends its threads.
"""

from __future__ import annotations

import warnings
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from threading import Thread
from typing import Any, Generic, NamedTuple, TypeVar

from tabfeed.arguments import Guarded
from tabfeed.errors import ArgumentError, TabfeedWarning
from tabfeed.loader.assemble.chunk import Chunk
from tabfeed.loader.options import LoaderOptions, Shard, check_plan
from tabfeed.loader.pipeline import BlockWindow, Pipeline, Stages
from tabfeed.loader.plan import Plan, part_of
from tabfeed.loader.position import Position, restore, save, split_plan
from tabfeed.loader.prefetch import Prefetch, join_threads
from tabfeed.loader.read.partition_reader import reading_ahead

B = TypeVar("B")
_NONE: Any = object()


class EpochIterator(Generic[B]):
    """Batches of one epoch from some step on.

    Parameters
    ----------
    stages
        How batches are made.
    position
        Where to begin.
    shard
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
        shard: Shard,
        options: LoaderOptions,
        on_batch: Callable[[EpochIterator[B], int], None] = lambda iterator, rows: None,
    ) -> None:
        self._stages, self._options, self._on_batch = stages, options, on_batch
        self._rank = shard
        self.begun = False
        self.threads: weakref.WeakSet[Thread] = weakref.WeakSet()  # those begun so far
        self._stand_at(position)
        self._start()

    def _stand_at(self, position: Position) -> None:
        """Find the plan, the shard and the step that a position means for this process."""
        self._begin, rank = position, self._rank
        self._epoch, workers = position.epoch, position.workers
        self._step, turn = divmod(position.step + position.worker, workers)
        self._shift = turn - position.worker
        self._shard = Shard(rank.rank * workers + turn, rank.world * workers)
        self._plan = split_plan(position.plan, workers)
        self._odd_from = self._plan.steps - len(self._plan.tail)
        self._regular = self._plan.rank_rows(0, *self._shard) if self._odd_from else 0

    def _start(self) -> None:
        """Begin (again, in a forked child) at the current step."""
        plan, shard = self._plan, self._shard
        epoch = plan.epoch(self._epoch)
        first = self._step // plan.chunk
        stages, last_use = self._stages, epoch.last_use(shard.rank, shard.world)
        coming = sorted((n for n in last_use if last_use[n] >= first), key=last_use.__getitem__)
        parts = reading_ahead(
            stages.reader.parts,
            (part for block in coming for part in epoch.partitions(block)),
            self._options.fetched,
        )
        blocks = BlockWindow(
            stages.reading(epoch, shard, parts, first),
            last_use,
            first,
            ahead=stages.ahead,
            on_close=getattr(parts, "close", None),
        )
        self._skip = self._step - first * plan.chunk
        self._ready: Iterator[B] = iter(())
        self._queued: deque[Any] = deque()
        self._prefetch = Prefetch(
            lambda number: stages.make(epoch, shard, blocks, number),
            range(first, plan.chunks if self._step < plan.steps else first),
            workers=self._options.workers,
            depth=self._options.ahead,
            spare=blocks.read_ahead,
            on_stop=blocks.close,
        )
        self.threads.update(self._prefetch.threads)

    def __iter__(self) -> Iterator[B]:
        return self

    def __next__(self) -> B:
        batch = next(self._ready, _NONE)
        if batch is _NONE:
            batch = self._refill()
        regular = self._step < self._odd_from
        rows = self._regular if regular else self._plan.rank_rows(self._step, *self._shard)
        self._step += 1
        self._on_batch(self, rows)
        return batch

    @property
    def position(self) -> Position:
        """The batch that comes next."""
        begin = self._begin
        step = self._step * begin.workers + self._shift
        return Position(begin.plan, begin.epoch, step, begin.workers, begin.worker)

    def _refill(self) -> B:
        if self._prefetch.alone:
            self._start()
        batches = self._take()
        self._ready = iter(batches[self._skip :])
        self._skip = 0
        return next(self._ready)

    def _take(self) -> list[B]:
        """The batches of the next chunk."""
        return self._stages.arrive(self._next_chunk())

    def _next_chunk(self) -> Any:
        """The next chunk; those after it that are ready are queued."""
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
        """Stand where `state` says, in its epoch; at that epoch's end, if it says so."""
        begin = self._begin
        position = _restored(state, begin.plan, self._options)
        position = position.in_worker(begin.worker, begin.workers)
        if position != self.position:
            self._prefetch.close()
            self._stand_at(position)
            self._start()

    def close(self) -> None:
        """End the threads; there is no next batch after this."""
        self._prefetch.close()
        self._ready = iter(())
        self._queued.clear()


def _restored(state: Mapping[str, Any], plan: Plan, options: LoaderOptions) -> Position:
    """The position a state speaks of, for a loader of these options.

    The state's plan is kept, so that the run goes on as it was. Warned of is what the loader was
    given otherwise. Batches of another size are not: they come from another number of ranks alone.
    """
    position = restore(state, plan)
    check_plan(position.plan, options)
    saved, last = position.plan, "drop" if options.drop_last else options.last
    given = []
    drawn = saved.shuffle and options.seed_fn is None  # from the seed alone
    if drawn and options.seed not in (LoaderOptions.seed, saved.seed):
        given.append(f"seed={saved.seed}, not with seed={options.seed}")
    if last not in (None, saved.last):
        given.append(f"last={saved.last!r}, not with last={last!r}")
    if given:
        warnings.warn(
            f"the loader goes on as the loaded state began, with {' and with '.join(given)} as "
            "given to this loader: give what the state has, or begin without it",
            TabfeedWarning,
            stacklevel=4,
        )
    return position


class Mark(NamedTuple):
    """What `LoaderState.go_back` needs: the next epoch, the latest one, and the rows given."""

    upcoming: Position
    now: Position
    rows: int


class LoaderState(Generic[B]):
    """Gives epochs of a pipeline's batches, and knows the position, which can be saved.

    Parameters
    ----------
    pipeline
        What is read, and how.
    """

    def __init__(self, pipeline: Pipeline[B]) -> None:
        self.pipeline = pipeline
        self.rows_given = 0
        self._next = Position(pipeline.plan, 0, 0)  # where the next `iter` begins
        self._now = self._next  # where the latest iterator stands
        self._iterators: weakref.WeakSet[EpochIterator[B]] = weakref.WeakSet()
        self._threads: list[weakref.WeakSet[Thread]] = []  # of dropped iterators as well

    def __len__(self) -> int:
        """Batches in an epoch, on every rank."""
        return self._next.plan.steps

    @property
    def batch_size(self) -> int:
        """Rows in a batch, on this rank; a loaded state of other ranks has its own global batch."""
        return part_of(self._next.plan.batch, *self.pipeline.options.shard)

    @property
    def reader_choice(self) -> str:
        """Where there was a choice of readers: which one reads, and why."""
        return self.pipeline.reader_choice

    # -- batches ------------------------------------------------------------------------------

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
        begin, options = self._begin().in_worker(worker, workers), self.pipeline.options
        if workers > 1:
            options = replace(options, threads=max(1, options.workers // workers))
        iterator = self._iterator(stages or self.pipeline.stages, begin, options)
        self._keep_track_of(iterator)
        if begin.step + worker >= begin.steps:  # the other workers have the batches that are left
            self._next = Position(begin.plan, begin.epoch + 1, 0)
        return iterator

    def _iterator(
        self, stages: Stages[Any], begin: Position, options: LoaderOptions
    ) -> EpochIterator[Any]:
        return EpochIterator(stages, begin, options.shard, options, self._on_batch)

    def _begin(self) -> Position:
        begin, seed_fn = self._next, self.pipeline.options.seed_fn
        if seed_fn is not None and begin.step == 0:
            seed = int(Guarded(seed_fn, "seed_fn")())
            begin = begin._replace(plan=replace(begin.plan, seed=seed))
        self._now = begin
        return begin

    def _on_batch(self, iterator: EpochIterator[B], rows: int) -> None:
        self.rows_given += rows
        self._now = iterator.position
        if not iterator.begun:  # an epoch counts from its first batch: some code calls iter() twice
            iterator.begun = True
            self._next = Position(self._next.plan, self._now.epoch + 1, 0)

    def seek(self, step: int) -> EpochIterator[B]:
        """Batches of the epoch that comes next from `step` on, without moving on to it."""
        iterator = self._aside(self._next._replace(step=step))
        self._keep_track_of(iterator)
        return iterator

    def _keep_track_of(self, iterator: EpochIterator[Any]) -> None:
        """Let `close` end this iterator, or wait for its threads if it is dropped before."""
        self._iterators.add(iterator)
        self._threads = [threads for threads in self._threads if len(threads)]
        self._threads.append(iterator.threads)

    def peek(self) -> B:
        """The first batch of the next epoch, without moving on."""
        iterator = self._aside(self._next, threads=1, depth=1)
        try:
            return next(iterator)
        finally:
            iterator.close()

    def _aside(self, begin: Position, **few: Any) -> EpochIterator[B]:
        """Batches from a position on that count for nothing; `few` are options that differ."""
        options = replace(self.pipeline.options, **few)
        return EpochIterator(self.pipeline.stages, begin, options.shard, options)

    # -- worker processes -----------------------------------------------------------------------

    def steps_with(self, workers: int) -> int:
        """Batches each of `workers` processes of this rank gives in an epoch."""
        return split_plan(self._next.plan, workers).steps

    def lend(self, workers: int) -> Callable[[], None]:
        """Count the next epoch as begun by copies of this loader in `workers` processes.

        Call what comes back once for each batch that they have given.
        """
        begin, shard = self._next.in_worker(0, workers), self.pipeline.options.shard
        self._now, self._next = begin, Position(begin.plan, begin.epoch + 1, 0)
        plan = split_plan(begin.plan, workers)

        def took() -> None:
            step, worker = divmod(self._now.step, workers)
            rank = shard.rank * workers + worker
            self.rows_given += plan.rank_rows(step, rank, shard.world * workers)
            self._now = self._now._replace(step=self._now.step + 1)

        return took

    def check_workers(self, workers: int) -> None:
        """Refuse if `workers` processes cannot go on from where the next epoch begins."""
        self._next.in_worker(0, workers)

    # -- the position -------------------------------------------------------------------------

    def finishing(self, finish: Callable[[Chunk], list[Any]]) -> LoaderState[Any]:
        """The same chunks at the same position, cut into batches by another function."""
        new = self.pipeline.finishing(finish).start()
        new._next, new._now = self._next, self._now
        return new

    def go_over(self, pipeline: Pipeline[B]) -> None:
        """Make batches as another pipeline of the same rows does, from the next chunk on.

        Only the stages, the options and the steps in a chunk may differ. Iterators that run keep
        the stages they began with.
        """
        self.pipeline, chunk = pipeline, pipeline.plan.chunk
        self._next, self._now = self._next.with_chunk(chunk), self._now.with_chunk(chunk)

    def mark(self) -> Mark:
        """What `go_back` needs to stand here again."""
        return Mark(self._next, self._now, self.rows_given)

    def go_back(self, mark: Mark) -> None:
        """Stand where this stood before; the rows that were given since will be given again."""
        chunk = self.pipeline.plan.chunk  # another pipeline may have come meanwhile
        self._next, self._now = mark.upcoming.with_chunk(chunk), mark.now.with_chunk(chunk)
        self.rows_given = mark.rows

    def skip_epoch(self) -> None:
        """Count an epoch as done, which was read in another way."""
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
            raise ArgumentError(f"epoch is {epoch!r}; it must be an integer of at least 0")
        if self._next.epoch != epoch:
            self._next = Position(self._next.plan, int(epoch), 0)

    def state_dict(self) -> dict[str, Any]:
        """Where the latest iterator stands, as plain values."""
        return save(self._now)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """The next `iter` goes on where `state` stands, in constant time."""
        position = _restored(state, self.pipeline.plan, self.pipeline.options)
        self._next = self._now = position.upcoming

    # -- the end --------------------------------------------------------------------------------

    def release_memory(self) -> None:
        """Give back what is held on a GPU; nothing, if batches are made in another way."""

    def close(self) -> None:
        """End the threads of all iterators, and processes that read for them."""
        for iterator in list(self._iterators):
            iterator.close()
        for threads in self._threads:
            join_threads(list(threads))
        self.pipeline.stages.reader.close()

    def __reduce__(self) -> tuple[Any, ...]:
        return _standing, (self.pipeline, self.mark())


def _standing(pipeline: Pipeline[B], mark: Mark) -> LoaderState[B]:
    """A state of a pipeline at a position, in another process."""
    state = pipeline.start()
    state.go_back(mark)
    return state
