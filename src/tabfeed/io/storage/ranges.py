"""Which bytes to ask a server for: arithmetic, and nothing else.

A request costs a round trip before its first byte comes: 50 ms, say, in which a connection of
100 MB/s could have carried 5 MB. So ranges that lie close together are asked for as one, holes and
all, as long as what is read in vain stays a small part of the whole; and requests are large: of
one of 32 MiB the round trip is an eighth. The more connections share the memory that what is on its
way may take, the smaller they must be.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from typing import NamedTuple

__all__ = ["LARGEST", "Range", "largest_request", "requests_for"]

LARGEST = 64 * 2**20
_SMALLEST = 8 * 2**20
_ON_THE_WAY = 256 * 2**20
_LARGEST_HOLE = 4 * 2**20
_SHARE = 10  # a hole may be a tenth of what is wanted around it


class Range(NamedTuple):
    """The bytes ``[start, stop)`` of a file."""

    start: int
    stop: int

    @property
    def size(self) -> int:
        """How many bytes."""
        return self.stop - self.start


def largest_request(connections: int) -> int:
    """How large a request may be, so that all connections together hold 256 MiB.

    Examples
    --------
    >>> [largest_request(n) // 2**20 for n in (1, 4, 8, 16, 64)]
    [64, 64, 32, 16, 8]
    """
    return max(_SMALLEST, min(LARGEST, _ON_THE_WAY // connections))


def requests_for(wanted: Iterable[Range], largest: int = LARGEST) -> list[Range]:
    """The requests that bring all of these ranges, in the order of the file.

    Examples
    --------
    >>> requests_for([Range(0, 1000), Range(1050, 2000), Range(9000, 9500)])
    [Range(start=0, stop=2000), Range(start=9000, stop=9500)]
    >>> requests_for([Range(0, 10)], largest=6)
    [Range(start=0, stop=5), Range(start=5, stop=10)]
    """
    merged: list[Range] = []
    useful = 0
    for piece in sorted({r for r in wanted if r.size > 0}):
        last = merged[-1] if merged else None
        if last is not None and _belongs(last, piece, useful, largest):
            useful += max(0, piece.stop - max(last.stop, piece.start))
            merged[-1] = Range(last.start, max(last.stop, piece.stop))
        else:
            merged.append(piece)
            useful = piece.size
    return [part for piece in merged for part in _split(piece, largest)]


def _belongs(last: Range, piece: Range, useful: int, largest: int) -> bool:
    hole = piece.start - last.stop
    if hole < 0:
        return True
    small = hole <= min(_LARGEST_HOLE, (useful + piece.size) // _SHARE)
    return small and piece.stop - last.start <= largest


def _split(piece: Range, largest: int) -> list[Range]:
    """As few as may be, as large as each other: those of one partition end at the same time."""
    count = -(-piece.size // largest)
    bounds = [piece.start + piece.size * i // count for i in range(count + 1)]
    return [Range(start, stop) for start, stop in pairwise(bounds)]
