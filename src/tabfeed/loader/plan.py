"""Which rows, in which order, in how many steps: arithmetic, and nothing else.

The parts of the order
----------------------
An epoch lays all partitions end to end, in an order drawn from (seed, epoch). Neighbours on this
*line* form a *block*: one large partition, or as many small ones as make `block` rows; the rows of
a block are permuted as a whole. The line is cut into `streams` runs of nearly equal length. A
*global batch* takes the next few rows of every stream, always the same number from each; so it
mixes rows from all over as many blocks as there are streams. A *chunk* is a fixed number of
consecutive global batches, made in one go. All of it follows from (partition sizes, global batch,
streams, block, seed, epoch).

A *rank* takes its share of every global batch: with W ranks the positions
``[G r / W, G (r + 1) / W)``. Since positions belong to streams, and streams to different
partitions, a rank reads only the blocks of its own streams: all ranks together read the
data once, plus at most one block per border between ranks. The union over ranks is the
same global batch for every W, so gradients averaged over W ranks equal those of one process,
and a run may go on with another number of ranks and still see the same batches. Where W does
not divide the streams, a border falls inside a stream and two ranks read that stream.

Every second stream takes the blocks of its part of the line backwards, the rows of each forwards.
Neighbouring streams then reach the block at their common border at the same time, and it is read
once for both. The order does not depend on `chunk`: a run may go on with chunks of another size.

Any step can be reached in constant time: it lies in chunk ``step // chunk``, whose rows follow
from its number.

Why blocks are permuted rather than what a chunk takes of them: a column is gathered once, just
after it was decoded, while it is in the processor's cache, and a chunk is then made of plain
copies. And a batch takes rows from anywhere in its blocks, not from a window that moves through
them.

What was given up: a uniform permutation of the whole data, which would need random access
to every row. `tabfeed.loader.shuffle_quality` says how far from one an order is.

The end of an epoch
-------------------
``last="short"``: each row exactly once; the last global batch has what is left, shared over the
ranks. If that is fewer rows than ranks, the last two batches share theirs evenly, so that no
rank has an empty one. ``"drop"``: full batches only. ``"pad"``: as short, with up to
``ranks - 1`` rows repeated so that all ranks have equally many. ``"wrap"``: the last batch is
filled up with rows from the start of each stream.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from tabfeed.errors import ArgumentError
from tabfeed.lazy import cached_property

LAST = ("short", "drop", "pad", "wrap")
Index = npt.NDArray[np.int64]
_SMALL = 4096  # rows of a block that has a permutation of its own
_RARE = 4  # blocks of one size, if fewer, too


def part_of(rows: int, number: int, of: int) -> int:
    """Rows of part `number` of several nearly equal ones."""
    return rows * (number + 1) // of - rows * number // of


class Run(NamedTuple):
    """Rows ``[start, stop)`` of one block, as permuted."""

    block: int
    start: int
    stop: int


class CopyRun(NamedTuple):
    """Rows of one block that go to evenly spaced positions of a chunk.

    For each ``i`` below `steps`, `width` rows of the block from ``start + i * src_stride`` on go to
    the chunk's positions from ``position + i * dst_stride`` on.
    """

    block: int
    start: int
    src_stride: int
    steps: int
    width: int
    position: int
    dst_stride: int

    @property
    def rows(self) -> int:
        """How many."""
        return self.steps * self.width

    @property
    def has_no_gaps(self) -> bool:
        """Whether its rows follow each other in the block, and in the chunk."""
        return self.steps == 1 or self.src_stride == self.width == self.dst_stride


@dataclass(frozen=True)
class ChunkPlan:
    """What one rank needs to make the batches of one chunk.

    Attributes
    ----------
    first_step
        The step of its first batch.
    copy_runs
        Which rows go where; each position is filled once.
    bounds
        Batch ``i`` is at the positions ``[bounds[i], bounds[i + 1])``.
    """

    first_step: int
    copy_runs: tuple[CopyRun, ...]
    bounds: Index = field(repr=False)

    @property
    def steps(self) -> int:
        """How many batches."""
        return len(self.bounds) - 1

    @property
    def rows(self) -> int:
        """How many rows are delivered."""
        return int(self.bounds[-1])


@dataclass(frozen=True)
class Plan:
    """The order of a whole training run; `epoch` gives that of one epoch.

    Parameters
    ----------
    sizes
        Rows of each partition, in file order.
    batch
        Rows in a global batch, over all ranks.
    streams
        How many blocks are read side by side, over all ranks.
    chunk
        Steps in a chunk.
    block
        Partitions smaller than so many rows are permuted together with their neighbours.
    shuffle
        Whether partitions and rows are permuted.
    seed
        Where the permutations come from.
    ranks
        For how many ranks the last batches are evened out.
    last
        What becomes of rows that do not fill a batch: "short", "drop", "pad" or "wrap".
    whole
        Whether the order is one permutation of all rows, drawn by whoever holds all of them:
        global batch ``t`` is its positions ``[t * batch, (t + 1) * batch)``, and blocks and streams
        only say how the data are read.

    Examples
    --------
    >>> plan = Plan(sizes=(5, 3), batch=4, chunk=2, shuffle=False)
    >>> plan.steps, [plan.step_rows(t) for t in range(plan.steps)]
    (2, [4, 4])
    >>> for run in plan.epoch(0).chunk(0).copy_runs:
    ...     print(run)
    CopyRun(block=0, start=0, src_stride=4, steps=1, width=4, position=0, dst_stride=4)
    CopyRun(block=0, start=4, src_stride=1, steps=1, width=1, position=4, dst_stride=1)
    CopyRun(block=1, start=0, src_stride=3, steps=1, width=3, position=5, dst_stride=3)
    """

    sizes: tuple[int, ...]
    batch: int
    streams: int = 1
    chunk: int = 1
    shuffle: bool = True
    seed: int = 0
    ranks: int = 1
    last: str = "short"
    block: int = 1
    whole: bool = False

    def __post_init__(self) -> None:
        for name in ("batch", "streams", "chunk", "ranks", "block"):
            if getattr(self, name) < 1:
                raise ArgumentError(f"{name} is {getattr(self, name)}; it must be 1 or more")
        if self.last not in LAST:
            raise ArgumentError(f"last is {self.last!r}; it must be one of {', '.join(LAST)}")
        if any(size < 0 for size in self.sizes):
            raise ArgumentError("a partition cannot have fewer than 0 rows")

    # -- how much -----------------------------------------------------------------

    @cached_property
    def rows(self) -> int:
        """Rows of the data."""
        return sum(self.sizes)

    @cached_property
    def steps(self) -> int:
        """Global batches in an epoch: the same number on every rank."""
        if self.last == "drop":
            return self.rows // self.batch
        return -(-self.rows // self.batch)

    @cached_property
    def tail(self) -> tuple[int, ...]:
        """Rows of the last batches, where they are not `batch`."""
        rest = self.rows % self.batch
        if rest == 0 or self.last == "drop":
            return ()
        if self.last == "wrap":
            return (self.batch,)
        if self.last == "pad":
            return (-(-rest // self.ranks) * self.ranks,)
        if rest < self.ranks and self.steps > 1:
            both = self.batch + rest
            return (both - both // 2, both // 2)
        return (rest,)

    def step_rows(self, step: int) -> int:
        """Rows of a global batch."""
        before = self.steps - len(self.tail)
        return self.batch if step < before else self.tail[step - before]

    @cached_property
    def delivered(self) -> int:
        """Rows delivered in an epoch, over all ranks: repeats counted, dropped ones not."""
        return (self.steps - len(self.tail)) * self.batch + sum(self.tail)

    @property
    def chunks(self) -> int:
        """Chunks in an epoch."""
        return -(-self.steps // self.chunk)

    def rows_until(self, step: int) -> int:
        """Rows of the global batches before `step`."""
        full = min(step, self.steps - len(self.tail))
        return full * self.batch + sum(self.tail[: step - full])

    def rank_rows(self, step: int, rank: int, world: int) -> int:
        """Rows of a batch on one rank."""
        return part_of(self.step_rows(step), rank, world)

    def rows_before(self, step: int, rank: int, world: int) -> int:
        """Rows that a rank got in the steps before `step`."""
        full = min(step, self.steps - len(self.tail))
        rest = sum(self.rank_rows(t, rank, world) for t in range(full, step))
        return full * part_of(self.batch, rank, world) + rest

    def empty_batch(self, world: int) -> int | None:
        """The first step at which some rank has no rows, if there is one."""
        steps = range(max(0, self.steps - len(self.tail) - 1), self.steps)
        return next((t for t in steps if self.step_rows(t) < world), None)

    # -- streams ------------------------------------------------------------------

    def share(self, rows: int, stream: int) -> int:
        """Where a stream's positions begin in a global batch of `rows`."""
        return rows * stream // self.streams

    def taken(self, step: int, stream: int) -> int:
        """Rows a stream has given before `step`."""
        full = min(step, self.steps - len(self.tail))
        rest = sum(part_of(self.step_rows(t), stream, self.streams) for t in range(full, step))
        return full * part_of(self.batch, stream, self.streams) + rest

    @cached_property
    def cuts(self) -> tuple[int, ...]:
        """Where the streams begin and end on the line of all rows."""
        ends = [0]
        for stream in range(self.streams):
            ends.append(ends[-1] + self.taken(self.steps, stream))
        if not ends[-1]:
            return tuple(ends)
        return tuple(end * self.rows // ends[-1] for end in ends)

    def rank_streams(self, rank: int, world: int) -> range:
        """The streams a rank reads."""
        first = self.streams * rank // world
        return range(first, max(first + 1, -(-self.streams * (rank + 1) // world)))

    def epoch(self, number: int) -> Epoch:
        """The order of one epoch."""
        return Epoch(self, number)


@dataclass(frozen=True)
class Epoch:
    """One epoch: all partitions in their order, and the chunks cut from it."""

    plan: Plan
    number: int

    def _random(self, *key: int) -> np.random.Generator:
        words = [self.plan.seed % 2**64, self.number, *key]
        return np.random.Generator(np.random.SFC64(np.random.SeedSequence(words)))

    @cached_property
    def order(self) -> Index:
        """The partitions, as they lie on the line."""
        count = len(self.plan.sizes)
        if not self.plan.shuffle:
            return np.arange(count)
        return self._random(0).permutation(count).astype(np.int64)

    @cached_property
    def _firsts(self) -> Index:
        """Where in `order` each block begins, and where the last one ends."""
        sizes = np.asarray(self.plan.sizes, dtype=np.int64)[self.order]
        ends = np.cumsum(sizes)
        cuts, low = [0], 0
        while cuts[-1] < len(sizes):
            at = int(np.searchsorted(ends, low + self.plan.block, side="left")) + 1
            cuts.append(min(at, len(sizes)))
            low = int(ends[cuts[-1] - 1])
        return np.asarray(cuts, dtype=np.int64)

    @cached_property
    def starts(self) -> Index:
        """Where each block begins on the line, and where the last one ends."""
        sizes = np.asarray(self.plan.sizes, dtype=np.int64)[self.order]
        return np.concatenate([[0], np.cumsum(sizes)])[self._firsts].astype(np.int64)

    @property
    def blocks(self) -> int:
        """How many blocks there are."""
        return len(self._firsts) - 1

    def partitions(self, block: int) -> list[int]:
        """The partitions of a block, as they are laid end to end before they are permuted."""
        numbers: list[int] = self.order[self._firsts[block] : self._firsts[block + 1]].tolist()
        return numbers

    def permutation(self, block: int) -> Index | None:
        """Row ``i`` of a block is row ``permutation[i]`` of its partitions; None if in order."""
        if not self.plan.shuffle:
            return None
        order: Index = self.permutations.of(block)
        return order

    @cached_property
    def permutations(self) -> Permutations:
        """The permutations of blocks, where rows are shuffled."""
        return Permutations(np.diff(self.starts), self._random)

    def block_rows(self, block: int) -> int:
        """Rows of a block."""
        return int(self.starts[block + 1] - self.starts[block])

    def _runs(self, low: int, high: int) -> Iterator[Run]:
        """The rows ``[low, high)`` of the line."""
        at = int(np.searchsorted(self.starts, low, side="right")) - 1
        while low < high:
            begin, end = int(self.starts[at]), int(self.starts[at + 1])
            if end > low:
                yield Run(at, low - begin, min(high, end) - begin)
                low = end
            at += 1

    def stream_runs(self, stream: int, start: int, stop: int) -> list[Run]:
        """Rows ``[start, stop)`` of a stream, which begins anew when it is at its end."""
        low, high = self.plan.cuts[stream : stream + 2]
        if low == high:  # fewer rows than streams, and some are repeated: take from all
            low, high = 0, self.plan.rows
        length = high - low
        runs: list[Run] = []
        while start < stop:
            begin = start % length
            count = min(stop - start, length - begin)
            if self._backwards(stream):
                runs.extend(self._runs_back(low, high, begin, begin + count))
            else:
                runs.extend(self._runs(low + begin, low + begin + count))
            start += count
        return runs

    def _runs_back(self, low: int, high: int, begin: int, end: int) -> Iterator[Run]:
        """The rows ``[begin, end)`` of ``[low, high)``, the last block first, each forwards."""
        while begin < end:
            at = int(np.searchsorted(self.starts, high - 1 - begin, side="right")) - 1
            first, stop = int(self.starts[at]), min(high, int(self.starts[at + 1]))
            start = max(low, first) + begin - (high - stop)
            count = min(end - begin, stop - start)
            yield Run(at, start - first, start - first + count)
            begin += count

    def _backwards(self, stream: int) -> bool:
        return self.plan.shuffle and stream % 2 == 1

    def chunk(self, number: int, rank: int = 0, world: int = 1) -> ChunkPlan:
        """What `rank` of `world` needs to make the batches of a chunk."""
        plan = self.plan
        first = number * plan.chunk
        last = min(first + plan.chunk, plan.steps)
        odd_from = max(first, min(last, plan.steps - len(plan.tail)))
        spans = [range(first, odd_from), *(range(t, t + 1) for t in range(odd_from, last))]
        copy_runs: list[CopyRun] = []
        position = 0
        for steps in spans:
            if steps:
                copy_runs += self._copy_runs(steps, position, rank, world)
                position += len(steps) * plan.rank_rows(steps.start, rank, world)
        return ChunkPlan(first, tuple(copy_runs), self._bounds(range(first, last), rank, world))

    def _copy_runs(self, steps: range, position: int, rank: int, world: int) -> Iterator[CopyRun]:
        """The rows of steps of equal size, as far as their positions are this rank's."""
        plan = self.plan
        rows = plan.step_rows(steps.start)
        mine, end = rows * rank // world, rows * (rank + 1) // world
        for stream in plan.rank_streams(rank, world):
            begin, width = plan.share(rows, stream), plan.share(rows, stream + 1)
            low, high = max(begin, mine), min(width, end)
            if low >= high:
                continue
            rectangle = _Rectangle(
                width - begin, low - begin, high - begin, position + low - mine, end - mine
            )
            at = plan.taken(steps.start, stream)
            yield from rectangle.copy_runs(
                self.stream_runs(stream, at, at + len(steps) * rectangle.src_stride)
            )

    def _bounds(self, steps: range, rank: int, world: int) -> Index:
        """Where each batch of these steps begins, and where the last one ends."""
        plan = self.plan
        sizes = np.full(len(steps), part_of(plan.batch, rank, world), dtype=np.int64)
        for t in range(max(steps.start, plan.steps - len(plan.tail)), steps.stop):
            sizes[t - steps.start] = plan.rank_rows(t, rank, world)
        return np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes)])

    def last_use(self, rank: int = 0, world: int = 1) -> dict[int, int]:
        """The last chunk in which a rank needs each of its blocks, repeats aside."""
        plan, out = self.plan, dict[int, int]()
        regular = plan.steps - len(plan.tail)
        for stream in plan.rank_streams(rank, world):
            low, high = plan.cuts[stream : stream + 2]
            first = int(np.searchsorted(self.starts, low, side="right")) - 1
            stop = int(np.searchsorted(self.starts, high, side="left"))
            begins, ends = self.starts[first:stop], self.starts[first + 1 : stop + 1]
            furthest = (high - begins if self._backwards(stream) else ends - low) - 1
            width = max(1, part_of(plan.batch, stream, plan.streams))
            chunks = furthest // width // plan.chunk
            chunks[furthest >= plan.taken(regular, stream)] = plan.chunks - 1
            for block, chunk in enumerate(chunks.tolist(), first):
                out[block] = max(out.get(block, 0), chunk)
        return out

    def chunks_of(self, block: int, rank: int = 0, world: int = 1) -> range:
        """The chunks that have rows of a block, on a rank with one stream that goes forwards.

        At either end there may be one more, which has none.
        """
        plan = self.plan
        stream = plan.rank_streams(rank, world)[0]
        low, high = plan.cuts[stream : stream + 2]
        begin = max(0, int(self.starts[block]) - low)
        end = min(high, int(self.starts[block + 1])) - low - 1
        width = max(1, part_of(plan.batch, stream, plan.streams))
        regular = plan.steps - len(plan.tail)
        last = end // width if end < plan.taken(regular, stream) else plan.steps - 1
        first = min(begin // width, regular) // plan.chunk
        return range(first, min(last // plan.chunk, plan.chunks - 1) + 1)


@dataclass(frozen=True)
class _Rectangle:
    """Where a stream's rows go: `src_stride` rows a step, of which ``[low, high)`` are this rank's.

    They go to the positions from `position` on, `dst_stride` positions a step.
    """

    src_stride: int
    low: int
    high: int
    position: int
    dst_stride: int

    def copy_runs(self, runs: list[Run]) -> Iterator[CopyRun]:
        """The runs laid end to end, cut where a block ends inside a step."""
        at = 0
        for run in runs:
            start = run.start
            while start < run.stop:
                step, offset = divmod(at, self.src_stride)
                rows = run.stop - start
                steps = rows // self.src_stride if offset == 0 else 0
                if steps:
                    yield self._run(run.block, start, step, steps, self.low, self.high)
                    rows = steps * self.src_stride
                else:
                    rows = min(rows, self.src_stride - offset)
                    low, high = max(self.low, offset), min(self.high, offset + rows)
                    if low < high:
                        yield self._run(run.block, start - offset, step, 1, low, high)
                start += rows
                at += rows

    def _run(self, block: int, start: int, step: int, steps: int, low: int, high: int) -> CopyRun:
        width, position = high - low, self.position + step * self.dst_stride + low - self.low
        if steps == 1:
            return CopyRun(block, start + low, width, 1, width, position, width)
        return CopyRun(block, start + low, self.src_stride, steps, width, position, self.dst_stride)


class Permutations:
    """The permutations of one epoch's blocks: of many of one size, for the price of two.

    Drawing a permutation takes ten times as long as gathering a column by it, and every block of
    every epoch needs one. Where many blocks have the same number of rows, two permutations ``p``
    and ``q`` of that size are drawn for the epoch, and a number ``s`` for each block: its
    permutation is ``q[(p + s) mod rows]``. Each is as random as one drawn for itself. Two of one
    epoch are not quite independent of each other: they are the same steps through a circle, from
    another point of it. Blocks of a size that is rare, or small, have permutations of their own.

    Parameters
    ----------
    rows
        Of each block.
    random
        Gives a source of random numbers for a key.

    Examples
    --------
    >>> drawn = Permutations(np.full(10, 5000), lambda *key: np.random.default_rng(key))
    >>> one, other = drawn.of(0), drawn.of(1)
    >>> bool((np.sort(one) == np.arange(5000)).all()), bool((one == other).all())
    (True, False)
    """

    def __init__(self, rows: Index, random: Callable[..., np.random.Generator]) -> None:
        self._rows, self._random = rows, random
        sizes, counts = np.unique(rows, return_counts=True)
        self._common = set(sizes[(sizes >= _SMALL) & (counts >= _RARE)].tolist())
        self._lock = threading.Lock()
        self._pairs: dict[tuple[int, Any], tuple[Index, Any]] = {}

    def of(self, block: int, dtype: npt.DTypeLike = np.int64) -> Any:
        """The permutation of a block."""
        out = np.empty(self._rows[block], dtype)
        self.into(block, out)
        return out

    def into(self, block: int, out: npt.NDArray[Any]) -> None:
        """The permutation of a block, into an array of integers."""
        random = self._random(1, block)
        rows = len(out)
        if rows not in self._common:
            out[:] = random.permutation(rows)
            return
        steps, circle = self._pair(rows, out.dtype)
        start = int(random.integers(rows))
        np.take(circle[start : start + rows], steps, out=out, mode="clip")

    def _pair(self, rows: int, dtype: np.dtype[Any]) -> tuple[Index, npt.NDArray[Any]]:
        """Steps, and a circle twice over, so that any start is followed by a whole round."""
        with self._lock:
            if (rows, dtype) not in self._pairs:
                random = self._random(2, rows)
                steps, circle = random.permutation(rows), random.permutation(rows)
                twice = np.concatenate([circle, circle]).astype(dtype, copy=False)
                self._pairs[rows, dtype] = steps, twice
            return self._pairs[rows, dtype]
