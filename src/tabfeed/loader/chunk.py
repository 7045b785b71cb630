"""A chunk: rows of several partitions, gathered into buffers shaped ``(columns, rows)``.

Columns stay columns. For each one, the runs the plan asks for are laid end to end in a
scratch array, gathered by the plan's index, and cast to the batch's dtype while they are
still in cache. (Gathering from the runs where they lie, without the copy, was measured slower:
the copy reads memory in order, and the gather then finds it in cache.) `numpy.take` with
``out=`` and ``mode="clip"`` and plain assignment both release the interpreter lock, so several
threads make several chunks at once.

In order and in the file's own dtypes nothing needs to move: batches are then views of what the
decoder wrote, and only a batch that spans two partitions is copied.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tabfeed.loader.buffers import BufferPool, Scratch, writable_view
from tabfeed.loader.columns import Group, Layout, Lists, Part
from tabfeed.loader.plan import ChunkPlan, Run
from tabfeed.trace import span

__all__ = ["Chunk", "ChunkMaker"]

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
        Columns that ride along.
    """

    bounds: Index
    matrices: dict[str, Array] = field(default_factory=dict)
    columns: dict[str, Array] = field(default_factory=dict)
    lists: dict[str, Lists] = field(default_factory=dict)
    extras: dict[str, pa.Array] = field(default_factory=dict)

    @property
    def rows(self) -> int:
        """How many rows."""
        return int(self.bounds[-1])

    @property
    def steps(self) -> int:
        """How many batches."""
        return len(self.bounds) - 1


@dataclass
class ChunkMaker:
    """Makes chunks of one layout; threads may share it.

    Parameters
    ----------
    layout
        What a batch is made of.
    views
        Whether the parts' memory is ours alone, so that batches may be views of it.
    """

    layout: Layout
    views: bool = False
    pool: BufferPool = field(default_factory=BufferPool)
    scratch: Scratch = field(default_factory=Scratch)

    def make(self, plan: ChunkPlan, parts: Mapping[int, Part]) -> list[Chunk]:
        """The rows of `plan`; several chunks where some rows can be delivered without a copy."""
        with span("gather", rows=plan.rows):
            if plan.index is None and self.views and not self.layout.matrices:
                return [self._view_or_copy(p, parts) for p in _split_at_runs(plan)]
            return [self._copy(plan, parts)]

    def _view_or_copy(self, plan: ChunkPlan, parts: Mapping[int, Part]) -> Chunk:
        if len(plan.runs) != 1:
            return self._copy(plan, parts)
        run = plan.runs[0]
        part = parts[run.part]
        dtypes = {c: g.dtype for g in self.layout.groups for c in g.columns}
        if any(part.scalars[c].dtype != d for c, d in dtypes.items()):
            return self._copy(plan, parts)
        chunk = Chunk(plan.bounds)
        for name, array in part.scalars.items():
            chunk.columns[name] = writable_view(array[run.start : run.stop])
        self._rest(chunk, plan, parts)
        return chunk

    def _copy(self, plan: ChunkPlan, parts: Mapping[int, Part]) -> Chunk:
        chunk = Chunk(plan.bounds)
        for group in self.layout.groups:
            buffer = self.pool.empty((len(group.columns), plan.rows), group.dtype)
            for row, name in zip(buffer, group.columns, strict=True):
                self._gather(
                    [parts[r.part].scalars[name][r.start : r.stop] for r in plan.runs], plan, row
                )
            self._keep(chunk, group, buffer)
        for name, width, dtype in self.layout.fixed:
            out = self.pool.empty((plan.rows, width), dtype)
            arrays = [parts[r.part].scalars[name][r.start : r.stop] for r in plan.runs]
            source = arrays[0] if len(arrays) == 1 else np.concatenate(arrays or [out])
            out[:] = source if plan.index is None else np.take(source, plan.index, axis=0)
            chunk.columns[name] = out
        self._rest(chunk, plan, parts)
        return chunk

    def _keep(self, chunk: Chunk, group: Group, buffer: Array) -> None:
        if self.layout.matrices:
            chunk.matrices[group.name] = buffer
        else:
            chunk.columns.update(zip(group.columns, buffer, strict=True))

    def _gather(self, arrays: Sequence[Array], plan: ChunkPlan, out: Array) -> None:
        """Lay arrays end to end, gather, cast."""
        if not arrays:
            return
        kinds = {a.dtype for a in arrays}
        kind = kinds.pop() if len(kinds) == 1 else out.dtype
        if plan.index is None:
            np.concatenate(arrays, out=out, casting="unsafe")
            return
        if len(arrays) == 1 and arrays[0].dtype == kind:
            source = arrays[0]
        else:
            source = self.scratch.get("laid", sum(len(a) for a in arrays), kind)
            np.concatenate(arrays, out=source, casting="unsafe")
        if kind == out.dtype:
            np.take(source, plan.index, out=out, mode="clip")
        else:
            gathered = self.scratch.get("gathered", len(out), kind)
            np.take(source, plan.index, out=gathered, mode="clip")
            np.copyto(out, gathered, casting="unsafe")

    def _rest(self, chunk: Chunk, plan: ChunkPlan, parts: Mapping[int, Part]) -> None:
        for name, dtype in self.layout.lists:
            runs = [slice_lists(parts[r.part].lists[name], r) for r in plan.runs]
            chunk.lists[name] = gather_lists(join_lists(runs, dtype), plan.index)
        for name in self.layout.extras:
            arrays = [
                parts[r.part].extras[name].slice(r.start, r.stop - r.start) for r in plan.runs
            ]
            joined = pa.concat_arrays(arrays) if len(arrays) != 1 else arrays[0]
            chunk.extras[name] = joined if plan.index is None else joined.take(pa.array(plan.index))


