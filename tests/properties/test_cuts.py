"""However units are cut, the slices laid end to end are the units."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tabfeed.io.partition import Piece, cut_by_count, cut_by_size

units = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 50), st.integers(1, 30)), max_size=12)


@given(units=units, part_size=st.integers(1, 3000))
def test_cutting_by_size(units: list[tuple[int, int, int]], part_size: int) -> None:
    pieces = [
        (Piece(file, i, 0, rows), max(1, rows * width))
        for i, (file, rows, width) in enumerate(sorted(units, key=lambda u: u[0]))
    ]
    width = {p.unit: n / max(1, p.rows or 0) for p, n in pieces}
    parts = cut_by_size(pieces, part_size)
    assert [r for part in parts for p in part.pieces for r in rows_of(p)] == [
        r for p, _ in pieces for r in rows_of(p)
    ]
    for part in parts:
        assert len(part.files) == 1
        nbytes = sum((p.rows or 0) * width[p.unit] for p in part.pieces)
        assert nbytes <= part_size or (part.rows or 0) <= 1


@given(rows=st.lists(st.integers(0, 50), max_size=12), npartitions=st.integers(1, 100))
def test_cutting_by_count(rows: list[int], npartitions: int) -> None:
    pieces = [Piece(0, i, 0, n) for i, n in enumerate(rows)]
    parts = cut_by_count(pieces, npartitions)
    assert [r for part in parts for p in part.pieces for r in rows_of(p)] == [
        r for p in pieces for r in rows_of(p)
    ]
    assert len(parts) == max(1, min(npartitions, sum(rows)))
    assert all(p.whole == ((p.start, p.rows) == (0, rows[p.unit])) for q in parts for p in q.pieces)


def rows_of(piece: Piece) -> list[tuple[int, int]]:
    return [(piece.unit, r) for r in range(piece.start, piece.start + (piece.rows or 0))]
