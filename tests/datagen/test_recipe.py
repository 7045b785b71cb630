import hashlib
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from tabfeed import ColumnSchema, Schema
from tabfeed.datagen.recipe import FileLayout, Recipe, check_count, tables, write, write_all
from tabfeed.errors import ArgumentError, DatasetExistsError


def counting(units: int, *, rows_per_unit: int = 1) -> Recipe:
    """A column that counts, each number as often as `rows_per_unit` says."""
    schema = Schema([ColumnSchema("n", "int64", nullable=False)])

    def columns(start: int, stop: int) -> dict[str, Any]:
        return {"n": np.repeat(np.arange(start, stop), rows_per_unit)}

    return Recipe(units, schema, columns, rows_per_unit=rows_per_unit)


def row_groups(folder: Path) -> dict[str, list[int]]:
    found = {}
    for file in sorted(folder.glob("*.parquet")):
        meta = pq.ParquetFile(file).metadata
        found[file.name] = [meta.row_group(i).num_rows for i in range(meta.num_row_groups)]
    return found


def test_rows_are_shared_among_files_and_row_groups(tmp_path: Path) -> None:
    write(counting(25), tmp_path, FileLayout(files=2, row_group_size=5))
    assert row_groups(tmp_path) == {"part_0.parquet": [5, 5, 2], "part_1.parquet": [5, 5, 3]}


def test_never_more_files_than_rows(tmp_path: Path) -> None:
    write(counting(3), tmp_path, FileLayout(files=8))
    assert list(row_groups(tmp_path).values()) == [[1], [1], [1]]


def test_file_names_sort_in_the_order_of_rows(tmp_path: Path) -> None:
    dataset = write(counting(30), tmp_path, FileLayout(files=12))
    assert list(row_groups(tmp_path))[:3] == [
        "part_00.parquet",
        "part_01.parquet",
        "part_02.parquet",
    ]
    assert dataset.to_arrow()["n"].to_pylist() == list(range(30))


def test_a_unit_may_have_several_rows(tmp_path: Path) -> None:
    dataset = write(counting(10, rows_per_unit=3), tmp_path, FileLayout(files=1, row_group_size=12))
    assert row_groups(tmp_path) == {"part_0.parquet": [12, 12, 6]}
    assert dataset.num_rows == 30


def test_tables_are_the_rows_of_the_files(tmp_path: Path) -> None:
    layout = FileLayout(files=3, row_group_size=4)
    in_memory = [t["n"].to_pylist() for t in tables(counting(20), layout)]
    written = write(counting(20), tmp_path, layout).to_arrow()["n"].to_pylist()
    assert [n for chunk in in_memory for n in chunk] == written


def test_the_dataset_has_the_tags(tmp_path: Path) -> None:
    schema = Schema([ColumnSchema("n", "int64", tags="target", nullable=False)])
    recipe = Recipe(5, schema, counting(5).columns)
    assert write(recipe, tmp_path, FileLayout()).schema.select_by_tag("target").column_names == [
        "n"
    ]


def test_what_is_there_stays_unless_asked(tmp_path: Path) -> None:
    write(counting(5), tmp_path, FileLayout())
    with pytest.raises(DatasetExistsError, match="overwrite=True"):
        write(counting(7), tmp_path, FileLayout())
    assert write(counting(7), tmp_path, FileLayout(overwrite=True)).num_rows == 7


class Broken(Exception):
    pass


def failing_at(row: int, units: int) -> Recipe:
    good = counting(units)

    def columns(start: int, stop: int) -> dict[str, Any]:
        if start <= row < stop:
            raise Broken
        return dict(good.columns(start, stop))

    return Recipe(units, good.schema, columns)


def test_a_failure_leaves_no_files_and_no_threads(tmp_path: Path) -> None:
    before = set(threading.enumerate())
    with pytest.raises(Broken):
        write(failing_at(55, 100), tmp_path, FileLayout(files=2, row_group_size=10))
    assert list(tmp_path.rglob("*.parquet")) == []
    assert set(threading.enumerate()) <= before


def test_tables_given_up_early_leave_no_threads() -> None:
    before = set(threading.enumerate())
    chunks = tables(counting(1_000), FileLayout(files=1, row_group_size=10))
    next(chunks)
    chunks.close()
    assert set(threading.enumerate()) <= before


def test_of_several_datasets_all_appear_or_none(tmp_path: Path) -> None:
    with pytest.raises(Broken):
        write_all({"a": counting(5), "b": failing_at(3, 5)}, tmp_path, FileLayout())
    assert list(tmp_path.rglob("*.parquet")) == []
    made = write_all({"a": counting(5), "b": counting(6)}, tmp_path, FileLayout())
    assert [made[name].num_rows for name in "ab"] == [5, 6]


def test_of_several_datasets_one_that_is_there_stops_all(tmp_path: Path) -> None:
    write(counting(5), tmp_path / "b", FileLayout())
    with pytest.raises(DatasetExistsError):
        write_all({"a": counting(5), "b": counting(6)}, tmp_path, FileLayout())
    assert list((tmp_path / "a").glob("*.parquet")) == []


@pytest.mark.parametrize("value", [0, -1, 2.0, "3", True, None])
def test_counts_are_positive_integers(value: object) -> None:
    with pytest.raises(ArgumentError, match=f"files is {value!r}; it must be a positive integer"):
        FileLayout(files=value)  # type: ignore[arg-type]


def test_counts_may_have_an_upper_bound() -> None:
    check_count("ads", 12, least=12, most=1_000)
    with pytest.raises(ArgumentError, match=r"ads is 11; .* from 12 to 1,000"):
        check_count("ads", 11, least=12, most=1_000)


def digest(folder: Path) -> str:
    whole = hashlib.sha256()
    for file in sorted(folder.rglob("*")):
        if file.is_file():
            whole.update(file.name.encode() + file.read_bytes())
    return whole.hexdigest()


MAKERS = {
    "criteo": "criteo(path, 5_000, row_group_size=700, files=3)",
    "raw": "criteo(path, 5_000, raw=True, row_group_size=700)",
    "movielens": "movielens(path, 3_000, users=500, movies=200, row_group_size=256)",
    "outbrain": "outbrain(path, 1_000, documents=300, ads=200, row_group_size=500)",
    "reviews": "reviews(path, 500, users=50, items=20, row_group_size=99)",
}


@pytest.mark.parametrize("maker", MAKERS)
def test_same_bytes_on_any_number_of_threads(
    maker: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tabfeed import datagen

    digests = set()
    for threads in ("1", "2", "5"):
        monkeypatch.setenv("TABFEED_THREADS", threads)
        eval(MAKERS[maker], {**vars(datagen), "path": tmp_path / threads})
        digests.add(digest(tmp_path / threads))
    assert len(digests) == 1


PEAK = """
import resource, sys, tempfile
from tabfeed.datagen import criteo
with tempfile.TemporaryDirectory() as folder:
    criteo(folder, int(sys.argv[1]), raw=sys.argv[2] == "raw", row_group_size=20_000, files=2)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


def peak_megabytes(rows: int, form: str) -> float:
    done = subprocess.run(
        [sys.executable, "-c", PEAK, str(rows), form], capture_output=True, text=True, check=True
    )
    return int(done.stdout) / 1_000


@pytest.mark.parametrize("form", ["processed", "raw"])
def test_memory_does_not_grow_with_rows(form: str) -> None:
    # 600,000 rows more are 96 MB more of columns: a writer that kept them could not hide it.
    few, many = peak_megabytes(200_000, form), peak_megabytes(800_000, form)
    assert many < few + 40
