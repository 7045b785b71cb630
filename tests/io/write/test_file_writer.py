"""Row groups and pages of the files that are written, one file at a time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tabfeed import Dataset
from tabfeed.io.commit.commit import Commit
from tabfeed.io.formats.parquet.pages import PageOptions, pages_of
from tabfeed.io.write import parquet as module
from tabfeed.io.write.parquet import FileWriter


def write(folder: Path, tables: list[pa.Table], **options: Any) -> pq.ParquetFile:
    with Commit(folder) as commit:
        with FileWriter(commit, "x.parquet", tables[0].schema, PageOptions(**options)) as sink:
            for table in tables:
                sink.write(table)
        assert commit.rows == {"x.parquet": sink.rows}
    return pq.ParquetFile(folder / "x.parquet")


def group_rows(file: pq.ParquetFile) -> list[int]:
    return [file.metadata.row_group(i).num_rows for i in range(file.num_row_groups)]


def test_row_groups_take_the_bytes_given(tmp_path: Path) -> None:
    table = pa.table({"x": np.arange(50_000)})  # 8 bytes a row
    file = write(tmp_path, [table], group_bytes=160_000)
    assert group_rows(file) == [20_000, 20_000, 10_000]


def test_the_same_rows_make_the_same_file_however_they_are_cut(tmp_path: Path) -> None:
    n = 40_000
    table = pa.table(
        {
            "i": np.arange(n),
            "f": pa.array(np.arange(n) / 3, mask=np.arange(n) % 5 == 0),
            "t": [f"text {i % 1000}" for i in range(n)],
            "l": [[i] * (i % 3) for i in range(n)],
        }
    )
    for layout in ("compact", "fast"):
        contents = set()
        for rows in (n, 999, 12_345):
            parts = [table.slice(s, rows) for s in range(0, n, rows)]
            folder = tmp_path / layout / str(rows)
            write(folder, parts, group_bytes=1_000_000, layout=layout)
            contents.add((folder / "x.parquet").read_bytes())
        assert len(contents) == 1


def test_rows_far_wider_than_the_first_ones_end_a_group_early(tmp_path: Path) -> None:
    narrow = pa.table({"t": ["x"] * 10_000})
    wide = pa.table({"t": ["x" * 1000] * 1000})
    file = write(tmp_path, [narrow, *[wide] * 20], group_bytes=1_000_000)
    sizes = [file.metadata.row_group(i).total_byte_size for i in range(file.num_row_groups)]
    assert file.metadata.num_rows == 30_000
    assert file.num_row_groups >= 8  # 20 MB, held at most 2 MB at a time
    assert max(sizes) < 3_000_000


def test_a_key_that_comes_back_after_its_file_was_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_OPEN_FILES", 2)
    table = pa.table({"x": range(60), "k": [i % 6 for i in range(60)]})
    ds = Dataset(table, npartitions=10).to_parquet(
        tmp_path, partition_on="k", output_files=1, memory_limit=1
    )
    assert len(ds.files) > 6
    assert ds.to_arrow().sort_by("x").select(["x", "k"]).equals(table)


def test_rows_for_many_keys_wait_within_bounds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = []
    write_out = module.HiveWriter._write_out

    def watched(self: module.HiveWriter, folder: str) -> None:
        held.append(sum(self._bytes.values()))
        write_out(self, folder)

    monkeypatch.setattr(module.HiveWriter, "_write_out", watched)
    table = pa.table({"x": np.arange(100_000), "k": np.arange(100_000) % 50})
    ds = Dataset(table, npartitions=50).to_parquet(
        tmp_path, partition_on="k", output_files=1, memory_limit="1MB"
    )
    assert ds.num_rows == 100_000
    assert max(held) <= 1_000_000 // 8 + table.nbytes // 50


def test_a_page_of_long_text_ends_where_it_is_full(tmp_path: Path) -> None:
    text = [f"{i:06d}" * 7_000 for i in range(400)]  # of 42 kB, 17 MB in all
    out = Dataset({"text": text}).to_parquet(tmp_path / "o", compression=None)
    chunk = pq.read_metadata(out.files[0]).row_group(0).column(0)
    with pa.memory_map(out.files[0]) as file:
        assert max(page.bytes for page in pages_of(file, chunk)) <= 3 * 2**20
