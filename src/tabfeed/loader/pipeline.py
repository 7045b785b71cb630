"""What a loader reads, in which order, into which buffers, and how batches are finished.

A `Pipeline` is a value: it holds how batches are made (`Stages`), in which order (`Plan`) and with
how many threads (`LoaderOptions`), and never changes. Where a loader stands is in its
`tabfeed.loader.state.LoaderState`, which `Pipeline.start` makes; an `EpochIterator` gives the
batches of one epoch.

`Stages` make chunks of batches with threads: what differs between host memory and a GPU is there,
and in what derives from it. Which chunks are made, by which threads and until when is the same for
all. The last stage, `finish`, is the framework's: it cuts a chunk into a list of batches. The
training thread takes a finished batch from a list; once in a chunk it takes the next list.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from tabfeed.loader.assemble.batch_ops import BatchOp
from tabfeed.loader.assemble.chunk import Chunk, MakesChunks
from tabfeed.loader.assemble.in_order import InOrderBlocks, rows_follow
from tabfeed.loader.options import LoaderOptions, check_plan
from tabfeed.loader.plan.order import Epoch, Plan
from tabfeed.loader.plan.shard import Shard
from tabfeed.loader.position import Position, restore, save, split_plan
from tabfeed.loader.prefetch import Prefetch
from tabfeed.loader.read.block_window import Ahead, BlockWindow
from tabfeed.loader.read.blocks import BlockReader, ReadsBlocks
from tabfeed.loader.read.remote_prefetch import reading_ahead
from tabfeed.trace import span

if TYPE_CHECKING:
    from tabfeed.loader.state import LoaderState

__all__ = ["EpochIterator", "Pipeline", "Stages"]

B = TypeVar("B")
ReadBlocks = Callable[[Sequence[int]], Sequence[Any]]
_NONE: Any = object()


@dataclass(frozen=True)
class Stages(Generic[B]):
    """How a chunk of batches is made.

    Attributes
    ----------
    reader
        Reads blocks.
    maker
        Puts batches together.
    ops
        Applied to a chunk before it is finished.
    finish
        Cuts a chunk into the framework's batches.
    ahead
        How blocks are read before chunks need them.
    in_order
        Whether blocks that are not shuffled may be read straight into chunks.
    """

    reader: ReadsBlocks
    maker: MakesChunks
    finish: Callable[[Chunk], list[B]]
    ops: tuple[BatchOp, ...] = ()
    ahead: Ahead = Ahead()  # noqa: RUF009 - frozen
    in_order: bool = False
    queue_ahead = 0  # chunks for which `queue` is called before the training thread needs them

    def reading(self, epoch: Epoch, shard: Shard, parts: Any, first: int) -> ReadBlocks:
        """What reads blocks of an epoch, of the partitions that `parts` reads, from a chunk on."""
        if (
            self.in_order
            and isinstance(self.reader, BlockReader)
            and rows_follow(epoch.plan, shard)
        ):
            return InOrderBlocks(self.reader, parts, epoch, shard, first).read
        reader = self.reader.reading(parts)
        return lambda numbers: reader.read(epoch, numbers)

    def make(self, epoch: Epoch, shard: Shard, blocks: BlockWindow[Any], number: int) -> Any:
        """The batches of one chunk, on one rank."""
        with span("plan"):
            plan = epoch.chunk(number, shard.rank, shard.world)
        chunks = self.maker.make(plan, blocks.get(copy_run.block for copy_run in plan.copy_runs))
        blocks.done(number)
        return self.finished(chunks)

    def finished(self, chunks: Iterable[Chunk]) -> list[B]:
        """The batches of some chunks, after the operators and `finish`."""
        batches: list[B] = []
        for chunk in chunks:
            for op in self.ops:
                with span("transform", rows=chunk.rows, what=op):
                    op(chunk)
            with span("finish", rows=chunk.rows):
                batches.extend(self.finish(chunk))
        return batches

    def let_catch_up(self) -> None:
        """Wait, if the model is so far behind that there is no memory for another chunk."""

    def queue(self, made: Any) -> Any:
        """What `make` gave, on the training thread, as early as it may be; waits for nothing."""
        return made

    def arrive(self, made: Any) -> list[B]:
        """What `queue` gave, on the training thread, when it takes the first of the batches."""
        batches: list[B] = made
        return batches

    def finishing(self, finish: Callable[[Chunk], list[Any]]) -> Stages[Any]:
        """The same chunks, cut into batches by another function."""
        return replace(self, finish=finish)


@dataclass(frozen=True, eq=False)
class Pipeline(Generic[B]):
    """Everything about a loader that does not change while it is used.

    Attributes
    ----------
    stages
        How batches are made.
    plan
        The order.
    options
        Everything else.
    reader_choice
        Where there was a choice of readers: which one reads, and why.
    """

    stages: Stages[B]
    plan: Plan
    options: LoaderOptions
    reader_choice: str = ""

    def start(self) -> LoaderState[B]:
        """A position at the first batch of epoch 0, from which epochs are read."""
        from tabfeed.loader.state import LoaderState

        return LoaderState(self)

    def __iter__(self) -> EpochIterator[B]:
        """The batches of epoch 0, every time."""
        return self.start().iterate()

    def __len__(self) -> int:
        """Batches in an epoch, on every rank."""
        return self.plan.steps

    def finishing(self, finish: Callable[[Chunk], list[Any]]) -> Pipeline[Any]:
        """The same chunks, cut into batches by another function."""
        return replace(self, stages=self.stages.finishing(finish))

    def with_chunk(self, chunk: int) -> Pipeline[B]:
        """The same with so many steps in a chunk."""
        return replace(self, plan=replace(self.plan, chunk=chunk))


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

    def __iter__(self) -> Iterator[B]:
        return self

    def __next__(self) -> B:
        if self._prefetch.alone:
            self._start()
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
        position = restore(state, begin.plan).in_worker(begin.worker, begin.workers)
        check_plan(position.plan, self._options)
        if position != self.position:
            self._prefetch.close()
            self._stand_at(position)
            self._start()

    def close(self) -> None:
        """End the threads; there is no next batch after this."""
        self._prefetch.close()
        self._ready = iter(())
        self._queued.clear()
