"""Parquet files: what the footer tells, and reading by row group, slice and column."""

from __future__ import annotations

import datetime as dt
import decimal
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
from tabfeed.io.formats.base import ReadOptions
from tabfeed.io.formats.parquet.file import ParquetFile, open_parquet
from tabfeed.io.formats.parquet.layout import layout_of
from tests.io.damage import flip_in_page, write_checked
from tests.io.data_files import check_data_file, locate

NEW_ARROW = int(pa.__version__.split(".")[0]) >= 26
FLOATS = pa.list_(pa.float32(), 2)
PAIR = None if NEW_ARROW else [0.0, 0.0]
TABLE = pa.table(
    {
        "int": pa.array([1, None, 3, 4, 5], pa.int16()),
        "flag": [True, None, False, True, True],
        "text": ["a", "", None, "dd", "é"],
        "day": pa.array([dt.date(2020, 1, i) for i in range(1, 6)]),
        "time": pa.array([dt.datetime(2020, 1, i) for i in range(1, 6)], pa.timestamp("us", "UTC")),
        "money": pa.array([decimal.Decimal("1.50")] * 4 + [None], pa.decimal128(9, 2)),
        "bytes": [b"\x00\xff", None, b"", b"x", b"y"],
        "list": [[1, 2], None, [], [None], [3]],
        "deep": [[[1], []], None, [], [[2, None]], [None]],
        "fixed": pa.array([[1.0, 2.0], PAIR, [3.0, 4.0], [5.0, 6.0], [7.0, 8.0]], FLOATS),
        "struct": [{"a": 1, "b": "x"}, None, {"a": None, "b": "y"}, {"a": 3, "b": None}, {"a": 4}],
        "a.b": [1, 2, 3, 4, 5],
        "a.c": [[1], [2], [], None, [3, 4]],
    }
)  # fmt: skip


def opened(path: Path | str) -> ParquetFile:
    return open_parquet(locate(path), ReadOptions())


@pytest.mark.parametrize("rows", [1, 2, 5])
def test_every_type_by_every_way_of_reading(tmp_path: Path, rows: int) -> None:
    pq.write_table(TABLE, tmp_path / "a.parquet", row_group_size=rows)
    file = opened(tmp_path / "a.parquet")
    assert file.unit_rows == [min(rows, 5 - i) for i in range(0, 5, rows)]
    check_data_file(file, TABLE)


def test_dictionaries_of_any_type(tmp_path: Path) -> None:
    table = pa.table(
        {
            "words": pa.array(["u", "v", None, "u", "w"]).dictionary_encode(),
            "codes": pa.array([10, 20, None, 10, 20]).dictionary_encode(),
        }
    )
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=3)
    file = opened(tmp_path / "a.parquet")
    assert file.schema.equals(table.schema)
    assert file.read([0, 1], ["codes", "words"]).to_pydict() == table.to_pydict()
    assert [b.to_pydict() for b in file.batches(1, ["codes"], 1)] == [
        {"codes": [10]},
        {"codes": [20]},
    ]


@pytest.mark.skipif(NEW_ARROW, reason="this pyarrow can read it")
def test_what_an_old_arrow_cannot_read_is_not_called_damage(tmp_path: Path) -> None:
    pq.write_table(pa.table({"x": pa.array([[1.0, 2.0], None], FLOATS)}), tmp_path / "a.parquet")
    with pytest.raises(SchemaError, match=r"a\.parquet has a fixed-size list that is null"):
        opened(tmp_path / "a.parquet").read([0], ["x"])


def test_a_file_without_rows_and_one_without_row_groups(tmp_path: Path) -> None:
    pq.write_table(TABLE.slice(0, 0), tmp_path / "none.parquet")
    with pq.ParquetWriter(tmp_path / "no_groups.parquet", TABLE.schema):
        pass
    check_data_file(opened(tmp_path / "none.parquet"), TABLE.slice(0, 0))
    file = opened(tmp_path / "no_groups.parquet")
    assert (file.unit_rows, file.schema.names) == ([], TABLE.column_names)


def test_what_polars_wrote(tmp_path: Path) -> None:
    frame = pl.DataFrame({"s": ["a", None], "l": [["x"], []], "c": pl.Series(["p", "q"])})
    frame.write_parquet(tmp_path / "a.parquet")
    file = opened(tmp_path / "a.parquet")
    assert file.read([0], file.schema.names).to_pydict() == frame.to_dict(as_series=False)


