"""`memory_limit=` is obeyed by operators that learn, measured in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
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
