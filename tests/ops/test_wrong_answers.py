"""Answers that other libraries get wrong; ours are worked out by hand."""

from __future__ import annotations

import math
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

import tabfeed as nvt
from tabfeed import ColumnSelector, Dataset, Workflow, ops
from tabfeed.errors import ArgumentError, GraphError, OperatorError


def test_nulls_and_an_index_that_is_not_a_count() -> None:
    frame = pd.DataFrame({"c": ["a", None, "b", "b"]}, index=[10, 2, 0, 1])
    workflow = nvt.Workflow(["c"] >> ops.Categorify()).fit(nvt.Dataset(frame, npartitions=2))
    out = workflow.transform(frame)
    assert out["c"].tolist() == [4, 1, 3, 3]
    assert out.index.tolist() == [10, 2, 0, 1]


def test_nullable_integers_from_parquet(tmp_path: Path) -> None:
    pd.DataFrame({"c": pd.array([1, None, 2, 2], "Int64")}).to_parquet(tmp_path / "a.parquet")
    data = nvt.Dataset(tmp_path / "a.parquet")
    out = nvt.Workflow(["c"] >> ops.Categorify()).fit_transform(data).to_arrow()
    assert out.column("c").to_pylist() == [4, 1, 3, 3]


def test_a_list_column_with_a_null_row() -> None:
    out = nvt.Workflow(["l"] >> ops.Categorify()).fit_transform(
        pa.table({"l": [["a"], None, ["a", "b"]]})
    )
    assert out.column("l").to_pylist() == [[3], None, [3, 4]]


def test_target_encoding_of_null_keys() -> None:
    data = pa.table({"c": ["a", "a", None, None, None], "y": [1, 0, 1, 1, 0]})
    node = ["c"] >> ops.TargetEncoding("y", kfold=1, p_smooth=1, out_dtype="float64")
    out = nvt.Workflow(node).fit(data).transform(data).column(0).to_pylist()
    # mean 0.6; a: (1 + 0.6) / 3; null: (2 + 0.6) / 4
    assert out == pytest.approx([1.6 / 3, 1.6 / 3, 0.65, 0.65, 0.65])


def test_join_groupby_of_null_and_unseen_keys() -> None:
    data = pa.table({"c": ["a", None, None], "y": [1.0, 2.0, 4.0]})
    node = ["c"] >> ops.JoinGroupby("y", stats=["count", "mean"])
    workflow = nvt.Workflow(node).fit(data)
    out = workflow.transform(pa.table({"c": ["a", None, "never"]})).to_pydict()
    assert out == {"c_count": [1, 2, None], "c_y_mean": [1.0, 3.0, None]}


def test_overlapping_single_column_and_group() -> None:
    data = pa.table({"c": ["a", "a", "b"], "g": [1, 2, 2]})
    out = nvt.Workflow(["c", ["c", "g"]] >> ops.JoinGroupby()).fit_transform(data)
    assert out.to_pydict() == {"c_count": [2, 2, 1], "c_g_count": [1, 1, 1]}


def test_target_mean_and_out_col() -> None:
    node = ["c"] >> ops.TargetEncoding("y", target_mean=0.5, kfold=1, p_smooth=2, out_col="enc")
    out = (
        nvt.Workflow(node)
        .fit(pa.table({"c": ["a", "a"], "y": [1, 1]}))
        .transform({"c": ["a", "q"]})
    )
    assert out["enc"].tolist() == [0.75, 0.5]


def test_folds_are_for_training_rows_only() -> None:
    rng = np.random.default_rng(0)
    data = pa.table({"c": rng.integers(0, 3, 300), "y": rng.integers(0, 2, 300)})
    workflow = nvt.Workflow(["c"] >> ops.TargetEncoding("y", out_dtype="float64"))
    training = pl.from_arrow(workflow.fit_transform(data)).with_columns(c=pl.from_arrow(data)["c"])
    later = pl.from_arrow(workflow.transform(data)).with_columns(c=pl.from_arrow(data)["c"])
    assert training.group_by("c").agg(pl.col("TE_c_y").n_unique())["TE_c_y"].to_list() == [3, 3, 3]
    assert later.group_by("c").agg(pl.col("TE_c_y").n_unique())["TE_c_y"].to_list() == [1, 1, 1]