def test_sizes_come_from_the_footer(tmp_path: Path) -> None:
    words = [f"word {i:05d}" for i in range(10)] * 1000
    table = pa.table(
        {
            "x": pa.array(range(10_000), pa.int32()),
            "text": words,
            "category": pa.array(words).dictionary_encode(),
            "list": [[1, 2]] * 10_000,
            "fixed": pa.array([[1.0, 2.0]] * 10_000, pa.list_(pa.float32(), 2)),
        }
    )
    pq.write_table(table, tmp_path / "a.parquet")
    file = opened(tmp_path / "a.parquet")
    for name in table.column_names:
        estimate, real = file.nbytes(0, [name]), table.column(name).nbytes
        assert real <= estimate <= 1.5 * real, name
    whole, parts = (
        file.nbytes(0, table.column_names),
        [file.nbytes(0, [c]) for c in table.column_names],
    )
    assert abs(whole - sum(parts)) <= len(parts)
    assert layout_of(file.schema) is layout_of(pa.schema(list(file.schema)))


def test_text_columns_can_stay_dictionary_encoded(tmp_path: Path) -> None:
    pq.write_table(pa.table({"s": ["a", "b", "a"], "x": [1, 2, 3]}), tmp_path / "a.parquet")
    table = opened(tmp_path / "a.parquet").read_encoded([0], ["x", "s"], ["s"])
    assert pa.types.is_dictionary(table.schema.field("s").type)
    assert table.to_pydict() == {"x": [1, 2, 3], "s": ["a", "b", "a"]}


# -- damage -----------------------------------------------------------------------------


def test_a_damaged_page_is_located(tmp_path: Path) -> None:
    table = pa.table({"a": range(30), "b": [float(i) for i in range(30)]})
    path = write_checked(tmp_path / "a.parquet", table, 10)
    flip_in_page(path, 1, "b")
    file = opened(path)
    assert file.read([0, 1, 2], ["a"]).num_rows == 30
    assert file.read([0, 2], ["b"]).num_rows == 20
    for reading in (
        lambda: file.read([0, 1, 2], ["a", "b"]),
        lambda: list(file.batches(1, ["a", "b"], 3)),
    ):
        with pytest.raises(BadFileError, match=r"a\.parquet, row group 1, column 'b' is dam") as e:
            reading()
        assert (e.value.file, e.value.row_group, e.value.column) == (path, 1, "b")
        assert 'on_bad_file="skip"' in str(e.value)


def test_a_footer_that_does_not_add_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pq.write_table(pa.table({"x": range(10)}), tmp_path / "a.parquet", row_group_size=5)
    monkeypatch.setattr(ParquetFile, "unit_rows", [5, 4])
    with pytest.raises(BadFileError, match="damaged footer"):
        opened(tmp_path / "a.parquet")


def test_fewer_rows_than_the_footer_says(tmp_path: Path) -> None:
    pq.write_table(pa.table({"x": range(10)}), tmp_path / "a.parquet")
    file = opened(tmp_path / "a.parquet")
    file.__dict__["unit_rows"] = [11]
    for reading in (lambda: file.read([0], ["x"]), lambda: list(file.batches(0, ["x"], 4))):
        with pytest.raises(
            BadFileError, match=r"row group 0 is damaged: it holds 10 rows.*says 11"
        ):
            reading()


def test_duplicate_names_are_refused(tmp_path: Path) -> None:
    table = pa.Table.from_arrays([pa.array([1]), pa.array([2])], names=["x", "x"])
    pq.write_table(table, tmp_path / "a.parquet")
    with pytest.raises(
        DuplicateColumnError, match=r"a\.parquet has more than one column named 'x'"
    ):
        opened(tmp_path / "a.parquet")


def test_a_file_that_changes_after_it_was_opened(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"x": range(10)}), path)
    file = opened(path)
    pq.write_table(pa.table({"x": range(1000)}), path)
    with pytest.raises(
        UnreadableFileError, match=r"a\.parquet has changed since.*Open the dataset"
    ):
        file.read([0], ["x"])
    os.remove(path)
    with pytest.raises(UnreadableFileError, match=r"a\.parquet has changed since.*cannot be read"):
        list(file.batches(0, ["x"], 4))


def test_want_of_memory_is_not_damage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pq.write_table(pa.table({"x": range(10)}), tmp_path / "a.parquet")
    file = opened(tmp_path / "a.parquet")

    def fail(*args: object, **options: object) -> None:
        raise pa.ArrowMemoryError("malloc of size 1 failed")

    monkeypatch.setattr(pq.ParquetFile, "read_row_groups", fail)
    monkeypatch.setattr(pq.ParquetFile, "iter_batches", fail)
    for reading in (lambda: file.read([0], ["x"]), lambda: list(file.batches(0, ["x"], 4))):
        with pytest.raises(MemoryError):
            reading()


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


def test_a_value_that_its_type_cannot_hold_is_an_error_that_names_the_file(tmp_path: Path) -> None:
    pq.write_table(pa.table({"x": [-1]}), tmp_path / "a.parquet")
    file = opened(tmp_path / "a.parquet")
    file.schema = pa.schema({"x": pa.uint64()})  # as a damaged footer may have it
    with pytest.raises(SchemaError, match=r"column 'x' of .*a\.parquet is int64 and cannot become"):
        file.read([0], ["x"])
