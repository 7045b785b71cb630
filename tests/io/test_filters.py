"""Filters: how they are written, and what they leave unread."""

from __future__ import annotations

import datetime as dt
import pickle
from operator import eq, ge, gt, le, lt, ne
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from tabfeed.errors import ArgumentError, ColumnNotFoundError
from tabfeed.io import Dataset
from tabfeed.trace import ListRecorder, recording

SCHEMA = pa.schema({"x": pa.int64(), "xy": pa.string(), "l": pa.list_(pa.int8())})
x = pc.field("x")


@pytest.mark.parametrize(
    ("filters", "columns"),
    [
        ([("x", ">", 3)], ("x",)),
        ([["x", ">", 3]], ("x",)),
        ([("x", ">", 3), ("xy", "==", "a")], ("x", "xy")),
        ([[("x", ">", 3)], [["xy", "in", ["a"]]]], ("x", "xy")),
        ((("x", "not in", {1}),), ("x",)),
        (pc.field("xy") == "x", ("xy",)),
        ((x > 1) & pc.field("l").is_valid(), ("x", "l")),
        (pc.scalar(True), ()),
    ],
)
def test_ways_to_write_a_filter(filters: Any, columns: tuple[str, ...]) -> None:
    ds = Dataset(SCHEMA.empty_table(), filters=filters)
    assert ds.condition is not None
    assert ds.condition.columns == columns
    assert ds.num_rows == 0


def test_no_filter() -> None:
    assert Dataset(SCHEMA.empty_table(), filters=None).condition is None
    assert Dataset(SCHEMA.empty_table(), filters=[]).condition is None


@pytest.mark.parametrize(
    "filters",
    [("x", ">", 3), "x > 3", 5, [[]], [("x", ">")], [(1, ">", 2)], [("x", "~", 1)], [None]],
)
def test_what_is_no_filter_is_refused_with_how_to_write_one(filters: Any) -> None:
    with pytest.raises(ArgumentError, match=r"filters is .*"):
        Dataset(SCHEMA.empty_table(), filters=filters)


def test_a_wrong_column_and_a_wrong_type() -> None:
    for filters in ([("xz", ">", 1)], pc.field("xz") > 1):
        with pytest.raises(ColumnNotFoundError, match=r"no column 'xz'.*did you mean 'x'"):
            Dataset(SCHEMA.empty_table(), filters=filters)
    with pytest.raises(ArgumentError, match=r"'x': 'int64'"):
        Dataset(SCHEMA.empty_table(), filters=[("x", ">", "abc")])
    with pytest.raises(ArgumentError, match=r"\.is_null\(\)"):
        Dataset(SCHEMA.empty_table(), filters=[("x", "==", None)])


# -- reading ----------------------------------------------------------------------------


