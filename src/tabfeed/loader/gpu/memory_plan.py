"""How the memory that a loader may have on a GPU is divided: lots, chunks, and what decodes.

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

__all__ = ["MemoryPlan", "MemoryRequest", "divide", "least"]

_CHUNK_ROWS = 2**19
_DECODING = 2.95  # memory pylibcudf takes while it decodes, in decoded sizes; 2.91 was measured
_LAYING = 1  # the same for what is decoded, and on its way into slabs
# How many lots to decode in one call, and how many calls at a time, the fastest first.
_WAYS = ((8, 3), (8, 2), (4, 3), (4, 2), (2, 3), (2, 2), (1, 3), (1, 2), (1, 1))
# The same where the GPU unpacks files: lots that a stream has at a time, and streams.
_LANES = ((4, 2), (2, 2), (1, 2), (1, 1))
_TABLES = 2**20  # bytes for what is to be known of a lot's pages
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
    lot
        Bytes of a row in a lot.
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
    lot: int
    passing: int
    here: bool = False
    packed: float = 0
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
    def lot_rows(self) -> int:
        """Most rows of a lot."""
        sizes, least = self.plan.sizes, self.plan.lot
        largest = max(sizes, default=0)
        most = largest if min(sizes, default=0) >= least else largest + least - 1
        return min(most, self.plan.rows)

    @property
    def batch_rows(self) -> int:
        """Rows of a batch, on one rank."""
        return -(-self.plan.batch // self.plan.ranks)

    @property
    def packed_lot(self) -> tuple[int, int]:
        """Most bytes of a lot in its files, and decompressed: some more than those looked at."""
        return tuple(
            int(self.lot_rows * nbytes * _MORE) + 1 for nbytes in (self.packed, self.plain)
        )  # type: ignore[return-value]

    def chunk_bytes(self, steps: int) -> int:
        """Bytes of a chunk of so many batches."""
        return steps * self.batch_rows * self.batch

    def chunks_bytes(self, steps: int, depth: int) -> int:
        """Chunks that are ready, in use and not yet given back, and those in the making."""
        held, making = (self.held, 1) if self.here else (depth + 2, 2)
        return held * self.chunk_bytes(steps) + making * steps * self.batch_rows * self.passing

    def open_lots(self, steps: int, depth: int) -> int:
        """Most lots that the chunks in the making need at a time."""
        ranks = self.plan.ranks
        streams = max(len(self.plan.rank_streams(rank, ranks)) for rank in range(ranks))
        share = -(-steps * self.batch_rows // streams)
        least = max(self.plan.lot, min((s for s in self.plan.sizes if s), default=1))
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
        Most rows of a lot.
    lots
        How many lots may lie on the GPU.
    together
        Lots decoded in one call.
    readings
        How many readings pylibcudf may do at a time.
    decoding
        Bytes for what pylibcudf decodes.
    lanes
        How many streams unpack files, each with `together` lots at a time.
    """

    steps: int
    depth: int
    rows: int
    lots: int
    together: int = 1
    readings: int = 0
    decoding: int = 0
    lanes: int = 0


def divide(
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
    ways = {"arrow": _for_arrow, "cudf": _for_cudf, "packed": _for_packed}
    for share, nbytes in ways[how](need):
        left = memory - nbytes - need.chunk_bytes(min(copies, share.steps - 1))
        if left >= 0:
            return _with_more(share, left // max(1, need.lot_rows * need.lot))
    return None


def least(need: MemoryRequest) -> int:
    """Bytes without which nothing can be made on the GPU."""
    return min(nbytes for _, nbytes in _for_arrow(need))


def _with_more(share: MemoryPlan, lots: int) -> MemoryPlan:
    """The same with room for more lots, where what is decoded early lies on the GPU."""
    if not share.readings:
        return share
    lots = min(lots, share.together * share.readings)
    return replace(share, lots=share.lots + lots)


def _sizes(need: MemoryRequest) -> Iterator[tuple[int, int]]:
    """Steps and depth of chunks, the best first."""
    steps = max(need.plan.chunk, _CHUNK_ROWS // need.batch_rows)
    while steps >= 1:
        yield from ((steps, 3), (steps, 2))
        steps = steps * 3 // 4 if steps > 1 else 0


def _for_arrow(need: MemoryRequest) -> Iterator[tuple[MemoryPlan, int]]:
    for steps, depth in _sizes(need):
        lots = need.open_lots(steps, depth)
        nbytes = lots * need.lot_rows * need.lot + need.chunks_bytes(steps, depth)
        yield MemoryPlan(steps, depth, need.lot_rows, lots), nbytes


def _for_packed(need: MemoryRequest) -> Iterator[tuple[MemoryPlan, int]]:
    block = need.lot_rows * need.lot
    for together, lanes in _LANES:
        unpacking = lanes * together * (sum(need.packed_lot) + _TABLES)
        for steps, depth in _sizes(need):
            if steps * need.batch_rows < 2 * _LEAST_ROWS and (together, lanes) != _LANES[-1]:
                break
            lots = need.open_lots(steps, depth)
            nbytes = lots * block + unpacking + need.chunks_bytes(steps, depth)
            yield MemoryPlan(steps, depth, need.lot_rows, lots, together, lanes=lanes), nbytes


def _for_cudf(need: MemoryRequest) -> Iterator[tuple[MemoryPlan, int]]:
    block = need.lot_rows * need.lot
    for together, readings in _WAYS:
        decoding = int((readings * _DECODING + _LAYING) * together * block)
        for steps, depth in _sizes(need):
            if steps * need.batch_rows < _LEAST_ROWS and (together, readings) != _WAYS[-1]:
                break
            lots = need.open_lots(steps, depth) + together * readings
            nbytes = lots * block + decoding + need.chunks_bytes(steps, depth)
            share = MemoryPlan(steps, depth, need.lot_rows, lots, together, readings, decoding)
            yield share, nbytes
