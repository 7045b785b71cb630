"""The options of loaders, checked when they are given: for loading, and for loading onto a GPU.

What follows from them, the order and how memory is divided, is in `tabfeed.loader.host_memory`.
"""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from numbers import Integral, Real
from typing import Any, NamedTuple

from tabfeed.budget import cpu_count, parse_bytes
from tabfeed.errors import ArgumentError, LoaderError
from tabfeed.lazy import cached_property
from tabfeed.loader.plan import LAST, Plan

__all__ = [
    "CACHES",
    "MOST_THREADS",
    "READERS",
    "GpuOptions",
    "LoaderOptions",
    "Shard",
    "check_plan",
    "find_shard",
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
_HOST_MEMORY = 2**30
_FETCHED = 2**29
MOST_THREADS = 8


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
        see `tabfeed.loader.plan`. None also refuses a batch without rows on some rank.
    streams
        How many partitions all ranks together read side by side; chosen when not given.
    host_memory
        Most memory for partitions and batches on their way: bytes, "2GB", or a share of the
        free memory, which makes the order depend on the machine; 1 GiB by default, for files on
        servers a quarter more. Neither batches that a user keeps count, nor what Arrow and PyTorch
        take for themselves, some 50 MB. Text and lists count with the sizes that files tell; a row
        or a batch too large for it is refused. What functions make of rows is estimated from a few
        of them; partitions that a map needs whole (see `Dataset.map`) stay as they are, whatever
        they take. With ``cache="memory"`` as much again for what is
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
                    raise ArgumentError(f"{name} is {value!r}; it must be a positive integer")
                object.__setattr__(self, name, int(value))  # a state holds plain values
        if not _is_whole(self.seed):
            raise ArgumentError(f"seed is {self.seed!r}; it must be an integer")
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
        shard = find_shard(self.global_rank, self.global_size)
        object.__setattr__(self, "global_rank", shard.rank)  # a copy in another process keeps it
        object.__setattr__(self, "global_size", shard.world)

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
        assert self.global_rank is not None and self.global_size is not None  # since it was made
        return Shard(self.global_rank, self.global_size)

    @property
    def place(self) -> Shard:
        """The earlier name of `shard`."""
        return self.shard

    @cached_property
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
        """The same where row groups are read in slices and each thread holds `overhead` bytes.

        Of the budget that is left, partitions that are open, that come next and that are being read
        take five to seven sixths and chunks a third: that, and the overhead of one thread or two,
        is what must fit. It does not depend on how many threads there are, nor does the order. A
        budget too small for one thread's overhead cannot be kept: the files' pages are too large.
        """
        budget = self.budget
        left = max(min(budget * 2 // 5, (budget - overhead) * 3 // 5), budget // 8)
        room = budget - left * 7 // 4  # a little is what allocators keep to themselves
        threads = min(self.workers, 2 if 2 * overhead <= room else 1)
        return replace(self, threads=threads, host_memory=left)

    @property
    def workers(self) -> int:
        """Threads that read and prepare."""
        return self.threads or min(MOST_THREADS, cpu_count())

    @property
    def ahead(self) -> int:
        """Chunks prepared ahead."""
        return self.depth or self.workers + 1


def _is_whole(value: Any) -> bool:
    """Whether a value is an integer, whatever its type."""
    if isinstance(value, bool) or not isinstance(value, Real):
        return False
    return math.isfinite(value) and math.floor(value) == value


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


# torchrun and Accelerate set the first pair; srun the second, for job steps only
# (SLURM_NTASKS is also set in a batch script that runs one process).
_ENVIRONMENTS = [("RANK", "WORLD_SIZE"), ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS")]


class Shard(NamedTuple):
    """Rank and world size."""

    rank: int
    world: int


def find_shard(
    rank: int | None, world: int | None, environment: Mapping[str, str] = os.environ
) -> Shard:
    """Rank and world size: as given, else from the environment, else one process alone.

    A loader asks when it is made. Under Lightning, make it in ``train_dataloader``: only then do
    the ranks know which they are.

    Examples
    --------
    >>> find_shard(None, None, {"RANK": "1", "WORLD_SIZE": "4"})
    Shard(rank=1, world=4)
    >>> find_shard(4, 4)
    Traceback (most recent call last):
        ...
    tabfeed.errors.ArgumentError: global_rank is 4 of global_size 4; ranks go from 0 to 3
    """
    if rank is None and world is None:
        return _from_environment(environment)
    if rank is None or world is None:
        given, missing = (
            ("global_size", "global_rank")
            if rank is None
            else (
                "global_rank",
                "global_size",
            )
        )
        raise ArgumentError(f"{given} was given without {missing}; give both or neither")
    if not (isinstance(rank, Integral) and isinstance(world, Integral)):
        raise ArgumentError(
            f"global_rank is {rank!r} and global_size {world!r}; both must be integers"
        )
    return _checked(int(rank), int(world))


def _from_environment(environment: Mapping[str, str]) -> Shard:
    for rank_name, world_name in _ENVIRONMENTS:
        rank, world = environment.get(rank_name, ""), environment.get(world_name, "")
        if rank.isdigit() and world.isdigit():
            return _checked(int(rank), int(world))
    return _from_torch() or Shard(0, 1)


def _from_torch() -> Shard | None:
    """What a process group says, if the program has one: Lightning starts ranks without RANK."""
    torch = sys.modules.get("torch.distributed")
    if torch is None or not (torch.is_available() and torch.is_initialized()):
        return None
    return _checked(torch.get_rank(), torch.get_world_size())


def _checked(rank: int, world: int) -> Shard:
    if world < 1:
        raise ArgumentError(f"global_size is {world}; it must be 1 or more")
    if not 0 <= rank < world:
        raise ArgumentError(
            f"global_rank is {rank} of global_size {world}; ranks go from 0 to {world - 1}"
        )
    return Shard(rank, world)
