"""Every operator against `check_op`, on hand-written data and on data made by Hypothesis."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tabfeed import ops
from tabfeed.execute import LocalExecutor
from tabfeed.testing.op import check_op

TABLE = pa.table(
    {
        "c": ["b", "a", None, "b", "a longer text", "b", "c", None, "a", ""],
        "d": pa.array([1, 2, None, 1, 1, 3, 2, 2, None, 9], pa.int32()),
        "x": [1.5, None, 0.0, -2.0, 1e9, 3.25, float("nan"), 8.0, 1.5, 2.0],
        "y": [1, 0, 1, 0, 1, 1, 0, 0, 1, 0],
        "l": [[1, 2], [], None, [3], [1, None, 2], [2, 2], [5], [1], [], [9, 8, 7, 6]],
        "s": [
            ["a", "b"],
            [],
            None,
            ["a"],
            ["c", None],
            ["a"],
            ["long text here"],
            [],
            ["b"],
            ["x"],
        ],
        "f": pa.array([[0.5], [1.5, None], None, [], [2.0], [1.0], [3.0], [4.0], [5.0], [6.0]]),
        "t": pa.array([0, 1, None, 5, 86_400, 7, 8, 9, 1, 0], pa.timestamp("s")),
        "b": [True, False, None, True, True, False, False, True, None, True],
    }
)


def double(column: pl.Series) -> pl.Series:
    """A function that can be imported again."""
    return column * 2


def positive(frame: pl.DataFrame) -> pl.Series:
    """A condition that can be imported again."""
    return frame["d"].fill_null(0) > 1


def upper(name: str) -> str:
    """A new name."""
    return name.upper()


def letters(text: str) -> list[str]:
    """A tokenizer that can be imported again."""
    return list(text)


def three_bounds(name: str) -> list[int]:
    """Boundaries by column name."""
    return [0, 1, 5]


class Total(ops.StatOperator):
    """An operator of a user's own."""

    def transform(self, frame: pl.LazyFrame, inputs: ops.Inputs) -> pl.LazyFrame:
        self.require_fitted()
        return frame.select(pl.col(n).cast(pl.Int64) + self.totals_[n] for n in inputs.names)

    def output_schema(self, inputs: ops.Inputs) -> Any:
        from tabfeed import Schema

        return Schema(c.with_dtype("int64") for c in inputs.columns)

    def partial(self, frame: pl.LazyFrame, inputs: ops.Inputs) -> Any:
        return (
            frame.select(pl.col(n).cast(pl.Int64).sum() for n in inputs.names)
            .collect()
            .row(0, named=True)
        )

    def merge(self, a: Any, b: Any) -> Any:
        return {n: a[n] + b[n] for n in a}

    def finish(self, summary: Any, inputs: ops.Inputs) -> None:
        self.totals_ = summary


EXTERNAL = pa.table(
    {"key": [1, 2, 2, None], "price": [1.0, 2.0, 3.0, 4.0], "name": ["p", "q", "r", "s"]}
)
FEATURES = np.array([[1.0, 0, 2], [0, 1, 0], [3, 0, 0], [1, 1, 1]])

