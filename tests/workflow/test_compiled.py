"""Operators that look at the rows beside a row: right wherever the data is cut."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import tabfeed as nvt
from tabfeed import ops
from tabfeed.errors import GraphError, OperatorError
from tabfeed.testing.op import assert_tables_match

TABLE = pa.table(
    {
        "g": [1, 1, 1, 1, 2, 2, 2, 3, 3, 3],
        "x": [1.0, 3.0, 6.0, 10.0, 1.0, None, 4.0, 9.0, 7.0, 7.0],
        "c": ["a", "b", "a", "c", "b", "b", "a", "a", "c", "b"],
    }
)
PARTS = [2, 3, 10]


def lags(shift: Any) -> ops.Node:
    return ["x"] >> ops.DifferenceLag("g", shift=shift)


@pytest.mark.parametrize("parts", PARTS)
def test_differences_across_partitions(parts: int) -> None:
    out = nvt.Workflow(lags([1, 3, -1])).transform(nvt.Dataset(TABLE, npartitions=parts)).to_arrow()
    assert out.to_pydict() == {
        "x_difference_lag_1": [None, 2, 3, 4, None, None, None, None, -2, 0],
        "x_difference_lag_3": [None, None, None, 9, *[None] * 6],
        "x_difference_lag_-1": [-2, -3, -4, None, None, None, None, 2, 0, None],
    }


@pytest.mark.parametrize("parts", PARTS)
@pytest.mark.parametrize(
    "build",
    [
        lambda: (["x"] >> ops.FillMissing(0.0) >> ops.DifferenceLag("g", shift=2)) + "c",
        lambda: lags(1) >> ops.FillMissing(0.0) >> ops.Normalize(),
        lambda: lags(1) >> ops.DifferenceLag("g", shift=[1, -2]),
        lambda: (lags(1) + "c") >> ops.Dropna(),
        lambda: lags([1, -1]) + (["c"] >> ops.TargetEncoding("x", kfold=2)),
        lambda: (["c"] >> ops.Categorify()) + (lags(1) >> ops.FillMedian()),
    ],
    ids=["before", "learned", "twice", "rows", "folds", "beside"],
)
def test_other_operators_around_it(build: Any, parts: int) -> None:
    whole = nvt.Workflow(build()).fit_transform(nvt.Dataset(TABLE, npartitions=1)).to_arrow()
    cut = nvt.Workflow(build()).fit_transform(nvt.Dataset(TABLE, npartitions=parts)).to_arrow()
    assert_tables_match(cut, whole, f"in {parts} partitions")


def test_files_filters_other_cuts_and_other_processes(tmp_path: Path) -> None:
    nvt.Dataset(TABLE, npartitions=4).to_parquet(tmp_path / "in")
    data = nvt.Dataset(tmp_path / "in", filters=[("g", "!=", 2)])
    out = nvt.Workflow(lags(1)).transform(data)
    expected = [None, 2, 3, 4, None, -2, 0]
    assert out.to_arrow().column(0).to_pylist() == expected
    assert out.repartition(npartitions=5).to_arrow().column(0).to_pylist() == expected
    assert pickle.loads(pickle.dumps(out)).to_arrow().column(0).to_pylist() == expected
    written = out.to_parquet(tmp_path / "out", output_files=2)
    assert written.to_arrow().column(0).to_pylist() == expected


def test_what_cannot_be_known_is_refused() -> None:
    node = ["g", "x"] >> ops.Dropna()
    workflow = nvt.Workflow(node["x"] >> ops.DifferenceLag("g"))
    one = workflow.transform(nvt.Dataset(TABLE, npartitions=1)).to_arrow()
    assert one.column(0).to_pylist() == [None, 2, 3, 4, None, 3, None, -2, 0]
    with pytest.raises(OperatorError, match="Dropna before it drops, adds or moves rows"):
        workflow.transform(nvt.Dataset(TABLE, npartitions=2))
    with pytest.raises(GraphError, match="looks at neighbouring rows, so it cannot be repeated"):
        nvt.Workflow(ops.Subgraph("s", lags(1), loop_until=lambda df: True))
