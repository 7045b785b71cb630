"""A chunk: batches made in one go of rows of several blocks, in buffers shaped ``(columns, rows)``.

The plan says which rows of which block go where, as a few evenly spaced copy runs; each is one
strided copy of all columns of a group, with a cast on the way, for which the GIL is released.

Where a batch lies within one block as it is (one stream, and the dtypes of the files), nothing is
copied: the batch is a view of the block's buffers. Nor is anything where blocks that are not
shuffled were read into the chunk itself (`tabfeed.loader.assemble.in_order`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from numpy.lib.stride_tricks import as_strided

from tabfeed.loader.assemble.in_order import filled_buffers
from tabfeed.loader.plan.order import ChunkPlan, CopyRun
from tabfeed.loader.read.arrow_columns import Group, Layout, Lists
from tabfeed.loader.read.blocks import Block
from tabfeed.loader.read.buffers import BufferPool
from tabfeed.loader.read.ragged import gather_lists, join_lists, slice_lists
from tabfeed.trace import span

__all__ = ["Chunk", "ChunkMaker", "MakesChunks"]

Array = npt.NDArray[Any]
Index = npt.NDArray[np.int64]


@dataclass
class Chunk:
    """Rows ready to be cut into batches: batch ``i`` is rows ``[bounds[i], bounds[i + 1])``.

    Attributes
    ----------
    matrices
        ``(columns, rows)`` by group, where the layout asks for matrices.
    columns
        Scalar columns ``(rows,)`` and lists of fixed length ``(rows, length)``, by name.
    lists
        Ragged columns.
    extras
        Columns that pass through as Arrow arrays.
    first_step
        The number of its first batch in the epoch.
    """

    bounds: Index
    matrices: dict[str, Array] = field(default_factory=dict)
    columns: dict[str, Array] = field(default_factory=dict)
    lists: dict[str, Lists] = field(default_factory=dict)
    extras: dict[str, pa.Array] = field(default_factory=dict)
    first_step: int = 0

    @property
    def rows(self) -> int:
        """How many rows."""
        return int(self.bounds[-1])

    @property
    def steps(self) -> int:
        """How many batches."""
        return len(self.bounds) - 1


class MakesChunks(Protocol):
    """Anything that puts the rows of blocks together."""

    def make(self, plan: ChunkPlan, blocks: Mapping[int, Any]) -> list[Chunk]:
        """The rows of `plan`."""
        ...


@dataclass
class ChunkMaker:
    """Makes chunks of one layout; threads may share it.

    Parameters
    ----------
    layout
        What a batch is made of.
    pool
        Where the chunks' memory comes from.
    """

    layout: Layout
    pool: BufferPool = field(default_factory=BufferPool)

    def make(self, plan: ChunkPlan, blocks: Mapping[int, Block]) -> list[Chunk]:
        """The rows of `plan`; several chunks where some batches need no copy."""
        laid = self._laid(plan, blocks)
        if laid is not None:
            return [laid]
        with span("gather", rows=plan.rows):
            if not self._same_dtypes(plan, blocks):
                return [self._copy(plan, blocks)]
            return [
                self._view(p, blocks[p.copy_runs[0].block]) if _is_run(p) else self._copy(p, blocks)
                for p in _split_at_blocks(plan)
            ]

    def make_whole(self, plan: ChunkPlan, blocks: Mapping[int, Block]) -> Chunk:
        """The same as one chunk, everything copied."""
        laid = self._laid(plan, blocks)
        if laid is not None:
            return laid
        with span("gather", rows=plan.rows):
            return self._copy(plan, blocks)

    def _laid(self, plan: ChunkPlan, blocks: Mapping[int, Any]) -> Chunk | None:
        """The chunk that the blocks were read into, if they were."""
        filled = filled_buffers([blocks[n] for n in {s.block for s in plan.copy_runs}], plan)
        if filled is None:
            return None
        chunk = Chunk(plan.bounds, first_step=plan.first_step)
        for group in self.layout.groups:
            self._keep(chunk, group, filled.matrices[group.name])
        return chunk

    def _same_dtypes(self, plan: ChunkPlan, blocks: Mapping[int, Block]) -> bool:
        """Whether blocks have the columns as batches are to have them."""
        used = [blocks[s.block] for s in plan.copy_runs]
        groups = self.layout.groups
        return all(block.matrices[g.name].dtype == g.dtype for block in used for g in groups)

    def _view(self, plan: ChunkPlan, block: Block) -> Chunk:
        start = plan.copy_runs[0].start
        stop = start + plan.rows
        chunk = Chunk(plan.bounds, first_step=plan.first_step)
        for group in self.layout.groups:
            self._keep(chunk, group, block.matrices[group.name][:, start:stop])
        for name, array in block.fixed.items():
            chunk.columns[name] = array[start:stop]
        for name, lists in block.lists.items():
            chunk.lists[name] = slice_lists(lists, start, stop)
        for name, extra in block.extras.items():
            chunk.extras[name] = extra.slice(start, plan.rows)
        return chunk

    def _copy(self, plan: ChunkPlan, blocks: Mapping[int, Block]) -> Chunk:
        chunk = Chunk(plan.bounds, first_step=plan.first_step)
        for group in self.layout.groups:
            buffer = self.pool.empty((len(group.columns), plan.rows), group.dtype)
            for copy_run in plan.copy_runs:
                _lay(copy_run, blocks[copy_run.block].matrices[group.name], buffer)
            self._keep(chunk, group, buffer)
        for name, width, dtype in self.layout.fixed:
            out = chunk.columns[name] = self.pool.empty((plan.rows, width), dtype)
            for copy_run in plan.copy_runs:
                _lay(copy_run, blocks[copy_run.block].fixed[name].T, out.T)
        if self.layout.lists or self.layout.extras:
            self._copy_ragged(chunk, plan, blocks)
        return chunk

    def _copy_ragged(self, chunk: Chunk, plan: ChunkPlan, blocks: Mapping[int, Block]) -> None:
        """Lay the copy runs end to end, then gather: such columns have no positions to copy to."""
        used = [
            (blocks[s.block], s.start, s.start + (s.steps - 1) * s.src_stride + s.width)
            for s in plan.copy_runs
        ]
        index = None if _follow(plan.copy_runs) else _positions(plan)
        for name, dtype in self.layout.lists:
            runs = [slice_lists(block.lists[name], start, stop) for block, start, stop in used]
            chunk.lists[name] = gather_lists(join_lists(runs, dtype), index, dtype)
        for name in self.layout.extras:
            arrays = [block.extras[name].slice(start, stop - start) for block, start, stop in used]
            laid = pa.concat_arrays(arrays)
            chunk.extras[name] = laid if index is None else laid.take(pa.array(index))

    def _keep(self, chunk: Chunk, group: Group, buffer: Array) -> None:
        if self.layout.matrices:
            chunk.matrices[group.name] = buffer
        else:
            chunk.columns.update(zip(group.columns, buffer, strict=True))


def _lay(copy_run: CopyRun, source: Array, out: Array) -> None:
    """Copy the columns of a run to their positions."""
    if copy_run.steps == 1:
        start, position, width = copy_run.start, copy_run.position, copy_run.width
        to = out[:, position : position + width]
        np.copyto(to, source[:, start : start + width], casting="unsafe")
    else:
        np.copyto(
            _spaced(out[:, copy_run.position :], copy_run.dst_stride, copy_run),
            _spaced(source[:, copy_run.start :], copy_run.src_stride, copy_run),
            casting="unsafe",
        )


def _spaced(array: Array, distance: int, copy_run: CopyRun) -> Array:
    """``(columns, steps, width)``: a view of positions that lie `distance` rows apart."""
    across, along = array.strides
    shape = (array.shape[0], copy_run.steps, copy_run.width)
    return as_strided(array, shape, (across, distance * along, along))


def _positions(plan: ChunkPlan) -> Index:
    """Where the row of each position lies in the copy runs laid end to end."""
    index: Index = np.empty((1, plan.rows), np.int64)
    offset = 0
    for copy_run in plan.copy_runs:
        length = (copy_run.steps - 1) * copy_run.src_stride + copy_run.width
        _lay(copy_run._replace(start=0), np.arange(offset, offset + length)[None], index)
        offset += length
    return index.reshape(-1)


def _follow(copy_runs: tuple[CopyRun, ...]) -> bool:
    """Whether copy runs laid end to end have every row at its position."""
    position = 0
    for copy_run in copy_runs:
        gaps = (
            copy_run.steps > 1 and not copy_run.src_stride == copy_run.width == copy_run.dst_stride
        )
        if gaps or copy_run.position != position:
            return False
        position += copy_run.steps * copy_run.width
    return True


def _is_run(plan: ChunkPlan) -> bool:
    """Whether all of it lies end to end in one block."""
    if len(plan.copy_runs) != 1:
        return False
    return plan.copy_runs[0].has_no_gaps


def _split_at_blocks(plan: ChunkPlan) -> Iterator[ChunkPlan]:
    """Cut a chunk so that as many batches as possible lie within one block; or leave it whole."""
    positions = [s.position for s in plan.copy_runs]
    gaps = any(not s.src_stride == s.width == s.dst_stride for s in plan.copy_runs)
    if gaps or positions != sorted(positions):
        yield plan  # several streams: no batch lies in one block
        return
    ends = np.cumsum([s.steps * s.width for s in plan.copy_runs])
    first = np.searchsorted(ends, plan.bounds[:-1], side="right")
    last = np.searchsorted(ends, plan.bounds[1:], side="left")
    # Batches of one copy run share a key; one that spans copy runs has a key of its own.
    keys = np.where(first == last, first, -1 - np.arange(plan.steps))
    cuts = [0, *(np.flatnonzero(np.diff(keys)) + 1).tolist(), plan.steps]
    for start, stop in pairwise(cuts):
        if start < stop:
            low, high = int(plan.bounds[start]), int(plan.bounds[stop])
            copy_runs = tuple(_rows_of_copy_runs(plan.copy_runs, low, high))
            yield ChunkPlan(plan.first_step + start, copy_runs, plan.bounds[start : stop + 1] - low)


def _rows_of_copy_runs(copy_runs: tuple[CopyRun, ...], low: int, high: int) -> Iterator[CopyRun]:
    """What copy runs without gaps have for the positions ``[low, high)``."""
    for copy_run in copy_runs:
        start = max(low, copy_run.position)
        width = min(high, copy_run.position + copy_run.steps * copy_run.width) - start
        if width > 0:
            first = copy_run.start + start - copy_run.position
            yield CopyRun(copy_run.block, first, width, 1, width, start - low, width)
