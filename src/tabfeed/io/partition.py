"""How a dataset is cut: pieces, partitions, and the arithmetic between them.

A *unit* is what a format lets us address: a Parquet row group, an IPC record batch, a
byte range of a text file, a slice of a frame. A *piece* is a run of rows within one unit.
A *partition* is what one task reads at once: usually whole units of one file that
together stay within ``part_size``; a slice of one where a unit alone is larger.

Nothing here reads data. Cutting needs only how many rows each unit has and how wide a
row is in memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

__all__ = ["Partition", "Piece", "continues", "cut_by_count", "cut_by_size", "first_rows", "runs"]


@dataclass(frozen=True, slots=True)
class Piece:
    """Rows ``[start, start + rows)`` of one unit of one file.

    ``rows`` is None where the unit is taken whole and nobody has counted it (text formats).
    ``whole`` says that the piece is all of its unit.
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
        """Rows before any filter; None where a piece has not been counted."""
        counts = [p.rows for p in self.pieces]
        return None if None in counts else sum(c for c in counts if c is not None)

    @property
    def files(self) -> list[int]:
        """The files it reads from, in order."""
        return list(dict.fromkeys(p.file for p in self.pieces))


def cut_by_size(units: Iterable[tuple[Piece, int]], part_size: int) -> list[Partition]:
    """Join consecutive units of a file up to `part_size` bytes; slice units that exceed it.

    Parameters
    ----------
    units
        Whole-unit pieces with their size in memory, in file order.
    part_size
        Most bytes a partition may take in memory.

    Examples
    --------
    >>> units = [(Piece(0, 0, 0, 100), 600), (Piece(0, 1, 0, 100), 300), (Piece(1, 0, 0, 10), 100)]
    >>> [p.rows for p in cut_by_size(units, part_size=400)]
    [50, 50, 100, 10]
    """
    parts: list[Partition] = []
    run: list[Piece] = []
    run_bytes = 0
    for piece, nbytes in units:
        slices = list(_slice_to(piece, nbytes, part_size))
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


def _slice_to(piece: Piece, nbytes: int, part_size: int) -> Iterator[Piece]:
    """Cut a piece into slices of at most `part_size` bytes, of nearly equal rows."""
    if piece.rows is None or nbytes <= part_size or piece.rows <= 1:
        yield piece
        return
    most = max(1, piece.rows * part_size // nbytes)
    count = -(-piece.rows // most)
    for low, high in pairwise(_bounds(piece.rows, count)):
        yield replace(piece, start=piece.start + low, rows=high - low, whole=False)


def _bounds(rows: int, count: int) -> list[int]:
    """Where to cut `rows` into `count` runs that differ by one row at most."""
    return [rows * i // count for i in range(count + 1)]


def cut_by_count(pieces: Sequence[Piece], npartitions: int) -> list[Partition]:
    """Cut all rows into `npartitions` runs of nearly equal length, across units and files.

    Every piece must have been counted. With fewer rows than partitions, each row gets one of its
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
    """The beginning of a partition whose pieces have been counted.

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


def runs(partitions: Iterable[Partition]) -> list[list[Partition]]:
    """Partitions, those that are successive slices of one unit together."""
    found: list[list[Partition]] = []
    for part in partitions:
        if found and continues(found[-1][-1], part):
            found[-1].append(part)
        else:
            found.append([part])
    return found


def continues(before: Partition, after: Partition) -> bool:
    """Whether `after` goes on where `before` stopped, inside the same unit."""
    if len(before.pieces) != 1 or len(after.pieces) != 1:
        return False
    a, b = before.pieces[0], after.pieces[0]
    same = (a.file, a.unit) == (b.file, b.unit)
    return same and not a.whole and a.start + (a.rows or 0) == b.start
