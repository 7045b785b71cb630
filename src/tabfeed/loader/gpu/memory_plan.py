"""How the memory that a loader may have on a GPU is divided: blocks, chunks, and what decodes.

A chunk costs Python once, whatever its size, and Python is what a training loop runs on: so chunks
are larger here than on the CPU, as far as memory goes. Nothing of the order depends on that.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tabfeed.loader.plan.order import Plan
from tabfeed.loader.read.arrow_columns import Layout

__all__ = ["MemoryPlan", "MemoryRequest", "least", "plan_memory"]

_CHUNK_ROWS = 2**19
_DECODING = 2.95  # memory pylibcudf takes while it decodes, in decoded sizes; 2.91 was measured
_LAYING = 1  # the same for what is decoded, and on its way into device buffers
# How many blocks to decode in one call, and how many calls at a time, the fastest first.
_WAYS = ((8, 3), (8, 2), (4, 3), (4, 2), (2, 3), (2, 2), (1, 3), (1, 2), (1, 1))
# The same where the GPU unpacks files: blocks that a stream has at a time, and streams.
_LANES = ((4, 2), (2, 2), (1, 2), (1, 1))
_TABLES = 2**20  # bytes for what is to be known of a block's pages
_MORE = 1.05  # row groups may be larger than those that were looked at
_LEAST_ROWS = 2**17  # of a chunk, before another way is better


@dataclass(frozen=True)
class MemoryRequest:
    """What a loader needs memory for.

    Attributes
    ----------
    plan
        The order.
    batch
        Bytes of a row in a batch.
    block
        Bytes of a row in a block.
    passing
        Bytes of a row while it is gathered and cast.
    here
        Whether one thread, that of the training, makes all chunks.
    packed, plain
        Bytes of a row in its file, and decompressed; 0 where the GPU does not unpack files.
    held
        Chunks that are there at a time where one thread makes them: ready, in use and not yet given
        back.
    """

    plan: Plan
    batch: int
    block: int
    passing: int
    here: bool = False
    encoded: float = 0
    plain: float = 0
    held: int = 3

    @classmethod
    def of(cls, plan: Plan, layout: Layout, dtypes: dict[str, np.dtype[Any]]) -> MemoryRequest:
        """For a layout whose groups have these dtypes in lots."""
        sizes = {g.name: len(g.columns) * dtypes[g.name].itemsize for g in layout.groups}
        cast = [sizes[g.name] for g in layout.groups if g.dtype != dtypes[g.name]]
        places = 4 * len({dtypes[g.name].itemsize for g in layout.groups})
        return cls(plan, layout.row_bytes, sum(sizes.values()), sum(cast) + places)

    @property
    def block_rows(self) -> int:
        """Most rows of a lot."""
        sizes, least = self.plan.sizes, self.plan.block
        largest = max(sizes, default=0)
        most = largest if min(sizes, default=0) >= least else largest + least - 1
        return min(most, self.plan.rows)

    @property
    def batch_rows(self) -> int:
        """Rows of a batch, on one rank."""
        return -(-self.plan.batch // self.plan.ranks)

    @property
    def encoded_block(self) -> tuple[int, int]:
        """Most bytes of a lot in its files, and decompressed: some more than those looked at."""
        return tuple(
            int(self.block_rows * nbytes * _MORE) + 1 for nbytes in (self.encoded, self.plain)
        )  # type: ignore[return-value]

    def chunk_bytes(self, steps: int) -> int:
        """Bytes of a chunk of so many batches."""
        return steps * self.batch_rows * self.batch

    def chunks_bytes(self, steps: int, depth: int) -> int:
        """Chunks that are ready, in use and not yet given back, and those in the making."""
        held, making = (self.held, 1) if self.here else (depth + 2, 2)
        return held * self.chunk_bytes(steps) + making * steps * self.batch_rows * self.passing

    def open_blocks(self, steps: int, depth: int) -> int:
        """Most lots that the chunks in the making need at a time."""
        ranks = self.plan.ranks
        streams = max(len(self.plan.rank_streams(rank, ranks)) for rank in range(ranks))
        share = -(-steps * self.batch_rows // streams)
        least = max(self.plan.block, min((s for s in self.plan.sizes if s), default=1))
        return streams * (depth * share // least + 2)


@dataclass(frozen=True)
class MemoryPlan:
    """How memory is divided.

    Attributes
    ----------
    steps
        Batches of a chunk.
    depth
        Chunks ahead.
    rows
        Most rows of a block.
    blocks
        How many blocks may lie on the GPU.
    together
        Blocks decoded in one call.
    readings
        How many readings pylibcudf may do at a time.
    decoding
        Bytes for what pylibcudf decodes.
    decode streams
        How many streams unpack files, each with `together` blocks at a time.
    """

    steps: int
    depth: int
    rows: int
    blocks: int
    together: int = 1
    readings: int = 0
    decoding: int = 0
    decode_streams: int = 0


def plan_memory(
    need: MemoryRequest, memory: int, *, how: str = "arrow", copies: int = 0
) -> MemoryPlan | None:
    """How to divide so many bytes; None if not even the least fits.

    Parameters
    ----------
    need
        What for.
    memory
        How many.
    how
        Who decodes: "arrow", "cudf", or the GPU itself, which unpacks files: "packed".
    copies
        Batches of a chunk that may have memory of their own, beside the chunk's.
    """
    backends = {"arrow": _for_arrow, "cudf": _for_cudf, "packed": _for_encoded}
    for share, nbytes in backends[how](need):
        left = memory - nbytes - need.chunk_bytes(min(copies, share.steps - 1))
        if left >= 0:
            return _with_more(share, left // max(1, need.block_rows * need.block))
    return None


def least(need: MemoryRequest) -> int:
    """Bytes without which nothing can be made on the GPU."""
    return min(nbytes for _, nbytes in _for_arrow(need))


def _with_more(share: MemoryPlan, blocks: int) -> MemoryPlan:
    """The same with room for more lots, where what is decoded early lies on the GPU."""
    if not share.readings:
        return share
    blocks = min(blocks, share.together * share.readings)
    return replace(share, blocks=share.blocks + blocks)


def _sizes(need: MemoryRequest) -> Iterator[tuple[int, int]]:
    """Steps and depth of chunks, the best first."""
    steps = max(need.plan.chunk, _CHUNK_ROWS // need.batch_rows)
    while steps >= 1:
        yield from ((steps, 3), (steps, 2))
        steps = steps * 3 // 4 if steps > 1 else 0


def _for_arrow(need: MemoryRequest) -> Iterator[tuple[MemoryPlan, int]]:
    for steps, depth in _sizes(need):
        blocks = need.open_blocks(steps, depth)
        nbytes = blocks * need.block_rows * need.block + need.chunks_bytes(steps, depth)
        yield MemoryPlan(steps, depth, need.block_rows, blocks), nbytes


def _for_encoded(need: MemoryRequest) -> Iterator[tuple[MemoryPlan, int]]:
    block = need.block_rows * need.block
    for together, decode_streams in _LANES:
        unpacking = decode_streams * together * (sum(need.encoded_block) + _TABLES)
        for steps, depth in _sizes(need):
            if (
                steps * need.batch_rows < 2 * _LEAST_ROWS
                and (together, decode_streams) != _LANES[-1]
            ):
                break
            blocks = need.open_blocks(steps, depth)
            nbytes = blocks * block + unpacking + need.chunks_bytes(steps, depth)
            yield (
                MemoryPlan(
                    steps, depth, need.block_rows, blocks, together, decode_streams=decode_streams
                ),
                nbytes,
            )


def _for_cudf(need: MemoryRequest) -> Iterator[tuple[MemoryPlan, int]]:
    block = need.block_rows * need.block
    for together, readings in _WAYS:
        decoding = int((readings * _DECODING + _LAYING) * together * block)
        for steps, depth in _sizes(need):
            if steps * need.batch_rows < _LEAST_ROWS and (together, readings) != _WAYS[-1]:
                break
            blocks = need.open_blocks(steps, depth) + together * readings
            nbytes = blocks * block + decoding + need.chunks_bytes(steps, depth)
            share = MemoryPlan(steps, depth, need.block_rows, blocks, together, readings, decoding)
            yield share, nbytes
