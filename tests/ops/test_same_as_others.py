"""The same numbers as scikit-learn and pandas, where they define the same thing."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from sklearn.preprocessing import KBinsDiscretizer, MinMaxScaler, OrdinalEncoder, StandardScaler
from sklearn.preprocessing import TargetEncoder as SklearnTargetEncoder

import tabfeed as nvt
from tabfeed import ops

rng = np.random.default_rng(11)
N = 1000
FRAME = pd.DataFrame(
    {
        "c": rng.choice(["p", "q", "r", "s", None], N),
        "d": rng.integers(0, 7, N),
        "x": np.where(rng.random(N) < 0.1, np.nan, rng.normal(50, 20, N)),
        "y": rng.integers(0, 2, N),
    }
)


def out(node: ops.Node) -> pd.DataFrame:
    return nvt.Workflow(node).fit(nvt.Dataset(FRAME, npartitions=4)).transform(FRAME)


def test_normalize_is_standard_scaler_but_for_the_divisor() -> None:
    expected = StandardScaler().fit_transform(FRAME[["x"]])[:, 0]
    known = int(FRAME["x"].notna().sum())
    # scikit-learn divides by n, we (like pandas) by n - 1.
    np.testing.assert_allclose(
        out(["x"] >> ops.Normalize())["x"], expected * np.sqrt((known - 1) / known), rtol=1e-12
    )
    np.testing.assert_allclose(
        out(["x"] >> ops.Normalize())["x"],
        (FRAME["x"] - FRAME["x"].mean()) / FRAME["x"].std(),
        rtol=1e-12,
    )


def test_min_max() -> None:
    expected = MinMaxScaler().fit_transform(FRAME[["x"]])[:, 0]
    np.testing.assert_allclose(
        out(["x"] >> ops.NormalizeMinMax())["x"], expected, rtol=1e-12, atol=1e-12
    )


def test_target_encoding_is_scikit_learns() -> None:
    expected = SklearnTargetEncoder(smooth=20.0, target_type="continuous").fit(
        FRAME[["d"]], FRAME["y"]
    )
    got = out(["d"] >> ops.TargetEncoding("y", p_smooth=20, out_dtype="float64"))["TE_d_y"]
    np.testing.assert_allclose(got, expected.transform(FRAME[["d"]])[:, 0], rtol=1e-12)


@pytest.mark.filterwarnings("ignore:'future.no_silent_downcasting'")  # category_encoders' own
def test_target_encoding_is_category_encoders() -> None:
    encoders = pytest.importorskip("category_encoders", reason="it needs Python 3.11")

    expected = encoders.MEstimateEncoder(cols=["d"], m=20).fit(FRAME[["d"]], FRAME["y"])
    got = out(["d"] >> ops.TargetEncoding("y", p_smooth=20, out_dtype="float64"))["TE_d_y"]
    np.testing.assert_allclose(got, expected.transform(FRAME[["d"]])["d"], rtol=1e-12)


def test_log_clip_and_fill_are_numpys() -> None:
    node = ["x"] >> ops.FillMissing(3) >> ops.Clip(0, 60) >> ops.LogOp()
    expected = np.log1p(FRAME["x"].fillna(3).clip(0, 60)).astype(np.float32)
    np.testing.assert_allclose(out(node)["x"], expected, rtol=1e-6)


def test_median_is_pandas() -> None:
    expected = FRAME["x"].fillna(FRAME["x"].median())
    pd.testing.assert_series_equal(out(["x"] >> ops.FillMedian())["x"], expected)


def test_join_groupby_is_pandas() -> None:
    stats = ["count", "sum", "mean", "std", "var", "min", "max"]
    got = out([["c", "d"]] >> ops.JoinGroupby("x", stats=stats))
    grouped = FRAME.groupby(["c", "d"], dropna=False)
    np.testing.assert_array_equal(got["c_d_count"], grouped["x"].transform("size"))
    for stat in stats[1:]:
        np.testing.assert_allclose(got[f"c_d_x_{stat}"], grouped["x"].transform(stat), rtol=1e-5)


def test_groupby_is_pandas() -> None:
    aggs = [
        "count",
        "nunique",
        "sum",
        "mean",
        "median",
        "std",
        "var",
        "min",
        "max",
        "first",
        "last",
    ]
    node = ["d", "y", "x"] >> ops.Groupby("d", aggs={"y": [a for a in aggs]})
    got = (
        nvt.Workflow(node).transform(nvt.Dataset(FRAME, npartitions=5)).to_pandas().sort_values("d")
    )
    expected = FRAME.groupby("d")["y"].agg(aggs)
    for name in aggs:
        np.testing.assert_allclose(got[f"y_{name}"], expected[name], rtol=1e-12)


def test_bucketize_is_numpys_digitize_and_scikit_learns_bins() -> None:
    bounds = [10.0, 40.0, 60.0]
    known = FRAME.dropna(subset=["x"])
    got = nvt.Workflow(["x"] >> ops.Bucketize(bounds)).transform(known)["x"]
    np.testing.assert_array_equal(got, np.digitize(known["x"], bounds))
    bins = KBinsDiscretizer(3, encode="ordinal", strategy="uniform", quantile_method="linear").fit(
        known[["x"]]
    )
    inner = bins.bin_edges_[0][1:-1].tolist()
    got = nvt.Workflow(["x"] >> ops.Bucketize(inner)).transform(known)["x"]
    np.testing.assert_array_equal(got, bins.transform(known[["x"]])[:, 0])


def test_categorify_by_frequency_is_pandas_value_counts() -> None:
    got = out(["c"] >> ops.Categorify())["c"]
    counts = (
        FRAME["c"].value_counts().reset_index().sort_values(["count", "c"], ascending=[False, True])
    )
    expected = FRAME["c"].map({v: i + 3 for i, v in enumerate(counts["c"])}).fillna(1)
    np.testing.assert_array_equal(got, expected)


def test_categorify_with_an_alphabetical_vocabulary_is_ordinal_encoder() -> None:
    known = FRAME.dropna(subset=["c"])
    expected = OrdinalEncoder().fit_transform(known[["c"]])[:, 0] + 3
    node = ["c"] >> ops.Categorify(vocabs={"c": sorted(known["c"].unique())})
    np.testing.assert_array_equal(nvt.Workflow(node).fit(known).transform(known)["c"], expected)


def test_difference_lag_is_pandas_within_sorted_groups() -> None:
    ordered = FRAME.dropna().sort_values("d", kind="stable")
    got = nvt.Workflow(["x"] >> ops.DifferenceLag("d", shift=[1, -1])).transform(ordered)
    for shift in (1, -1):
        expected = ordered.groupby("d")["x"].diff(shift)
        np.testing.assert_allclose(got[f"x_difference_lag_{shift}"], expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("how", ["left", "inner"])
def test_join_external_is_pandas_merge(how: str) -> None:
    other = pd.DataFrame({"d": [0, 2, 2, 4, 99], "z": [1.0, 2.0, 3.0, 4.0, 5.0]})
    got = nvt.Workflow(["d", "x"] >> ops.JoinExternal(other, on="d", how=how)).transform(
        pa.table(FRAME[["d", "x"]])
    )
    pd.testing.assert_frame_equal(got.to_pandas(), FRAME[["d", "x"]].merge(other, on="d", how=how))


@pytest.mark.parametrize("metric", ["cosine", "inner", "tfidf"])
def test_similarity_is_scikit_learns(metric: str) -> None:
    from scipy.sparse import random as random_sparse
    from sklearn.feature_extraction.text import TfidfTransformer
    from sklearn.metrics.pairwise import cosine_similarity

    features = random_sparse(20, 8, density=0.4, random_state=3, format="csr")
    a, b = rng.integers(0, 20, 50), rng.integers(0, 20, 50)
    got = nvt.Workflow([["a", "b"]] >> ops.ColumnSimilarity(features, metric=metric)).transform(
        {"a": a, "b": b}
    )
    if metric == "inner":
        expected = (features @ features.T).toarray()
    else:
        weighed = TfidfTransformer().fit_transform(features) if metric == "tfidf" else features
        expected = cosine_similarity(weighed)
    np.testing.assert_allclose(got["a_b_sim"], expected[a, b], rtol=1e-9, atol=1e-12)
