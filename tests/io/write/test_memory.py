"""What writing holds in memory: the parts it reads, and the budgets of shuffles."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tabfeed import Dataset
from tabfeed.execute import LocalExecutor
from tabfeed.io.shuffle import local
from tabfeed.io.shuffle.local import SpillBudget
from tabfeed.io.table import PartitionedTable


def order(ds: Dataset) -> list[int]:
    return ds.to_arrow()["i"].to_pylist()


def test_per_worker_within_its_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Partitions larger than the limit are read in parts, and the order stays the same."""
    source = tmp_path / "in"
    Dataset({"i": np.arange(100_000)}).to_parquet(source, output_files=1, row_group_size=50_000)
    ds = Dataset(source, npartitions=2)
    orders, largest = [], []
    read = PartitionedTable.iter_tables

    def watched(self: PartitionedTable, *args: Any, **options: Any) -> Any:
        for table in read(self, *args, **options):
            largest.append(table.nbytes)
            yield table

    for limit in ("1GB", "2MB"):
        with monkeypatch.context() as patched:
            patched.setattr(PartitionedTable, "iter_tables", watched)
            out = ds.to_parquet(
                tmp_path / limit, shuffle="PER_WORKER", memory_limit=limit, output_files=2
            )
        orders.append(order(out))
        assert (max(largest) <= 125_000) == (limit == "2MB")
        largest.clear()
    assert orders[0] == orders[1]
    assert sorted(orders[0][:50_000]) == list(range(50_000))


def test_estimates_that_are_far_off_cost_nothing_but_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A map that makes every row a hundred times wider than its source."""
    largest = []
    prepare = local.prepare
    monkeypatch.setattr(local, "prepare", lambda t: (largest.append(t.nbytes), prepare(t))[1])
    ds = Dataset({"i": np.arange(20_000)}, npartitions=20)

    def widen(table: pa.Table) -> pa.Table:
        text = [f"{i:0800}" for i in table["i"].to_pylist()]
        return table.append_column("t", pa.array(text, pa.string()))

    out = ds.map(widen).to_parquet(tmp_path / "o", shuffle="FULL", memory_limit="4MB")
    assert max(largest) <= 1_000_000  # 16 MB in all, sorted in lots of a quarter of the limit
    assert sorted(order(out)) == list(range(20_000))


@pytest.fixture
def one_part(tmp_path: Path) -> Dataset:
    """100,000 rows of 8 bytes in one row group."""
    return Dataset({"i": np.arange(100_000)}).to_parquet(
        tmp_path / "one", output_files=1, row_group_size=100_000
    )


@pytest.fixture
def tables_read(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """Rows and bytes of each table that is read of a dataset."""
    found: list[tuple[int, int]] = []
    read = PartitionedTable.iter_tables

    def watched(self: PartitionedTable, *args: Any, **options: Any) -> Any:
        for table in read(self, *args, **options):
            found.append((table.num_rows, table.nbytes))
            yield table

    monkeypatch.setattr(PartitionedTable, "iter_tables", watched)
    return found


@pytest.mark.parametrize("shuffle", [None, "PER_WORKER", "FULL"])
def test_a_large_partition_is_read_in_parts(
    one_part: Dataset, tmp_path: Path, tables_read: list[tuple[int, int]], shuffle: str | None
) -> None:
    one_part.to_parquet(tmp_path / "o", shuffle=shuffle, memory_limit="1MiB")
    assert sum(rows for rows, _ in tables_read) == 100_000
    assert max(nbytes for _, nbytes in tables_read) <= 2**20 // 16


@pytest.mark.parametrize("shuffle", [None, "PER_WORKER"])
def test_large_rows_side_by_side_are_not_taken_for_rows_of_the_usual_size(
    tmp_path: Path, tables_read: list[tuple[int, int]], shuffle: str | None
) -> None:
    lists = [[1]] * 10_000 + [list(range(20_000))] * 40 + [[1]] * 10_000
    pq.write_table(pa.table({"v": pa.array(lists, pa.list_(pa.int64()))}), tmp_path / "a.parquet")
    Dataset(tmp_path / "a.parquet", part_size="2MB").to_parquet(
        tmp_path / "o", output_files=1, shuffle=shuffle, memory_limit="8MiB"
    )
    assert max(nbytes for _, nbytes in tables_read) <= 2**23 // 16


def test_shuffles_at_once_share_memory_and_open_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rooms: list[SpillBudget] = []

    class Seen(SpillBudget):
        def __post_init__(self) -> None:
            super().__post_init__()
            rooms.append(self)

    ds = Dataset({"i": np.arange(40)}).to_parquet(tmp_path / "in", output_files=4)
    monkeypatch.setattr("tabfeed.io.write.writer.SpillBudget", Seen)
    executor = LocalExecutor(threads=4)
    ds.to_parquet(tmp_path / "o", shuffle="PER_WORKER", memory_limit="64MB", executor=executor)
    assert len(rooms) == 4
    assert sum(r.memory for r in rooms) == 64_000_000
    assert sum(r.buckets for r in rooms) == SpillBudget.buckets