def test_out_of_fold_values_by_hand() -> None:
    # fold_seed=None: rows 0, 2 are fold 0, rows 1, 3 fold 1. Each row sees the other fold only.
    data = pa.table({"c": ["a", "a", "a", "a"], "y": [1, 0, 1, 1]})
    node = ["c"] >> ops.TargetEncoding(
        "y", kfold=2, fold_seed=None, p_smooth=1, out_dtype="float64"
    )
    out = nvt.Workflow(node).fit_transform(data).column(0).to_pylist()
    # mean 0.75; fold 0 sees sum 1 of 2; fold 1 sees sum 2 of 2
    assert out == pytest.approx([1.75 / 3, 2.75 / 3, 1.75 / 3, 2.75 / 3])


def test_folds_go_on_from_partition_to_partition() -> None:
    data = pa.table({"c": ["a"] * 40, "y": [i % 2 for i in range(40)]})
    node = lambda: ["c"] >> ops.TargetEncoding("y", drop_folds=False)  # noqa: E731
    whole = nvt.Workflow(node()).fit_transform(nvt.Dataset(data)).to_arrow()
    parts = nvt.Workflow(node()).fit_transform(nvt.Dataset(data, npartitions=5)).to_arrow()
    assert parts.equals(whole)
    folds = parts.column("__fold__").to_pylist()
    assert folds[:8] != folds[8:16]


def test_folds_of_groups_on_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tabfeed.ops.keyed.group_stats._LEAST_ROOM", 0)
    rng = np.random.default_rng(0)
    data = nvt.Dataset({"c": rng.integers(0, 300, 4000), "y": rng.random(4000)}, npartitions=5)
    node = lambda: ["c"] >> ops.TargetEncoding("y", out_dtype="float64")  # noqa: E731
    held = nvt.Workflow(node()).fit_transform(data).to_arrow()
    spilled = nvt.Workflow(node()).fit_transform(data, memory_limit="5kB").to_arrow()
    assert np.allclose(spilled.column(0), held.column(0), rtol=1e-12)


def test_variance_of_large_numbers() -> None:
    rng = np.random.default_rng(1)
    x = 1e9 + rng.random(200_000)
    workflow = nvt.Workflow(["x"] >> ops.Normalize()).fit(nvt.Dataset({"x": x}, npartitions=7))
    op = workflow.output_node.op
    assert isinstance(op, ops.Normalize)
    assert op.stds_["x"] == pytest.approx(np.std(x, ddof=1), rel=1e-6)
    assert op.stds_["x"] == pytest.approx(0.2887, abs=5e-4)
    grouped = ["c"] >> ops.JoinGroupby("x", stats="std")
    data = nvt.Dataset({"x": x, "c": np.zeros(len(x), int)}, npartitions=7)
    assert nvt.Workflow(grouped).fit_transform(data).head(1)["c_x_std"][0] == pytest.approx(
        0.2887, abs=1e-3
    )


def test_padding_lists_that_come_from_parquet(tmp_path: Path) -> None:
    nvt.Dataset({"l": [[1, 2, 3], [4], []]}).to_parquet(tmp_path / "d")
    workflow = nvt.Workflow(["l"] >> ops.ListSlice(2, pad=True, pad_value=9))
    out = workflow.transform(nvt.Dataset(tmp_path / "d"))
    assert out.to_arrow().column("l").to_pylist() == [[1, 2], [4, 9], [9, 9]]
    assert out.schema["l"].value_count == (2, 2)


def test_hash_bucket_on_lists() -> None:
    out = ops.HashBucket(1000)(pa.table({"l": [["a", "b"], None, []], "s": ["a", "b", None]}))
    a, b = out.column("s").to_pylist()[:2]
    assert out.column("l").to_pylist() == [[a, b], None, []]


def test_several_crosses_and_equal_values() -> None:
    table = pa.table({"a": list(range(50)), "b": list(range(50)), "c": ["x"] * 50})
    out = nvt.Workflow([["a", "b"], ["b", "c"]] >> ops.HashedCross(1000)).transform(table)
    assert out.column_names == ["a_X_b", "b_X_c"]
    assert len(set(out.column("a_X_b").to_pylist())) > 40


def test_hash_bucket_domain_ends_below_the_number_of_buckets() -> None:
    workflow = nvt.Workflow(["a"] >> ops.HashBucket(10)).fit_schema(
        nvt.Schema([nvt.ColumnSchema("a", "int64")])
    )
    assert workflow.output_schema["a"].domain == nvt.Domain(0, 9)


@pytest.mark.parametrize("constant", [0.0, 5.0])
def test_min_max_of_a_constant(constant: float) -> None:
    op = ops.NormalizeMinMax().fit({"x": [constant, constant]})
    assert op({"x": [constant]})["x"].tolist() == [0.0]


