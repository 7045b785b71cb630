"""Cutting: arithmetic on units."""

from __future__ import annotations

from tabfeed.io.partition import Partition, Piece, cut_by_count, cut_by_size, first_rows


def shape(parts: list[Partition]) -> list[list[tuple[int, int, int, int | None, bool]]]:
    return [[(p.file, p.unit, p.start, p.rows, p.whole) for p in part.pieces] for part in parts]


def test_units_of_a_file_are_joined_up_to_the_size_and_files_are_not() -> None:
    units = [(Piece(0, u, 0, 10), 40) for u in range(3)] + [(Piece(1, 0, 0, 10), 40)]
    assert shape(cut_by_size(units, 80)) == [
        [(0, 0, 0, 10, True), (0, 1, 0, 10, True)],
        [(0, 2, 0, 10, True)],
        [(1, 0, 0, 10, True)],
    ]


def test_a_slice_never_exceeds_the_size() -> None:
    # 10 rows of 10 bytes, 35 at most: three rows a slice. Four would be 40 bytes.
    parts = cut_by_size([(Piece(0, 0, 0, 10), 100)], 35)
    assert [p.rows for p in parts] == [2, 3, 2, 3]


def test_a_row_larger_than_the_size_is_a_partition() -> None:
    parts = cut_by_size([(Piece(0, 0, 0, 3), 3000)], 10)
    assert [p.rows for p in parts] == [1, 1, 1]


def test_an_uncounted_unit_is_not_sliced() -> None:
    assert shape(cut_by_size([(Piece(0, 0, 0, None), 1000)], 10)) == [[(0, 0, 0, None, True)]]


def test_a_large_unit_does_not_join_its_neighbours() -> None:
    units = [(Piece(0, 0, 0, 1), 5), (Piece(0, 1, 0, 10), 100), (Piece(0, 2, 0, 1), 5)]
    assert [p.rows for p in cut_by_size(units, 50)] == [1, 5, 5, 1]


def test_by_count_across_units_and_files() -> None:
    pieces = [Piece(0, 0, 0, 7), Piece(0, 1, 0, 0), Piece(1, 0, 0, 4)]
    assert shape(cut_by_count(pieces, 3)) == [
        [(0, 0, 0, 3, False)],
        [(0, 0, 3, 4, False)],
        [(1, 0, 0, 4, True)],
    ]
    assert shape(cut_by_count(pieces, 2)) == [
        [(0, 0, 0, 5, False)],
        [(0, 0, 5, 2, False), (1, 0, 0, 4, True)],
    ]


def test_more_partitions_than_rows() -> None:
    assert [p.rows for p in cut_by_count([Piece(0, 0, 0, 2)], 9)] == [1, 1]
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
