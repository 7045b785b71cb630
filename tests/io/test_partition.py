"""Cutting: arithmetic on units."""

from __future__ import annotations

from tabfeed.io.partition import Partition, Piece, cut_by_count, cut_by_size, first_rows


def shape(parts: list[Partition]) -> list[list[tuple[int, int, int, int | None, bool]]]:
    return [[(p.file, p.unit, p.start, p.rows, p.whole) for p in part.pieces] for part in parts]


def test_an_uncounted_unit_is_not_sliced() -> None:
    assert shape(cut_by_size([(Piece(0, 0, 0, None), 1000)], 10)) == [[(0, 0, 0, None, True)]]


def test_nothing_to_cut() -> None:
    assert [p.rows for p in cut_by_count([], 4)] == [0]
    assert cut_by_size([], 10) == []


def test_many_pieces_and_many_partitions_are_cut_in_one_pass() -> None:
    pieces = [Piece(f, 0, 0, 10) for f in range(20_000)]
    parts = cut_by_count(pieces, 20_000)  # by looking at each piece for each part: 400 M steps
    assert shape(parts[:1] + parts[-1:]) == [[(0, 0, 0, 10, True)], [(19_999, 0, 0, 10, True)]]


def test_rows_files_and_the_first_rows() -> None:
    part = Partition((Piece(0, 0, 5, 2, whole=False), Piece(2, 0, 0, 9), Piece(2, 1, 0, 9)))
    assert (part.rows, part.files) == (20, [0, 2])
    assert Partition((Piece(0, 0, 0, None),)).rows is None
    assert shape([first_rows(part, 4)]) == [[(0, 0, 5, 2, False), (2, 0, 0, 2, False)]]
    assert shape([first_rows(part, 0)]) == [[]]
    assert first_rows(part, 99) == part


def test_a_unit_of_absurdly_many_rows_is_not_cut_into_as_many_slices() -> None:
    parts = cut_by_size([(Piece(0, 0, 0, 2**60), 2**63)], 128 * 2**20)
    assert len(parts) == 2**20
    assert sum(p.rows or 0 for p in parts) == 2**60
