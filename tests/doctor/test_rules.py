from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from tabfeed.doctor.examine import Subject
from tabfeed.doctor.files import facts_of
from tabfeed.doctor.rules import rank_load, skew, sortedness
from tabfeed.io import Dataset
from tabfeed.loader.plan import Plan
from tests.doctor.folders import numbers, plain, sorted_by_label


def test_ranks_that_share_a_row_group_both_read_it() -> None:
    # Two row groups for four ranks: each is read by two, so each rank reads twice its share.
    assert rank_load(Plan((400, 400), batch=8, streams=4, chunk=10, ranks=4)) == 2.0
    assert rank_load(Plan((100,) * 16, batch=8, streams=4, chunk=10, ranks=4)) == 1.0


def test_skewed_files(tmp_path: Path) -> None:
    table = numbers(8000)
    for i, (start, rows) in enumerate([(0, 100), (100, 100), (200, 100), (300, 7700)]):
        plain(table.slice(start, rows), tmp_path / f"{i}.parquet", row_group_size=100)
    dataset = Dataset(tmp_path)
    found = skew(dataset, facts_of(dataset), 4)
    assert found is not None
    assert (
        "whole files per rank, 3.85 times its share" in found.evidence
    )  # 7700 of 8000, for a quarter


def test_even_files_are_no_finding(tmp_path: Path) -> None:
    rows = pa.table({"x": np.zeros(150_000, np.int8)})
    for i in range(8):
        plain(rows, tmp_path / f"{i}.parquet", row_group_size=5000)
    dataset = Dataset(tmp_path)
    assert skew(dataset, facts_of(dataset), 4) is None
    assert skew(dataset, facts_of(dataset), 1) is None


def test_sorted_by_the_target(tmp_path: Path) -> None:
    sorted_by_label(tmp_path)
    found = Subject.of(Dataset(tmp_path))
    finding = sortedness(found.facts, found.sample)
    assert finding is not None
    assert finding.title == "Sorted by label"
    assert finding.evidence.startswith("the target")


@pytest.mark.parametrize("rows", [1, 3])
def test_fewer_rows_than_ranks(tmp_path: Path, rows: int) -> None:
    plain(numbers(rows), tmp_path / "a.parquet")
    dataset = Dataset(tmp_path)
    assert skew(dataset, facts_of(dataset), 8) is None