def test_nan_has_no_bucket() -> None:
    out = ops.Bucketize([0.0, 1.0])(pa.table({"x": [float("nan"), None, 0.5]}))
    assert out.column("x").to_pylist() == [None, None, 1]


def test_median_across_partitions() -> None:
    workflow = nvt.Workflow(["x"] >> ops.FillMedian())
    workflow.fit(nvt.Dataset({"x": [1.0, 2.0, 3.0, 10.0]}, npartitions=2))
    assert workflow.transform({"x": [None]})["x"].tolist() == [2.5]


def test_median_beyond_the_memory_limit() -> None:
    x = np.random.default_rng(2).normal(size=100_001)
    data = nvt.Dataset({"x": x}, npartitions=5)
    workflow = nvt.Workflow(["x"] >> ops.FillMedian()).fit(data, memory_limit="300kB")
    assert workflow.output_node.op.medians_["x"] == np.median(x)


def positive(frame: pl.DataFrame) -> pl.Series:
    return frame["a"] > 0


@pytest.mark.parametrize(
    "build",
    [
        lambda: (["a"] >> ops.Dropna()) + ["b"],
        lambda: ["b"] + (["a"] >> ops.Filter(positive)),
        lambda: (
            (["a"] >> ops.Filter(positive))
            + (["a"] >> ops.Filter(positive) >> ops.Rename(name="b"))
        ),
        lambda: (["k", "v"] >> ops.Groupby("k")) + ["b"],
        lambda: (["a"] >> ops.Dropna()) >> ops.TargetEncoding("y"),
        lambda: [["a"] >> ops.Dropna(), "b"] >> ops.Normalize(),
        lambda: (["k"] >> ops.JoinExternal({"k": [1, 1], "v": [2, 3]}, on="k")) + ["b"],
    ],
)
def test_branches_that_would_not_line_up_are_refused(build: Any) -> None:
    with pytest.raises(GraphError, match="do not line up"):
        build()


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda: ops.JoinExternal({"k": [1, 3], "p": [5, 6]}, on="k"), {"k": [1, 3], "p": [5, 6]}),
        (lambda: ops.DifferenceLag("z"), {"k_difference_lag_1": [None, 2.0]}),
        (lambda: ops.LambdaOp(lambda c, df: c + df["z"], dependency="z"), {"k": [8, 10]}),
        (lambda: ops.JoinGroupby("z", stats=["mean"]), {"k_z_mean": [7.0, 7.0]}),
    ],
)
def test_columns_named_behind_a_filter_are_those_that_it_left(make: Any, expected: Any) -> None:
    data = pa.table({"k": [1, 2, 3], "z": [7, 8, 7], "x": [1.0, None, 3.0]})
    whole = ["k", "z", "x"] >> ops.Dropna()
    assert nvt.Workflow(whole["k"] >> make()).fit_transform(data).to_pydict() == expected
    open_ended = ColumnSelector("*") >> ops.Dropna()
    workflow = nvt.Workflow(open_ended["k"] >> make()).fit(data)
    assert workflow.transform(data).to_pydict() == expected


def test_whole_rows_are_filtered_together() -> None:
    rows = ["a", "b", "y"] >> ops.Filter(positive)
    node = (
        (rows["a"] >> ops.Normalize())
        + rows[["b"]]
        + (rows["b"] >> ops.TargetEncoding(rows["y"], kfold=1))
    )
    data = {"a": [1.0, -1.0, 3.0], "b": ["p", "q", "r"], "y": [0, 1, 1]}
    out = nvt.Workflow(node).fit_transform(pa.table(data))
    assert out.column("b").to_pylist() == ["p", "r"]
    assert out.column("a").to_pylist() == pytest.approx([-(0.5**0.5), 0.5**0.5])


calls: list[str] = []


def counted(column: pl.Series) -> pl.Series:
    if len(column):
        calls.append(column.name)
    return column


def test_each_node_runs_once() -> None:
    shared = ["x"] >> ops.LambdaOp(counted)
    node = (shared >> ops.Rename(name="a")) + (shared >> ops.Rename(name="b")) + shared
    workflow = nvt.Workflow(node).fit_schema(nvt.Schema([nvt.ColumnSchema("x", "int64")]))
    calls.clear()
    workflow.transform({"x": [1, 2]})
    assert calls == ["x"]


