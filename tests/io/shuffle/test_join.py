from __future__ import annotations

import gc
import math
import pickle
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tabfeed import ColumnSchema, Dataset, Schema
from tabfeed.errors import (
    ArgumentError,
    BadFileError,
    ColumnNotFoundError,
    SchemaError,
)
from tests.bit_rot import rot


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


def sorted_rows(ds: Dataset) -> list[tuple[Any, ...]]:
    return sorted(rows(ds), key=repr)


LEFT = {"k": [1, 2, 2, 3, None], "v": ["a", "b", "c", "d", "e"]}
RIGHT = {"k": [2, 3, 3, 4, None], "w": [20, 30, 31, 40, 50]}


@pytest.mark.parametrize(
    ("how", "expected"),
    [
        ("inner", [(2, "b", 20), (2, "c", 20), (3, "d", 30), (3, "d", 31)]),
        (
            "left",
            [
                (1, "a", None),
                (2, "b", 20),
                (2, "c", 20),
                (3, "d", 30),
                (3, "d", 31),
                (None, "e", None),
            ],
        ),
        (
            "right",
            [
                (2, "b", 20),
                (2, "c", 20),
                (3, "d", 30),
                (3, "d", 31),
                (4, None, 40),
                (None, None, 50),
            ],
        ),
        (
            "outer",
            [
                (1, "a", None),
                (2, "b", 20),
                (2, "c", 20),
                (3, "d", 30),
                (3, "d", 31),
                (4, None, 40),
                (None, "e", None),
                (None, None, 50),
            ],
        ),
        ("semi", [(2, "b"), (2, "c"), (3, "d")]),
        ("anti", [(1, "a"), (None, "e")]),
    ],
)
def test_joins(how: Any, expected: list[tuple[Any, ...]]) -> None:
    left, right = Dataset(LEFT, npartitions=2), Dataset(RIGHT, npartitions=3)
    joined = Dataset.merge(left, right, on="k", how=how)
    assert sorted_rows(joined) == sorted(expected, key=repr)
    assert joined.num_rows == len(expected)


def test_keys_of_different_names_and_clashing_columns() -> None:
    left = Dataset({"a": [1, 2], "v": [10, 20]})
    right = Dataset({"b": [2, 3], "v": [200, 300]})
    joined = Dataset.merge(left, right, left_on="a", right_on="b", how="outer")
    assert joined.column_names == ["a", "v", "b", "v_right"]
    assert sorted_rows(joined) == [(1, 10, None, None), (2, 20, 2, 200), (None, None, 3, 300)]
    again = Dataset.merge(left, right, left_on="a", right_on="b", suffix=" of b")
    assert again.column_names == ["a", "v", "b", "v of b"]
    with pytest.raises(SchemaError, match=r"'v_right'; choose another suffix"):
        Dataset.merge(
            left, Dataset({"b": [1], "v": [1], "v_right": [1]}), left_on="a", right_on="b"
        )


def test_names_that_differ_only_in_case_or_are_odd() -> None:
    left = Dataset({"k": [1, 2], "K": [3, 4], 'a"b': ["x", "y"], "it's": [5, 6]})
    right = Dataset({"k": [2, 1], "A.b": [7, 8], "SELECT": [9, 10]})
    joined = Dataset.merge(left, right, on="k")
    assert joined.column_names == ["k", "K", 'a"b', "it's", "A.b", "SELECT"]
    assert sorted_rows(joined) == [(1, 3, "x", 5, 8, 10), (2, 4, "y", 6, 7, 9)]


def test_several_keys_of_different_widths() -> None:
    left = Dataset({"a": pa.array([1, 1, 2], pa.int8()), "b": ["x", "y", "x"], "v": [1, 2, 3]})
    right = Dataset({"b": ["x", "x"], "a": pa.array([2**40, 2], pa.int64()), "w": [4, 5]})
    joined = Dataset.merge(left, right, on=["a", "b"], how="outer")
    assert joined.schema["a"].dtype == pa.int64()
    assert sorted_rows(joined) == [
        (1, "x", 1, None),
        (1, "y", 2, None),
        (1099511627776, "x", None, 4),
        (2, "x", 3, 5),
    ]


VALUES: list[pa.Array] = [
    pa.array([1, None, 3], pa.uint64()),
    pa.array([1.5, None, math.inf], pa.float16()),
    pa.array([True, None, False]),
    pa.array([b"\xff", None, b""]),
    pa.array([b"ab", None, b"cd"], pa.binary(2)),
    pa.array([1, None, 3], pa.date32()),
    pa.array([86_400_000, None, 0], pa.date64()),
    pa.array([1, None, 3], pa.timestamp("s")),
    pa.array([1, None, 3], pa.timestamp("ns", "Europe/Berlin")),
    pa.array([1, None, 3], pa.time32("s")),
    pa.array([1, None, 3], pa.duration("ms")),
    pa.array([Decimal("1.50"), None, Decimal("-2.25")], pa.decimal128(12, 2)),
    pa.array([Decimal("1.50"), None, Decimal("-2.25")], pa.decimal256(50, 2)),
    pa.array(["a", None, "b"]).dictionary_encode(),
    pa.array([7, None, 8]).dictionary_encode(),
    pa.array([[1, None], None, []], pa.list_(pa.int32())),
    pa.array([[[1], None], None, [[]]], pa.list_(pa.list_(pa.int8()))),
    pa.array([[1, 2], None, [3, None]], pa.list_(pa.int32(), 2)),
    pa.array([["a"], None, ["b"]], pa.list_(pa.string(), 1)),
    pa.array([{"x": 1, "y": ["a"]}, None, {"x": None, "y": None}]),
    pa.nulls(3),
]


