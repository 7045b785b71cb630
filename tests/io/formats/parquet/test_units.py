"""Parquet files as data files: row groups, sizes, every way to read, and what damage they name."""

from __future__ import annotations

import datetime as dt
import decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tabfeed.errors import (
    BadFileError,
    SchemaError,
)
from tabfeed.io import ReadOptions
from tabfeed.io.formats.parquet.file import ParquetFile, open_parquet
from tabfeed.io.formats.parquet.layout import layout_of
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


def test_a_file_without_rows_and_one_without_row_groups(tmp_path: Path) -> None:
    pq.write_table(TABLE.slice(0, 0), tmp_path / "none.parquet")
    with pq.ParquetWriter(tmp_path / "no_groups.parquet", TABLE.schema):
        pass
    check_data_file(opened(tmp_path / "none.parquet"), TABLE.slice(0, 0))
    file = opened(tmp_path / "no_groups.parquet")
    assert (file.unit_rows, file.schema.names) == ([], TABLE.column_names)


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


def test_a_value_that_its_type_cannot_hold_is_an_error_that_names_the_file(tmp_path: Path) -> None:
    pq.write_table(pa.table({"x": [-1]}), tmp_path / "a.parquet")
    file = opened(tmp_path / "a.parquet")
    file.schema = pa.schema({"x": pa.uint64()})  # as a damaged footer may have it
    with pytest.raises(SchemaError, match=r"column 'x' of .*a\.parquet is int64 and cannot become"):
        file.read([0], ["x"])
