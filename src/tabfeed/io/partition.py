"""Row slices and partitions: how the rows of files are cut.

A *unit* is the smallest part of a file that a format can address: a Parquet row group, an IPC
record batch, a byte range of a text file, a slice of a frame. A `Piece` is a row slice: some or all
rows of one unit. A `Partition` is what one task reads at once: usually whole units of one file that
together stay within ``part_size``, or a slice of a unit that alone is larger.

Cutting reads nothing: it needs only the rows of each unit and the size of a row in memory.

Slices of one unit are mostly read in order. A stream that is left open where one slice ended gives
the next without decoding again what is before it, as long as the open streams take little memory
(`OpenStreams`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tabfeed.budget import device_memory, free_memory, parse_bytes
from tabfeed.errors import ArgumentError

__all__ = [
    "DEFAULT_PART_SIZE",
    "OpenStreams",
    "Partition",
    "Piece",
    "UnitStream",
    "bounds_within",
    "choose_part_size",
    "continues",
    "cut_by_count",
    "cut_by_size",
    "first_rows",
    "rows_between",
    "runs",
    "slices_of",
]

DEFAULT_PART_SIZE = 128 * 2**20


def choose_part_size(
    part_size: int | float | str | None, fraction: float | None, npartitions: int | None
) -> int:
    """Bytes, from a size, a share of the GPU's memory (the host's without one), or the default."""
    options = {"part_size": part_size, "part_mem_fraction": fraction, "npartitions": npartitions}
    given = [name for name, value in options.items() if value is not None]
    if len(given) > 1:
        raise ArgumentError(f"{' and '.join(given)} each say how to cut; give one of them")
    if npartitions is not None:
        _refuse_fraction(npartitions)
    if fraction is not None:
        if not isinstance(fraction, int | float) or not 0 < fraction <= 1:
            raise ArgumentError(f"part_mem_fraction is {fraction!r}; it must be between 0 and 1")
        # data for a GPU passes through host memory
        return max(1, min(int(device_memory() * fraction), free_memory()))
    return DEFAULT_PART_SIZE if part_size is None else parse_bytes(part_size, name="part_size")


def _refuse_fraction(npartitions: int) -> None:
    whole = isinstance(npartitions, int | np.integer) and not isinstance(npartitions, bool)
    if not whole or npartitions < 1:
        raise ArgumentError(f"npartitions is {npartitions!r}; it must be a number, 1 or more")


Sizes = npt.NDArray[Any]
_MOST_SLICES = 2**20  # of one unit: a damaged file may claim any number of rows
_OVER = 1.1  # a slice may be larger by so much before rows are weighed one by one


@dataclass(frozen=True, slots=True)
class Piece:
    """A row slice: rows ``[start, start + rows)`` of one unit of one file.

    ``rows`` is None for a whole unit that has not been counted yet (text formats). ``whole`` says
    that the slice is all of its unit.
    """

    file: int
    unit: int
    start: int
    rows: int | None
    whole: bool = True


@dataclass(frozen=True, slots=True)
class Partition:
    """The rows one task reads at once."""

    pieces: tuple[Piece, ...]

    @property
    def rows(self) -> int | None:
        """Rows before any filter; None where a slice has not been counted."""
        counts = [p.rows for p in self.pieces]
        return None if None in counts else sum(c for c in counts if c is not None)

    @property
    def files(self) -> list[int]:
        """The files it reads from, in order."""
        return list(dict.fromkeys(p.file for p in self.pieces))


def cut_by_size(
    units: Iterable[tuple[Piece, int | None]],
    part_size: int,
    sizes: Callable[[Piece], Sizes | None] | None = None,
) -> list[Partition]:
    """Join consecutive units of a file up to `part_size` bytes; slice units that exceed it.

    A unit of unknown size is a partition of its own.

    Parameters
    ----------
    units
        Whole units with their size in memory (None if unknown), in file order.
    part_size
        Most bytes a partition may take in memory.
    sizes
        Gives the bytes of each row of a unit that must be sliced; None if all are alike.

    Examples
    --------
    >>> units = [(Piece(0, 0, 0, 100), 600), (Piece(0, 1, 0, 100), 300), (Piece(1, 0, 0, 10), 100)]
    >>> [p.rows for p in cut_by_size(units, part_size=400)]
    [50, 50, 100, 10]
    """
    parts: list[Partition] = []
    run: list[Piece] = []
    run_bytes = 0
    for piece, size in units:
        nbytes = part_size + 1 if size is None else size  # too large to be joined
        slices = [piece] if size is None else slices_of(piece, size, part_size, sizes)
        joins = run and run[-1].file == piece.file and run_bytes + nbytes <= part_size
        if run and (not joins or len(slices) > 1):
            parts.append(Partition(tuple(run)))
            run, run_bytes = [], 0
        if len(slices) > 1:
            parts.extend(Partition((s,)) for s in slices)
        else:
            run.append(piece)
            run_bytes += nbytes
    if run:
        parts.append(Partition(tuple(run)))
    return parts


def slices_of(
    piece: Piece,
    nbytes: int,
    most: int,
    sizes: Callable[[Piece], Sizes | None] | None = None,
) -> list[Piece]:
    """A row slice of `nbytes` cut into slices of at most `most` bytes, of equal rows if possible.

    There are at most a million slices, whatever their size: only a damaged file claims more rows,
    and reading any of them shows that.
    """
    if piece.rows is None or nbytes <= most or piece.rows <= 1:
        return [piece]
    rows = max(1, int(piece.rows * most // nbytes))
    bounds = _bounds(piece.rows, min(-(-piece.rows // rows), _MOST_SLICES))
    weights = None if sizes is None else sizes(piece)
    if weights is not None and np.add.reduceat(weights, bounds[:-1]).max() > _OVER * most:
        bounds = bounds_within(weights, most)
    return [
        replace(piece, start=piece.start + low, rows=high - low, whole=False)
        for low, high in pairwise(bounds)
    ]


def bounds_within(sizes: Sizes, most: float) -> list[int]:
    """Where to cut rows so that no slice takes more than `most` bytes, unless a single row does.

    Parameters
    ----------
    sizes
        Bytes of each row.
    most
        Bytes.

    Examples
    --------
    >>> bounds_within(np.array([1, 1, 9, 1, 2, 2]), 4)
    [0, 2, 3, 5, 6]
    """
    ends = np.cumsum(sizes, dtype=np.float64)
    # Slices of about one size, rather than full ones and a rest.
    even = min(most, ends[-1] / -(-ends[-1] // most) * 1.02 if len(ends) else most)
    bounds, at, before = [0], 0, 0.0
    while at < len(ends):
        stop = int(np.searchsorted(ends, before + even, side="right"))
        at = max(at + 1, stop)
        before = float(ends[at - 1])
        bounds.append(at)
    return bounds


def _bounds(rows: int, count: int) -> list[int]:
    """Where to cut `rows` into `count` runs that differ by one row at most."""
    return [rows * i // count for i in range(count + 1)]


def cut_by_count(pieces: Sequence[Piece], npartitions: int) -> list[Partition]:
    """Cut all rows into `npartitions` runs of nearly equal length, across units and files.

    Every slice must have been counted. With fewer rows than partitions, each row gets one of its
    own; without any rows there is one empty partition.

    Examples
    --------
    >>> [p.rows for p in cut_by_count([Piece(0, 0, 0, 7), Piece(1, 0, 0, 4)], 3)]
    [3, 4, 4]
    """
    total = sum(p.rows or 0 for p in pieces)
    bounds = _bounds(total, max(1, min(npartitions, total)))
    parts: list[list[Piece]] = [[] for _ in bounds[1:]]
    part = offset = 0
    for piece in pieces:
        end = offset + (piece.rows or 0)
        low = offset
        while low < end:
            high = min(end, bounds[part + 1])
            parts[part].append(_rows_of(piece, low - offset, high - offset))
            low = high
            part += high == bounds[part + 1]
        offset = end
    return [Partition(tuple(p)) for p in parts]


def _rows_of(piece: Piece, low: int, high: int) -> Piece:
    whole = piece.whole and high - low == piece.rows
    return replace(piece, start=piece.start + low, rows=high - low, whole=whole)


def first_rows(partition: Partition, rows: int) -> Partition:
    """The first rows of a partition whose slices have been counted.

    Examples
    --------
    >>> start = first_rows(Partition((Piece(0, 0, 0, 2), Piece(0, 1, 0, 9))), 5)
    >>> [(p.unit, p.rows, p.whole) for p in start.pieces]
    [(0, 2, True), (1, 3, False)]
    """
    kept: list[Piece] = []
    for piece in partition.pieces:
        if rows <= 0:
            break
        kept.append(_rows_of(piece, 0, min(rows, piece.rows or 0)))
        rows -= piece.rows or 0
    return Partition(tuple(kept))


def rows_between(partition: Partition, low: int, high: int) -> Partition:
    """The rows ``[low, high)`` of a partition whose slices have been counted.

    Examples
    --------
    >>> middle = rows_between(Partition((Piece(0, 0, 0, 2), Piece(0, 1, 0, 9))), 1, 5)
    >>> [(p.unit, p.start, p.rows, p.whole) for p in middle.pieces]
    [(0, 1, 1, False), (1, 0, 3, False)]
    """
    kept: list[Piece] = []
    at = 0
    for piece in partition.pieces:
        end = at + (piece.rows or 0)
        first, last = max(low, at), min(high, end)
        if first < last:
            kept.append(_rows_of(piece, first - at, last - at))
        at = end
    return Partition(tuple(kept))


def runs(partitions: Iterable[Partition]) -> list[list[Partition]]:
    """The partitions in runs; successive slices of one unit are one run."""
    found: list[list[Partition]] = []
    for part in partitions:
        if found and continues(found[-1][-1], part):
            found[-1].append(part)
        else:
            found.append([part])
    return found


def continues(before: Partition, after: Partition) -> bool:
    """Whether `after` continues where `before` stopped, inside the same unit."""
    if len(before.pieces) != 1 or len(after.pieces) != 1:
        return False
    a, b = before.pieces[0], after.pieces[0]
    same = (a.file, a.unit) == (b.file, b.unit)
    return same and not a.whole and a.start + (a.rows or 0) == b.start


# -- slices of a unit, read in order ----------------------------------------------------------

_MOST_HELD = 16 * 2**20
Key = tuple[int, int, tuple[str, ...]]  # file, unit, columns


class UnitStream:
    """A unit that is being streamed, and its next row."""

    def __init__(self, key: Key, batches: Iterator[pa.RecordBatch]) -> None:
        self.key, self.at, self.held = key, 0, 0
        self._batches = batches
        self._rest: pa.RecordBatch | None = None

    def take(self, start: int, rows: int | None) -> Iterator[pa.RecordBatch]:
        """Rows from `start` on, which is not before `at`; all the rest by default."""
        end = None if rows is None else start + rows
        while end is None or self.at < end:
            batch, self._rest = self._rest or next(self._batches, None), None
            if batch is None:
                return
            first, self.at = self.at, self.at + batch.num_rows
            if self.at <= start:
                continue
            low = max(0, start - first)
            if end is not None and self.at > end:
                self._rest, self.at = batch.slice(end - first), end
                batch = batch.slice(0, end - first)
            yield batch.slice(low)


class OpenStreams:
    """The streams of a `FileSet` that are open; threads share it, and none is pickled.

    Parameters
    ----------
    keeps
        Whether to keep any; not where slices are read in random order.
    """

    def __init__(self, keeps: bool = True) -> None:
        self._keeps = keeps
        self._streams: list[UnitStream] = []

    def resume(self, key: Key, start: int) -> UnitStream | None:
        """Take the open stream of a unit that is closest before a row; None if there is none."""
        fit = [s for s in list(self._streams) if s.key == key and s.at <= start]
        if not fit:
            return None
        closest = max(fit, key=lambda s: s.at)
        try:
            self._streams.remove(closest)
        except ValueError:  # another thread was faster
            return None
        return closest

    def keep(self, stream: UnitStream, held: int) -> None:
        """Keep a stream that holds so many bytes; the oldest are closed if all hold too much."""
        stream.held = held
        if self._keeps:
            self._streams.append(stream)
        while sum(s.held for s in list(self._streams)) > _MOST_HELD:
            with suppress(IndexError):
                self._streams.pop(0)

    def __reduce__(self) -> tuple[Any, ...]:
        return OpenStreams, (self._keeps,)
