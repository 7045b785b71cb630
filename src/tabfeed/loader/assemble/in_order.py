"""Rows that are not shuffled: each column is copied once, from where it was decoded to its batches.

Where rows are shuffled, a block is gathered into memory of its own, and chunks are made of copy
runs of several blocks. Where they are not, a row's place in its chunk is known before it is
decoded, so a block has no memory of its own: each of its columns is laid into the *trays* of the
chunks it belongs to, cast on the way, while it is in the processor's cache. When all blocks of a
chunk are read, its tray is the chunk. Measured on two cores, 1 M rows of 40 columns: 0.16 processor
seconds, where a copy into blocks and another into chunks took 0.19, and decoding alone takes 0.15.

A tray belongs to the blocks that have rows in it, and goes when the chunk is made and they are
gone: two threads whose blocks meet in a chunk find the same one, whoever came first.

What was given up: lists and what rides along have no place before they are decoded, so layouts with
such columns go the usual way. So do several streams, and rows that are given twice.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from tabfeed.loader.plan.order import ChunkPlan, CopyRun, Epoch, Plan
from tabfeed.loader.plan.shard import Shard
from tabfeed.loader.read.blocks import BlockReader
from tabfeed.loader.read.partition_reader import PartReader, ReadsParts
from tabfeed.trace import span

__all__ = ["HostBlock", "InOrderBlocks", "Tray", "rows_follow", "taken_from"]

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Tray:
    """The buffers of a chunk, ``(columns, rows)`` by group, into which lots are laid."""

    plan: ChunkPlan
    matrices: dict[str, Array]


@dataclass(frozen=True)
class HostBlock:
    """A lot that was read into trays; `trays` has those of chunks not yet made, by first step."""

    trays: dict[int, Tray] = field(default_factory=dict)


class _Target(NamedTuple):
    """Rows ``[start, stop)`` of a lot go to the places from `place` on of a tray."""

    start: int
    stop: int
    place: int
    tray: Tray


class _Row(NamedTuple):
    """A row of a tray's buffers."""

    group: str
    number: int
    dtype: np.dtype[Any]


def rows_follow(plan: Plan, place: Shard) -> bool:
    """Whether a rank gets the rows of one run of the data, each once, one after the other."""
    return not plan.shuffle and plan.streams == place.world and plan.delivered <= plan.rows


def taken_from(blocks: Sequence[Any], plan: ChunkPlan) -> Tray | None:
    """The tray of a chunk, once all of its lots are read; None if they lie in no trays."""
    tray: Tray | None = None
    for block in blocks:
        if isinstance(block, HostBlock):
            tray = block.trays.pop(plan.first_step)
    return tray


class InOrderBlocks:
    """Reads the blocks of one pass over the data into trays; threads may share it.

    Parameters
    ----------
    reader
        Knows the columns, their memory and who reads partitions.
    parts
        Reads partitions.
    epoch, place
        Which rows, on which rank; see `rows_follow`.
    first
        The first chunk that will be made.
    """

    def __init__(
        self, reader: BlockReader, parts: ReadsParts, epoch: Epoch, place: Shard, first: int
    ) -> None:
        self._layout, self._pool, self._parts = reader.layout, reader.pool, parts
        self._epoch, self._place, self._first = epoch, place, first
        self._lock = threading.Lock()
        self._trays: weakref.WeakValueDictionary[int, Tray] = weakref.WeakValueDictionary()
        self._rows: dict[str, list[_Row]] = {}  # where a column lies in trays
        for group in reader.layout.groups:
            for number, name in enumerate(group.columns):
                self._rows.setdefault(name, []).append(_Row(group.name, number, group.dtype))

    def read(self, numbers: Sequence[int]) -> list[HostBlock]:
        """Some lots."""
        return [self._read(number) for number in numbers]

    def _read(self, number: int) -> HostBlock:
        with span("plan"):
            targets = list(self._targets(number))
        start = 0
        for partition in self._epoch.partitions(number):
            stop = start + self._epoch.plan.sizes[partition]
            self._lay(partition, list(_within(targets, start, stop)))
            start = stop
        return HostBlock({t.tray.plan.first_step: t.tray for t in targets})

    def _targets(self, block: int) -> Iterator[_Target]:
        chunks = self._epoch.chunks_of(block, *self._place)
        for chunk in range(max(chunks.start, self._first), chunks.stop):
            tray = self._tray(chunk)
            for copy_run in tray.plan.copy_runs:
                if copy_run.block == block:
                    yield _Target(
                        copy_run.start, copy_run.start + _rows(copy_run), copy_run.place, tray
                    )

    def _tray(self, chunk: int) -> Tray:
        with self._lock:
            tray = self._trays.get(chunk)
            if tray is None:
                plan = self._epoch.chunk(chunk, *self._place)
                tray = self._trays[chunk] = Tray(plan, self._buffers(plan.rows))
            return tray

    def _buffers(self, rows: int) -> dict[str, Array]:
        groups = self._layout.groups
        return {g.name: self._pool.empty((len(g.columns), rows), g.dtype) for g in groups}

    def _lay(self, partition: int, targets: Sequence[_Target]) -> None:
        """Copy the columns of a partition, one after the other, to where they belong."""
        places = {
            name: [[(t, t.tray.matrices[r.group][r.number]) for t in targets] for r in rows]
            for name, rows in self._rows.items()
        }
        size = self._epoch.plan.sizes[partition]
        for name, sources in self._columns(partition):
            with span("gather", rows=size):
                for source, outs in zip(sources, places[name], strict=True):
                    for (start, stop, place, _), out in outs:
                        into = out[place : place + stop - start]
                        np.copyto(into, source[start:stop], casting="unsafe")

    def _columns(self, partition: int) -> Iterator[tuple[str, list[Array]]]:
        """The columns of a partition, each once for every row of a tray that it goes to."""
        parts = self._parts
        if isinstance(parts, PartReader):
            straight = parts.straight([partition], self._layout.columns)
            if straight is not None:
                for name, (column,) in straight:
                    rows = self._rows[name]
                    yield name, [parts.plain(partition, column, name, r.dtype) for r in rows]
                return
        for piece in parts.pieces(partition):
            for name, array in piece.scalars.items():
                yield name, [array] * len(self._rows[name])


def _rows(copy_run: CopyRun) -> int:
    return copy_run.steps * copy_run.width


def _within(targets: Sequence[_Target], start: int, stop: int) -> Iterator[_Target]:
    """What targets say of the rows ``[start, stop)`` of a block, counted from `start`.

    Examples
    --------
    >>> tray = Tray(ChunkPlan(0, (), np.zeros(1, np.int64)), {})
    >>> [t[:3] for t in _within([_Target(0, 6, 0, tray), _Target(6, 9, 0, tray)], 4, 8)]
    [(0, 2, 4), (2, 4, 0)]
    """
    for low, high, place, tray in targets:
        first, last = max(low, start), min(high, stop)
        if first < last:
            yield _Target(first - start, last - start, place + first - low, tray)
