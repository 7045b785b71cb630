"""Budgets are obeyed: the resident memory of a process that reads one huge row group."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

pytestmark = pytest.mark.skipif(
    not Path("/proc/self/clear_refs").exists(), reason="needs Linux's account of a process"
)
BUDGET = 40_000_000
ROWS = 1_400_000  # of 28 bytes, in one row group

# Each case runs in a child of its own, after a small file has been through the same code: what
# libraries take for themselves is no part of the budget. Writing "5" resets the peak.
MEASURE = """
import gc, json, os, sys
from tabfeed import Dataset
from tabfeed.loader.torch import Loader, TorchAsyncItr

def shuffled(path, dataset, **options):
    return TorchAsyncItr(
        Dataset(path, **dataset), ["c"], ["x", "z"], ["y"], batch_size=2048, shuffle=True, **options
    )

def ordered(path, dataset, **options):
    return Loader(Dataset(path, **dataset), 2048, **options)

def resident(key):
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith(key))

def peak(make, dataset, options):
    for _ in make(sys.argv[2], dataset, **options):
        pass
    gc.collect()
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")
    before = resident("VmRSS")
    steps = sum(1 for _ in make(sys.argv[1], dataset, **options))
    return [steps, resident("VmHWM") - before]

for name, order, dataset, options in json.loads(sys.argv[3]):
    reading, writing = os.pipe()
    if os.fork() == 0:
        os.write(writing, json.dumps([name, *peak(globals()[order], dataset, options)]).encode())
        os._exit(0)
    os.wait()
    print(os.read(reading, 10_000).decode())
"""

CASES = [
    ("host_memory", "shuffled", {}, {}),
    ("in order", "ordered", {}, {}),
    ("part_size", "shuffled", {"part_size": "8MB"}, {}),
    ("part_mem_fraction", "shuffled", {"part_mem_fraction": 0.0005}, {}),
    ("parts_per_chunk", "shuffled", {}, {"parts_per_chunk": 8}),
    ("buffer_size", "shuffled", {}, {"buffer_size": "2MB"}),
]


@pytest.mark.timeout(150)
def test_resident_memory_stays_within_the_budget(tmp_path):
    random = np.random.default_rng(0)
    for name, rows in (("big", ROWS), ("small", 30_000)):
        columns = {
            "c": random.integers(0, 1 << 30, rows),
            "x": random.random(rows),
            "z": random.random(rows),
            "y": np.zeros(rows, np.float32),
        }
        path = tmp_path / f"{name}.parquet"
        pq.write_table(pa.table(columns), path, row_group_size=rows, compression=None)
    cases = [(*case[:3], case[3] | {"host_memory": BUDGET}) for case in CASES]
    cases.append(("no budget", "shuffled", {}, {}))
    paths = [str(tmp_path / "big.parquet"), str(tmp_path / "small.parquet")]
    command = [sys.executable, "-W", "ignore", "-c", MEASURE, *paths, json.dumps(cases)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    found = {name: rest for name, *rest in map(json.loads, done.stdout.splitlines())}
    assert {steps for steps, _ in found.values()} == {-(-ROWS // 2048)}
    assert len(found) == len(CASES) + 1
    without = found.pop("no budget")[1]
    assert without > 1.5 * BUDGET, "the measurement would not notice a budget that is ignored"
    assert {name: peak for name, (_, peak) in found.items() if peak > BUDGET} == {}