CASES: dict[str, tuple[Callable[[], ops.Operator], Any, dict[str, Any]]] = {
    "Categorify": (lambda: ops.Categorify(), ["c", "d", "x", "t", "b", "l", "s"], {}),
    "Categorify.freq": (lambda: ops.Categorify(freq_threshold=2), ["c", "d"], {}),
    "Categorify.max_size": (lambda: ops.Categorify(max_size=5, num_buckets=2), ["c", "d"], {}),
    "Categorify.buckets": (lambda: ops.Categorify(freq_threshold=3, num_buckets=4), ["c", "s"], {}),
    "Categorify.joint": (lambda: ops.Categorify(), [["d", "y"], "c"], {}),
    "Categorify.combo": (lambda: ops.Categorify(encode_type="combo"), [["c", "d"], "b"], {}),
    "Categorify.combo_buckets": (
        lambda: ops.Categorify(encode_type="combo", num_buckets=3, freq_threshold=2),
        [["c", "d"]],
        {},
    ),
    "Categorify.single_table": (
        lambda: ops.Categorify(single_table=True, dtype="int32"),
        ["c", "d"],
        {},
    ),
    "Categorify.vocabs": (lambda: ops.Categorify(vocabs={"c": ["b", "zz", "a"]}), ["c", "d"], {}),
    "HashBucket": (lambda: ops.HashBucket(7), ["c", "d", "x", "l", "s", "t", "b"], {}),
    "HashBucket.dict": (lambda: ops.HashBucket({"c": 7}), ["c", "d"], {}),
    "HashedCross": (lambda: ops.HashedCross(11), [["c", "d"], ["d", "y"]], {}),
    "HashedCross.dict": (
        lambda: ops.HashedCross({("c", "d"): 5, ("d", "y"): 3}),
        ["c", "d", "y"],
        {},
    ),
    "Bucketize": (lambda: ops.Bucketize([0, 2]), ["x", "d", "l"], {}),
    "Bucketize.dict": (lambda: ops.Bucketize({"x": [0], "d": [1, 2]}), ["x", "d"], {}),
    "Bucketize.function": (lambda: ops.Bucketize(three_bounds), ["x"], {}),
    "DropLowCardinality": (lambda: ops.DropLowCardinality(), ["c", "d"], {}),
    "TargetEncoding": (lambda: ops.TargetEncoding("y", p_smooth=2), ["c", "d", ["c", "d"]], {}),
    "TargetEncoding.options": (
        lambda: ops.TargetEncoding(
            ["y", "d"],
            target_mean=0.5,
            kfold=2,
            fold_seed=None,
            out_col=["e1", "e2"],
            out_dtype="float64",
            drop_folds=False,
        ),
        ["c"],
        {},
    ),
    "JoinGroupby": (
        lambda: ops.JoinGroupby(
            ["x", "y"], stats=["count", "sum", "mean", "std", "var", "min", "max"]
        ),
        ["c", ["c", "d"]],
        {},
    ),
    "JoinGroupby.count": (lambda: ops.JoinGroupby(), ["c"], {}),
    "Normalize": (lambda: ops.Normalize(), ["x", "d", "l", "f", "b"], {}),
    "Normalize.float32": (lambda: ops.Normalize(out_dtype="float32"), ["x", "d"], {}),
    "NormalizeMinMax": (lambda: ops.NormalizeMinMax(), ["x", "d", "f"], {}),
    "Clip": (lambda: ops.Clip(0, 2), ["x", "d", "l", "f"], {}),
    "Clip.fraction": (lambda: ops.Clip(max_value=1.5), ["x", "d"], {}),
    "LogOp": (lambda: ops.LogOp(), ["y", "l"], {}),
    "FillMissing": (lambda: ops.FillMissing(), ["x", "d", "l", "f"], {}),
    "FillMissing.marks": (lambda: ops.FillMissing(0.5, add_binary_cols=True), ["x", "d"], {}),
    "FillMissing.text": (lambda: ops.FillMissing("none"), ["c", "s"], {}),
    "FillMedian": (lambda: ops.FillMedian(add_binary_cols=True), ["x", "d", "f"], {}),
    "Dropna": (lambda: ops.Dropna(), ["x", "d", "c"], {}),
    "ReduceDtypeSize": (lambda: ops.ReduceDtypeSize(), ["x", "d", "y", "l", "c"], {}),
    "Filter": (lambda: ops.Filter(positive), ["x", "d", "s"], {}),
    "LambdaOp": (lambda: ops.LambdaOp(double), ["x", "d"], {}),
    "LambdaOp.dtype": (
        lambda: ops.LambdaOp(double, dtype="float32", tags=["continuous"]),
        ["d"],
        {},
    ),
    "Rename": (lambda: ops.Rename(postfix="_new"), ["x", "c"], {}),
    "Rename.function": (lambda: ops.Rename(f=upper), ["x", "c"], {}),
    "Rename.name": (lambda: ops.Rename(name="z"), ["x"], {}),
    "DifferenceLag": (
        lambda: ops.DifferenceLag("y", shift=[1, -1]),
        ["x", "d"],
        {"row_wise": False},
    ),
    "Groupby": (
        lambda: ops.Groupby(
            "c", sort_cols="d", aggs={"d": ["list", "count", "sum"], "x": ["first", "mean"]}
        ),
        ["c", "d", "x"],
        {"row_wise": False},
    ),
    "Groupby.all": (
        lambda: ops.Groupby(
            ["y"], aggs=["list", "first", "last", "min", "max", "nunique", "median", "std", "var"]
        ),
        ["y", "d"],
        {"row_wise": False},
    ),
    "JoinExternal": (
        lambda: ops.JoinExternal(EXTERNAL, on="d", on_ext="key", drop_duplicates_ext=True),
        ["d", "x"],
        {},
    ),
    "JoinExternal.inner": (
        lambda: ops.JoinExternal(
            EXTERNAL, on="d", on_ext="key", how="inner", columns_ext=["price"]
        ),
        ["d"],
        {},
    ),
    "ListSlice": (lambda: ops.ListSlice(2), ["l", "s"], {}),
    "ListSlice.middle": (lambda: ops.ListSlice(1, -1), ["l"], {}),
    "ListSlice.pad": (lambda: ops.ListSlice(-3, pad=True, pad_side="left"), ["l", "s", "f"], {}),
    "ValueCount": (lambda: ops.ValueCount(), ["l", "s"], {}),
    "Tokenize": (lambda: ops.Tokenize(lower=True), ["c"], {}),
    "Tokenize.pattern": (lambda: ops.Tokenize(pattern=r"[a-z]"), ["c"], {}),
    "Tokenize.function": (lambda: ops.Tokenize(letters, lower=True), ["c"], {}),
    "ColumnSimilarity": (lambda: ops.ColumnSimilarity(FEATURES), [["d", "y"]], {}),
    "ColumnSimilarity.inner": (
        lambda: ops.ColumnSimilarity(FEATURES, FEATURES[:, ::-1], metric="inner"),
        [["d", "y"]],
        {},
    ),
    "DataStats": (lambda: ops.DataStats(), ["c", "d", "x", "l", "s", "t", "b"], {}),
    "AddMetadata": (
        lambda: ops.AddMetadata(tags=["id"], properties={"a": [1, None]}),
        ["c", "s"],
        {},
    ),
    "AddTags": (lambda: ops.AddTags(["user"]), ["c"], {}),
    "AddProperties": (lambda: ops.AddProperties({"a": 1.5}), ["c"], {}),
    "TagAsUserID": (ops.TagAsUserID, ["d"], {}),
    "TagAsItemID": (ops.TagAsItemID, ["d"], {}),
    "TagAsUserFeatures": (ops.TagAsUserFeatures, ["d"], {}),
    "TagAsItemFeatures": (ops.TagAsItemFeatures, ["d"], {}),
    "a user's operator": (Total, ["d", "y"], {}),
}


