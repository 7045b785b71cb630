"""Sizes of rows are found in a file's pages, and partitions are cut by them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tabfeed import Dataset

MB = 10**6


def lists(lengths: Any) -> pa.Table:
    values = pa.array(np.arange(int(sum(lengths)), dtype=np.int64))
    offsets = pa.array(np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32))
    return pa.table({"x": pa.ListArray.from_arrays(offsets, values), "y": np.zeros(len(lengths))})


def skewed() -> pa.Table:
    """Twenty rows of 1.6 MB next to each other among 20,000 of 12 bytes."""
    lengths = np.ones(20_000, np.int64)
    lengths[7_000:7_020] = 200_000
    return lists(lengths)


def few_strings() -> pa.Table:
    """80 MB of text that takes a few kilobytes in a file."""
    return pa.table({"x": [c * 20_000 for c in "abcd"] * 1000, "y": np.zeros(4000)})


def largest(dataset: Dataset) -> int:
    return max(dataset.read(i).nbytes for i in range(dataset.npartitions))


@pytest.mark.parametrize("version", ["1.0", "2.0"])
@pytest.mark.parametrize("compression", ["none", "snappy", "zstd", "lz4"])
def test_partitions_of_skewed_lists_fit(tmp_path: Path, version: str, compression: str) -> None:
    table = skewed()
    path = tmp_path / "skewed.parquet"
    pq.write_table(table, path, data_page_version=version, compression=compression)
    dataset = Dataset(path, part_size=4 * MB)
    assert largest(dataset) <= 1.1 * 4 * MB
    assert dataset.npartitions < 25
    assert dataset.to_arrow().equals(table)


def test_partitions_of_a_table_in_memory_fit() -> None:
    dataset = Dataset(skewed(), part_size=4 * MB)
    assert largest(dataset) <= 1.1 * 4 * MB


@pytest.mark.parametrize("size_statistics", [True, False])
def test_partitions_of_few_long_strings_fit(tmp_path: Path, size_statistics: bool) -> None:
    table, path = few_strings(), tmp_path / "few.parquet"
    if size_statistics:
        pq.write_table(table, path)
    else:
        import polars as pl

        pl.DataFrame({"x": table["x"].to_pylist(), "y": np.zeros(4000)}).write_parquet(path)
    assert path.stat().st_size < MB
    dataset = Dataset(path, part_size=4 * MB)
    assert largest(dataset) <= 1.1 * 4 * MB
    assert dataset.num_rows == 4000


def test_text_longer_at_the_end_of_a_row_group(tmp_path: Path) -> None:
    text = [f"{i:09d}" for i in range(50_000)] + [f"{i:09d}" * 5_000 for i in range(500)]
    table = pa.table({"x": text})
    pq.write_table(table, tmp_path / "late.parquet", use_dictionary=False, write_batch_size=20)
    dataset = Dataset(tmp_path / "late.parquet", part_size=3 * MB)
    # A page is the finest that is known of flat text.
    assert largest(dataset) <= 3 * MB + 2 * 2**20
    assert dataset.to_arrow().equals(table)


def test_rows_that_are_alike_are_cut_evenly(tmp_path: Path) -> None:
    pq.write_table(lists(np.full(100_000, 10)), tmp_path / "even.parquet")
    sizes = Dataset(tmp_path / "even.parquet", part_size=2 * MB).partition_lens
    assert max(sizes) - min(sizes) <= 1


def test_lists_of_lists_fit(tmp_path: Path) -> None:
    rows = [[[1, 2], [], [3]], None, []] * 1000 + [[[5] * 1000] * 200] * 10 + [[[1]]] * 3000
    table = pa.table({"x": pa.array(rows, pa.list_(pa.list_(pa.int64())))})
    pq.write_table(table, tmp_path / "nested.parquet")
    dataset = Dataset(tmp_path / "nested.parquet", part_size=4 * MB)
    assert largest(dataset) <= 1.2 * 4 * MB
    assert dataset.to_arrow().equals(table)
