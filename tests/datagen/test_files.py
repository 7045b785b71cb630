"""Made-up rows as files: how they are divided, what is there already, what is refused."""

import hashlib
import subprocess
import sys
import threading
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tabfeed.datagen import criteo, criteo_tables, movielens, outbrain_tables
from tabfeed.errors import ArgumentError, DatasetExistsError


def row_groups(folder: Path) -> dict[str, list[int]]:
    found = {}
    for file in sorted(folder.glob("*.parquet")):
        meta = pq.ParquetFile(file).metadata
        found[file.name] = [meta.row_group(i).num_rows for i in range(meta.num_row_groups)]
    return found


def test_rows_are_shared_among_files_and_row_groups(tmp_path: Path) -> None:
    criteo(tmp_path, 25, files=2, row_group_size=5)
    assert row_groups(tmp_path) == {"part_0.parquet": [5, 5, 2], "part_1.parquet": [5, 5, 3]}


def test_never_more_files_than_rows(tmp_path: Path) -> None:
    criteo(tmp_path, 3, files=8)
    assert list(row_groups(tmp_path).values()) == [[1], [1], [1]]


def test_file_names_sort_in_the_order_of_rows(tmp_path: Path) -> None:
    dataset = criteo(tmp_path, 30, files=12)
    assert list(row_groups(tmp_path))[:3] == [
        "part_00.parquet",
        "part_01.parquet",
        "part_02.parquet",
    ]
    assert dataset.to_arrow().equals(pa.concat_tables(criteo_tables(30)))


def test_tables_are_the_rows_of_the_files(tmp_path: Path) -> None:
    in_memory = list(criteo_tables(20, row_group_size=4))
    assert [table.num_rows for table in in_memory] == [4] * 5
    written = criteo(tmp_path, 20, files=3, row_group_size=4).to_arrow()
    assert pa.concat_tables(in_memory).equals(written)


def test_the_dataset_has_the_tags(tmp_path: Path) -> None:
    assert criteo(tmp_path, 5).schema.select_by_tag("target").column_names == ["label"]


def test_what_is_there_stays_unless_asked(tmp_path: Path) -> None:
    criteo(tmp_path, 5)
    with pytest.raises(DatasetExistsError, match="overwrite=True"):
        criteo(tmp_path, 7)
    assert criteo(tmp_path, 7, overwrite=True).num_rows == 7


def test_tables_given_up_early_leave_no_threads() -> None:
    before = set(threading.enumerate())
    chunks = criteo_tables(1_000, row_group_size=10)
    next(chunks)
    del chunks
    assert set(threading.enumerate()) <= before


def test_of_several_datasets_one_that_is_there_stops_all(tmp_path: Path) -> None:
    criteo(tmp_path / "movies", 5)
    with pytest.raises(DatasetExistsError):
        movielens(tmp_path, 20, users=5, movies=6)
    assert list((tmp_path / "users").glob("*.parquet")) == []


@pytest.mark.parametrize("value", [0, -1, 2.0, "3", True, None])
def test_counts_are_positive_integers(value: object, tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match=f"files is {value!r}; it must be a positive integer"):
        criteo(tmp_path, 5, files=value)  # type: ignore[arg-type]


def test_counts_may_have_an_upper_bound() -> None:
    outbrain_tables(5, documents=5, ads=12)
    with pytest.raises(ArgumentError, match=r"ads is 11; .* from 12 to 100,000,000"):
        outbrain_tables(5, documents=5, ads=11)


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
