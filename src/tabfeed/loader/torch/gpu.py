"""A feed whose batches are made on a GPU: which reader, how much memory, which streams.

Everything happens beside the model: reading on a stream for each thread, putting together on
another. When the training thread takes the first batch of a chunk, its current stream is made to
wait for that chunk's event, and told to the allocator as a user of the memory, so that nothing is
written again before the model has read it. The program itself waits for nothing.

The order of rows is that of the CPU, since both follow the same plan.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace
from functools import partial
from importlib.util import find_spec
from typing import Any, TypeVar, cast

import torch

from tabfeed.budget import cpu_count, parse_bytes
from tabfeed.errors import ArgumentError, TabfeedWarning
from tabfeed.loader.base import Feed
from tabfeed.loader.chunk import ChunkMaker
from tabfeed.loader.decoders import Decoders
from tabfeed.loader.desks import Desks
from tabfeed.loader.lots import LotReader
from tabfeed.loader.options import LoaderOptions
from tabfeed.loader.shared_lots import Ahead
from tabfeed.loader.torch.auto_reader import AutoFeed, Ways
from tabfeed.loader.torch.cudf_lots import CudfLotReader, why_not_cudf, why_unfit
from tabfeed.loader.torch.devices import check_device, free_bytes
from tabfeed.loader.torch.gpu_buffers import Plane, Slabs, planes_of
from tabfeed.loader.torch.gpu_chunks import GpuChunkMaker
from tabfeed.loader.torch.gpu_lots import GpuLotReader, lock_pages, unlock_pages
from tabfeed.loader.torch.gpu_memory import Need, Share, divide, least
from tabfeed.loader.torch.gpu_ops import GpuOps
from tabfeed.loader.torch.gpu_recipe import GpuRecipe, for_host

__all__ = ["READERS", "GpuOptions", "GpuRecipe", "on_gpu"]

B = TypeVar("B")
READERS = ("auto", "arrow", "cudf")
_DEFAULT_MEMORY = 10**9
_MOST_READERS = 14
_READY = 4  # lots that lie ready for chunks, beside those being read
_LEAVE = 6  # lots that are left to pylibcudf where Arrow reads beside it
_FEW_CORES = 4


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
        Most memory to hold on the GPU: bytes, "500MB", or a share of the GPU's; 1 GB by default.
    """

    reader: str = "auto"
    device_memory: int | float | str | None = None

    def __post_init__(self) -> None:
        if self.reader not in READERS:
            raise ArgumentError(
                f"reader is {self.reader!r}; it must be one of {', '.join(READERS)}"
            )

    def memory(self, device: torch.device) -> int:
        """Bytes that may be held on the GPU: of those that are free never the last quarter."""
        total = torch.cuda.get_device_properties(device).total_memory
        most = min(_DEFAULT_MEMORY, total // 4)
        if self.device_memory is not None:
            most = parse_bytes(self.device_memory, name="device_memory", of=total)
        return min(most, free_bytes(device) * 3 // 4)


def on_gpu(feed: Feed[B], device: torch.device, options: GpuOptions) -> Feed[B]:
    """The same batches, made on a GPU.

    Parameters
    ----------
    feed
        Makes them in the computer's memory.
    device
        The GPU.
    options
        Reader and memory.
    """
    check_device(device)
    recipe = feed.recipe
    reader, maker = recipe.reader, recipe.maker
    if not isinstance(reader, LotReader) or not isinstance(maker, ChunkMaker):
        return feed
    ops = GpuOps.of(recipe.ops, reader.layout, device)
    if ops is None:
        return feed
    build = _Build(feed, device, ops, options.memory(device) - ops.table_bytes)
    if options.reader == "auto":
        return _auto(build, reader)
    cudf, why = _as_asked(options, reader)
    made = build(cudf)
    if made is None and cudf:
        made, why = build(False), "Arrow: pylibcudf needs more device_memory"
    if made is None:
        return build.on_host()
    beside = "; Arrow reads beside it, since memory is small" if made.recipe.ahead.beside else ""
    made.reader_choice = why + beside
    return made


@dataclass(frozen=True)
class _Build:
    """Makes feeds whose batches are made on a GPU, within so many bytes."""

    feed: Feed[Any]
    device: torch.device
    ops: GpuOps
    memory: int

    @property
    def need(self) -> Need:
        """What memory is needed for."""
        recipe, reader = self.feed.recipe, cast(LotReader, self.feed.recipe.reader)
        widths = {name: dtype.itemsize for name, dtype in reader.dtypes.items()}
        need = Need.of(self.feed.plan, reader.layout, widths)
        here = not (reader.layout.rest.columns or getattr(recipe.finish, "asks", False))
        return replace(need, batch=need.batch + self.ops.row_bytes, here=here)

    def on_host(self) -> Feed[Any]:
        """The feed as it is: chunks are made in the computer's memory, and copied."""
        enough = -(-(least(self.need) + self.ops.table_bytes) // 10**6)
        self.feed.reader_choice = (
            "Arrow: batches are made in the computer's memory, and copied; to make them on the "
            f'GPU, give device_memory="{enough}MB" or more'
        )
        return self.feed

    def __call__(self, cudf: bool) -> Feed[Any] | None:
        """One that reads with pylibcudf or with Arrow; None if memory is too small."""
        feed, recipe, need = self.feed, self.feed.recipe, self.need
        reader, maker = cast(LotReader, recipe.reader), cast(ChunkMaker, recipe.maker)
        share = divide(need, self.memory, cudf=cudf)
        if share is None:
            return None
        planes = planes_of(reader.layout.groups, reader.dtypes)
        streams: Any = [torch.cuda.Stream(self.device) for _ in range(2)]  # type: ignore[no-untyped-call]
        slabs = Slabs(self.device, planes, share.rows, share.lots, streams[0])
        desks = _Desks.of(need, share, feed.options, reader, cudf=cudf)
        lots: Any = desks.reader(reader, planes)
        if cudf:
            lots = CudfLotReader(lots, slabs, share.decoding, share.readings)
        chunks = GpuChunkMaker(reader.layout, maker, slabs, *streams)
        made = replace(self._recipe(lots, chunks, desks.ahead(share)), here=need.here)
        threads = feed.options.threads or 2 + share.readings + desks.threads
        options = replace(feed.options, threads=threads, depth=share.depth)
        return Feed(made, replace(feed.plan, chunk=share.steps), options)

    def _recipe(self, lots: Any, chunks: GpuChunkMaker, ahead: Ahead) -> GpuRecipe[Any]:
        recipe = self.feed.recipe
        return GpuRecipe(
            lots,
            chunks,
            recipe.finish,
            self.ops.ops,
            ahead=ahead,
            stream=chunks.stream,
            device=self.device,
            host=replace(recipe, finish=for_host(recipe.finish)),
        )


@dataclass(frozen=True)
class _Desks:
    """How many lots lie ready in the computer's memory, and who puts them there."""

    nbytes: int
    count: int
    early: int
    threads: int
    processes: int

    @classmethod
    def of(
        cls, need: Need, share: Share, options: LoaderOptions, reader: LotReader, *, cudf: bool
    ) -> _Desks:
        """As many as `host_memory` and cores allow."""
        nbytes, cores = max(1, need.lot_rows * need.lot), cpu_count()
        if cudf and not share.early:  # Arrow only reads what pylibcudf does not
            return cls(nbytes, share.lots + share.readings * share.together, 1, 0, 0)
        able = cores > _FEW_CORES and Decoders.can_read(reader)
        if cudf and not able:
            return cls(nbytes, share.lots + share.readings, 0, 0, 0)
        # A thread that waits for the GPU keeps a core busy, and so does what fetches for it.
        taken = 2 + 2 * share.readings if cudf else 1
        readers = min(_MOST_READERS, max(1, cores - taken))
        room = options.budget // nbytes - (share.lots - share.early)
        early = max(1, min(room, readers + _READY))
        threads = min(readers, early)
        return cls(nbytes, share.lots + early, early, threads, threads if able else 0)

    def ahead(self, share: Share) -> Ahead:
        """How lots are read before chunks need them."""
        if not share.readings:
            return Ahead(self.early, by_all=False)
        if not share.early:
            return Ahead(share.lots, share.together, by_all=False, most=share.lots)
        return Ahead(
            share.early, by_all=False, beside=self.early, leave=_LEAVE, at_once=share.readings
        )

    def reader(self, host: LotReader, planes: tuple[Plane, ...]) -> GpuLotReader:
        """Reads onto these desks."""
        return GpuLotReader(
            host, planes, Desks(self.nbytes, self.count, lock_pages, unlock_pages), self.processes
        )


def _auto(build: _Build, reader: LotReader) -> Feed[Any]:
    """Arrow, with pylibcudf in reserve where it could read the same."""
    made = build(False)
    if made is None:
        return build.on_host()
    of_these = (reader.parts, reader.layout, reader.dtypes)
    reason = why_unfit(*of_these)
    if reason is None and find_spec("pylibcudf") is None:
        reason = "pylibcudf is not installed; pip install tabfeed[gpu]"
    if reason is None:
        return AutoFeed(made, Ways(build, partial(why_not_cudf, *of_these)))
    made.reader_choice = f"Arrow: {reason}"
    return made


def _as_asked(options: GpuOptions, reader: LotReader) -> tuple[bool, str]:
    """Whether pylibcudf reads, where the user has said who shall; and why."""
    if options.reader == "arrow":
        return False, "Arrow: as asked for"
    reason = why_not_cudf(reader.parts, reader.layout, reader.dtypes)
    if reason is None:
        return True, "pylibcudf: as asked for"
    warnings.warn(f"reading with Arrow: {reason}", TabfeedWarning, stacklevel=5)
    return False, f"Arrow: {reason}"
