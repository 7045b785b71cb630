"""FillMissing and FillMedian."""

from __future__ import annotations

import polars as pl
import pyarrow as pa
import pytest

from tabfeed import Dataset, Workflow, ops
from tabfeed.errors import OperatorError


def not_of_nothing(column: pl.Series) -> pl.Series:
    """A function whose type is not known, since it cannot be tried on no rows."""
    if column.is_empty():
        raise ValueError("no rows")
    return column * 2


def test_a_median_fills_a_column_whose_type_is_not_known() -> None:
    table = pa.table({"x": [1.0, None, 3.0, 5.0]})
    node = ["x"] >> ops.LambdaOp(not_of_nothing) >> ops.FillMedian(add_binary_cols=True)
    workflow = Workflow(node).fit(Dataset(table))
    assert workflow.transform(table).to_pydict() == {
        "x": [2.0, 6.0, 6.0, 10.0],
        "x_filled": [False, True, False, False],
    }
    assert workflow.transform({"x": 1.0}) == {"x": 2.0, "x_filled": False}


def test_a_value_for_a_column_whose_type_is_not_known_is_refused_with_a_way_out() -> None:
    table = pa.table({"x": [1.0, None]})
    node = ["x"] >> ops.LambdaOp(not_of_nothing) >> ops.FillMissing(0)
    with pytest.raises(OperatorError, match=r"type of column 'x' is not known.*dtype="):
        Workflow(node).fit(Dataset(table)).transform(table)
    known = ["x"] >> ops.LambdaOp(not_of_nothing, dtype="float64") >> ops.FillMissing(0)
    assert Workflow(known).transform(table).to_pydict() == {"x": [2.0, 0.0]}
