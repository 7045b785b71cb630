"""How a loader divides its memory: on the GPU, and in the staging buffers that feed it.

Arithmetic only. A `MemoryRequest` says what a row takes and who decodes; `plan_memory` divides
`device_memory` among blocks, chunks and decoding, and gives a `MemoryPlan`; `plan_staging` divides
`host_memory` among staging buffers. Two simpler cases stand beside these: batches that are made in
host memory and copied (`fit_copies`), and a dataset that stays on the GPU (`resident_bytes`,
`plan_resident`).

A chunk costs Python the same time whatever its size, and the training loop needs Python too. So
chunks are larger here than on the CPU, as far as memory allows. The order of rows does not depend
on that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tabfeed.budget import cpu_count
from tabfeed.errors import LoaderError
from tabfeed.loader.options import LoaderOptions
from tabfeed.loader.pipeline import Ahead
from tabfeed.loader.plan import Plan
from tabfeed.loader.read.arrow_columns import Layout
from tabfeed.loader.read.blocks import BlockReader
from tabfeed.loader.read.process_blocks import can_decode

__all__ = [
    "FALLBACK_SHARE",
    "RESIDENT_ORDERS",
    "MemoryPlan",
    "MemoryRequest",
    "StagingPlan",
    "check_room",
    "fit_copies",
    "least_bytes",
    "plan_memory",
    "plan_resident",
    "plan_staging",
    "resident_bytes",
]

_CHUNK_ROWS = 2**19
_DECODING = 2.95  # memory pylibcudf takes while it decodes, in decoded sizes; 2.91 was measured
_COPYING = 1  # the same for decoded columns that are being copied into device buffers
# How many blocks to decode in one call, and how many calls at a time, the fastest first.
_CUDF_CALLS = ((8, 3), (8, 2), (4, 3), (4, 2), (2, 3), (2, 2), (1, 3), (1, 2), (1, 1))
# The same where the GPU decodes pages: blocks that a stream has at a time, and streams.
_DECODE_STREAMS = ((4, 2), (2, 2), (1, 2), (1, 1))
_TABLES = 2**20  # bytes for the table of a block's pages
_MORE = 1.05  # row groups may be larger than the sampled ones
_LEAST_ROWS = 2**17  # of a chunk, before fewer decoding calls at a time are better

FALLBACK_SHARE = 8  # one part in so many of a loader's memory is for batches that are copied
_COPIES_HELD = 2  # chunks beside those ahead: the one the model has a batch of, and the one before

_MOST_DECODERS = 14
_MOST_COPIES = 8  # threads that read encoded bytes: a few give all that a GPU can take
_MOST_FINDERS = 4  # processes that find pages
_READY = 4  # blocks that are ready for chunks, beside those being read
_FEW_CORES = 4
_FEW_GROUPS = 64  # row groups: their pages are found before a process has started

RESIDENT_ORDERS = 2  # permutations kept: of an epoch that ends and of one that begins


# -- chunks made on the GPU -----------------------------------------------------------------------


@dataclass(frozen=True)
class MemoryRequest:
    """What a loader needs device memory for.

    Attributes
    ----------
    plan
        The order.
    batch_bytes
        Bytes of a row in a batch.
    block_bytes
        Bytes of a row in a block.
    scratch_bytes
        Bytes of a row while it is gathered and cast.
    on_training_thread
        Whether the training thread makes all chunks, rather than background threads.
    encoded_bytes, decompressed_bytes
        Bytes of a row in its file, and decompressed; 0 if the GPU does not decode pages.
    held_chunks
        Chunks that exist at a time if the training thread makes them: ready, in use and not yet
        freed.
    decoder
        What decodes files: "arrow", "cudf" (pylibcudf), or "pages" (the GPU, by our own kernels).
    spare_batches
        Batches of a chunk that may have memory of their own, beside the chunk's.
    """

    plan: Plan
    batch_bytes: int
    block_bytes: int
    scratch_bytes: int
    on_training_thread: bool = False
    encoded_bytes: float = 0
    decompressed_bytes: float = 0
    held_chunks: int = 3
    decoder: str = "arrow"
    spare_batches: int = 0

    @classmethod
    def of(cls, plan: Plan, layout: Layout, dtypes: dict[str, np.dtype[Any]]) -> MemoryRequest:
        """For a layout whose groups have these dtypes in blocks."""
        sizes = {g.name: len(g.columns) * dtypes[g.name].itemsize for g in layout.groups}
        cast = [sizes[g.name] for g in layout.groups if g.dtype != dtypes[g.name]]
        places = 4 * len({dtypes[g.name].itemsize for g in layout.groups})
        return cls(plan, layout.row_bytes, sum(sizes.values()), sum(cast) + places)

    @property
    def block_rows(self) -> int:
        """Most rows of a block."""
        sizes, least = self.plan.sizes, self.plan.block
        largest = max(sizes, default=0)
        most = largest if min(sizes, default=0) >= least else largest + least - 1
        return min(most, self.plan.rows)

    @property
    def whole_block(self) -> int:
        """Most bytes of a block."""
        return self.block_rows * self.block_bytes

    @property
    def batch_rows(self) -> int:
        """Rows of a batch, on one rank."""
        return -(-self.plan.batch // self.plan.ranks)

    @property
    def encoded_block(self) -> tuple[int, int]:
        """Most bytes of a block in its files, and decompressed: some more than the sample had."""
        sizes = (self.encoded_bytes, self.decompressed_bytes)
        encoded, decompressed = (int(self.block_rows * size * _MORE) + 1 for size in sizes)
        return encoded, decompressed

    def chunk_bytes(self, steps: int) -> int:
        """Bytes of a chunk of so many batches."""
        return steps * self.batch_rows * self.batch_bytes

    def chunks_bytes(self, steps: int, depth: int) -> int:
        """Bytes of chunks that are ready, in use and not yet freed, and of those being made."""
        held, making = (self.held_chunks, 1) if self.on_training_thread else (depth + 2, 2)
        scratch = making * steps * self.batch_rows * self.scratch_bytes
        return held * self.chunk_bytes(steps) + scratch

    def open_blocks(self, steps: int, depth: int) -> int:
        """Most blocks that the chunks being made need at a time."""
        ranks = self.plan.ranks
        streams = max(len(self.plan.rank_streams(rank, ranks)) for rank in range(ranks))
        share = -(-steps * self.batch_rows // streams)
        least = max(self.plan.block, min((s for s in self.plan.sizes if s), default=1))
        return streams * (depth * share // least + 2)

    def chunk_sizes(self) -> Iterator[tuple[int, int]]:
        """Steps and depth of chunks, the best first."""
        steps = max(self.plan.chunk, _CHUNK_ROWS // self.batch_rows)
        while steps >= 1:
            yield from ((steps, 3), (steps, 2))
            steps = steps * 3 // 4 if steps > 1 else 0


@dataclass(frozen=True)
class MemoryPlan:
    """How device memory is divided.

    Attributes
    ----------
    steps
        Batches of a chunk.
    depth
        Chunks ahead.
    block_rows
        Most rows of a block.
    blocks
        How many blocks fit on the GPU.
    blocks_per_call
        Blocks decoded in one call.
    cudf_calls
        How many calls pylibcudf may run at a time.
    cudf_bytes
        Bytes for what pylibcudf decodes.
    decode_streams
        How many streams decode pages, each with `blocks_per_call` blocks at a time.
    """

    steps: int
    depth: int
    block_rows: int
    blocks: int
    blocks_per_call: int = 1
    cudf_calls: int = 0
    cudf_bytes: int = 0
    decode_streams: int = 0


def plan_memory(request: MemoryRequest, memory: int) -> MemoryPlan | None:
    """How to divide so many bytes; None if not even the smallest chunks fit."""
    candidates: dict[str, Callable[[MemoryRequest], Iterator[tuple[MemoryPlan, int]]]] = {
        "arrow": _for_arrow,
        "cudf": _for_cudf,
        "pages": _for_pages,
    }
    for plan, nbytes in candidates[request.decoder](request):
        spare = request.chunk_bytes(min(request.spare_batches, plan.steps - 1))
        left = memory - nbytes - spare
        if left >= 0:
            if not plan.cudf_calls:
                return plan
            # Blocks decoded early need device memory: use what is left for more of them.
            more = left // max(1, request.whole_block)
            more = min(more, plan.blocks_per_call * plan.cudf_calls)
            return replace(plan, blocks=plan.blocks + more)
    return None


def least_bytes(request: MemoryRequest) -> int:
    """Bytes without which no chunk can be made on the GPU."""
    return min(nbytes for _, nbytes in _for_arrow(request))


def _for_arrow(request: MemoryRequest) -> Iterator[tuple[MemoryPlan, int]]:
    for steps, depth in request.chunk_sizes():
        blocks = request.open_blocks(steps, depth)
        nbytes = blocks * request.whole_block + request.chunks_bytes(steps, depth)
        yield MemoryPlan(steps, depth, request.block_rows, blocks), nbytes


def _for_pages(request: MemoryRequest) -> Iterator[tuple[MemoryPlan, int]]:
    for together, streams in _DECODE_STREAMS:
        decoding = streams * together * (sum(request.encoded_block) + _TABLES)
        last = (together, streams) == _DECODE_STREAMS[-1]
        for steps, depth in request.chunk_sizes():
            if steps * request.batch_rows < 2 * _LEAST_ROWS and not last:
                break
            blocks = request.open_blocks(steps, depth)
            nbytes = blocks * request.whole_block + decoding + request.chunks_bytes(steps, depth)
            plan = MemoryPlan(steps, depth, request.block_rows, blocks, together)
            yield replace(plan, decode_streams=streams), nbytes


def _for_cudf(request: MemoryRequest) -> Iterator[tuple[MemoryPlan, int]]:
    for together, calls in _CUDF_CALLS:
        decoding = int((calls * _DECODING + _COPYING) * together * request.whole_block)
        last = (together, calls) == _CUDF_CALLS[-1]
        for steps, depth in request.chunk_sizes():
            if steps * request.batch_rows < _LEAST_ROWS and not last:
                break
            blocks = request.open_blocks(steps, depth) + together * calls
            nbytes = blocks * request.whole_block + decoding + request.chunks_bytes(steps, depth)
            plan = MemoryPlan(steps, depth, request.block_rows, blocks, together, calls, decoding)
            yield plan, nbytes


# -- staging buffers in host memory ---------------------------------------------------------------


@dataclass(frozen=True)
class StagingPlan:
    """How many staging buffers there are, and what fills them.

    Attributes
    ----------
    nbytes, count
        Size of a staging buffer, and how many.
    early
        How many blocks may be read before they are needed.
    threads
        How many threads read, a block each.
    processes
        How many processes help them.
    workers_per_block
        How many processes, or threads of their own, read one block: several, if memory holds so
        few blocks that some would have nothing to do.
    encoded
        Whether staging buffers hold bytes of files, rather than rows.
    """

    nbytes: int
    count: int
    early: int
    threads: int
    processes: int = 0
    workers_per_block: int = 1
    encoded: bool = False

    def ahead(self, plan: MemoryPlan) -> Ahead:
        """How blocks are read before chunks need them."""
        if not plan.cudf_calls:
            return Ahead(self.early, by_all=False)
        return Ahead(plan.blocks, plan.blocks_per_call, by_all=False, most=plan.blocks)


def plan_staging(
    request: MemoryRequest, plan: MemoryPlan, options: LoaderOptions, reader: BlockReader
) -> StagingPlan:
    """As many staging buffers as `host_memory` and cores allow.

    Parameters
    ----------
    request, plan
        How device memory is divided.
    options
        Those of the loader.
    reader
        Reads blocks in host memory.
    """
    nbytes, cores = max(1, request.whole_block, request.encoded_block[0]), cpu_count()
    if plan.cudf_calls:  # Arrow only reads what pylibcudf does not
        return StagingPlan(nbytes, plan.blocks + plan.cudf_calls * plan.blocks_per_call, 1, 0)
    encoded, helped = bool(plan.decode_streams), cores > _FEW_CORES and can_decode(reader)
    readers = min(_MOST_COPIES if encoded else _MOST_DECODERS, max(1, cores - 1))
    room = max(1, options.budget // nbytes - plan.blocks)
    early = min(room, 2 * readers if helped and not encoded else readers + _READY)
    threads = min(readers, early)
    workers = -(-readers // threads) if helped else 1
    if encoded:
        processes = _MOST_FINDERS if helped and len(request.plan.sizes) > _FEW_GROUPS else 0
    else:
        workers = min(workers, max(1, sum(len(g.columns) for g in reader.layout.groups)))
        processes = min(readers, threads * workers) if helped else 0
    return StagingPlan(nbytes, plan.blocks + early, early, threads, processes, workers, encoded)


# -- batches that are made in host memory and copied ----------------------------------------------


def fit_copies(
    plan: Plan, options: LoaderOptions, memory: int, row_bytes: int
) -> tuple[Plan, LoaderOptions]:
    """The plan and options with chunks so small, and so few ahead, that their copies fit.

    Parameters
    ----------
    plan, options
        Those of the loader.
    memory
        Bytes that copies may take on the GPU.
    row_bytes
        About what a row takes there.
    """
    batch = max(1, plan.batch // plan.ranks * row_bytes)
    steps = max(1, min(plan.chunk, memory // (2 * (_COPIES_HELD + 1)) // batch))
    depth = max(1, min(options.ahead, memory // (steps * batch) - _COPIES_HELD))
    return replace(plan, chunk=steps), replace(options, depth=depth)


def check_room(plan: Plan, memory: int, row_bytes: int) -> None:
    """Refuse a GPU on which not even a few batches fit."""
    rows = plan.batch // plan.ranks
    needed = (_COPIES_HELD + 1) * rows * row_bytes
    if needed > memory:
        raise LoaderError(
            f"{_COPIES_HELD + 1} batches of {rows:,} rows take about {needed / 1e6:,.1f} MB on the "
            f"GPU, and the loader may use {memory / 1e6:,.1f} MB of it: reduce batch_size, or "
            "raise device_memory if the GPU has memory free"
        )


# -- a dataset that stays on the GPU --------------------------------------------------------------


def resident_bytes(
    plan: Plan, layout: Layout, block_bytes: int, *, index_bytes: int, sort_bytes: int
) -> int:
    """Bytes for all rows, as far as known before they are read, for their order, and for scratch.

    Parameters
    ----------
    plan, layout
        Those of the loader.
    block_bytes
        Bytes of a row's scalars.
    index_bytes
        Bytes of a row's place in a permutation.
    sort_bytes
        Bytes needed while a permutation is drawn.
    """
    row = block_bytes + sum(n * d.itemsize for _, n, d in layout.fixed) + 8 * len(layout.lists)
    scratch = 2 * max(plan.sizes) * block_bytes  # a partition on its way
    if plan.shuffle:
        row += RESIDENT_ORDERS * index_bytes
        scratch = max(scratch, sort_bytes)
    return plan.rows * row + scratch


def plan_resident(
    request: MemoryRequest, resident: int, memory: int, depth: int
) -> tuple[int, int]:
    """Steps of the largest chunks that fit beside so many resident bytes, and the bytes in all.

    These are more than `memory` if not even chunks of one step fit.
    """
    steps = max(request.plan.chunk, _CHUNK_ROWS // request.batch_rows)
    while steps > 1 and resident + request.chunks_bytes(steps, depth) > memory:
        steps = steps * 3 // 4
    return steps, resident + request.chunks_bytes(steps, depth)
