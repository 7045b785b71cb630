"""JoinGroupby's statistics of groups, worked out by hand."""

from __future__ import annotations

import math
from typing import Any

import pyarrow as pa
import pytest

from tabfeed import Dataset, Workflow, ops
from tabfeed.errors import OperatorError

NAN, INF = math.nan, math.inf
STATS = ["count", "sum", "mean", "std", "var", "min", "max"]


def by_group(
    groups: dict[str, list[float | None]],
    stats: list[str],
    dtype: pa.DataType = None,
    parts: int = 1,
) -> dict[str, dict[str, Any]]:
    """The statistics of each group, whose rows take turns in the data."""
    rows = [
        (name, values[i])
        for i in range(max(len(v) for v in groups.values()))
        for name, values in groups.items()
        if i < len(values)
    ]
    keys, values = zip(*rows, strict=True)
    table = pa.table({"k": list(keys), "x": pa.array(values, dtype or pa.float64())})
    workflow = Workflow(["k"] >> ops.JoinGroupby("x", stats=stats))
    out = workflow.fit_transform(Dataset(table, npartitions=parts)).to_arrow().to_pylist()
    found: dict[str, dict[str, Any]] = {}
    for key, row in zip(keys, out, strict=True):
        short = {name.removeprefix("k_").removeprefix("x_"): row[name] for name in row}
        assert repr(found.setdefault(key, short)) == repr(short), "rows of a group differ"
    return found


@pytest.mark.parametrize("parts", [1, 2, 3])
@pytest.mark.parametrize("dtype", [pa.float64(), pa.float32()])
def test_statistics_of_floats(dtype: pa.DataType, parts: int) -> None:
    groups: dict[str, list[float | None]] = {
        "plain": [1.5, 2.5, 4.25, -0.25],
        "one row": [7.5],
        "one value": [None, 0.5, NAN],
        "nulls and NaN": [0.25, None, 1.75, NAN],
        "nothing": [None, NAN, None],
        "alike": [0.125, 0.125, 0.125],
    }
    found = by_group(groups, STATS, dtype, parts)
    close = lambda *row: dict(zip(STATS, row, strict=True))  # noqa: E731
    # 2 is the mean: (0.25 + 0.25 + 5.0625 + 5.0625) / 3
    assert found["plain"] == pytest.approx(
        close(4, 8.0, 2.0, math.sqrt(10.625 / 3), 10.625 / 3, -0.25, 4.25), rel=1e-7
    )
    assert found["one row"] == close(1, 7.5, 7.5, None, None, 7.5, 7.5)
    assert found["one value"] == close(3, 0.5, 0.5, None, None, 0.5, 0.5)
    # 1 is the mean: (0.75 ** 2 + 0.75 ** 2) / 1
    assert found["nulls and NaN"] == pytest.approx(
        close(4, 2.0, 1.0, math.sqrt(1.125), 1.125, 0.25, 1.75), rel=1e-7
    )
    assert found["nothing"] == close(3, None, None, None, None, None, None)
    assert found["alike"] == close(3, 0.375, 0.125, 0.0, 0.0, 0.125, 0.125)


def test_two_columns_of_floats_keep_their_own_statistics() -> None:
    table = pa.table({"k": [1, 1, 2, 2], "x": [0.5, 1.5, 2.5, 6.5], "y": [10.5, 14.5, None, 3.5]})
    node = ["k"] >> ops.JoinGroupby(["x", "y"], stats=["var", "mean"])
    out = Workflow(node).fit_transform(table)
    assert out["k_x_var"].to_pylist() == [0.5, 0.5, 8.0, 8.0]
    assert out["k_y_var"].to_pylist() == [8.0, 8.0, None, None]
    assert out["k_x_mean"].to_pylist() == [1.0, 1.0, 4.5, 4.5]
    assert out["k_y_mean"].to_pylist() == [12.5, 12.5, 3.5, 3.5]


@pytest.mark.parametrize(
    ("stat", "values"),
    [
        ("mean", [1e39, 1e39]),
        ("mean", [-1e39, 0.5]),
        ("std", [1e39, 0.5]),
        ("var", [1e20, 0.5]),
        ("std", [1e150, 0.5]),
        ("var", [-1e200, 0.5]),
        ("sum", [1e308, 1e308]),
    ],
)
def test_a_statistic_too_large_for_its_type(stat: str, values: list[float | None]) -> None:
    with pytest.raises(OperatorError, match=f"'k_x_{stat}' of a group is beyond what .* can hold"):
        by_group({"usual": [0.5, 1.5], "large": values}, [stat])


@pytest.mark.parametrize("value", [1e39, 1e150, -1e200])
def test_large_values_that_are_all_alike_have_no_spread(value: float) -> None:
    found = by_group({"alike": [value] * 3, "usual": [0.5, 1.5]}, ["std", "var"])
    assert found["alike"] == {"std": 0.0, "var": 0.0}
    assert found["usual"] == pytest.approx({"std": math.sqrt(0.5), "var": 0.5}, rel=1e-7)


def test_statistics_of_infinite_values() -> None:
    """They are what they are, and no other group's."""
    found = by_group({"up": [INF, 0.5], "down": [-INF, 0.5], "usual": [0.5, 1.5]}, STATS)
    assert (found["up"]["sum"], found["up"]["mean"], found["up"]["max"]) == (INF, INF, INF)
    assert (found["down"]["sum"], found["down"]["mean"], found["down"]["min"]) == (-INF, -INF, -INF)
    assert math.isnan(found["up"]["std"])
    assert math.isnan(found["down"]["var"])
    assert found["usual"]["mean"] == 1.0
    assert found["usual"]["var"] == 0.5
