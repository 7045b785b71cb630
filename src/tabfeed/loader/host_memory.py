"""How host memory is divided: the budget goes in, a plan comes out.

``host_memory=`` is for partitions and batches on their way. Of it

- a sixth at most is one partition (a tenth, where all columns of it are copied at once): larger
  ones are read in slices;
- a third holds blocks: those that streams have open, and those read ahead;
- a third holds chunks: the six that are being made, wait and are in use;
- the rest is what threads need while they decode. Where row groups are read in slices that is
  several pages of each column, and `LoaderOptions.streaming` leaves less to all of the above.

Buffers that are free for the moment keep two thirds at most. Files on servers may take a quarter
more (`LoaderOptions.fetched`), and ``cache="memory"`` keeps as much again.

Streams, blocks and chunks follow from the files, the batch size and explicit budgets alone, never
from how much memory happens to be free or how many cores there are: the same call gives the same
order on another machine. The depth and the number of threads may differ.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from tabfeed.budget import parse_bytes
from tabfeed.display import megabytes
from tabfeed.errors import LoaderError
from tabfeed.lazy import cached_property
from tabfeed.loader.options import MOST_THREADS, LoaderOptions, check_plan
from tabfeed.loader.plan import Plan
from tabfeed.loader.read.arrow_columns import Layout

_STREAMS = 4
_CHUNK_ROWS = 2**17
_CHUNK_PARTS = 32
_ORDERED_ROWS = 2**14
_SMALL_BLOCK = 20  # partitions of less than this part of the budget share a block if rows differ
_IN_FLIGHT = 6  # chunks being made, waiting and in use; a constant, so that cores do not matter


# -- what rows take -------------------------------------------------------------------------------


@dataclass(frozen=True)
class RowBytes:
    """About what a row takes: as decoded, and in a batch."""

    decoded: int
    batch: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "decoded", max(1, self.decoded))
        object.__setattr__(self, "batch", max(1, self.batch))

    @property
    def wide(self) -> RowBytes:
        """Of rows that take as much as in a batch as soon as they are decoded."""
        return RowBytes(self.batch, self.batch)


@dataclass(frozen=True)
class RowWeights:
    """Rows and bytes of each partition, where rows differ in size: text and lists.

    Parameters
    ----------
    rows, nbytes
        Of each partition, in the order of the plan's sizes.
    """

    rows: tuple[int, ...]
    nbytes: tuple[int, ...]

    @cached_property
    def largest(self) -> int:
        """Bytes of the largest partition."""
        return max(self.nbytes, default=0)

    @cached_property
    def mean(self) -> float:
        """Bytes of a row."""
        return sum(self.nbytes) / max(1, sum(self.rows))

    def most(self, rows: int, order: Sequence[int] | npt.NDArray[np.int64], streams: int) -> int:
        """Bytes that `rows` rows take at most, as many of each of some streams.

        Parameters
        ----------
        rows
            How many.
        order
            Partitions, as they lie end to end.
        streams
            How many streams share the rows: in one of them the rows are the largest there are.

        Examples
        --------
        >>> weights = RowWeights((10, 2, 10), (10, 200, 10))
        >>> weights.most(2, [0, 1, 2], 1), weights.most(4, [0, 1, 2], 1)
        (200, 202)
        """
        share = max(1, rows // max(1, streams))
        numbers = np.asarray(order, np.int64)
        ends = np.concatenate([[0], np.cumsum(np.asarray(self.rows, np.float64)[numbers])])
        size = np.concatenate([[0], np.cumsum(np.asarray(self.nbytes, np.float64)[numbers])])
        ahead = np.interp(ends + share, ends, size) - size
        behind = size - np.interp(ends - share, ends, size)
        largest = max(float(ahead.max()), float(behind.max()))
        return int(largest + (rows - share) * self.mean)

    def densest(self, below: int) -> float:
        """Bytes of a row where they are largest, in partitions of fewer than `below` rows."""
        found = (n / r for r, n in zip(self.rows, self.nbytes, strict=True) if 0 < r < below)
        return max(found, default=0.0)


# -- the plan -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class HostPlan:
    """How host memory is divided.

    Attributes
    ----------
    plan
        The order: streams, rows of a block, steps of a chunk.
    options
        Those given, with the threads, the depth and the budget that are left.
    blocks_ahead
        Blocks that may be read before chunks need them.
    in_order
        Whether blocks are read straight into chunks.
    """

    plan: Plan
    options: LoaderOptions
    blocks_ahead: int
    in_order: bool


def plan_host_memory(
    sizes: Sequence[int],
    row: RowBytes,
    layout: Layout,
    options: LoaderOptions,
    *,
    weights: RowWeights | None = None,
    largest_column: Callable[[], str],
    given: int | None = None,
) -> HostPlan:
    """Divide host memory; refused if not even two batches and a partition have room.

    Parameters
    ----------
    sizes
        Rows of each partition.
    row
        How much memory rows take.
    layout
        What a batch is made of.
    options
        Those given, or what `LoaderOptions.streaming` left of them.
    weights
        The bytes of each partition in a batch, where rows differ in size and that is known.
    largest_column
        Which column has most bytes, for errors.
    given
        The budget the user gave, if `LoaderOptions.streaming` left less.
    """
    plan = make_plan(sizes, row, options, weights)
    budget = options.budget if given is None else given
    options = _fewer_chunks(plan, row, weights, options, budget, largest_column)
    in_order = can_lay(plan, layout, row, options)
    ahead = _blocks_ahead(plan, row.wide if in_order else row, options)
    return HostPlan(plan, options, ahead, in_order)


def make_plan(
    sizes: Sequence[int],
    row: RowBytes,
    options: LoaderOptions,
    weights: RowWeights | None = None,
) -> Plan:
    """The order that follows from the options; parameters as for `plan_host_memory`.

    Examples
    --------
    >>> options = LoaderOptions(batch_size=65_536, shuffle=True)
    >>> plan = make_plan([250_000] * 16, RowBytes(decoded=160, batch=264), options)
    >>> plan.streams, plan.chunk
    (4, 2)
    """
    shard, budget = options.shard, options.budget
    buffer = budget // 3  # bytes of blocks, and of chunks
    if options.buffer_size is not None:
        buffer = min(buffer, parse_bytes(options.buffer_size, name="buffer_size"))
    batch = options.batch_size * shard.world
    mean = max(1, sum(sizes) // max(1, sum(1 for s in sizes if s)))
    streams = _streams(options, shard.world, budget // 3 // (mean * row.decoded))
    open_rows = _rows_to_mix(mean) if options.shuffle else _ORDERED_ROWS
    # Of each stream two blocks may be open, and one is read ahead. In order they lie in chunks.
    large = 2 * max(1, streams // shard.world) + 1
    blocks = large * mean * (row.decoded if options.shuffle else row.batch)
    beside = max(0, budget - blocks) // (MOST_THREADS + 2)  # however many cores there are
    most = min(buffer, budget // 3 // _IN_FLIGHT, beside) // row.batch
    plan = Plan(
        sizes=tuple(sizes),
        batch=batch,
        streams=streams,
        block=max(1, min(open_rows, buffer // row.decoded) // streams),
        chunk=max(1, min(_chunk_rows(options, mean), most * shard.world) // batch),
        shuffle=options.shuffle,
        seed=options.seed,
        ranks=shard.world,
        last="drop" if options.drop_last else options.last or "short",
    )
    if weights is not None:
        plan = _weighed(plan, weights, options)
    check_plan(plan, options)
    return plan


def can_lay(plan: Plan, layout: Layout, row: RowBytes, options: LoaderOptions) -> bool:
    """Whether blocks may be read straight into chunks (`tabfeed.loader.assemble.chunk`).

    Blocks take what their rows take in a batch then, which may be more than in the file. There are
    those read ahead, those at both ends of the chunks that are made or wait, and these chunks.
    """
    if plan.shuffle or layout.rest.columns:
        return False
    block = max(plan.block, *plan.sizes) * row.batch
    chunk = plan.chunk * options.batch_size * row.batch
    blocks = _blocks_ahead(plan, row.wide, options) + 2
    return blocks * block + (options.ahead + 1) * chunk <= options.budget


# -- streams and blocks ---------------------------------------------------------------------------


def _streams(options: LoaderOptions, world: int, fits: int) -> int:
    """As many as mix well, as long as there is room for the open partitions: for so many."""
    if options.streams is not None:
        return min(options.streams, options.batch_size * world)
    if not options.shuffle:
        return world
    wanted = max(-(-_STREAMS // world), options.parts_per_chunk)
    return world * min(wanted, max(1, fits), options.batch_size)


def _rows_to_mix(mean_rows: int) -> int:
    """Rows to mix: fewer of small partitions, since each batch would have to wait for many."""
    return min(max(_CHUNK_PARTS * mean_rows, _CHUNK_ROWS // 4), _CHUNK_ROWS)


def _blocks_ahead(plan: Plan, row: RowBytes, options: LoaderOptions) -> int:
    """Blocks that may be read before they are needed, beside those the streams have open."""
    size = max(1, max(plan.sizes, default=0), plan.block) * row.decoded
    fits = options.budget // 3 // size
    return max(1, min(fits - len(plan.rank_streams(*options.shard)), options.workers))


# -- chunks ---------------------------------------------------------------------------------------


def _chunk_rows(options: LoaderOptions, mean_rows: int) -> int:
    """Rows of a chunk, over all ranks: enough to gather well."""
    rows = _rows_to_mix(mean_rows)
    if options.shuffle and options.parts_per_chunk > 1:
        return max(rows, options.parts_per_chunk * mean_rows)
    return rows


def _weighed(plan: Plan, weights: RowWeights, options: LoaderOptions) -> Plan:
    """The plan with blocks and chunks small enough for the largest rows."""
    block, budget = plan.block, options.budget
    densest = weights.densest(block)
    if densest:
        block = max(1, min(block, int(budget / _SMALL_BLOCK / densest)))
    plan = replace(plan, block=block)
    fits = budget // 3 // _IN_FLIGHT
    chunk = plan.chunk
    while chunk > 1 and _most_bytes(plan, weights, chunk) > fits:
        chunk = max(1, chunk // 2)
    return replace(plan, chunk=chunk)


def _most_bytes(plan: Plan, weights: RowWeights, steps: int) -> int:
    """What a rank's rows of `steps` batches take where they are largest, in the first epoch."""
    order = plan.epoch(0).order
    return weights.most(max(1, steps * plan.batch // plan.ranks), order, plan.streams // plan.ranks)


def _fewer_chunks(
    plan: Plan,
    row: RowBytes,
    weights: RowWeights | None,
    options: LoaderOptions,
    given: int,
    largest_column: Callable[[], str],
) -> LoaderOptions:
    """As many chunks ahead as fit, where one batch is large; refused where none does."""
    rows = plan.chunk * plan.batch // plan.ranks
    size = rows * row.batch if weights is None else _most_bytes(plan, weights, plan.chunk)
    largest = 0 if weights is None else weights.largest
    if 2 * size + largest > given:
        raise LoaderError(
            f"a batch of {plan.batch // plan.ranks:,} rows takes up to {megabytes(size)}, "
            f"most of it for column {largest_column()!r}, and two of them must be held: raise "
            f"host_memory, which is {megabytes(given)}, to {megabytes(3 * size + largest)}, "
            "or take a smaller batch_size"
        )
    fits = options.budget // 3
    if size <= fits // 6:
        return options
    return replace(options, depth=max(1, min(options.ahead, fits // size - 2)))