@pytest.mark.parametrize("column", VALUES, ids=lambda c: str(c.type))
def test_values_of_every_type_pass_through(column: pa.Array) -> None:
    table = pa.table({"k": [1, 2, 3], "v": column})
    joined = Dataset.merge(Dataset(table), Dataset({"k": [3, 1, 2]}), on="k")
    assert joined.schema["v"].dtype == column.type
    got = joined.to_arrow().sort_by("k")
    assert got["v"].type == column.type
    assert got["v"].to_pylist() == column.to_pylist()


def test_tags_are_kept_and_nulls_are_declared() -> None:
    schema = Schema(
        [
            ColumnSchema("k", "int64", tags="id", nullable=False),
            ColumnSchema("v", "int64", tags="target", nullable=False),
        ]
    )
    fields = pa.schema([pa.field(n, pa.int64(), nullable=False) for n in ("k", "v")])
    left = Dataset(pa.table({"k": [1], "v": [2]}, schema=fields), schema=schema)
    joined = Dataset.merge(left, Dataset({"k": [1, 5]}), on="k", how="outer")
    assert joined.schema["v"].tags == ("target",)
    assert joined.schema["v"].nullable
    assert sorted_rows(joined) == [(1, 2), (5, None)]


def test_a_join_with_nothing() -> None:
    empty = Dataset({"k": pa.array([], pa.int64()), "w": pa.array([], pa.string())})
    left = Dataset(LEFT)
    assert Dataset.merge(left, empty, on="k").num_rows == 0
    outer = Dataset.merge(empty, left, on="k", how="outer")
    assert outer.schema["w"].dtype == pa.string()
    assert outer.num_rows == 5


def test_a_join_larger_than_its_memory(temporary: Path) -> None:
    n = 200_000
    left = Dataset({"k": np.arange(n), "v": np.arange(n) * 2}, npartitions=4)
    right = Dataset({"k": np.arange(n)[::-1].copy(), "t": [f"text {i}" for i in range(n)]})
    joined = Dataset.merge(left, right, on="k", memory_limit="64MB")
    table = joined.to_arrow().sort_by("k")
    assert table["v"].to_pylist()[:3] == [0, 2, 4]
    assert table["t"][0].as_py() == f"text {n - 1}"
    assert table.num_rows == n
    assert not list(temporary.rglob("spill/*"))


def test_the_joined_folder_goes_with_the_dataset(temporary: Path) -> None:
    joined = Dataset.merge(Dataset(LEFT), Dataset(RIGHT), on="k")
    copy = pickle.loads(pickle.dumps(joined))
    assert sorted_rows(copy) == sorted_rows(joined)
    del joined, copy
    gc.collect()
    assert list(temporary.iterdir()) == []


def test_the_source_s_own_error_arrives(tmp_path: Path) -> None:
    Dataset(LEFT).to_parquet(tmp_path / "l")
    left = Dataset(tmp_path / "l")
    path = tmp_path / "l" / "part_0.parquet"
    content = bytearray(path.read_bytes())
    content[10:60] = bytes(50)
    rot(path, bytes(content))
    with pytest.raises(BadFileError, match=r"part_0\.parquet"):
        Dataset.merge(left, Dataset(RIGHT), on="k")

    def fail(table: pa.Table) -> Iterator[pa.Table]:
        raise ZeroDivisionError("boom")

    right = Dataset(RIGHT)
    with pytest.raises(ZeroDivisionError, match="boom"):
        Dataset.merge(right.map(fail, schema=right.schema), right, on="k")


def test_arguments_of_a_join() -> None:
    left, right = Dataset(LEFT), Dataset(RIGHT)
    with pytest.raises(ArgumentError, match="how is 'cross'"):
        Dataset.merge(left, right, on="k", how="cross")  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="say which columns"):
        Dataset.merge(left, right)
    with pytest.raises(ArgumentError, match="say which columns"):
        Dataset.merge(left, right, on="k", left_on="k")
    with pytest.raises(ArgumentError, match="do not pair up"):
        Dataset.merge(left, right, left_on=["k", "v"], right_on=["k"])
    with pytest.raises(ColumnNotFoundError, match="'w' in the left dataset"):
        Dataset.merge(left, right, on="w")
    with pytest.raises(ColumnNotFoundError, match="'v' in the right dataset"):
        Dataset.merge(left, right, on="v")
    with pytest.raises(SchemaError, match="'v' is string on the left and 'w' is int64 on the"):
        Dataset.merge(left, right, left_on="v", right_on="w")