def _split_at_runs(plan: ChunkPlan) -> Iterator[ChunkPlan]:
    """Cut an ordered chunk so that as many batches as possible lie within one run."""
    ends = np.cumsum([r.stop - r.start for r in plan.runs])
    first = np.searchsorted(ends, plan.bounds[:-1], side="right")
    last = np.searchsorted(ends, plan.bounds[1:], side="left")
    # Batches of one run share a key; one that spans runs has a key of its own.
    keys = np.where(first == last, first, -1 - np.arange(plan.steps))
    cuts = [0, *(np.flatnonzero(np.diff(keys)) + 1).tolist(), plan.steps]
    for start, stop in pairwise(cuts):
        if start < stop:
            low, high = int(plan.bounds[start]), int(plan.bounds[stop])
            runs = tuple(_rows_of_runs(plan.runs, low, high))
            bounds = plan.bounds[start : stop + 1] - low
            yield ChunkPlan(plan.first_step + start, runs, None, bounds)


def _rows_of_runs(runs: Sequence[Run], low: int, high: int) -> Iterator[Run]:
    offset = 0
    for run in runs:
        rows = run.stop - run.start
        start, stop = max(low, offset), min(high, offset + rows)
        if start < stop:
            yield Run(run.part, run.start + start - offset, run.start + stop - offset)
        offset += rows


def slice_lists(lists: Lists, run: Run) -> Lists:
    """The rows of a run."""
    offsets = lists.offsets[run.start : run.stop + 1]
    return Lists(lists.values[offsets[0] : offsets[-1]], offsets - offsets[0])


def join_lists(runs: Sequence[Lists], dtype: np.dtype[Any]) -> Lists:
    """Ragged rows laid end to end, in the batch's dtype."""
    if not runs:
        return Lists(np.empty(0, dtype), np.zeros(1, np.int64))
    if len(runs) == 1:
        return Lists(runs[0].values.astype(dtype), runs[0].offsets)
    shifts = np.cumsum([0, *(len(r.values) for r in runs[:-1])])
    offsets = [r.offsets[1:] + shift for r, shift in zip(runs, shifts, strict=True)]
    values = np.concatenate([r.values for r in runs], dtype=dtype, casting="unsafe")
    return Lists(values, np.concatenate([[0], *offsets]).astype(np.int64))


def gather_lists(lists: Lists, index: Index | None) -> Lists:
    """Ragged rows in another order.

    Examples
    --------
    >>> rows = Lists(np.array([1, 2, 3, 4]), np.array([0, 2, 2, 4]))
    >>> gather_lists(rows, np.array([2, 0]))
    Lists(values=array([3, 4, 1, 2]), offsets=array([0, 2, 4]))
    """
    if index is None:
        return lists
    lengths = np.diff(lists.offsets)[index]
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    where = np.repeat(lists.offsets[:-1][index] - offsets[:-1], lengths)
    where += np.arange(len(where))
    return Lists(np.take(lists.values, where, mode="clip"), offsets)
