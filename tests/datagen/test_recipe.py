"""Recipes: units of several rows, and makers that fail."""

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tabfeed import ColumnSchema, Schema
from tabfeed.datagen.recipe import FileLayout, Recipe, write, write_all
from tests.datagen.test_files import row_groups


def counting(units: int, *, rows_per_unit: int = 1) -> Recipe:
    """A column that counts, each number as often as `rows_per_unit` says."""
    schema = Schema([ColumnSchema("n", "int64", nullable=False)])

    def columns(start: int, stop: int) -> dict[str, Any]:
        return {"n": np.repeat(np.arange(start, stop), rows_per_unit)}

    return Recipe(units, schema, columns, rows_per_unit=rows_per_unit)


def test_a_unit_may_have_several_rows(tmp_path: Path) -> None:
    dataset = write(counting(10, rows_per_unit=3), tmp_path, FileLayout(files=1, row_group_size=12))
    assert row_groups(tmp_path) == {"part_0.parquet": [12, 12, 6]}
    assert dataset.num_rows == 30


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


def test_of_several_datasets_all_appear_or_none(tmp_path: Path) -> None:
    with pytest.raises(Broken):
        write_all({"a": counting(5), "b": failing_at(3, 5)}, tmp_path, FileLayout())
    assert list(tmp_path.rglob("*.parquet")) == []
    made = write_all({"a": counting(5), "b": counting(6)}, tmp_path, FileLayout())
    assert [made[name].num_rows for name in "ab"] == [5, 6]