class Elsewhere:
    """An executor whose work and results travel as if to another process."""

    def map(self, items: Iterable[Any], fn: Callable[[Any], Any]) -> Iterator[Any]:
        for item in items:
            yield _travelled(_travelled(fn)(item))

    def reduce(self, items: Iterable[Any], partial: Any, merge: Any) -> Any:
        results = list(self.map(items, partial))
        while len(results) > 1:
            results = [_travelled(merge(*results[:2])), *results[2:]]
        return results[0] if results else None


def _travelled(what: Any) -> Any:
    return pickle.loads(pickle.dumps(what))


@pytest.mark.parametrize("name", CASES)
def test_operator(name: str) -> None:
    make, columns, options = CASES[name]
    executors = [LocalExecutor(threads=2), Elsewhere()]
    check_op(make, TABLE, columns=columns, executors=executors, **options)


def test_every_operator_is_checked() -> None:
    public = {n for n in ops.__all__ if isinstance(getattr(ops, n), type)}
    operators = {n for n in public if issubclass(getattr(ops, n), ops.Operator)}
    abstract = {"Operator", "StatOperator", "Subgraph", "UDF"}
    assert operators - abstract == {n.split(".")[0] for n in CASES} - {"a user's operator"}


def _table(rows: list[tuple[Any, ...]]) -> pa.Table:
    columns = list(zip(*rows, strict=True))
    types = [pa.string(), pa.int64(), pa.float64(), pa.int64(), pa.list_(pa.int64())]
    arrays = [pa.array(list(c), t) for c, t in zip(columns, types, strict=True)]
    return pa.table(dict(zip("cdxyl", arrays, strict=True)))