def test_groupby_needs_no_shuffle() -> None:
    data = nvt.Dataset({"k": [1, 2, 1, 2, None, 1], "v": [1, 2, 3, 4, 5, 6]}, npartitions=3)
    node = ["k", "v"] >> ops.Groupby("k", aggs=["list", "sum"])
    out = nvt.Workflow(node).transform(data).to_polars().sort("k", nulls_last=True)
    assert out.rows() == [(1, [1, 3, 6], 10), (2, [2, 4], 6), (None, [5], 5)]


def test_sums_in_groups_are_exact() -> None:
    big = 2**53
    out = ops.Groupby("k", aggs="sum")(pa.table({"k": [1, 1], "v": [big, 1]}))
    assert out.column("v_sum").to_pylist() == [big + 1]


# -- numbers at the ends of their types --------------------------------------------------

MOST, LEAST = 2**63 - 1, -(2**63)


def keyed(values: list[Any], dtype: pa.DataType) -> pa.Table:
    return pa.table({"k": pa.array([1] * len(values)), "i": pa.array(values, dtype)})


@pytest.mark.parametrize(
    ("values", "dtype"), [([MOST, MOST, 5], pa.int64()), ([2**64 - 1, 1], pa.uint64())]
)
@pytest.mark.parametrize("npartitions", [1, 2])
def test_a_sum_too_large_for_its_type_is_an_error(
    values: list[int], dtype: pa.DataType, npartitions: int
) -> None:
    data = Dataset(keyed(values, dtype), npartitions=npartitions)
    for node in (
        ["k", "i"] >> ops.Groupby("k", aggs={"i": ["sum"]}),
        ["k"] >> ops.JoinGroupby("i", stats=["sum"]),
    ):
        with pytest.raises(OperatorError, match=rf"{sum(values):,}, which {dtype} cannot hold"):
            Workflow(node).fit_transform(data).to_arrow()


@pytest.mark.parametrize(
    ("values", "dtype"),
    [
        ([MOST, LEAST, 7], pa.int64()),
        ([2**53 + 1, 2**53 + 1, 1], pa.int64()),
        ([LEAST, 1, 2], pa.int64()),
        ([2**64 - 5, 3, 1], pa.uint64()),
        ([127, 127, 127], pa.int8()),
    ],
)
@pytest.mark.parametrize("npartitions", [1, 3])
def test_statistics_of_large_integers_are_exact(
    values: list[int], dtype: pa.DataType, npartitions: int
) -> None:
    data = Dataset(keyed(values, dtype), npartitions=npartitions)
    stats = ["sum", "min", "max", "mean", "std"]
    group = Workflow(["k", "i"] >> ops.Groupby("k", aggs={"i": stats})).fit_transform(data)
    join = Workflow(["k"] >> ops.JoinGroupby("i", stats=stats)).fit_transform(data)
    mean = Fraction(sum(values), 3)
    spread = math.sqrt(sum((v - mean) ** 2 for v in values) / 2)
    for row, name, near in (
        (group.to_arrow().to_pylist()[0], "i", 1e-15),
        (join.to_arrow().to_pylist()[0], "k_i", 1e-7),  # float32
    ):
        assert row[f"{name}_sum"] == sum(values)
        assert (row[f"{name}_min"], row[f"{name}_max"]) == (min(values), max(values))
        assert row[f"{name}_mean"] == pytest.approx(float(mean), rel=near)
        assert row[f"{name}_std"] == pytest.approx(spread, rel=near)


def test_a_spread_of_neighbours_among_large_integers() -> None:
    data = Dataset(keyed([MOST, MOST - 1, MOST - 2], pa.int64()), npartitions=2)
    group = Workflow(["k", "i"] >> ops.Groupby("k", aggs={"i": ["var"]})).fit_transform(data)
    join = Workflow(["k"] >> ops.JoinGroupby("i", stats=["var"])).fit_transform(data)
    assert group.to_arrow().to_pylist() == [{"k": 1, "i_var": 1.0}]
    assert join.to_arrow()["k_i_var"].to_pylist() == [1.0] * 3


def test_differences_of_large_integers() -> None:
    lag = Workflow(["i"] >> ops.DifferenceLag("k"))
    found = lag.transform(keyed([2**64 - 1, 2**64 - 2, 0], pa.uint64()))
    assert found.column(0).to_pylist() == [None, -1.0, -(2.0**64)]


