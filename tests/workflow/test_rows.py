"""Values of another type than the workflow was fitted on: a row and a table follow one rule."""

from __future__ import annotations

import datetime as dt
import math
import pickle
from collections import defaultdict
from decimal import Decimal
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pytest

from tabfeed import Dataset, Workflow, ops
from tabfeed.errors import ColumnNotFoundError, SchemaError

TABLE = pa.table(
    {
        "i": pa.array(range(20), pa.int32()),
        "u": pa.array(range(20), pa.uint8()),
        "x": pa.array([k / 7 for k in range(20)], pa.float32()),
        "d": pa.array([k / 7 for k in range(20)]),
        "b": pa.array([k % 2 == 0 for k in range(20)]),
        "s": pa.array([f"v{k % 3}" for k in range(20)]),
        "l": pa.array([[k, k + 1] for k in range(20)], pa.list_(pa.int16())),
    }
)
ROW = {"i": 3, "u": 5, "x": 0.5, "d": 0.5, "b": True, "s": "v1", "l": [1, 2]}


@pytest.fixture(scope="module")
def workflow() -> Workflow:
    numbers = ["i", "u", "x", "d"] >> ops.FillMissing(7) >> ops.Normalize()
    return Workflow(numbers + (["s"] >> ops.Categorify()) + ["b", "l"]).fit(Dataset(TABLE))


FITTING = [
    ("i", 3.0, 3),
    ("i", True, 1),
    ("i", np.int64(-7), -7),
    ("i", np.float32(8), 8),
    ("i", math.nan, None),
    ("u", 255, 255),
    ("x", 2, 2.0),
    ("x", 0.1, float(np.float32(0.1))),
    ("x", math.inf, math.inf),
    ("d", 2**60, float(2**60)),
    ("b", 1, True),
    ("b", 0.0, False),
    ("l", [1.0, 2.0], [1, 2]),
]


@pytest.mark.parametrize(("name", "value", "meant"), FITTING)
def test_a_value_that_fits_is_the_same_in_a_row_and_in_a_table(
    workflow: Workflow, name: str, value: Any, meant: Any
) -> None:
    as_fitted = pa.Table.from_pylist([ROW | {name: meant}], TABLE.schema)
    (expected,) = workflow.transform(as_fitted).to_pylist()
    row = ROW | {name: value}
    columns = {n: [v] for n, v in row.items()}
    found = [
        workflow.transform(row),
        *workflow.transform([row]),
        *workflow.transform(pa.table(columns)).to_pylist(),
        *workflow.transform(pl.DataFrame(columns)).to_dicts(),
        *workflow.transform(Dataset(pa.table(columns))).to_arrow().to_pylist(),
    ]
    for out in found:
        assert out.keys() == expected.keys()
        for column, right in expected.items():
            assert out[column] == pytest.approx(right, rel=1e-6, nan_ok=True), column


UNFIT = [
    ("i", 3.7),
    ("i", 2**31),
    ("i", -(2**31) - 1),
    ("i", math.inf),
    ("u", -1),
    ("u", 256),
    ("u", 3.5),
    ("x", 1e300),
    ("b", 2),
    ("b", 0.5),
    ("l", [1, 40_000]),
    ("l", [1.5]),
]


@pytest.mark.parametrize(("name", "value"), UNFIT)
def test_a_value_that_does_not_fit_is_refused_in_a_row_and_in_a_table(
    workflow: Workflow, name: str, value: Any
) -> None:
    row = ROW | {name: value}
    table = pa.table({n: [v] for n, v in row.items()})
    for data in (row, [ROW, row], table, pl.from_arrow(table), table.to_pandas()):
        with pytest.raises(SchemaError, match=f"column '{name}' is .* here, which .* cannot hold"):
            workflow.transform(data)
    with pytest.raises(SchemaError, match=f"column '{name}'"):
        workflow.transform(Dataset(table)).to_arrow()


@pytest.mark.parametrize(
    ("name", "value"),
    [("i", "3"), ("i", 2**70), ("x", 10**400), ("s", 3), ("s", "\ud800"), ("s", b"v1"), ("l", 3)],
)
def test_what_is_no_value_of_a_column_is_refused_in_rows(
    workflow: Workflow, name: str, value: Any
) -> None:
    for data in (ROW | {name: value}, [ROW, ROW | {name: value}]):
        with pytest.raises(SchemaError, match=f"column '{name}' is "):
            workflow.transform(data)


def test_rows_are_transformed_like_one_row(workflow: Workflow) -> None:
    rows = [ROW | {"i": k, "s": None if k == 2 else "v2"} for k in range(4)]
    many = workflow.transform(rows)
    for one, row in zip(many, rows, strict=True):
        expected = workflow.transform(row)
        assert one.pop("l") == expected.pop("l")
        assert one == pytest.approx(expected, rel=1e-6)
    assert workflow.transform([]) == []
    with pytest.raises(SchemaError, match="no column 'i' in the row"):
        workflow.transform([ROW, {n: v for n, v in ROW.items() if n != "i"}])


MIXED = [
    ([1.0, math.nan, None, 0.0], pa.float64(), pa.bool_(), [True, None, None, False]),
    ([None, None], pa.int8(), pa.bool_(), [None, None]),
    ([], pa.int8(), pa.bool_(), []),
    ([[1.0, math.nan], None], pa.list_(pa.float64()), pa.list_(pa.int32()), [[1, None], None]),
    ([[2**53 + 1]], pa.list_(pa.int64()), pa.list_(pa.float64()), [[2.0**53]]),
    ([[0, 1]], pa.list_(pa.int64()), pa.list_(pa.bool_()), [[False, True]]),
]