@pytest.fixture
def sorted_file(tmp_path: Path) -> str:
    """Ten row groups of ten: x is 0..99, one null in the last; day is 0..9."""
    values: list[int | None] = list(range(100))
    values[99] = None
    table = pa.table({"x": values, "day": [i // 10 for i in range(100)], "v": range(100)})
    path = str(tmp_path / "sorted.parquet")
    pq.write_table(table, path, row_group_size=10)
    return path


def units(ds: Dataset) -> list[int]:
    return [p.unit for part in ds.partitions for p in part.pieces]


@pytest.mark.parametrize(
    ("filters", "read"),
    [
        ([("x", ">=", 95)], [9]),
        ([("x", "<", 11)], [0, 1]),
        ([("x", "==", 42)], [4]),
        ([[("x", "<", 5)], [("x", "==", 55)]], [0, 5]),
        ([("x", ">", 20), ("day", "<", 3)], [2]),
        (x.is_null(), [9]),
        ([("x", ">", 1000)], []),
        (~(x < 90), [9]),
    ],
)
def test_row_groups_that_cannot_match_are_not_read(
    sorted_file: str, filters: Any, read: list[int]
) -> None:
    ds = Dataset(sorted_file, filters=filters, columns=["v"])
    assert units(ds) == read
    whole = pq.read_table(sorted_file)
    assert ds.condition is not None
    expected = whole.filter(ds.condition.expression).column("v")
    recorder = ListRecorder()
    with recording(recorder):
        assert ds.to_arrow().to_pydict() == {"v": expected.to_pylist()}
    assert sum(s.data["rows"] for s in recorder.spans if s.name == "read") == 10 * len(read)
    assert ds.num_rows == sum(ds.partition_lens) == len(expected)
    assert ds.partition_lens == [ds.read(i).num_rows for i in range(ds.npartitions)]


def test_filters_and_npartitions(sorted_file: str) -> None:
    ds = Dataset(sorted_file, filters=[("x", ">=", 85)], npartitions=4)
    assert units(ds) == [8, 8, 9, 9]
    assert ds.partition_lens == [0, 5, 5, 4]
    assert ds.to_arrow().column("x").to_pylist() == list(range(85, 99))


def test_a_filter_on_folder_keys_reads_no_other_folder(tmp_path: Path) -> None:
    for day in (1, 2, 3):
        (tmp_path / f"day={day}").mkdir()
        table = pa.table({"x": [day * 10, day * 10 + 1]})
        pq.write_table(table, tmp_path / f"day={day}" / "a.parquet", row_group_size=1)
    ds = Dataset(tmp_path, filters=[("day", ">=", 2)])
    assert [p.file for part in ds.partitions for p in part.pieces] == [1, 1, 2, 2]
    both = Dataset(tmp_path, filters=[[("day", "==", 1), ("x", ">", 10)], [("day", "==", 3)]])
    pieces = [(p.file, p.unit) for part in both.partitions for p in part.pieces]
    assert pieces == [(0, 1), (2, 0), (2, 1)]
    assert both.to_arrow().column("x").to_pylist() == [11, 30, 31]
    named = Dataset(tmp_path, columns=["x"], filters=[("day", "in", [2])])
    assert named.to_arrow().to_pydict() == {"x": [20, 21]}


def test_statistics_of_a_narrower_file_serve_a_widened_column(tmp_path: Path) -> None:
    pq.write_table(pa.table({"x": pa.array([1, 2], pa.int32())}), tmp_path / "a.parquet")
    pq.write_table(pa.table({"x": pa.array([2**40], pa.int64())}), tmp_path / "b.parquet")
    pq.write_table(pa.table({"y": [1]}), tmp_path / "c.parquet")
    ds = Dataset(tmp_path, filters=[("x", ">", 2**35)])
    assert [p.file for part in ds.partitions for p in part.pieces] == [1]
    nulls = Dataset(tmp_path, filters=x.is_null())
    assert [p.file for part in nulls.partitions for p in part.pieces] == [2]


def test_statistics_do_not_mislead_where_reading_changes_the_order(tmp_path: Path) -> None:
    pq.write_table(pa.table({"x": [9, 10]}), tmp_path / "a.parquet")
    ds = Dataset(tmp_path, dtypes={"x": "string"}, filters=[("x", "<", "2")])
    assert ds.to_arrow().to_pydict() == {"x": ["10"]}


def test_nan_is_in_no_statistics(tmp_path: Path) -> None:
    pq.write_table(pa.table({"x": [1.0, float("nan"), 5.0]}), tmp_path / "a.parquet")
    found = Dataset(tmp_path, filters=~(x <= 5.0)).to_arrow()
    assert str(found.column("x").to_pylist()) == "[nan]"
    assert Dataset(tmp_path, filters=[("x", ">", 5.0)]).npartitions == 0


def test_a_filtered_dataset_pickles(sorted_file: str) -> None:
    ds = Dataset(sorted_file, filters=[("x", ">=", 95)])
    copy = pickle.loads(pickle.dumps(ds))
    assert copy.to_arrow().equals(ds.to_arrow())
    assert copy.num_rows == 4


# -- values that Arrow compares in a type in between --------------------------------------

NAN = float("nan")
_NUMBERS: dict[str, list[Any]] = {
    "f": [1.0, NAN, 5.0, None, 5.0, NAN],
    "u": [0, 5, 2**63 - 1, 2**63, None, 2**64 - 1],
    "i": [-(2**63), -5, 2**53, 2**53 + 1, None, 2**63 - 1],
    "b": [-128, 7, 7, 7, None, 127],
}
_TYPES = {"f": pa.float64(), "u": pa.uint64(), "i": pa.int64(), "b": pa.int8()}
_COMPARED = {"==": eq, "!=": ne, "<": lt, "<=": le, ">": gt, ">=": ge}
_WITH = {
    "f": [5.0, 5, 0, float("inf")],
    "u": [0, 5, 2**63, 2**64 - 1, -1, 2**64, 5.0, 5.5, float("-inf"), np.uint64(2**63)],
    "i": [-(2**63), 2**53, 2**53 + 1, 2**63, -(2**64), 7.5, float(2**53)],
    "b": [7, 300, -129, 127, -128, 7.5, 7.0, np.int8(7)],
}


@pytest.fixture
def sources(tmp_path: Path) -> list[Any]:
    """The same numbers in memory, in one row group, and in one a row."""
    table = pa.table({n: pa.array(v, _TYPES[n]) for n, v in _NUMBERS.items()})
    for rows in (1, 6):
        pq.write_table(table, tmp_path / f"{rows}.parquet", row_group_size=rows)
    return [table, *tmp_path.iterdir()]


@pytest.mark.parametrize(("name", "value"), [(n, v) for n, vs in _WITH.items() for v in vs])
def test_numbers_are_compared_as_numbers(sources: list[Any], name: str, value: Any) -> None:
    valid = [v for v in _NUMBERS[name] if v is not None]
    number = value.item() if isinstance(value, np.generic) else value
    cases = {op: [v for v in valid if compare(v, number)] for op, compare in _COMPARED.items()}
    cases["in"] = [v for v in valid if v in (number, 1)]
    cases["not in"] = [v for v in _NUMBERS[name] if v is None or v not in (number, 1)]
    for op, expected in cases.items():
        given = [value, 1] if op in ("in", "not in") else value
        for source in sources:
            ds = Dataset(source, filters=[(name, op, given)])
            assert str(ds.to_arrow()[name].to_pylist()) == str(expected), (op, source)


@pytest.mark.parametrize("value", [NAN, np.float32(NAN), [NAN], [1.0, NAN]])
def test_a_filter_that_compares_with_nan_is_refused(sources: list[Any], value: Any) -> None:
    for op in ("in", "not in") if isinstance(value, list) else ("==", "!=", "<"):
        for source in sources:
            with pytest.raises(ArgumentError, match=r"NaN, which equals nothing.*is_nan\(\)"):
                Dataset(source, filters=[("f", op, value)])


f = pc.field("f")


@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        (f.is_nan(), "[nan, nan]"),
        (f.isin([NAN]), "[nan, nan]"),
        (f == NAN, "[]"),
        (f != 5.0, "[1.0, nan, nan]"),
        (~f.isin([5.0]), "[1.0, nan, None, nan]"),
        (~(f <= 5.0), "[nan, nan]"),
        (f.is_null(nan_is_null=True), "[nan, None, nan]"),
        (f.is_null(), "[None]"),
    ],
    ids=str,
)
def test_expressions_find_the_same_rows_with_statistics(
    sources: list[Any], condition: pc.Expression, expected: str
) -> None:
    for source in sources:
        assert str(Dataset(source, filters=condition).to_arrow()["f"].to_pylist()) == expected


def test_an_expression_that_arrow_cannot_evaluate(sources: list[Any]) -> None:
    for source in sources:
        ds = Dataset(source, filters=pc.field("u") > 5)  # Arrow brings both to int64
        with pytest.raises(ArgumentError, match=r"cannot be evaluated.*pyarrow\.scalar"):
            ds.to_arrow()


def test_values_of_another_kind_are_refused() -> None:
    table = {"x": [1], "s": ["a"], "l": [[1]], "d": [dt.date(2020, 1, 1)]}
    wrong = [("x", "==", "a"), ("x", "in", ["a"]), ("s", ">", 1), ("s", "in", [1]), ("l", "==", 1)]
    wrong += [("l", "in", [1]), ("d", ">", "yesterday"), ("d", "in", ["x"]), ("x", "in", 5)]
    wrong += [("s", "in", "abc")]
    for condition in wrong:
        with pytest.raises(ArgumentError):
            Dataset(table, filters=[condition])
    kept = Dataset(table, filters=[("d", "in", ["2020-01-01"]), ("d", ">=", "2020-01-01")])
    assert kept.num_rows == 1
