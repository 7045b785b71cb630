"""A feed whose batches are made on a GPU: which reader, how much memory, which streams.

Everything happens beside the model: reading on a stream for each thread, putting together on
another. When the training thread takes the first batch of a chunk, its current stream is made to
wait for that chunk's event, and told to the allocator as a user of the memory, so that nothing is
written again before the model has read it. The program itself waits for nothing.

The order of rows is that of the CPU, since both follow the same plan.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypeVar, cast

import torch

from tabfeed.budget import cpu_count, parse_bytes
from tabfeed.errors import ArgumentError, LoaderError, TabfeedWarning
from tabfeed.loader.base import Feed, Recipe
from tabfeed.loader.chunk import ChunkMaker
from tabfeed.loader.lots import LotReader
from tabfeed.loader.plan import Epoch, Plan
from tabfeed.loader.ranks import Place
from tabfeed.loader.readers import PartReader
from tabfeed.loader.shared_lots import Ahead, SharedLots
from tabfeed.loader.torch.cudf_lots import CudfLotReader, why_not_cudf
from tabfeed.loader.torch.gpu_buffers import GpuBlocks, ThreadStreams
from tabfeed.loader.torch.gpu_chunks import GpuChunkMaker
from tabfeed.loader.torch.gpu_lots import GpuLotReader, LotShape

__all__ = ["READERS", "GpuOptions", "GpuRecipe", "on_gpu"]

B = TypeVar("B")
READERS = ("auto", "arrow", "cudf")
_DEFAULT_MEMORY = 10**9
_DECODING = 3  # memory pylibcudf needs while it decodes, in decoded sizes
_TOGETHER = 4  # lots that pylibcudf decodes in one go
_MOST_READINGS = 4
_MOST_LOTS = 24
_MOST_THREADS = 8
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
    block
        Bytes of a lot.
    depth
        Chunks ahead.
    lots
        Lots ahead.
    decoding
        Bytes for what pylibcudf decodes at a time.
    """

    block: int
    depth: int
    lots: int
    decoding: int = 0

    @property
    def readings(self) -> int:
        """How many readings pylibcudf may do at a time."""
        return max(1, min(_MOST_READINGS, self.decoding // (_DECODING * _TOGETHER * self.block)))


def divide(plan: Plan, shape: LotShape, row_bytes: int, memory: int, *, cudf: bool) -> Share | None:
    """How to divide the memory; None if not even the least fits."""
    block = shape.nbytes(_most_lot_rows(plan))
    chunk = plan.chunk * plan.batch // plan.ranks * row_bytes
    streams = len(plan.rank_streams(0, plan.ranks))
    together = _TOGETHER if cudf else 1
    reading = _DECODING * together * block if cudf else 0
    for depth in (3, 2):
        # One chunk being made and one in use; a reading, and what it reads into.
        least = (streams + together) * block + (depth + 2) * chunk + reading
        left = memory - least
        if left < 0:
            continue
        more = min(_MOST_READINGS - 1, left // (reading + together * block)) if cudf else 0
        decoding = (1 + more) * reading
        lots = together + (left - more * reading) // block
        return Share(block, depth, min(lots, _MOST_LOTS), decoding)
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
    shape = LotShape(reader.layout.groups, reader.dtypes)
    cudf = _uses_cudf(options, reader)
    memory = options.memory(device)
    share = divide(plan, shape, reader.layout.row_bytes, memory, cudf=cudf)
    if share is None:  # chunks are made in the computer's memory, and copied
        return feed
    stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    blocks = GpuBlocks(device, share.block, stream)
    lots: Any = GpuLotReader(_with_arrow_threads(reader), blocks, ThreadStreams(device), shape)
    if cudf:
        lots = CudfLotReader(lots, share.decoding, share.readings)
    made = GpuRecipe(
        lots,
        GpuChunkMaker(reader.layout, maker, stream, device),
        recipe.finish,
        ahead=Ahead(share.lots, together=_TOGETHER if cudf else 1, by_all=False),
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


def _with_arrow_threads(reader: LotReader) -> LotReader:
    if not isinstance(reader.parts, PartReader) or cpu_count() <= _FEW_CORES:
        return reader
    return reader.reading(replace(reader.parts, at_once=2**40, arrow_threads=True))


def _threads(share: Share, *, cudf: bool) -> int:
    """Some read, two make chunks; Arrow has threads of its own besides."""
    if cudf:
        return share.readings + 2
    return max(2, min(_MOST_THREADS, cpu_count() // 2, share.lots))


def _check_device(device: torch.device) -> None:
    if not torch.cuda.is_available():
        raise LoaderError(f"device is {str(device)!r}, but torch finds no GPU here")
    count = torch.cuda.device_count()
    if device.index is not None and device.index >= count:
        raise LoaderError(f"device is {str(device)!r}, but there are {count} GPUs, from 0 on")
