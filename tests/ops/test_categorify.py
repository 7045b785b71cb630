"""Ids: their layout, their order, and everything one can say about a vocabulary."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import tabfeed as nvt
from tabfeed import ops
from tabfeed.errors import (
    ArgumentError,
    ColumnNotFoundError,
    NotFittedError,
    OperatorError,
    SchemaError,
    SourceNotFoundError,
)
from tabfeed.execute import LocalExecutor


def ids(op: ops.Categorify, values: list[Any], name: str = "c") -> list[int]:
    out: list[int] = op(pa.table({name: pa.array(values)})).column(0).to_pylist()
    return out


def fitted(values: Any, **options: Any) -> ops.Categorify:
    op = ops.Categorify(**options)
    op.fit({"c": values})
    return op


def test_layout_pad_null_oov_then_by_count_ties_by_value() -> None:
    op = fitted(["b", "b", "d", "a", "c", "c", None])
    # b and c twice, then a and d once: ids from 3.
    assert ids(op, ["b", "c", "a", "d", None, "never"]) == [3, 4, 5, 6, 1, 2]


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("parts", [1, 2, 7])
def test_the_same_ids_on_any_partitioning_and_thread_count(threads: int, parts: int) -> None:
    values = [f"v{i * i % 37}" for i in range(500)]
    expected = fitted(values).vocabularies_["c"].table
    workflow = nvt.Workflow(["c"] >> ops.Categorify(), executor=LocalExecutor(threads=threads))
    workflow.fit(nvt.Dataset({"c": values}, npartitions=parts))
    op = workflow.output_node.op
    assert isinstance(op, ops.Categorify)
    assert op.vocabularies_["c"].table.equals(expected)
    counts = pl.Series(values).value_counts().sort(["count", ""], descending=[True, False])
    assert expected.column("v0").to_pylist() == counts[""].to_list()
    assert expected.column("count").to_pylist() == counts["count"].to_list()


@pytest.mark.parametrize(
    "values",
    [
        [3, -1, 3, 2**62],
        [1.5, -0.5, 1.5, 0.0],
        [True, False, True],
        [b"xy", b"", b"xy"],
        ["", "é", "", "much longer than eight bytes"],
        ["a\0", "a", "a\0"],
        pd.to_datetime(["2020-01-02", "2020-01-01", "2020-01-02"]),
    ],
    ids=["int", "float", "bool", "bytes", "text", "zero byte", "time"],
)
def test_any_type_of_value(values: Any) -> None:
    array = pa.array(values)
    op = fitted(array)
    counted = array.value_counts().to_pylist()
    ranked = sorted(counted, key=lambda e: (-e["counts"], e["values"]))
    assert ids(op, [e["values"] for e in ranked]) == list(range(3, 3 + len(ranked)))
    assert op.decode(op({"c": array})["c"]).to_pylist() == array.to_pylist()


def test_dictionaries_and_plain_text_agree() -> None:
    values = ["b", None, "a", "b", "new"]
    op = fitted(["b", "b", "a"])
    plain = ids(op, values)
    coded = pa.array(values).dictionary_encode()
    with_null_inside = pa.DictionaryArray.from_arrays(
        pa.array([0, 1, 2, 0, 3]), ["b", None, "a", "new"]
    )
    assert plain == [3, 1, 4, 3, 2]
    assert op(pa.table({"c": coded})).column(0).to_pylist() == plain
    assert op(pa.table({"c": with_null_inside})).column(0).to_pylist() == plain


def test_freq_threshold() -> None:
    op = fitted(["a", "a", "b", "c", "c", "c"], freq_threshold=2)
    assert ids(op, ["c", "a", "b"]) == [3, 4, 2]


def test_freq_threshold_by_column() -> None:
    op = ops.Categorify(freq_threshold={"c": 2, "d": 0})
    op.fit({"c": ["a", "a", "b"], "d": ["a", "a", "b"]})
    assert op.cardinalities_ == {"c": 4, "d": 5}


def test_max_size_counts_the_reserved_ids() -> None:
    op = fitted(["a", "a", "b", "c", "c", "c"], max_size=5)
    assert ids(op, ["c", "a", "b"]) == [3, 4, 2]
    assert op.cardinalities_ == {"c": 5}


@pytest.mark.parametrize(("size", "buckets"), [(2, None), (4, 3), (1, 1)])
def test_max_size_too_small(size: int, buckets: int | None) -> None:
    with pytest.raises(ArgumentError, match="max_size is"):
        ops.Categorify(max_size=size, num_buckets=buckets)


def test_num_buckets_share_the_unknown_by_a_stable_hash() -> None:
    op = fitted(["a", "a", "b"], num_buckets=3, freq_threshold=2)
    unknown = ids(op, ["b", "x", "y", "z", "w", None])
    assert unknown == [4, 3, 2, 2, 2, 1]  # frozen: part of the artefact's promise
    assert ids(op, ["a"]) == [5]


def test_num_buckets_zero_is_an_error() -> None:
    with pytest.raises(ArgumentError, match="num_buckets is 0"):
        ops.Categorify(num_buckets=0)


def test_joint_columns_share_ids() -> None:
    node = [["a", "b"], "c"] >> ops.Categorify()
    out = nvt.Workflow(node).fit_transform({"a": ["x", "y"], "b": ["y", "z"], "c": ["y", "y"]})
    assert {n: v.tolist() for n, v in out.items()} == {"c": [3, 3], "a": [4, 3], "b": [3, 5]}


def test_joint_columns_of_different_types_are_refused() -> None:
    with pytest.raises(SchemaError, match=r"share a vocabulary but differ in type"):
        nvt.Workflow([["a", "b"]] >> ops.Categorify()).fit({"a": ["x"], "b": [1]})


def test_combo_gives_one_column_and_partial_nulls_are_values() -> None:
    node = [["a", "b"]] >> ops.Categorify(encode_type="combo")
    data = {"a": ["x", "x", None, None], "b": pa.array([1, 1, 2, None])}
    workflow = nvt.Workflow(node).fit(data)
    assert workflow.transform(pa.table(data)).to_pydict() == {"a_b": [3, 3, 4, 1]}
    unseen = pa.table({"a": ["x", None, "q"], "b": pa.array([2, 1, 1])})
    assert workflow.transform(unseen).column(0).to_pylist() == [2, 2, 2]
    op = node.op
    assert isinstance(op, ops.Categorify)
    assert op.decode([3, 4, 1]).to_pylist() == [{"a": "x", "b": 1}, {"a": None, "b": 2}, None]


def test_single_table_keeps_null_and_oov_apart() -> None:
    op = ops.Categorify(single_table=True)
    op.fit({"a": ["x", "y", "y"], "b": ["p", "p", "q"]})
    out = op(pa.table({"a": ["y", "x", None, "?"], "b": ["p", "q", None, "?"]}))
    assert out.to_pydict() == {"a": [3, 4, 1, 2], "b": [8, 9, 6, 7]}
    assert op.cardinalities_ == {"a": 5, "b": 10}


def test_lists_of_tokens() -> None:
    op = fitted([["a", "b"], None, ["b"], [], ["b", None]])
    out = op(pa.table({"c": [["b", "zz"], None, [], [None, "a"]]}))
    assert out.column(0).to_pylist() == [[3, 2], None, [], [1, 4]]
    assert op.decode(out.column(0)).to_pylist() == [["b", None], None, [], [None, "a"]]


def test_dtype() -> None:
    op = fitted(["a", "b"], dtype="int16")
    assert op(pa.table({"c": ["a"]})).column(0).type == pa.int16()


def test_a_vocabulary_larger_than_the_type_holds() -> None:
    with pytest.raises(OperatorError, match=r"column 'c' needs ids up to 202, which int8"):
        fitted([str(i) for i in range(200)], dtype="int8")


@pytest.mark.parametrize(
    "vocabulary", [["b", "a", None], pd.Series(["b", "a"]), pl.Series(["b", "a"])]
)
def test_given_vocabularies(vocabulary: Any) -> None:
    op = fitted(["zz"], vocabs={"c": vocabulary})
    assert ids(op, ["a", "b", "zz", None]) == [4, 3, 2, 1]


def test_vocabulary_files_of_older_tools(tmp_path: Path) -> None:
    new = pd.DataFrame({"c": ["b", "a"], "c_size": [5, 2]}, index=pd.RangeIndex(3, 5))
    old = pd.DataFrame({"c": [None, "b", "a"], "c_size": [0, 5, 2]})
    for number, frame in enumerate((new, old)):
        path = tmp_path / f"unique.{number}.parquet"
        frame.to_parquet(path)
        assert ids(fitted(["zz"], vocabs={"c": str(path)}), ["a", "b", "zz"]) == [4, 3, 2]


def test_our_own_files_load_through_vocabs(tmp_path: Path) -> None:
    op = fitted(["b", "b", "a"], out_path=str(tmp_path))
    written = tmp_path / "categories" / "unique.c.parquet"
    assert pq.read_table(written).to_pydict() == {"c": ["b", "a"], "c_size": [2, 1]}
    assert ids(fitted(["x"], vocabs={"c": written}), ["a", "b"]) == ids(op, ["a", "b"])


def test_a_vocabulary_file_that_is_not_there() -> None:
    with pytest.raises(SourceNotFoundError, match="no vocabulary file"):
        ops.Categorify(vocabs={"c": "nowhere.parquet"})


@pytest.mark.parametrize("options", [{"encode_type": "both"}, {"dtype": "float"}])
def test_options_that_make_no_sense(options: dict[str, Any]) -> None:
    with pytest.raises(ArgumentError):
        ops.Categorify(**options)


def test_options_for_columns_that_are_not_there() -> None:
    with pytest.raises(ColumnNotFoundError, match=r"'q' in Categorify's columns"):
        nvt.Workflow(["c"] >> ops.Categorify(max_size={"q": 10})).fit({"c": ["a"]})


def test_the_type_must_not_change_after_fit() -> None:
    op = fitted([1, 2, 2])
    assert ids(op, [2.0, None, 7.0]) == [3, 1, 2]  # what pandas makes of integers with nulls
    with pytest.raises(SchemaError, match=r"column 'c': values are string now and were int64"):
        op({"c": ["1"]})


def test_nan_is_null() -> None:
    op = fitted([1.5, float("nan"), 1.5])
    assert ids(op, [float("nan"), 1.5]) == [1, 3]
    assert op.cardinalities_ == {"c": 4}


def test_a_column_of_nulls_only() -> None:
    op = fitted(pa.nulls(3))
    assert op(pa.table({"c": pa.nulls(2)})).column(0).to_pylist() == [1, 1]
    assert op.cardinalities_ == {"c": 3}


def test_schema_says_what_an_embedding_needs() -> None:
    workflow = nvt.Workflow(["c"] >> ops.Categorify(num_buckets=4)).fit(
        {"c": [str(i) for i in range(94)]}
    )
    column = workflow.output_schema["c"]
    assert column.embedding_size == (100, 21)
    assert (column.domain.min, column.domain.max) == (0, 99)
    assert "categorical" in column.tags and not column.nullable


def test_decode_needs_to_know_the_column() -> None:
    op = ops.Categorify()
    op.fit({"a": ["x"], "b": ["y"]})
    assert op.decode(np.array([3, 0, 1, 2, 99]), "b").to_pylist() == ["y", None, None, None, None]
    with pytest.raises(ArgumentError, match="say which column"):
        op.decode([3])
    with pytest.raises(ColumnNotFoundError):
        op.decode([3], "q")


@pytest.mark.parametrize("width", [6, 20])
def test_beyond_the_memory_limit_the_ids_are_the_same(width: int) -> None:
    rng = np.random.default_rng(3)
    values = [f"{v:0{width}d}" for v in rng.integers(0, 60_000, 120_000)]
    data = nvt.Dataset({"c": values}, npartitions=6)
    here, there = (nvt.Workflow(["c"] >> ops.Categorify(max_size=50_000)) for _ in range(2))
    here.fit(data)
    there.fit(data, memory_limit="400kB")
    a, b = here.output_node.op, there.output_node.op
    assert isinstance(a, ops.Categorify) and isinstance(b, ops.Categorify)
    assert b.vocabularies_["c"].path is not None  # it did spill
    assert b.vocabularies_["c"].table.equals(a.vocabularies_["c"].table)


def test_mixed_short_and_long_text_beyond_the_limit() -> None:
    values = [str(i % 5000) for i in range(20_000)] + [
        f"a longer one {i % 3000}" for i in range(20_000)
    ]
    data = nvt.Dataset({"c": values}, npartitions=8)
    here, there = (nvt.Workflow(["c"] >> ops.Categorify()) for _ in range(2))
    assert (
        here.fit(data).transform(data).to_arrow()
        == there.fit(data, memory_limit="100kB").transform(data).to_arrow()
    )


def test_with_all_vocabularies_given_nothing_needs_to_be_fitted(tmp_path: Path) -> None:
    op = ops.Categorify(vocabs={"a": ["x", "y"], "b": [7, 5]})
    workflow = nvt.Workflow((["a", "b"] >> op) + "z")
    out = workflow.transform({"a": ["y", "new"], "b": [5, None], "z": [1, 2]})
    assert {n: v.tolist() for n, v in out.items()} == {"a": [4, 2], "b": [4, 1], "z": [1, 2]}
    assert ops.get_embedding_sizes(workflow) == {"a": (5, 16), "b": (5, 16)}
    workflow.save(tmp_path / "w")
    assert nvt.Workflow.load(tmp_path / "w").transform({"a": "x", "b": 7, "z": 0})["b"] == 3
    half = nvt.Workflow(["a", "b"] >> ops.Categorify(vocabs={"a": ["x"]}))
    with pytest.raises(NotFittedError):
        half.transform({"a": ["x"], "b": [1]})
