from __future__ import annotations

import datetime as dt
import gc
import math
import os
import pickle
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tabfeed import Dataset
from tabfeed.errors import (
    ArgumentError,
    ColumnNotFoundError,
)


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Temporary folders go here, so that a test can look at them."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    return folder


def rows(ds: Dataset) -> list[tuple[Any, ...]]:
    table = ds.to_arrow()
    return list(zip(*(c.to_pylist() for c in table.columns), strict=True))


# -- shuffle_by_keys --------------------------------------------------------------------


def places(ds: Dataset, key: str) -> dict[Any, set[int]]:
    found: dict[Any, set[int]] = {}
    for i in range(ds.npartitions):
        for value in ds.read(i)[key].to_pylist():
            found.setdefault("nan" if value != value else value, set()).add(i)
    return found


@pytest.mark.parametrize(
    "values",
    [
        [i % 13 for i in range(1000)],
        [f"user {i % 40}" if i % 40 else None for i in range(1000)],
        [math.nan if i % 5 == 0 else i % 7 / 2 for i in range(1000)],
        [dt.date(2024, 1, 1 + i % 28) for i in range(1000)],
        pa.array([f"{i % 9}" for i in range(1000)]).dictionary_encode(),
    ],
)
def test_a_key_lives_in_one_partition_and_keeps_its_order(values: Any) -> None:
    ds = Dataset({"k": values, "i": range(1000)}, npartitions=7)
    grouped = ds.shuffle_by_keys("k", npartitions=4)
    assert grouped.schema == ds.schema
    assert grouped.npartitions <= 4
    assert all(len(p) == 1 for p in places(grouped, "k").values())
    assert sorted(i for _, i in rows(grouped)) == list(range(1000))
    by_key: dict[str, list[int]] = {}
    for key, i in rows(grouped):
        by_key.setdefault(repr(key), []).append(i)
    assert all(found == sorted(found) for found in by_key.values())


def test_grouping_by_two_keys(tmp_path: Path) -> None:
    table = {"a": [i % 3 for i in range(90)], "b": [i % 5 for i in range(90)], "i": range(90)}
    grouped = Dataset(table, npartitions=3).shuffle_by_keys(["a", "b"], npartitions=6)
    pairs: dict[tuple[int, int], set[int]] = {}
    for n in range(grouped.npartitions):
        part = grouped.read(n)
        for pair in zip(part["a"].to_pylist(), part["b"].to_pylist(), strict=True):
            pairs.setdefault(pair, set()).add(n)
    assert len(pairs) == 15
    assert all(len(found) == 1 for found in pairs.values())


def test_the_grouping_does_not_depend_on_memory_or_partitions() -> None:
    n = 100_000
    table = pa.table({"k": np.arange(n) * 7919 % 1000, "i": np.arange(n)})
    whole = rows(Dataset(table).shuffle_by_keys("k", npartitions=5))
    small = Dataset(table, npartitions=9).shuffle_by_keys("k", npartitions=5, memory_limit="1MB")
    assert rows(small) == whole


def test_grouping_nothing() -> None:
    ds = Dataset({"k": pa.array([], pa.int8()), "t": pa.array([], pa.string())})
    grouped = ds.shuffle_by_keys("k")
    assert grouped.num_rows == 0
    assert grouped.schema == ds.schema


def test_the_folder_goes_with_the_last_dataset(temporary: Path) -> None:
    grouped = Dataset({"k": range(10)}).shuffle_by_keys("k", npartitions=2)
    derived = grouped.select(["k"]).map(lambda t: t)
    del grouped
    gc.collect()
    assert sorted(r for (r,) in rows(derived)) == list(range(10))
    assert len(list(temporary.iterdir())) == 1
    del derived
    gc.collect()
    assert list(temporary.iterdir()) == []


def test_a_copy_in_another_process_reads_but_does_not_remove(temporary: Path) -> None:
    grouped = Dataset({"k": range(10)}).shuffle_by_keys("k", npartitions=2)
    copy = pickle.loads(pickle.dumps(grouped))
    assert sorted(rows(copy)) == sorted(rows(grouped))
    del copy
    gc.collect()
    assert len(list(temporary.iterdir())) == 1
    assert sorted(r for (r,) in rows(grouped)) == list(range(10))


def test_the_folder_goes_when_the_source_fails(temporary: Path) -> None:
    def fail(table: pa.Table) -> pa.Table:
        raise RuntimeError("boom")

    ds = Dataset({"k": range(10)})
    with pytest.raises(RuntimeError, match="boom"):
        ds.map(fail, schema=ds.schema).shuffle_by_keys("k")
    gc.collect()
    assert list(temporary.iterdir()) == []


def test_the_folder_goes_when_the_interpreter_ends(temporary: Path) -> None:
    program = """
        from tabfeed import Dataset
        ds = Dataset({"k": range(10)}).shuffle_by_keys("k", npartitions=2)
        print(ds.num_rows)
    """
    env = {**os.environ, "TMPDIR": str(temporary)}
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        capture_output=True,
        text=True,
        check=True,
        env=env,
    )
    assert done.stdout == "10\n"
    assert list(temporary.iterdir()) == []


def test_arguments_of_grouping() -> None:
    ds = Dataset({"key": [1]})
    with pytest.raises(ColumnNotFoundError, match=r"'kay'.*did you mean 'key'"):
        ds.shuffle_by_keys("kay")
    with pytest.raises(ArgumentError, match="npartitions is 0"):
        ds.shuffle_by_keys("key", npartitions=0)
    with pytest.raises(ArgumentError, match="at least one key"):
        ds.shuffle_by_keys([])
    with pytest.raises(ArgumentError, match="memory_limit is 0"):
        ds.shuffle_by_keys("key", memory_limit=0)
