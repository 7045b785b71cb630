"""What a loader reads, in which order, into which buffers, and how batches are finished.

A `Pipeline` is a value: it holds how batches are made (`Stages`), in which order (`Plan`) and with
how many threads (`LoaderOptions`), and never changes. Where a loader stands is in its
`tabfeed.loader.state.LoaderState`, which `Pipeline.start` makes.

`Stages` make chunks of batches: what differs between host memory and a GPU is there, and in what
derives from it. Which chunks are made, by which threads and until when is the same for all
(`tabfeed.loader.state.EpochIterator`). The last stage, `finish`, is the framework's: it cuts a
chunk into a list of batches.

A `BlockWindow` reads each block of an epoch once for all chunks that need it. Whichever chunk comes
first reads it; threads that would have nothing to do read those that are needed next, as long as
memory allows; a block goes when the last chunk that needs it is done.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from tabfeed.errors import LoaderError
from tabfeed.loader.assemble.batch_ops import BatchOp
from tabfeed.loader.assemble.chunk import Chunk, InOrderBlocks, MakesChunks, rows_follow
from tabfeed.loader.options import LoaderOptions, Shard
from tabfeed.loader.plan import Epoch, Plan
from tabfeed.loader.read.blocks import BlockReader, ReadsBlocks
from tabfeed.trace import span

if TYPE_CHECKING:
    from tabfeed.loader.state import EpochIterator, LoaderState

B = TypeVar("B")
L = TypeVar("L")
_TICK = 0.5
ReadBlocks = Callable[[Sequence[int]], Sequence[Any]]


@dataclass(frozen=True)
class Ahead:
    """How blocks are read before chunks need them.

    Attributes
    ----------
    blocks
        How many may be there before a chunk asks for them.
    together
        How many to read in one go, where a reader is faster so.
    most
        How many may be there in all, those that chunks are made of included, for any to be read
        early; no limit if None.
    by_all
        Whether a thread that makes a chunk, and finds that others are reading what it needs,
        reads for later meanwhile. With few threads that keeps all of them busy; with many it
        would only delay the chunk.
    """

    blocks: int = 1
    together: int = 1
    by_all: bool = True
    most: int | None = None


class BlockWindow(Generic[L]):
    """Blocks for the chunks of one epoch.

    Parameters
    ----------
    read
        Reads some blocks.
    last_use
        The last chunk that needs each block.
    first_chunk
        Where the iterator begins.
    ahead
        How to read ahead.
    on_close
        Called when it is closed; must not wait.
    """

    def __init__(
        self,
        read: Callable[[Sequence[int]], Sequence[L]],
        last_use: dict[int, int],
        first_chunk: int = 0,
        *,
        ahead: Ahead | None = None,
        on_close: Callable[[], None] | None = None,
    ) -> None:
        self._read_blocks = read
        self._last_use = last_use
        self._ahead = ahead or Ahead()
        self._changed = threading.Condition()
        self._blocks: dict[int, L | BaseException] = {}
        self._reading: set[int] = set()
        self._upcoming = deque(sorted(last_use, key=last_use.__getitem__))
        self._early: set[int] = set()  # blocks read before any chunk needed them
        self._low = first_chunk  # every chunk before this one is done
        self._done: set[int] = set()
        self._closed = False
        self._on_close = on_close

    def get(self, numbers: Iterable[int]) -> dict[int, L]:
        """These blocks, read here unless another thread has them or is reading them."""
        wanted = list(dict.fromkeys(numbers))
        found: dict[int, L] = {}
        while len(found) < len(wanted):
            missing = [n for n in wanted if n not in found]
            claimed = self._collect_or_claim(missing, found)
            if claimed:
                self._read(claimed)
        return found

    def _collect_or_claim(self, missing: list[int], found: dict[int, L]) -> list[int]:
        """Take what is there; name some to read, or wait if others are reading all of them."""
        with self._changed:
            if self._closed:
                raise LoaderError("the loader was closed")
            blocks = self._blocks  # `close` may put another in its place, without the lock
            there = [n for n in missing if n in blocks]
            for number in there:
                block = blocks[number]
                if isinstance(block, BaseException):
                    raise block
                found[number] = block
                self._early.discard(number)
            free = [n for n in missing if n not in found and n not in self._reading]
            if free:
                return self._claim(free[: self._ahead.together])
            if len(there) == len(missing):
                return []
            if self._ahead.by_all and (early := self._claim_early()):
                return early
            with span("share"):
                self._changed.wait(_TICK)
        return []

    def _claim(self, numbers: list[int]) -> list[int]:
        self._reading.update(numbers)
        return numbers

    def read_ahead(self, begun: Callable[[], None] = lambda: None) -> bool:
        """Read blocks that later chunks need, if there is room for them; whether any were.

        Parameters
        ----------
        begun
            Called when there is room, before they are read.
        """
        with self._changed:
            numbers = [] if self._closed else self._claim_early()
        if numbers:
            begun()
            self._read(numbers)
        return bool(numbers)

    def _claim_early(self) -> list[int]:
        """The next blocks that no thread has begun to read: as many as go together, or none."""
        room = self._ahead.blocks - len(self._early)
        count = min(self._ahead.together, self._ahead.blocks)
        if self._ahead.most is not None:
            room = min(room, self._ahead.most - len(self._blocks) - len(self._reading))
        if room < count:
            return []
        numbers: list[int] = []
        while self._upcoming and len(numbers) < count:
            number = self._upcoming.popleft()
            if self._wanted(number):
                numbers.append(number)
        self._early.update(numbers)
        return self._claim(numbers)

    def _wanted(self, number: int) -> bool:
        """Whether no thread has begun to read a block, and some chunk still needs it."""
        begun = number in self._blocks or number in self._reading
        return not begun and self._last_use[number] >= self._low

    def _read(self, numbers: list[int]) -> None:
        try:
            blocks: Sequence[L | BaseException] = self._read_blocks(numbers)
        except BaseException as e:
            blocks = [e] * len(numbers)
        with self._changed:
            if not self._closed:  # else their memory is another's to have
                self._blocks.update(zip(numbers, blocks, strict=True))
            del blocks  # this thread may be put off its core here, and must not keep them alive
            self._reading.difference_update(numbers)
            self._changed.notify_all()

    def done(self, chunk: int) -> None:
        """A chunk has what it needs: blocks that no later chunk needs may go."""
        with self._changed:
            self._done.add(chunk)
            while self._low in self._done:
                self._done.remove(self._low)
                self._low += 1
            low, blocks = self._low, self._blocks
            for number in [n for n in blocks if self._last_use.get(n, low - 1) < low]:
                del blocks[number]

    def close(self) -> None:
        """Read nothing more, keep nothing; a thread that asks gets an error. Waits for nothing."""
        self._closed = True
        self._blocks = {}  # whose memory another thread may be waiting for
        if self._on_close is not None:
            self._on_close()


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
    ahead: Ahead = Ahead()
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
        chunks = self.maker.make(plan, blocks.get([run.block for run in plan.copy_runs]))
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
