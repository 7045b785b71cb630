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


UNEVEN = 80_000_000
UNEVEN_MEASURE = """
import gc, sys
import pyarrow.compute as pc
from tabfeed import Dataset
from tabfeed.loader.torch import Loader

def resident(key):
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith(key))

def repeat(table):
    return table.append_column("text", pc.binary_repeat(table["short"], 50))

def run(path):
    dataset = Dataset(path)
    if sys.argv[5] == "map":
        dataset = dataset.map(repeat if "short" in dataset.column_names else lambda t: t)
    extras = [name for name in dataset.column_names if name in ("text", "short")]
    shuffle = sys.argv[3] == "shuffled"
    loader = Loader(dataset, 64, shuffle, targets=["y"], device="cpu", extras=extras,
                    host_memory=int(sys.argv[4]), threads=2)
    return sum(len(target) for _, target in loader)

run(sys.argv[2])
gc.collect()
with open("/proc/self/clear_refs", "w") as file:
    file.write("5")
before = resident("VmRSS")
rows = run(sys.argv[1])
print(rows, resident("VmHWM") - before)
"""


def uneven(kind: str, rows: int) -> pa.Table:
    """Some 200 MB once decoded, for 10,000 rows; for short text a fiftieth of it."""
    if kind == "short text":
        return pa.table({"short": [f"{i:09d}" * 44 for i in range(rows)], "y": np.zeros(rows)})
    if kind == "lists":
        column = pa.ListArray.from_arrays(
            pa.array(np.arange(rows + 1, dtype=np.int32) * 2500),
            pa.array(np.arange(rows * 2500) % 1000),
        )
        return pa.table({"list": column, "y": np.zeros(rows)})
    if kind == "few long strings":
        return pa.table({"text": [c * 20_000 for c in "abcd"] * (rows // 4), "y": np.zeros(rows)})
    return pa.table({"text": [f"{i:09d}" * 2_200 for i in range(rows)], "y": np.zeros(rows)})


@pytest.mark.parametrize("order", ["shuffled", "in order"])
@pytest.mark.parametrize(
    ("kind", "what"),
    [
        ("lists", "read"),
        ("few long strings", "read"),
        ("long text", "read"),
        ("lists", "map"),
        ("long text", "map"),
        ("short text", "map"),
    ],
)
def test_rows_of_different_sizes_stay_within_it(tmp_path, kind, what, order):
    for name, rows in (("big", 10_000), ("small", 400)):
        pq.write_table(uneven(kind, rows), tmp_path / f"{name}.parquet", store_schema=False)
    paths = [str(tmp_path / "big.parquet"), str(tmp_path / "small.parquet")]
    command = [
        sys.executable,
        "-W",
        "ignore",
        "-c",
        UNEVEN_MEASURE,
        *paths,
        order,
        str(UNEVEN),
        what,
    ]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    rows, growth = map(int, done.stdout.split())
    assert rows == 10_000
    assert growth < 1.3 * UNEVEN


def test_rows_that_cannot_fit_are_refused_before_they_are_read(tmp_path):
    pytest.importorskip("torch")
    from tabfeed import Dataset
    from tabfeed.errors import LoaderError
    from tabfeed.loader.torch import Loader

    lengths = np.ones(20_000, np.int64)
    lengths[7_000:7_020] = 200_000
    offsets = pa.array(np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32))
    values = pa.array(np.zeros(int(lengths.sum()), np.int64))
    table = pa.table({"list": pa.ListArray.from_arrays(offsets, values), "y": np.zeros(20_000)})
    pq.write_table(table, tmp_path / "a.parquet")
    dataset = Dataset(tmp_path / "a.parquet")
    with pytest.raises(LoaderError, match=r"of 64 rows takes up to 3\d.*'list'.*host_memory"):
        Loader(dataset, 64, targets=["y"], host_memory="40MB")
    with pytest.raises(LoaderError, match=r"row 7,\d+ of row group 0 of .*a.parquet.*'list'"):
        Loader(dataset, 64, targets=["y"], host_memory="3MB")