text = st.one_of(st.none(), st.sampled_from(["", "a", "b", "ab"]), st.text(max_size=12))
whole = st.one_of(st.none(), st.integers(-3, 3), st.integers(-(2**31), 2**31 - 1))
real = st.one_of(st.none(), st.floats(-1e6, 1e6), st.just(float("nan")))
lists = st.one_of(st.none(), st.lists(st.one_of(st.none(), st.integers(-5, 5)), max_size=4))
tables = st.lists(
    st.tuples(text, whole, real, st.integers(0, 1), lists), min_size=3, max_size=12
).map(_table)

RANDOM = {
    "Categorify": (lambda: ops.Categorify(num_buckets=2, max_size=6), ["c", "d", "x", "l"], {}),
    "Categorify.combo": (lambda: ops.Categorify(encode_type="combo"), [["c", "d"]], {}),
    "HashBucket": (lambda: ops.HashBucket(5), ["c", "d", "x", "l"], {}),
    "HashedCross": (lambda: ops.HashedCross(5), ["c", "d"], {}),
    "Bucketize": (lambda: ops.Bucketize([0, 1.5]), ["d", "x", "l"], {}),
    "TargetEncoding": (lambda: ops.TargetEncoding("y"), ["c", ["c", "d"]], {}),
    "JoinGroupby": (
        lambda: ops.JoinGroupby("x", ["count", "mean", "min", "max", "sum"]),
        ["c", ["d", "y"]],
        {},
    ),
    "Normalize": (lambda: ops.Normalize(), ["d", "x", "l"], {}),
    "NormalizeMinMax": (lambda: ops.NormalizeMinMax(), ["d", "x"], {}),
    "Clip": (lambda: ops.Clip(-1, 2), ["d", "x", "l"], {}),
    "LogOp": (lambda: ops.LogOp(), ["y", "d"], {}),
    "FillMissing": (lambda: ops.FillMissing(3, add_binary_cols=True), ["d", "x", "l"], {}),
    "FillMedian": (lambda: ops.FillMedian(), ["d", "x"], {}),
    "Dropna": (lambda: ops.Dropna(), ["c", "x"], {}),
    "ReduceDtypeSize": (lambda: ops.ReduceDtypeSize(), ["d", "x", "l"], {}),
    "Groupby": (
        lambda: ops.Groupby("c", aggs=["list", "count", "sum"]),
        ["c", "d"],
        {"row_wise": False},
    ),
    "ListSlice": (lambda: ops.ListSlice(3, pad=True), ["l"], {}),
    "ValueCount": (lambda: ops.ValueCount(), ["l"], {}),
    "Tokenize": (lambda: ops.Tokenize(lower=True), ["c"], {}),
    "DataStats": (lambda: ops.DataStats(), ["c", "d", "x", "l"], {}),
    "JoinExternal": (lambda: ops.JoinExternal(EXTERNAL, on="d", on_ext="key"), ["d"], {}),
}


@pytest.mark.parametrize("name", RANDOM)
@settings(
    max_examples=5,
    deadline=None,
    derandomize=True,
    phases=[Phase.generate],  # a case takes a while; the data is small enough to read as it is
    suppress_health_check=list(HealthCheck),
)
@given(table=tables)
def test_operator_on_any_data(name: str, table: pa.Table) -> None:
    make, columns, options = RANDOM[name]
    check_op(make, table, columns=columns, **options)
