"""Rows and pages too large for a memory limit: refused before they are read."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tabfeed import Dataset, Workflow, ops
from tabfeed.errors import ArgumentError
from tabfeed.io.formats.parquet.file import ParquetFile
from tabfeed.io.memory_needs import refuse_large_rows

Act = Callable[[Path, Path, Any], object]


def fit(source: Path, out: Path, limit: Any) -> None:
    node = ["text"] >> ops.Categorify()
    Workflow(node).fit(Dataset(source), memory_limit=limit)


def write(source: Path, out: Path, limit: Any) -> None:
    Dataset(source).to_parquet(out / "written", memory_limit=limit)


def write_shuffled(source: Path, out: Path, limit: Any) -> None:
    Dataset(source).to_parquet(out / "shuffled", shuffle="FULL", memory_limit=limit)


def group(source: Path, out: Path, limit: Any) -> None:
    Dataset(source).shuffle_by_keys("i", memory_limit=limit)


def join(source: Path, out: Path, limit: Any) -> None:
    data = Dataset(source)
    Dataset.merge(data, data, on="i", memory_limit=limit)


ACTS = [fit, write, write_shuffled, group, join]


@pytest.fixture(scope="module")
def one_long_row(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """40 MB in the third row of the second row group of a file."""
    path = tmp_path_factory.mktemp("long") / "long.parquet"
    texts = ["a", "b", "c", "d", "e", "f" * 40_000_000, "g", "h"]
    table = pa.table({"i": range(8), "text": texts})
    alone: dict[str, Any] = {"data_page_size": 1, "write_batch_size": 1}  # each in its page
    pq.write_table(table, path, row_group_size=3, use_dictionary=False, **alone)
    return path


@pytest.fixture(scope="module")
def one_large_page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A page of 24 MB and one of 36 MB; a row takes 20 bytes."""
    path = tmp_path_factory.mktemp("page") / "page.parquet"
    table = pa.table({"i": pa.array(range(3_000_000)), "text": ["abcdefgh"] * 3_000_000})
    large: dict[str, Any] = {"data_page_size": 2**30, "write_batch_size": 2**23}
    large["max_rows_per_page"] = 2**30
    pq.write_table(table, path, row_group_size=2**23, use_dictionary=False, **large)
    return path


@pytest.fixture
def unread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading rows fails."""

    def read(*args: Any, **options: Any) -> None:
        raise AssertionError("rows were read")

    monkeypatch.setattr(ParquetFile, "read_encoded", read)
    monkeypatch.setattr(ParquetFile, "batches", read)


@pytest.mark.usefixtures("unread")
@pytest.mark.parametrize("act", ACTS)
def test_a_row_beyond_the_memory_limit_is_refused(
    one_long_row: Path, tmp_path: Path, act: Act
) -> None:
    words = (
        f"row 2 of row group 1 of {re.escape(str(one_long_row))} takes 40 MB, most of it in column "
        "'text', and is there twice while it is read: raise memory_limit, which is 50 MB, to 80 MB"
    )
    with pytest.raises(ArgumentError, match=words):
        act(one_long_row, tmp_path, "50MB")
    assert not any(tmp_path.iterdir())


@pytest.mark.usefixtures("unread")
@pytest.mark.parametrize("act", ACTS)
def test_a_page_beyond_the_memory_limit_is_refused(
    one_large_page: Path, tmp_path: Path, act: Act
) -> None:
    words = (
        rf"column '(i|text)' in row group 0 of {re.escape(str(one_large_page))} has a page that "
        r"takes [\d.]+ MB, and is decoded whole: raise memory_limit, which is 30 MB, to [\d.]+ MB"
    )
    with pytest.raises(ArgumentError, match=words):
        act(one_large_page, tmp_path, "30MB")


@pytest.mark.parametrize("act", ACTS)
def test_with_enough_memory_it_is_read(one_long_row: Path, tmp_path: Path, act: Act) -> None:
    act(one_long_row, tmp_path, "1GB")


def test_a_page_that_claims_to_be_larger_than_its_chunk_is_left_to_reading(tmp_path: Path) -> None:
    path = tmp_path / "claims.parquet"
    large: dict[str, Any] = {"data_page_size": 2**30, "write_batch_size": 2**23}
    large.update(max_rows_per_page=2**30, use_dictionary=False, compression="none")
    pq.write_table(pa.table({"i": range(2_500_000)}), path, row_group_size=2**23, **large)
    start = pq.ParquetFile(path).metadata.row_group(0).column(0).data_page_offset
    data = bytearray(path.read_bytes())
    assert data[start + 2 : start + 7].hex() == "1592b48913"  # its size decompressed: 20 MB
    data[start + 6] = 0x7F  # 133 MB
    path.write_bytes(data)
    out = Dataset(path).to_parquet(tmp_path / "out", memory_limit="100MB")
    assert out.num_rows == 2_500_000


def test_columns_that_are_not_read_do_not_count(one_long_row: Path, tmp_path: Path) -> None:
    data = Dataset(one_long_row)
    Workflow(["i"] >> ops.Normalize()).fit(data, memory_limit="50MB")
    data.select(["i"]).to_parquet(tmp_path / "out", memory_limit="50MB")


def test_row_groups_that_a_filter_leaves_out_do_not_count(
    one_long_row: Path, tmp_path: Path
) -> None:
    data = Dataset(one_long_row, filters=[("i", "<", 3)])
    data.to_parquet(tmp_path / "out", memory_limit="50MB")
    data.shuffle_by_keys("i", memory_limit="50MB")
    Dataset.merge(data, data, on="i", memory_limit="50MB")
    Workflow(["i", "text"] >> ops.Dropna() >> ops.Categorify()).fit(data, memory_limit="50MB")


def test_column_names_of_a_file_are_not_listed_for_each_column(tmp_path: Path) -> None:
    pq.write_table(pa.table({f"c{i}": [1.0] for i in range(50)}), tmp_path / "wide.parquet")
    data = Dataset(tmp_path)
    file: Any = data.fileset.files[0]
    file.nbytes(0, data.column_names)
    listed: list[int] = []

    class Listing:
        def __init__(self, schema: pa.Schema) -> None:
            self._schema = schema

        @property
        def names(self) -> list[str]:
            listed.append(1)
            return list(self._schema.names)

        def __getattr__(self, name: str) -> Any:
            return getattr(self._schema, name)

    file.schema = Listing(file.schema)
    refuse_large_rows(data.fileset, data.table.partitioning.pieces, data.column_names, 2**26)
    assert len(listed) < 2
