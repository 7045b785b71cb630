"""Parquet files: what the footer tells, and reading by row group, slice and column."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tabfeed.errors import (
    BadFileError,
    DuplicateColumnError,
    SchemaError,
    SkippedFileWarning,
    UnreadableFileError,
)
from tabfeed.io import Dataset
from tests.io.damage import flip_in_page, write_checked
from tests.io.datasets import types_of

NEW_ARROW = int(pa.__version__.split(".")[0]) >= 26
FLOATS = pa.list_(pa.float32(), 2)


def test_what_polars_wrote(tmp_path: Path) -> None:
    frame = pl.DataFrame({"s": ["a", None], "l": [["x"], []], "c": pl.Series(["p", "q"])})
    frame.write_parquet(tmp_path / "a.parquet")
    read = Dataset(tmp_path / "a.parquet").to_arrow()
    assert read.to_pydict() == frame.to_dict(as_series=False)


def test_dictionaries_of_any_type(tmp_path: Path) -> None:
    table = pa.table(
        {
            "words": pa.array(["u", "v", None, "u", "w"]).dictionary_encode(),
            "codes": pa.array([10, 20, None, 10, 20]).dictionary_encode(),
        }
    )
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=3)
    file = Dataset(tmp_path / "a.parquet", npartitions=5)
    assert types_of(file).equals(table.schema)
    assert file.select(["codes", "words"]).to_arrow().to_pydict() == table.to_pydict()
    codes = file.select(["codes"])
    assert [codes.read(i).to_pydict() for i in (3, 4)] == [{"codes": [10]}, {"codes": [20]}]


@pytest.mark.skipif(NEW_ARROW, reason="this pyarrow can read it")
def test_what_an_old_arrow_cannot_read_is_not_called_damage(tmp_path: Path) -> None:
    pq.write_table(pa.table({"x": pa.array([[1.0, 2.0], None], FLOATS)}), tmp_path / "a.parquet")
    with pytest.raises(SchemaError, match=r"a\.parquet has a fixed-size list that is null"):
        Dataset(tmp_path / "a.parquet").to_arrow()


def test_duplicate_names_are_refused(tmp_path: Path) -> None:
    table = pa.Table.from_arrays([pa.array([1]), pa.array([2])], names=["x", "x"])
    pq.write_table(table, tmp_path / "a.parquet")
    with pytest.raises(
        DuplicateColumnError, match=r"a\.parquet has more than one column named 'x'"
    ):
        Dataset(tmp_path / "a.parquet")


@pytest.mark.parametrize("nested", [False, True])
def test_text_that_is_not_utf8_is_damage(tmp_path: Path, nested: bool) -> None:
    good = pa.array(["ä", "b", "ASCII", None])
    broken = pa.array(["ä", "b", "ASC\u00e4", None])
    column = pa.StructArray.from_arrays([broken], ["t"]) if nested else broken
    path = tmp_path / "a.parquet"
    options = {"compression": None, "use_dictionary": False}
    pq.write_table(pa.table({"s": column, "ok": good}), path, row_group_size=2, **options)
    path.write_bytes(path.read_bytes().replace(b"ASC\xc3\xa4", b"ASC\xe4\xe4"))
    for size in ("1GiB", 1):
        ds = Dataset(path, part_size=size)
        with pytest.raises(BadFileError, match=r"a\.parquet, row group 1, column 's' .*UTF8"):
            for i in range(ds.npartitions):
                ds.read(i)
        assert ds.select(["ok"]).to_arrow()["ok"].to_pylist() == good.to_pylist()
    with pytest.warns(SkippedFileWarning, match="row group 1"):
        rest = Dataset(path, on_bad_file="skip").to_arrow()
    assert rest["ok"].to_pylist() == ["ä", "b"]


def varint(value: int) -> bytes:
    """A number of 64 bits, zigzag, as Parquet's footers and page headers have it."""
    value, found = 2 * value, b""
    while value > 127:
        value, found = value >> 7, found + bytes([value & 127 | 128])
    return found + bytes([value])


