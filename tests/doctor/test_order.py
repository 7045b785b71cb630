from pathlib import Path

import pytest

from tabfeed.doctor.order import rank_load, skew, sortedness
from tabfeed.doctor.trial import Subject
from tabfeed.io import Dataset
from tabfeed.loader.plan import Plan
from tests.doctor.folders import numbers, plain, sorted_by_label


def subject(folder: Path) -> Subject:
    return Subject.of(Dataset(folder))


def test_a_rank_reads_what_it_shares() -> None:
    # Two row groups for four ranks: each is read by two, so each rank reads twice its share.
    assert rank_load(Plan((400, 400), batch=8, streams=4, chunk=10), 4) == 2.0
    assert rank_load(Plan((100,) * 16, batch=8, streams=4, chunk=10), 4) == 1.0


def test_skewed_files(tmp_path: Path) -> None:
    table = numbers(8000)
    for i, (start, rows) in enumerate([(0, 100), (100, 100), (200, 100), (300, 7700)]):
        plain(table.slice(start, rows), tmp_path / f"{i}.parquet", row_group_size=100)
    found = skew(subject(tmp_path).facts, subject(tmp_path).sample, 4)
    assert found is not None and found.cost is None  # tabfeed shares rows
    assert "dealt out, 3.85 times its share" in found.evidence  # 7700 of 8000, for a quarter


def test_even_files_are_no_finding(tmp_path: Path) -> None:
    for i in range(8):
        plain(numbers(8000).slice(i * 1000, 1000), tmp_path / f"{i}.parquet", row_group_size=100)
    found = subject(tmp_path)
    assert skew(found.facts, found.sample, 4) is None
    assert skew(found.facts, found.sample, 1) is None


def test_sorted_by_what_is_to_be_learned(tmp_path: Path) -> None:
    sorted_by_label(tmp_path)
    found = subject(tmp_path)
    told = sortedness(found.facts, found.sample)
    assert told is not None
    assert told.title == "Sorted by label"
    assert told.evidence.startswith("which is to be learned")


@pytest.mark.parametrize("rows", [1, 3])
def test_fewer_rows_than_ranks(tmp_path: Path, rows: int) -> None:
    plain(numbers(rows), tmp_path / "a.parquet")
    found = subject(tmp_path)
    assert skew(found.facts, found.sample, 8) is None
