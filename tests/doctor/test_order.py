"""What the doctor says of the order of rows, and of how ranks share them."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tabfeed.doctor import Finding, diagnose
from tests.doctor.folders import numbers, plain, sorted_by_label
from tests.doctor.test_diagnose import QUICK


def finding(folder: Path, name: str, **options: Any) -> Finding | None:
    """What is found under a name, if anything is."""
    found = diagnose(folder, seconds=QUICK, **options).findings
    return next((f for f in found if f.name == name), None)


def test_skewed_files(tmp_path: Path) -> None:
    table = numbers(8000)
    for i, (start, rows) in enumerate([(0, 100), (100, 100), (200, 100), (300, 7700)]):
        plain(table.slice(start, rows), tmp_path / f"{i}.parquet", row_group_size=100)
    found = finding(tmp_path, "skew", ranks=4)
    assert found is not None
    assert (
        "whole files per rank, 3.85 times its share" in found.evidence
    )  # 7700 of 8000, for a quarter


def test_even_files_are_no_finding(tmp_path: Path) -> None:
    rows = pa.table({"x": np.zeros(150_000, np.int8)})
    for i in range(8):
        plain(rows, tmp_path / f"{i}.parquet", row_group_size=5000)
    assert finding(tmp_path, "skew", ranks=4) is None
    assert finding(tmp_path, "skew", ranks=1) is None


def test_sorted_by_the_target(tmp_path: Path) -> None:
    sorted_by_label(tmp_path)
    found = finding(tmp_path, "sorted")
    assert found is not None
    assert found.title == "Sorted by label"
    assert found.evidence.startswith("the target")


@pytest.mark.parametrize("rows", [1, 3])
def test_fewer_rows_than_ranks(tmp_path: Path, rows: int) -> None:
    plain(numbers(rows), tmp_path / "a.parquet")
    assert finding(tmp_path, "skew", ranks=8) is None