def test_clip_at_infinity_and_of_decimals() -> None:
    assert ops.Clip(0, math.inf)({"x": [MOST, LEAST]})["x"].tolist() == [MOST, 0]
    with pytest.raises(ArgumentError, match="min_value is NaN"):
        ops.Clip(math.nan)
    column = pa.array([Decimal("9.9"), Decimal("-3.5")])
    assert ops.Clip(0, 10)(pa.table({"x": column})).to_pylist() == [
        {"x": Decimal("9.9")}, {"x": Decimal("0.0")},
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("limits", "dtype"),
    [
        ({"min_value": 300}, pa.uint8()),
        ({"max_value": -5}, pa.uint8()),
        ({"max_value": -1}, pa.list_(pa.uint32())),
        ({"min_value": 2**70}, pa.int64()),
        ({"min_value": 100}, pa.decimal128(2, 0)),
    ],
)
def test_clip_to_what_the_type_lacks_is_refused(limits: dict[str, int], dtype: Any) -> None:
    with pytest.raises(OperatorError, match="does not fit column 'x'"):
        Workflow(["x"] >> ops.Clip(**limits)).fit(pa.table({"x": pa.nulls(2, dtype)}))


@pytest.mark.parametrize("options", [{}, {"num_buckets": 3}])
def test_a_row_with_an_integer_that_uint64_alone_holds(options: dict[str, int]) -> None:
    table = pa.table({"x": pa.array([2**64 - 1, 2**63, 5], pa.uint64())})
    workflow = Workflow(["x"] >> ops.Categorify(**options)).fit(table.slice(0, 2))
    rows = [workflow.transform({"x": v}) for v in table["x"].to_pylist()]
    assert rows == workflow.transform(table).to_pylist()


def test_clip_to_a_limit_that_no_value_reaches() -> None:
    table = pa.table({"x": pa.array([3, 200], pa.uint8())})
    assert ops.Clip(-5, 2**70)(table).equals(table)


def test_reduced_floats_do_not_become_infinite() -> None:
    data = {"wide": [1e300, math.inf, None], "narrow": [1.5, math.inf, math.nan]}
    op = ops.ReduceDtypeSize().fit(data)
    made = op(data)
    assert (made["wide"].dtype, made["narrow"].dtype) == (np.float64, np.float32)
    assert made["wide"][0] == 1e300


def test_a_range_wider_than_a_float() -> None:
    with pytest.raises(OperatorError, match="'x' has a range wider than any float"):
        ops.NormalizeMinMax().fit({"x": [1.7e308, -1.7e308]})


def test_bounds_of_buckets_are_compared_as_whole_numbers() -> None:
    large = pa.table({"x": pa.array([2**53, 2**53 + 1, 2**63, None], pa.uint64())})
    op = ops.Bucketize([-1, 2**53 + 1, 2**64])
    assert op(large).column("x").to_pylist() == [1, 2, 2, None]
    assert op({"x": [LEAST, MOST]})["x"].tolist() == [0, 2]
    assert ops.Bucketize([1])({"x": np.array([True, False])})["x"].tolist() == [1, 0]
    with pytest.raises(ArgumentError, match="ascend"):
        ops.Bucketize([0, math.nan])


def test_what_does_not_fit_a_column_does_not_fill_it() -> None:
    for column, value in ((pa.array([True, None]), 7), (pa.array([Decimal("1.5"), None]), 300)):
        table = pa.table({"x": column})
        with pytest.raises(OperatorError, match=r"FillMissing: .*'x'"):
            ops.FillMissing(value)(table)
    assert ops.FillMissing(0)(pa.table({"x": pa.array([True, None])}))["x"].to_pylist() == [
        True, False,
    ]  # fmt: skip


def test_a_number_beyond_64_bits_with_a_sign_fills_a_column_without() -> None:
    table = pa.table({"x": pa.array([1, None], pa.uint64())})
    assert ops.FillMissing(2**63)(table)["x"].to_pylist() == [1, 2**63]
    with pytest.raises(OperatorError, match=r"FillMissing: .*'x'"):
        ops.FillMissing(2**64)(table)


def test_columns_of_nothing_but_nulls() -> None:
    nothing = pa.table({"x": pa.nulls(2), "y": pa.array([1, 2])})
    assert Workflow(["x", "y"] >> ops.Dropna()).transform(Dataset(nothing)).to_arrow().num_rows == 0
    assert ops.Dropna()(nothing).num_rows == 0
    assert ops.FillMissing(5)(nothing)["x"].to_pylist() == [5, 5]
    filled = Workflow(["x"] >> ops.FillMissing(5)).transform(Dataset(nothing)).to_arrow()
    assert filled["x"].to_pylist() == [5, 5]
