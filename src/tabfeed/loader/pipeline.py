"""What a loader reads, in which order, into which buffers, and how batches are finished.

A `Pipeline` is a value: it holds how batches are made (`Stages`), in which order (`Plan`) and with
how many threads (`LoaderOptions`), and never changes. Where a loader stands is in its
`tabfeed.loader.state.LoaderState`, which `Pipeline.start` makes.

`Stages` make chunks of batches: what differs between host memory and a GPU is there, and in what
derives from it. Which chunks are made, by which threads and until when is the same for all
(`tabfeed.loader.state.EpochIterator`). The last stage, `finish`, is the framework's: it cuts a
chunk into a list of batches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from tabfeed.loader.assemble.batch_ops import BatchOp
from tabfeed.loader.assemble.chunk import Chunk, MakesChunks
from tabfeed.loader.assemble.in_order import InOrderBlocks, rows_follow
from tabfeed.loader.options import LoaderOptions
from tabfeed.loader.plan.order import Epoch, Plan
from tabfeed.loader.plan.shard import Shard
from tabfeed.loader.read.block_window import Ahead, BlockWindow
from tabfeed.loader.read.blocks import BlockReader, ReadsBlocks
from tabfeed.trace import span

if TYPE_CHECKING:
    from tabfeed.loader.state import EpochIterator, LoaderState

__all__ = ["Pipeline", "Stages"]

B = TypeVar("B")
ReadBlocks = Callable[[Sequence[int]], Sequence[Any]]


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
