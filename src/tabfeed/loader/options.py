"""What a user may say about loading, checked when it is said, and the plan that follows from it.

Streams and chunk follow from the files, the batch size and explicit budgets alone, never from
how much memory happens to be free: the same call gives the same order on another machine.

What a user may say about loading onto a GPU; knows no framework.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from numbers import Real
from typing import Any

from tabfeed.budget import cpu_count, parse_bytes
from tabfeed.errors import ArgumentError, LoaderError
from tabfeed.loader.plan.order import LAST, Plan
from tabfeed.loader.plan.shard import Shard, find_shard
from tabfeed.loader.plan.sizing import RowWeights

__all__ = [
    "CACHES",
    "READERS",
    "GpuOptions",
    "LoaderOptions",
    "RowBytes",
    "blocks_ahead",
    "check_plan",
    "make_plan",
    "most_bytes",
]

READERS = ("auto", "arrow", "cudf")
_DEFAULT_MEMORY = 10**9


@dataclass(frozen=True)
class GpuOptions:
    """What a user may say about loading onto a GPU.

    Parameters
    ----------
    reader
        "arrow": decoded by threads of the CPU; "cudf": by the GPU itself, faster, but in time that
        the model would have; "auto": begins with Arrow, tries the other if training waits for
        batches, and keeps it if steps come faster. A loader's `reader_choice` says which and why.
    device_memory
        Most memory to hold on the GPU: bytes, "500MB", or a share of the GPU's; by default as much
        as `buffer_size`, and 1 GB where that is not given either.

    Examples
    --------
    >>> GpuOptions().memory(total=80 * 10**9, free=60 * 10**9)
    1000000000
    >>> GpuOptions(device_memory=0.05).memory(total=80 * 10**9, free=60 * 10**9)
    4000000000
    """

    reader: str = "auto"
    device_memory: int | float | str | None = None

    def __post_init__(self) -> None:
        if self.reader not in READERS:
            raise ArgumentError(
                f"reader is {self.reader!r}; it must be one of {', '.join(READERS)}"
            )
        if self.device_memory is not None:
            parse_bytes(self.device_memory, name="device_memory", of=1)

    def memory(self, *, total: int, free: int, buffer_size: int | float | str | None = None) -> int:
        """Bytes that may be held on a GPU: of those that are free never the last quarter.

        Parameters
        ----------
        total
            Bytes the GPU has.
        free
            Those that are free.
        buffer_size
            What the user has given of that name.
        """
        most = min(_DEFAULT_MEMORY, total // 4)
        for name, given in (("device_memory", self.device_memory), ("buffer_size", buffer_size)):
            if given is not None:
                most = parse_bytes(given, name=name, of=total)
                break
        return min(most, free * 3 // 4)


CACHES = (None, "memory", "disk", "device")
_STREAMS = 4
_CHUNK_ROWS = 2**17
_CHUNK_PARTS = 32
_ORDERED_ROWS = 2**14
_HOST_MEMORY = 2**30
_FETCHED = 2**29
_MOST_THREADS = 8
_SMALL_LOT = 20  # partitions of less than this part of the budget go together where rows differ
_IN_FLIGHT = 6  # chunks being made, waiting and in use; a constant, so that cores do not matter


@dataclass(frozen=True)
class LoaderOptions:
    """How to load.

    Parameters
    ----------
    batch_size
        Rows in a batch, on each rank.
    shuffle
        Whether partitions and rows are permuted anew in every epoch.
    seed
        Where permutations come from; fixed, so that two runs are alike.
    seed_fn
        Called at the start of each epoch for a seed instead; must agree on all ranks.
    parts_per_chunk
        At least so many partitions are mixed at once.
    global_size, global_rank
        How many processes share the data, and which of them this is; from the environment of
        torchrun or srun by default.
    drop_last
        Leave out the rows that do not fill a batch; the same as ``last="drop"``.
    last
        What becomes of those rows: None or "short" (a short last batch), "drop", "pad" or "wrap";
        see `tabfeed.loader.plan.order`. None also refuses a batch without rows on some rank.
    streams
        How many partitions all ranks together read side by side; chosen when not given.
    host_memory
        Most memory for partitions and batches on their way: bytes, "2GB", or a share of the
        free memory, which makes the order depend on the machine; 1 GiB by default, for files on
        servers a quarter more. Neither batches that a user keeps count, nor what Arrow and PyTorch
        take for themselves, some 50 MB. Text and lists count with the sizes that files tell; a row
        or a batch too large for it is refused. With ``cache="memory"`` as much again for what is
        kept.
    buffer_size
        Most memory for one chunk: bytes, "200MB" or a share of what is free. Where chunks are made
        on a GPU, the most for all that lies there, or a share of its memory, unless `device_memory`
        is given.
    cache
        "memory" or "disk" to keep decoded partitions for later epochs; on disk for later runs too,
        in ``TABFEED_CACHE_DIR``, up to ``TABFEED_CACHE_SIZE``. "device" to keep all of the data on
        the GPU (torch's loaders alone): read once, before the first batch, and permuted as a whole
        in every epoch, the first one included.
    threads
        How many threads read and prepare; the usable cores, at most 8, by default.
    depth
        How many chunks may be prepared ahead.
    """

    batch_size: int = 1
    shuffle: bool = False
    seed: int = 0
    seed_fn: Callable[[], int] | None = None
    parts_per_chunk: int = 1
    global_size: int | None = None
    global_rank: int | None = None
    drop_last: bool = False
    last: str | None = None
    streams: int | None = None
    host_memory: int | float | str | None = None
    buffer_size: int | float | str | None = None
    cache: str | None = None
    threads: int | None = None
    depth: int | None = None

    def __post_init__(self) -> None:
        for name in ("batch_size", "parts_per_chunk", "streams", "threads", "depth"):
            value = getattr(self, name)
            if value is not None:
                if not (_is_whole(value) and value >= 1):
                    raise ArgumentError(f"{name} is {value!r}; it must be a whole number from 1")
                object.__setattr__(self, name, int(value))  # a state holds plain values
        if not _is_whole(self.seed):
            raise ArgumentError(f"seed is {self.seed!r}; it must be a whole number")
        object.__setattr__(self, "seed", int(self.seed))
        for name in ("shuffle", "drop_last"):
            object.__setattr__(self, name, bool(getattr(self, name)))
        if self.cache not in CACHES:
            raise ArgumentError(
                f'cache is {self.cache!r}; it must be "memory", "disk", "device" or None'
            )
        if self.last is not None and self.last not in LAST:
            raise ArgumentError(f"last is {self.last!r}; it must be one of {', '.join(LAST)}")
        if self.drop_last and self.last not in (None, "drop"):
            raise ArgumentError(f"drop_last=True and last={self.last!r} contradict each other")
        place = find_shard(self.global_rank, self.global_size)
        object.__setattr__(self, "global_rank", place.rank)  # a copy in another process keeps it
        object.__setattr__(self, "global_size", place.world)

    @classmethod
    def among(cls, arguments: Mapping[str, Any], **others: Any) -> LoaderOptions:
        """The options among a loader's arguments: its ``locals()``, since it names them as we do.

        Parameters
        ----------
        arguments
            By name; what is no option is passed over.
        others
            Options whose value is another than the argument's.

        Examples
        --------
        >>> options = LoaderOptions.among({"batch_size": 8, "device": "cpu", "seed": 0}, seed=3)
        >>> options.batch_size, options.seed
        (8, 3)
        """
        known = {field.name for field in fields(cls)}
        return cls(**{name: arguments[name] for name in known & arguments.keys()} | others)

    @property
    def shard(self) -> Shard:
        """Rank and world size."""
        return find_shard(self.global_rank, self.global_size)

    @property
    def budget(self) -> int:
        """Bytes for partitions and batches on their way."""
        if self.host_memory is None:
            return _HOST_MEMORY
        return parse_bytes(self.host_memory, name="host_memory")

    @property
    def fetched(self) -> int:
        """Bytes of files on servers that may be on their way, or there and not yet decoded.

        A quarter of what a user gives. By default twice that: eight connections alone have 256 MiB
        on their way, and would wait for the decoding.
        """
        return _FETCHED if self.host_memory is None else self.budget // 4

    @property
    def off_device(self) -> LoaderOptions:
        """The same, where nothing is kept on a device."""
        return replace(self, cache=None) if self.cache == "device" else self

    def streaming(self, overhead: int) -> LoaderOptions:
        """The same, where row groups are read in slices and each thread holds `overhead` bytes.

        Of the budget given back, partitions that are open, that come next and that are being read
        take five to seven sixths and chunks a third: that, and the overhead of one thread or two,
        is what must fit. It does not depend on how many threads there are, nor does the order.
        A budget too small for one thread's overhead cannot be kept: the files' pages are too large.
        """
        left = max(min(self.budget * 2 // 5, (self.budget - overhead) * 3 // 5), self.budget // 8)
        room = self.budget - left * 7 // 4  # a little is what allocators keep to themselves
        threads = min(self.workers, 2 if 2 * overhead <= room else 1)
        return replace(self, threads=threads, host_memory=left)

    @property
    def workers(self) -> int:
        """Threads that read and prepare."""
        return self.threads or min(_MOST_THREADS, cpu_count())

    @property
    def ahead(self) -> int:
        """Chunks prepared ahead."""
        return self.depth or self.workers + 1


def _is_whole(value: Any) -> bool:
    """Whether a value is an integer, whatever its type."""
    if isinstance(value, bool) or not isinstance(value, Real):
        return False
    return math.isfinite(value) and math.floor(value) == value


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


def make_plan(
    sizes: Sequence[int],
    row: RowBytes,
    options: LoaderOptions,
    weights: RowWeights | None = None,
) -> Plan:
    """The order that follows from the options.

    Parameters
    ----------
    sizes
        Rows of each partition.
    row
        How much memory rows take.
    weights
        The bytes of each partition in a batch, where rows differ in size.

    Examples
    --------
    >>> options = LoaderOptions(batch_size=65_536, shuffle=True)
    >>> plan = make_plan([250_000] * 16, RowBytes(decoded=160, batch=264), options)
    >>> plan.streams, plan.chunk
    (4, 2)
    """
    place, rows = options.shard, sum(sizes)
    batch = options.batch_size * place.world
    mean = max(1, rows // max(1, sum(1 for s in sizes if s)))
    streams = _choose_streams(options, mean * row.decoded, batch)
    plan = Plan(
        sizes=tuple(sizes),
        batch=batch,
        streams=streams,
        block=max(1, min(_block_rows(options, mean), _most_rows(options, row.decoded)) // streams),
        chunk=_choose_chunk(options, mean, row, batch, streams // place.world),
        shuffle=options.shuffle,
        seed=options.seed,
        ranks=place.world,
        last="drop" if options.drop_last else options.last or "short",
    )
    if weights is not None:
        plan = _weighed(plan, weights, options)
    check_plan(plan, options)
    return plan


def _weighed(plan: Plan, weights: RowWeights, options: LoaderOptions) -> Plan:
    """The plan with lots and chunks small enough for the largest rows."""
    block = plan.block
    densest = weights.densest(block)
    if densest:
        block = max(1, min(block, int(options.budget / _SMALL_LOT / densest)))
    plan = replace(plan, block=block)
    fits = options.budget // 3 // _IN_FLIGHT
    chunk = plan.chunk
    while chunk > 1 and most_bytes(plan, weights, chunk) > fits:
        chunk = max(1, chunk // 2)
    return replace(plan, chunk=chunk)


def most_bytes(plan: Plan, weights: RowWeights, steps: int) -> int:
    """What a rank's rows of `steps` batches take where they are largest, in the first epoch."""
    order = plan.epoch(0).order
    return weights.most(max(1, steps * plan.batch // plan.ranks), order, plan.streams // plan.ranks)


def _choose_streams(options: LoaderOptions, part_bytes: int, batch: int) -> int:
    """As many as mix well, as long as the open partitions fit a third of the budget."""
    world = options.shard.world
    if options.streams is not None:
        return min(options.streams, batch)
    if not options.shuffle:
        return world
    fits = max(1, options.budget // 3 // max(1, part_bytes))
    wanted = max(-(-_STREAMS // world), options.parts_per_chunk)
    return world * min(wanted, fits, options.batch_size)


def _enough(mean_rows: int) -> int:
    """Rows to mix: fewer of small partitions, since each batch would have to wait for many."""
    return min(max(_CHUNK_PARTS * mean_rows, _CHUNK_ROWS // 4), _CHUNK_ROWS)


def _block_rows(options: LoaderOptions, mean_rows: int) -> int:
    """Rows of the lots that are open at a time: in order, what is worth a thread's attention."""
    return _enough(mean_rows) if options.shuffle else _ORDERED_ROWS


def blocks_ahead(plan: Plan, row: RowBytes, options: LoaderOptions) -> int:
    """Lots that may be read before they are needed, beside those the streams have open."""
    size = max(1, max(plan.sizes, default=0), plan.block) * row.decoded
    fits = options.budget // 3 // size
    return max(1, min(fits - len(plan.rank_streams(*options.shard)), options.workers))


def _choose_chunk(
    options: LoaderOptions, mean_rows: int, row: RowBytes, batch: int, streams: int
) -> int:
    """Steps in a chunk: enough rows to gather well, few enough for the budget."""
    asked = options.parts_per_chunk * mean_rows if options.parts_per_chunk > 1 else 0
    rows = max(_enough(mean_rows), asked if options.shuffle else 0)
    most = min(
        options.budget // 3 // _IN_FLIGHT // row.batch,
        _most_rows(options, row.batch),
        _beside_blocks(options, mean_rows, row, streams),
    )
    return max(1, min(rows, most * options.shard.world) // batch)


def _beside_blocks(options: LoaderOptions, mean_rows: int, row: RowBytes, streams: int) -> int:
    """Rows of a chunk for which large blocks leave room, however many cores there are.

    Of each stream two blocks may be open, and one is read ahead. In order they lie in chunks.
    """
    width = row.decoded if options.shuffle else row.batch
    left = options.budget - (2 * max(1, streams) + 1) * mean_rows * width
    return max(0, left) // (_MOST_THREADS + 2) // row.batch


def _most_rows(options: LoaderOptions, row_bytes: int) -> int:
    """Rows that a third of the budget holds, and a buffer."""
    size = options.budget // 3
    if options.buffer_size is not None:
        size = min(size, parse_bytes(options.buffer_size, name="buffer_size"))
    return size // row_bytes


def check_plan(plan: Plan, options: LoaderOptions) -> None:
    """Refuse a plan that would give nothing, or nothing to some rank."""
    world = options.shard.world
    if plan.rows == 0:
        raise LoaderError("the dataset has no rows; look at its paths and filters")
    if plan.steps == 0:
        raise LoaderError(
            f"{plan.rows} rows do not fill one batch of {plan.batch}, and drop_last leaves the "
            "rest out: take a smaller batch_size"
        )
    if options.last is None and plan.empty_batch(world) is not None:
        raise LoaderError(
            f"{plan.rows} rows over {world} ranks in batches of {plan.batch // world} would leave "
            'a rank with an empty batch; use drop_last=True, last="pad" or last="wrap", or allow '
            'empty batches with last="short"'
        )
