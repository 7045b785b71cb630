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

__all__ = ["Partition", "Piece", "cut_by_count", "cut_by_size"]


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
    count = min(piece.rows, -(-nbytes // part_size))
    bounds = [piece.rows * i // count for i in range(count + 1)]
    for low, high in pairwise(bounds):
        yield replace(piece, start=piece.start + low, rows=high - low, whole=False)


def cut_by_count(pieces: Sequence[Piece], npartitions: int) -> list[Partition]:
    """Cut all rows into `npartitions` runs of nearly equal length, across units and files.

    Every piece must have been counted. With fewer rows than partitions, the rest are left out.

    Examples
    --------
    >>> [p.rows for p in cut_by_count([Piece(0, 0, 0, 7), Piece(1, 0, 0, 4)], 3)]
    [3, 4, 4]
    """
    total = sum(p.rows or 0 for p in pieces)
    count = max(1, min(npartitions, total))
    bounds = [total * i // count for i in range(count + 1)]
    return [Partition(tuple(_rows_between(pieces, low, high))) for low, high in pairwise(bounds)]


def _rows_between(pieces: Sequence[Piece], low: int, high: int) -> Iterator[Piece]:
    """The pieces that make up rows ``[low, high)`` of all pieces laid end to end."""
    offset = 0
    for piece in pieces:
        rows = piece.rows or 0
        first, last = max(low, offset), min(high, offset + rows)
        if first < last:
            whole = piece.whole and last - first == rows
            start = piece.start + first - offset
            yield replace(piece, start=start, rows=last - first, whole=whole)
        offset += rows