@pytest.mark.parametrize("column", [pa.nulls(12_345), pa.array([1] * 12_345)], ids=["null", "int"])
def test_more_rows_than_the_bytes_can_hold_are_refused(tmp_path: Path, column: pa.Array) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"x": column}), path)
    data = path.read_bytes()
    start = len(data) - 8 - int.from_bytes(data[-8:-4], "little")
    footer = data[start:-8].replace(varint(12_345), varint(2**60))
    path.write_bytes(data[:start] + footer + len(footer).to_bytes(4, "little") + b"PAR1")
    assert pq.read_metadata(path).num_rows == 2**60
    with pytest.raises(
        BadFileError, match=r"a\.parquet has a damaged footer: a row group of 1,152"
    ):
        Dataset(path)


def test_a_page_that_claims_gigabytes_takes_none(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"x": list(range(5000))}), path, compression=None, use_dictionary=False)
    start = pq.read_metadata(path).row_group(0).column(0).data_page_offset
    data = bytearray(path.read_bytes())
    # A page header: its kind, its bytes decompressed, its bytes in the file.
    sizes = re.match(
        rb"\x15\x00\x15[\x80-\xff]*[\x00-\x7f]\x15([\x80-\xff]*[\x00-\x7f])", data[start:]
    )
    assert sizes
    rest = data[start + sizes.end() : start + sizes.end() + 64]
    forged = sizes[0][: -len(sizes[1])] + varint(1_600_000_000) + rest
    data[start : start + len(forged)] = forged
    path.write_bytes(data)
    code = """
import sys
import pyarrow as pa
from tabfeed import Dataset
for part_size in (4000, 10**9):
    try:
        Dataset(sys.argv[1], part_size=part_size).to_arrow()
    except Exception as e:
        print(e)
print(pa.default_memory_pool().max_memory())
"""
    command = [sys.executable, "-c", code, str(path)]
    *errors, peak = subprocess.run(command, capture_output=True, text=True).stdout.splitlines()
    assert len(errors) == 2
    assert all("row group 0, column 'x' is damaged" in e for e in errors), errors
    assert int(peak) < 2**26


def test_a_file_without_columns_and_a_column_without_a_name(tmp_path: Path) -> None:
    pq.write_table(pa.table({}), tmp_path / "none.parquet")
    with pytest.raises(BadFileError, match=r"none\.parquet has no columns"):
        Dataset(tmp_path / "none.parquet")
    pq.write_table(pa.table({"a": [1], "": [2]}), tmp_path / "empty.parquet")
    with pytest.raises(
        SchemaError, match=r"empty\.parquet has a column without a name, as column 1"
    ):
        Dataset(tmp_path / "empty.parquet")


def test_a_damaged_page_is_located(tmp_path: Path) -> None:
    table = pa.table({"a": range(30), "b": [float(i) for i in range(30)]})
    path = write_checked(tmp_path / "a.parquet", table, 10)
    flip_in_page(path, 1, "b")
    groups, rows = Dataset(path, npartitions=3), Dataset(path, npartitions=30)
    assert groups.select(["a"]).to_arrow().num_rows == 30
    assert [groups.select(["b"]).read(i).num_rows for i in (0, 2)] == [10, 10]
    for reading in (groups.to_arrow, lambda: groups.read(1), lambda: rows.read(19)):
        with pytest.raises(BadFileError, match=r"a\.parquet, row group 1, column 'b' is dam") as e:
            reading()
        assert (e.value.file, e.value.row_group, e.value.column) == (path, 1, "b")
        assert 'on_bad_file="skip"' in str(e.value)


def test_a_file_that_changes_after_it_was_opened(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"x": range(10)}), path)
    whole, rows = Dataset(path), Dataset(path, npartitions=10)
    pq.write_table(pa.table({"x": range(1000)}), path)
    with pytest.raises(
        UnreadableFileError, match=r"a\.parquet has changed since.*Open the dataset"
    ):
        whole.to_arrow()
    os.remove(path)
    with pytest.raises(UnreadableFileError, match=r"a\.parquet has changed since.*cannot be read"):
        rows.read(4)


def test_want_of_memory_is_not_damage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pq.write_table(pa.table({"x": range(10)}), tmp_path / "a.parquet")
    path = tmp_path / "a.parquet"
    whole, rows = Dataset(path), Dataset(path, npartitions=10)

    def fail(*args: object, **options: object) -> None:
        raise pa.ArrowMemoryError("malloc of size 1 failed")

    monkeypatch.setattr(pq.ParquetFile, "read_row_groups", fail)
    monkeypatch.setattr(pq.ParquetFile, "iter_batches", fail)
    for reading in (whole.to_arrow, lambda: rows.read(4)):
        with pytest.raises(MemoryError):
            reading()
