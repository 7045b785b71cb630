"""`memory_limit=` is obeyed by operators that learn, measured in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq
import pytest

SCRIPT = """
import json, resource, sys
import duckdb, polars
import tabfeed as nvt
from tabfeed import ops

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

data = nvt.Dataset(sys.argv[1])
nvt.Workflow(["x"] >> ops.Normalize()).fit(data)
before = peak()
node = (
    (["k"] >> ops.Categorify(freq_threshold=2))
    + (["x"] >> ops.FillMedian())
    + ([["c", "k"]] >> ops.TargetEncoding("y", kfold=2))
    + (["c"] >> ops.JoinGroupby(["x"], stats=["count", "mean"]))
)
workflow = nvt.Workflow(node).fit(data, memory_limit=sys.argv[2])
fitted = peak()
workflow.save(sys.argv[3])
print(json.dumps({"fit": fitted - before, "save": peak() - before}))
"""


@pytest.fixture
def many(tmp_path: Path) -> Path:
    """Rows of which nearly each has keys of its own."""
    rows = 250_000
    numbers = np.random.default_rng(0).permutation(rows) * 7919
    text = pa.array(np.char.add("customer-number-", numbers.astype(str)))
    table = pa.table({"c": text, "k": numbers, "x": numbers / 7.0, "y": numbers % 2})
    pq.write_table(table, tmp_path / "many.parquet", row_group_size=50_000, use_dictionary=False)
    return tmp_path / "many.parquet"


def test_every_learning_operator(many: Path) -> None:
    """DuckDB, Polars and the partitions in work take some 150 MB themselves, however small it is.

    With all groups held in memory it was 377 MB.
    """
    command = [sys.executable, "-c", SCRIPT, str(many), "32MB", str(many.parent / "saved")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    used = json.loads(done.stdout)
    assert max(used.values()) < 300_000_000, used


WRITE = """
import sys
import duckdb, polars
from tabfeed import Dataset
from tabfeed.execute import LocalExecutor

def resident(key):
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith(key))

def run(path, how):
    data = Dataset(path)
    if how == "map":
        data, how = data.map(lambda table: table), "plain"
    if how == "join":
        right = Dataset({"key": list(range(100)), "z": list(range(100))})
        limit = int(sys.argv[4])
        return Dataset.merge(data, right, on="key", how="left", memory_limit=limit).num_rows
    shuffle = None if how == "plain" else how
    written = data.to_parquet(path + how, shuffle=shuffle, output_files=2, overwrite=True,
                              memory_limit=int(sys.argv[4]), executor=LocalExecutor(2))
    return written.num_rows

run(sys.argv[2], sys.argv[3])
with open("/proc/self/clear_refs", "w") as file:
    file.write("5")
before = resident("VmRSS")
rows = run(sys.argv[1], sys.argv[3])
print(rows, resident("VmHWM") - before)
"""
LIMIT = 128_000_000


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="needs Linux")
@pytest.mark.parametrize("how", ["plain", "PER_WORKER", "FULL", "join", "map"])
@pytest.mark.parametrize("kind", ["long text", "few long strings", "CSV"])
def test_writing_and_joining_rows_of_text(tmp_path: Path, how: str, kind: str) -> None:
    """Some 200 MB once decoded, in one row group, within 128 MB."""
    for name, rows in (("big", 50_000), ("small", 500)):
        numbers = [i % 40 if kind == "few long strings" else i for i in range(rows)]
        text = [f"{i:09d}" * 440 for i in numbers]
        table = pa.table({"key": numbers, "text": text})
        if kind == "CSV":
            pacsv.write_csv(table, tmp_path / f"{name}.csv")
        else:
            pq.write_table(table, tmp_path / f"{name}.parquet", store_schema=False)
    end = "csv" if kind == "CSV" else "parquet"
    paths = [str(tmp_path / f"big.{end}"), str(tmp_path / f"small.{end}")]
    command = [sys.executable, "-W", "ignore", "-c", WRITE, *paths, how, str(LIMIT)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    rows, growth = map(int, done.stdout.split())
    assert rows == 50_000
    assert growth < 1.3 * LIMIT
