"""How a dataset cuts the rows of its files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa

from tabfeed import Dataset

Shape = list[list[tuple[int, int, int, int | None, bool]]]


def write(path: Path, units: list[int], width: int = 8) -> str:
    """A file of units of so many rows, each of `width` bytes."""
    values = pa.array([b"x" * width] * max(units), pa.binary(width))
    with pa.ipc.new_file(str(path), pa.schema({"x": values.type})) as file:
        for rows in units:
            file.write_batch(pa.record_batch({"x": values[:rows]}))
    return str(path)


def shape(source: Any, **options: Any) -> Shape:
    return [
        [(p.file, p.unit, p.start, p.rows, p.whole) for p in part.pieces]
        for part in Dataset(source, **options).partitions
    ]


def rows_of(source: Any, **options: Any) -> list[int | None]:
    return [part.rows for part in Dataset(source, **options).partitions]


def test_units_of_a_file_are_joined_up_to_the_size_and_files_are_not(tmp_path: Path) -> None:
    files = [write(tmp_path / "a.arrow", [10] * 3, 4), write(tmp_path / "b.arrow", [10], 4)]
    assert shape(files, part_size=80) == [
        [(0, 0, 0, 10, True), (0, 1, 0, 10, True)],
        [(0, 2, 0, 10, True)],
        [(1, 0, 0, 10, True)],
    ]


def test_a_slice_never_exceeds_the_size(tmp_path: Path) -> None:
    # 10 rows of 10 bytes, 35 at most: three rows a slice. Four would be 40 bytes.
    assert rows_of(write(tmp_path / "a.arrow", [10], 10), part_size=35) == [2, 3, 2, 3]


def test_a_row_larger_than_the_size_is_a_partition(tmp_path: Path) -> None:
    assert rows_of(write(tmp_path / "a.arrow", [3], 1000), part_size=10) == [1, 1, 1]


def test_a_large_unit_does_not_join_its_neighbours(tmp_path: Path) -> None:
    file = write(tmp_path / "a.arrow", [1, 10, 1], 10)
    assert rows_of(file, part_size=80) == [1, 5, 5, 1]


def test_by_count_across_units_and_files(tmp_path: Path) -> None:
    files = [write(tmp_path / "a.arrow", [7, 0]), write(tmp_path / "b.arrow", [4])]
    assert shape(files, npartitions=3) == [
        [(0, 0, 0, 3, False)],
        [(0, 0, 3, 4, False)],
        [(1, 0, 0, 4, True)],
    ]
    assert shape(files, npartitions=2) == [
        [(0, 0, 0, 5, False)],
        [(0, 0, 5, 2, False), (1, 0, 0, 4, True)],
    ]


def test_more_partitions_than_rows(tmp_path: Path) -> None:
    assert rows_of(write(tmp_path / "a.arrow", [2]), npartitions=9) == [1, 1]
    assert rows_of(pa.table({"x": pa.array([], pa.int8())}), npartitions=4) == [0]