@pytest.mark.parametrize(("values", "given", "fitted", "meant"), MIXED)
def test_a_column_is_converted_value_by_value_where_arrow_does_not(
    values: list[Any], given: pa.DataType, fitted: pa.DataType, meant: list[Any]
) -> None:
    workflow = Workflow(["c"] >> ops.Rename(postfix="_")).fit(pa.table({"c": pa.array([], fitted)}))
    out = workflow.transform(pa.table({"c": pa.array(values, given)}))
    assert out.column("c_").type == fitted
    assert out.column("c_").to_pylist() == meant
    assert [row["c_"] for row in workflow.transform([{"c": v} for v in values])] == meant


@pytest.mark.parametrize(
    ("value", "given", "fitted"),
    [
        ([1, 2], pa.list_(pa.int64()), pa.list_(pa.bool_())),
        ([1e39], pa.list_(pa.float64()), pa.list_(pa.float32())),
        ([[1e39]], pa.list_(pa.list_(pa.float64())), pa.list_(pa.list_(pa.float32()))),
        (70_000, pa.int32(), pa.float16()),
        (1e39, pa.dictionary(pa.int32(), pa.float64()), pa.float32()),
    ],
)
def test_a_value_that_arrow_would_change_is_refused(
    value: Any, given: pa.DataType, fitted: pa.DataType
) -> None:
    workflow = Workflow(["c"] >> ops.Rename(postfix="_")).fit_schema(
        Dataset(pa.table({"c": pa.array([], fitted)})).schema
    )
    for data in (pa.table({"c": pa.array([value], given)}), [{"c": value}]):
        with pytest.raises(SchemaError, match=r"column 'c' is .* here, which .* cannot hold"):
            workflow.transform(data)


@pytest.mark.parametrize("lists", [[[], []], [[None], None], [[], None]])
def test_lists_without_values_are_of_any_type(lists: list[Any]) -> None:
    fitted = pa.table({"n": [[1, 2], [3]], "s": [["a"], ["b"]], "deep": [[[1.5]], [[2.5]]]})
    workflow = Workflow((["n", "s"] >> ops.HashBucket(7)) + ["deep"]).fit(Dataset(fitted))
    table = pa.table({name: pa.array(lists) for name in fitted.column_names})
    assert table.schema.field("n").type == pa.list_(pa.null())
    typed = table.cast(fitted.schema)
    expected = workflow.transform(typed).to_pylist()
    assert workflow.transform(table).to_pylist() == expected
    assert workflow.transform(pl.from_arrow(table)).to_dicts() == expected
    found = workflow.transform(table.to_pandas())
    assert pa.Table.from_pandas(found).to_pylist() == expected
    rows = workflow.transform(table.to_pylist())
    assert [[list(v) if v is not None else v for v in row.values()] for row in rows] == [
        list(row.values()) for row in expected
    ]
    assert workflow.transform(Dataset(table)).to_arrow().to_pylist() == expected


def test_lists_without_values_do_not_stand_for_numbers(workflow: Workflow) -> None:
    with pytest.raises(SchemaError, match="column 'i' is list"):
        workflow.transform(pa.table({n: [v] for n, v in (ROW | {"i": []}).items()}))


DAY, SECOND = dt.date(2020, 1, 1), dt.datetime(2020, 1, 1)


@pytest.mark.parametrize(
    ("dtype", "value", "expected", "wrong"),
    [
        (pa.timestamp("us"), DAY, SECOND, (3.7, 5, "5")),
        (pa.timestamp("ns"), np.datetime64("2020-01-01", "ns"), SECOND, (3.7, 5, "5")),
        (pa.date32(), DAY, DAY, (3.7, 5, "2020-01-01")),
        (pa.duration("us"), dt.timedelta(1), dt.timedelta(1), (3.7, 5)),
        (pa.decimal128(5, 2), Decimal("1.5"), Decimal("1.50"), (3.7, Decimal("12345.5"))),
        (pa.binary(), b"a", b"a", (3.7, 5)),
    ],
)
def test_dates_decimals_and_bytes_follow_one_rule_too(
    dtype: pa.DataType, value: Any, expected: Any, wrong: tuple[Any, ...]
) -> None:
    workflow = Workflow(["t"]).fit(pa.table({"t": pa.array([expected], dtype)}))
    assert workflow.transform({"t": value}) == {"t": expected}
    rows = [{"t": value}, {"t": None}, {"t": math.nan}]
    assert [row["t"] for row in workflow.transform(rows)] == [expected, None, None]
    for row in ({"t": v} for v in wrong):
        for given in (row, [row]):
            with pytest.raises(SchemaError, match=r"column 't' is .* here, which"):
                workflow.transform(given)


def test_a_workflow_that_has_met_a_row_can_go_to_another_process() -> None:
    workflow = Workflow(["x"] >> ops.Normalize()).fit({"x": [1.0, 2.0, 3.0]})
    assert workflow.transform({"x": 2.0}) == {"x": 0.0}
    assert pickle.loads(pickle.dumps(workflow)).transform({"x": 3.0}) == {"x": 1.0}


def test_a_column_that_a_row_lacks_is_refused_whatever_kind_of_mapping_it_is(
    workflow: Workflow,
) -> None:
    row = defaultdict(int, {k: v for k, v in ROW.items() if k != "x"})
    for given in (row, [row]):
        with pytest.raises(ColumnNotFoundError, match="'x'"):
            workflow.transform(given)
    assert "x" not in row
