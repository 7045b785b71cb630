"""What is counted and listed once: the value behind a dataset, and the datasets made from it."""

from __future__ import annotations

import pickle
import threading
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tabfeed.execute import LocalExecutor
from tabfeed.io import Dataset
from tabfeed.io.fileset import FileSet
from tabfeed.io.inspect import inspect
from tabfeed.io.table import Partitioning

N = 100


TABLE = pa.table(
    {"x": range(N), "y": [float(i) for i in range(N)], "s": [f"t{i}" for i in range(N)]}
)


@pytest.fixture
def path(tmp_path: Path) -> str:
    """Ten row groups of ten rows."""
    pq.write_table(TABLE, tmp_path / "a.parquet", row_group_size=10)
    return str(tmp_path / "a.parquet")


def test_a_dataset_does_not_change_and_keeps_its_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.csv").write_text("x,y\n1,a\n2,b\n3,c\n")
    ds = Dataset(tmp_path / "a.csv")
    assert ds.num_rows == 3
    counted = []
    count = FileSet.counted
    monkeypatch.setattr(
        FileSet, "counted", lambda self, pieces: (counted.append(1), count(self, pieces))[1]
    )
    for same in (ds.select(["y"]), ds.at_random(), ds.map(lambda t: t), ds.on(LocalExecutor(1))):
        assert same.partition_lens == ds.partition_lens == [3]
        assert same.partitions is ds.partitions
    assert not counted
    assert ds.repartition(2).partition_lens == [1, 2]
    assert ds.npartitions == 1 and ds.column_names == ["x", "y"] and not ds.mapped
    part = ds.repartition(3).with_partitions(ds.repartition(3).partitions[1:])
    assert part.to_arrow()["x"].to_pylist() == [2, 3]
    assert pickle.loads(pickle.dumps(ds.on(LocalExecutor(1)))).table.executor is None
    with pytest.raises(AttributeError):
        ds.table.schema = ds.schema  # type: ignore[misc]
    with pytest.raises(AttributeError):
        ds.schema = ds.schema  # type: ignore[misc]


@pytest.mark.parametrize("keeps_rows", [True, False])
def test_rows_are_counted_before_threads_number_them(
    path: str, keeps_rows: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    counters: list[threading.Thread] = []
    lens = Partitioning.lens

    def recorded(*args: Any) -> list[int]:
        counters.append(threading.current_thread())
        return lens(*args)

    monkeypatch.setattr(Partitioning, "lens", recorded)
    kept = Dataset(path, npartitions=7, filters=[("x", ">=", 40)])
    numbered = kept.map(lambda t, _: t, numbered=True, keeps_rows=keeps_rows)
    assert numbered.num_rows == sum(t.num_rows for t in numbered.iter_tables()) == 60
    assert counters == [threading.current_thread()]


def test_inspect_lists_units_once_whatever_the_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    ds = Dataset({f"c{i}": [1, 2] for i in range(20)}, npartitions=2)
    assert ds.npartitions == 2
    calls: list[int] = []
    units = FileSet.units
    monkeypatch.setattr(FileSet, "units", lambda self: calls.append(1) or units(self))
    assert len(inspect(ds).columns) == 20
    assert len(calls) == 1
