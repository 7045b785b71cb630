"""The whole way, as the README goes it: raw files, fit, write, save, load, embedding sizes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import tabfeed as nvt
from tabfeed import Dataset, Shuffle, Workflow, ops
from tabfeed.errors import OperatorError


@pytest.fixture
def raw(tmp_path: Path) -> Path:
    rng = np.random.default_rng(5)
    folder = tmp_path / "raw"
    folder.mkdir()
    for part in range(3):
        cats = {
            f"C{i}": rng.choice([f"{v:08x}" for v in range(5 * i)] + [None], 200)
            for i in (1, 2, 10)
        }
        conts = {
            f"I{i}": pa.array(rng.integers(-3, 50, 200), mask=rng.random(200) < 0.2) for i in (1, 2)
        }
        table = pa.table({"label": rng.integers(0, 2, 200), **cats, **conts})
        pl.from_arrow(table).write_parquet(folder / f"{part}.parquet", row_group_size=70)
    return folder


def test_the_readme(raw: Path, tmp_path: Path) -> None:
    cats = ["C1", "C2", "C10"] >> ops.Categorify(max_size=10_000_000)
    conts = (
        ["I1", "I2"] >> ops.FillMissing() >> ops.Clip(min_value=0) >> ops.LogOp() >> ops.Normalize()
    )
    workflow = nvt.Workflow(cats + conts + ["label"])
    workflow.fit(nvt.Dataset(f"{raw}/*.parquet"))
    written = workflow.transform(nvt.Dataset(f"{raw}/*.parquet")).to_parquet(
        tmp_path / "train", shuffle=nvt.io.Shuffle.PER_PARTITION
    )
    workflow.save(tmp_path / "workflow")
    loaded = nvt.Workflow.load(tmp_path / "workflow")
    sizes = ops.get_embedding_sizes(loaded)
    assert list(sizes) == ["C1", "C10", "C2"]
    assert sizes["C10"] == (53, 16)

    whole = nvt.Dataset(f"{raw}/*.parquet").to_polars()
    by_hand = (
        whole["C10"].value_counts().drop_nulls().sort(["count", "C10"], descending=[True, False])
    )
    ids = {v: i + 3 for i, v in enumerate(by_hand["C10"])}
    expected = sorted(ids.get(v, 1) for v in whole["C10"].to_list())
    train = nvt.Dataset(tmp_path / "train").to_polars()
    assert sorted(train["C10"].to_list()) == expected
    assert written.num_rows == len(train) == 600
    assert train["I1"].mean() == pytest.approx(0, abs=1e-6)
    assert train["I1"].std() == pytest.approx(1, abs=1e-6)
    assert "categorical" in nvt.Dataset(tmp_path / "train").schema["C1"].tags


def test_categories_of_pandas_pass_through_any_operator() -> None:
    frame = pd.DataFrame({"c": pd.Categorical(["a", "b", None, "a"]), "x": [1.0, 2.0, 3.0, 4.0]})
    assert nvt.Workflow(["c"] >> ops.Rename(name="q")).transform(frame)["q"].tolist()[:2] == [
        "a",
        "b",
    ]
    kept = nvt.Workflow(["c", "x"] >> ops.Dropna()).transform(frame)
    assert kept["c"].tolist() == ["a", "b", "a"] and kept["c"].dtype == "category"
    assert nvt.Workflow(["c"] >> ops.Categorify()).fit(frame).transform(frame)["c"].tolist() == [
        3,
        4,
        1,
        3,
    ]


def test_text_is_not_filled_with_numbers() -> None:
    with pytest.raises(OperatorError, match="column 'c' is text; 0 is a number"):
        nvt.Workflow(["c"] >> ops.FillMissing()).transform({"c": ["a", None]})


def test_importing_does_not_load_what_is_seldom_needed() -> None:
    code = (
        "import sys, tabfeed; print([m for m in ('duckdb', 'pandas', 'torch') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("shuffle", [None, *Shuffle])
def test_groups_stay_whole_however_little_memory_writing_has(
    tmp_path: Path, shuffle: Shuffle | None
) -> None:
    rows = 100_000
    table = pa.table({"k": np.arange(rows) // 10, "x": np.ones(rows)})
    pq.write_table(table, tmp_path / "rows.parquet", row_group_size=rows)
    groups = ["k", "x"] >> ops.Groupby(groupby_cols=["k"], aggs={"x": ["sum"]})
    data = Workflow(groups).fit_transform(Dataset(tmp_path / "rows.parquet"))
    out = data.to_parquet(tmp_path / "out", shuffle=shuffle, memory_limit="4MB").to_arrow()
    assert sorted(out["k"].to_pylist()) == list(range(rows // 10))
    assert set(out["x_sum"].to_pylist()) == {10.0}
    counted = Workflow(["x_sum"] >> ops.Normalize()).fit(data, memory_limit="4MB")
    assert counted.output_node.op.means_["x_sum"] == 10.0
    by_key = data.shuffle_by_keys("k", memory_limit="4MB")
    assert by_key.num_rows == rows // 10
