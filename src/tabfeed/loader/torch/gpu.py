"""A feed whose batches are made on a GPU: which reader, how much memory, which streams.

Everything happens beside the model: reading on a stream for each thread, putting together on
another. When the training thread takes the first batch of a chunk, its current stream is made to
wait for that chunk's event, and told to the allocator as a user of the memory, so that nothing is
written again before the model has read it. The program itself waits for nothing.

The order of rows is that of the CPU, since both follow the same plan.
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypeVar, cast

import torch

from tabfeed.budget import cpu_count, parse_bytes
from tabfeed.errors import ArgumentError, LoaderError, TabfeedWarning
from tabfeed.loader.base import Feed, Recipe
from tabfeed.loader.chunk import ChunkMaker
from tabfeed.loader.columns import Layout
from tabfeed.loader.lots import LotReader
from tabfeed.loader.plan import Epoch, Plan
from tabfeed.loader.ranks import Place
from tabfeed.loader.readers import PartReader
from tabfeed.loader.shared_lots import Ahead, SharedLots
from tabfeed.loader.torch.cudf_lots import CudfLotReader, why_not_cudf
from tabfeed.loader.torch.gpu_buffers import Slabs, ThreadStreams, planes_of
from tabfeed.loader.torch.gpu_chunks import GpuChunkMaker
from tabfeed.loader.torch.gpu_lots import GpuLotReader

__all__ = ["READERS", "GpuOptions", "GpuRecipe", "on_gpu"]

B = TypeVar("B")
READERS = ("auto", "arrow", "cudf")
_DEFAULT_MEMORY = 10**9
_DECODING = 4  # memory pylibcudf needs while it decodes, in decoded sizes; 3 was too little
_MOST_READINGS = 4
_MOST_LOTS = 24
_MOST_THREADS = 12
_FEW_CORES = 4


@dataclass(frozen=True)
class GpuOptions:
    """What a user may say about loading onto a GPU.

    Parameters
    ----------
    reader
        "arrow": decoded by threads of the CPU; "cudf": by the GPU itself, faster, but in time that
        the model would have; "auto": Arrow, which is enough for nearly every model.
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
        """Bytes that may be held on the GPU."""
        total = torch.cuda.get_device_properties(device).total_memory
        if self.device_memory is None:
            return min(_DEFAULT_MEMORY, total // 4)
        return parse_bytes(self.device_memory, name="device_memory", of=total)


class _Ready(NamedTuple):
    """Batches whose making is queued, the event after it, and a tensor of each memory they use."""

    batches: list[Any]
    event: Any
    owners: list[Any]


@dataclass(frozen=True)
class GpuRecipe(Recipe[B]):
    """How a chunk of batches is made on a GPU.

    Attributes
    ----------
    stream
        The stream on which chunks are put together.
    device
        The GPU.
    host
        The same in the computer's memory, for worker processes.
    """

    stream: Any = None
    device: Any = None
    host: Any = None

    def make(self, epoch: Epoch, place: Place, lots: SharedLots[Any], number: int) -> Any:
        """The batches of one chunk, on one rank: queued, not done."""
        with torch.cuda.stream(self.stream):
            batches = super().make(epoch, place, lots, number)
            event = self.stream.record_event()
        return _Ready(batches, event, list(_owners(batches)))

    def arrive(self, made: Any) -> list[B]:
        """Let the stream of the training thread wait for the batches."""
        current = torch.cuda.current_stream(self.device)
        current.wait_event(made.event)
        for tensor in made.owners:
            tensor.record_stream(current)
        batches: list[B] = made.batches
        return batches

    def __reduce__(self) -> tuple[Any, ...]:
        return _same, (self.host,)  # streams stay in their process


def _same(recipe: Recipe[B]) -> Recipe[B]:
    return recipe


def _owners(batches: list[Any]) -> Iterator[torch.Tensor]:
    """One tensor for each piece of memory that batches use."""
    seen = set()
    for tensor in _tensors(batches):
        if tensor.is_cuda:
            place = tensor.untyped_storage().data_ptr()
            if place not in seen:
                seen.add(place)
                yield tensor


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        if value.is_sparse:
            yield from (value._indices(), value._values())
        elif value.is_nested:
            nested: Any = value
            yield from (nested.values(), nested.offsets())
        else:
            yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from _tensors(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _tensors(item)


# -- how much memory for what -----------------------------------------------------------------


@dataclass(frozen=True)
class Share:
    """How the GPU's share of memory is divided.

    Attributes
    ----------
    rows
        Rows of a slab.
    slabs
        How many slabs.
    together
        Lots in a slab.
    lots
        Lots ahead.
    depth
        Chunks ahead.
    readings
        How many readings pylibcudf may do at a time.
    decoding
        Bytes for what pylibcudf decodes.
    """

    rows: int
    slabs: int
    together: int
    lots: int
    depth: int
    readings: int = 0
    decoding: int = 0


def divide(plan: Plan, layout: Layout, lot_bytes: int, memory: int, *, cudf: bool) -> Share | None:
    """How to divide the memory; None if not even the least fits.

    Parameters
    ----------
    plan, layout
        What is loaded.
    lot_bytes
        What a row takes in a lot.
    memory
        Bytes in all.
    cudf
        Whether the GPU decodes.
    """
    rows = _most_lot_rows(plan)
    block = rows * lot_bytes
    chunk = plan.chunk * plan.batch // plan.ranks * (layout.row_bytes + lot_bytes + 4)
    streams = len(plan.rank_streams(0, plan.ranks))
    for together, depth in itertools.product((4, 2, 1) if cudf else (1,), (3, 2)):
        # Lots that end and lots that begin in one chunk, and those that are being read.
        open_slabs = -(-2 * streams // together) + 1
        reading = _DECODING * together * block if cudf else 0
        left = memory - open_slabs * together * block - (depth + 2) * chunk - reading
        ahead = left // (together * block)
        if ahead < 0:
            continue
        more = min(_MOST_READINGS - 1, left // (reading + together * block)) if cudf else 0
        ahead = min((left - more * reading) // (together * block), _MOST_LOTS // together)
        slabs, readings = open_slabs + ahead, 1 + more if cudf else 0
        lots = max(1, ahead) * together
        return Share(together * rows, slabs, together, lots, depth, readings, readings * reading)
    return None


def _most_lot_rows(plan: Plan) -> int:
    largest = max(plan.sizes, default=0)
    return largest if min(plan.sizes, default=0) >= plan.lot else largest + plan.lot - 1


# -- the feed ---------------------------------------------------------------------------------


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
    _check_device(device)
    recipe, plan = feed.recipe, feed.plan
    reader, maker, finish = recipe.reader, recipe.maker, cast(Any, recipe.finish)
    if recipe.ops or not isinstance(reader, LotReader) or not isinstance(maker, ChunkMaker):
        return feed
    layout, planes = reader.layout, planes_of(reader.layout.groups, reader.dtypes)
    cudf = _uses_cudf(options, reader)
    lot_bytes = sum(plane.columns * plane.width for plane in planes)
    share = divide(plan, layout, lot_bytes, options.memory(device), cudf=cudf)
    if share is None:  # chunks are made in the computer's memory, and copied
        return feed
    stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    slabs = Slabs(device, planes, share.rows, share.slabs, stream)
    lots: Any = GpuLotReader(_in_large_steps(reader), slabs, planes, ThreadStreams(device))
    if cudf:
        lots = CudfLotReader(lots, share.decoding, share.readings)
    made = GpuRecipe(
        lots,
        GpuChunkMaker(layout, maker, slabs, planes, stream),
        recipe.finish,
        ahead=Ahead(share.lots, share.together, by_all=False),
        stream=stream,
        device=device,
        host=replace(recipe, finish=replace(finish, device=torch.device("cpu"))),
    )
    threads = feed.options.threads or _threads(share, cudf=cudf)
    return Feed(made, plan, replace(feed.options, threads=threads, depth=share.depth))


def _uses_cudf(options: GpuOptions, reader: LotReader) -> bool:
    if options.reader == "arrow":
        return False
    reason = why_not_cudf(reader.parts, reader.layout, reader.dtypes)
    if options.reader == "cudf" and reason is not None:
        warnings.warn(f"reading with Arrow: {reason}", TabfeedWarning, stacklevel=5)
    return options.reader == "cudf" and reason is None


def _in_large_steps(reader: LotReader) -> LotReader:
    if not isinstance(reader.parts, PartReader) or cpu_count() <= _FEW_CORES:
        return reader
    return reader.reading(replace(reader.parts, at_once=2**40))


def _threads(share: Share, *, cudf: bool) -> int:
    """Some read, two make chunks."""
    if cudf:
        return share.readings + 2
    return max(2, min(_MOST_THREADS, cpu_count() * 3 // 4, share.lots + 2))


def _check_device(device: torch.device) -> None:
    if not torch.cuda.is_available():
        raise LoaderError(f"device is {str(device)!r}, but torch finds no GPU here")
    count = torch.cuda.device_count()
    if device.index is not None and device.index >= count:
        raise LoaderError(f"device is {str(device)!r}, but there are {count} GPUs, from 0 on")
