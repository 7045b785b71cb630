"""Ids: their layout, their order, and everything one can say about a vocabulary."""

from __future__ import annotations

import errno
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


def test_our_own_files_stay_until_the_new_ones_are_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fitted(["a"], out_path=str(tmp_path))
    (written,) = (tmp_path / "categories").iterdir()
    before = written.read_bytes()
    write = pq.ParquetWriter.write_table

    def write_on_a_full_disk(*args: Any) -> None:
        write(*args)
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(pq.ParquetWriter, "write_table", write_on_a_full_disk)
    with pytest.raises(OSError, match="No space left on device"):
        fitted(["b"], out_path=str(tmp_path))
    assert list((tmp_path / "categories").iterdir()) == [written]
    assert written.read_bytes() == before


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


def test_a_row_after_inputs_were_removed(tmp_path: Path) -> None:
    workflow = nvt.Workflow(["a", "b"] >> ops.Categorify()).fit({"a": ["x", "y"], "b": ["p", "q"]})
    served = workflow.remove_inputs("b")
    assert served.transform({"a": "y"}) == {"a": 4}
    served.save(tmp_path / "w")
    assert nvt.Workflow.load(tmp_path / "w").transform({"a": "y"}) == {"a": 4}


@pytest.mark.parametrize("values", [[{"a": 1}], [[1]]])
def test_a_vocabulary_of_values_that_cannot_be_looked_up(values: Any) -> None:
    with pytest.raises(ArgumentError, match="a vocabulary holds numbers, texts or times"):
        ops.Categorify(vocabs={"c": pa.array(values)})


# -- the edges of each option -----------------------------------------------------------


@pytest.mark.parametrize(
    ("size", "buckets"), [({"c": 2}, None), ({"c": 4}, {"c": 3}), ({"c": 4}, 3), (-1, None)]
)
def test_max_size_too_small_for_a_column(size: Any, buckets: Any) -> None:
    with pytest.raises(ArgumentError, match="max_size is"):
        ops.Categorify(max_size=size, num_buckets=buckets)


@pytest.mark.parametrize(("size", "buckets"), [(3, None), (3, 1), (5, 3), ({"c": 5}, {"c": 3})])
def test_the_smallest_max_size_leaves_no_room_for_values(size: Any, buckets: Any) -> None:
    op = fitted(["a", "a", "b"], max_size=size, num_buckets=buckets)
    assert op.cardinalities_ == {"c": size if isinstance(size, int) else size["c"]}
    assert all(2 <= i < 5 for i in ids(op, ["a", "b"]))


@pytest.mark.parametrize(
    ("dtype", "most"), [("int8", 127), ("uint8", 255), ("int16", 32_767), ("uint16", 65_535)]
)
def test_a_vocabulary_that_just_fits_the_type(dtype: str, most: int) -> None:
    values = [str(i) for i in range(most - 2)]
    op = fitted(values, dtype=dtype)
    assert op.cardinalities_ == {"c": most + 1}
    assert max(ids(op, values)) == most
    with pytest.raises(OperatorError, match=f"needs ids up to {most + 1}, which {dtype}"):
        fitted([*values, "one more"], dtype=dtype)


def test_combinations_take_no_vocabularies() -> None:
    with pytest.raises(ArgumentError, match="vocabs cannot be given"):
        ops.Categorify(encode_type="combo", vocabs={"c": ["a"]})


def test_combinations_beside_single_columns() -> None:
    data = pa.table({"a": ["x", "y", "x"], "b": [1, 1, 1], "l": [["p", "q"], ["q"], []]})
    node = [["a", "b"], "l"] >> ops.Categorify(encode_type="combo")
    workflow = nvt.Workflow(node).fit(data)
    out = workflow.transform(data)
    assert out.to_pydict() == {"l": [[4, 3], [3], []], "a_b": [3, 4, 3]}
    row = {"a": "y", "b": 1, "l": ["q", None]}
    assert workflow.transform(row) == {"l": [3, 1], "a_b": 4}
    assert workflow.decode(out).to_pydict() == {
        "l": [["p", "q"], ["q"], []],
        "a_b": [{"a": "x", "b": 1}, {"a": "y", "b": 1}, {"a": "x", "b": 1}],
    }


def test_lists_are_not_combined() -> None:
    node = [["a", "l"]] >> ops.Categorify(encode_type="combo")
    with pytest.raises(OperatorError, match="cannot combine list columns"):
        nvt.Workflow(node).fit({"a": ["x"], "l": [["p"]]})


def test_a_column_in_two_groups() -> None:
    with pytest.raises(OperatorError, match="a column may be in one group only"):
        nvt.Workflow([["a", "b"], ["b", "c"]] >> ops.Categorify()).fit(
            {"a": ["x"], "b": ["x"], "c": ["x"]}
        )


@pytest.mark.parametrize("name", ["a_b", "a", "b"])
def test_an_option_of_a_group_goes_by_its_name_or_by_a_column_s(name: str) -> None:
    data = {"a": ["x", "x"], "b": ["y", "x"], "c": ["y", "x"]}
    node = [["a", "b"], "c"] >> ops.Categorify(freq_threshold={name: 2}, num_buckets={name: 4})
    workflow = nvt.Workflow(node).fit(data)
    op = node.op
    assert isinstance(op, ops.Categorify)
    assert op.cardinalities_ == {"a": 7, "b": 7, "c": 5}
    properties = {n: dict(workflow.output_schema[n].properties) for n in "ac"}
    assert properties["a"] == {"num_buckets": 4, "freq_threshold": 2, "max_size": 0}
    assert properties["c"] == {"num_buckets": 1, "freq_threshold": 0, "max_size": 0}


def test_what_the_schema_says() -> None:
    from tabfeed import ColumnSchema, Schema

    source = Schema(
        [
            ColumnSchema("c", "string", tags=["continuous", "id"], properties={"a": 1}),
            ColumnSchema("l", "list<string>", value_count=(0, 3)),
            ColumnSchema("m", "list<string>", nullable=False),
        ]
    )
    node = ["c", "l", "m"] >> ops.Categorify(dtype="int32")
    before = nvt.Workflow(node).fit_schema(source).output_schema
    assert before["c"].domain is None and before["c"].embedding_size is None
    data = {"c": ["x"], "l": [["p", "q"]], "m": [["r"]]}
    nvt.Workflow(node).fit(data)
    after = nvt.Workflow(node).fit_schema(source).output_schema
    assert [str(t) for t in after["c"].tags] == ["categorical", "id"]
    assert after["c"].properties == {
        "a": 1, "num_buckets": None, "freq_threshold": 0, "max_size": 0,
    }  # fmt: skip
    assert [after[n].nullable for n in "clm"] == [False, True, False]
    assert after["l"].value_count == (0, 3)
    assert [str(after[n].dtype) for n in "cl"] == ["int32", "list<item: int32>"]
    domain = after["l"].domain
    assert domain is not None and (domain.min, domain.max, domain.name) == (0, 4, "l")


def test_one_row_of_lists() -> None:
    workflow = nvt.Workflow(["l", "c"] >> ops.Categorify()).fit(
        {"l": [["a", "b"], ["a"]], "c": [1, 2]}
    )
    assert workflow.transform({"l": ["b", None, "q"], "c": None}) == {"l": [4, 1, 2], "c": 1}
    assert workflow.transform({"l": None, "c": 2}) == {"l": None, "c": 4}
    assert workflow.transform({"l": [], "c": 7}) == {"l": [], "c": 2}


def test_the_files_of_a_combination(tmp_path: Path) -> None:
    node = [["a", "b"], "c"] >> ops.Categorify(encode_type="combo", out_path=str(tmp_path))
    nvt.Workflow(node).fit({"a": ["x", "x"], "b": [1, 1], "c": ["p", "q"]})
    folder = tmp_path / "categories"
    assert sorted(p.name for p in folder.iterdir()) == ["unique.a_b.parquet", "unique.c.parquet"]
    assert pq.read_table(folder / "unique.a_b.parquet").to_pydict() == {
        "a": ["x"], "b": [1], "a_b_size": [2],
    }  # fmt: skip
    assert pq.read_table(folder / "unique.c.parquet").column_names == ["c", "c_size"]


def test_a_table_that_three_columns_share_and_that_grows() -> None:
    node = ["a", "b", "c"] >> ops.Categorify(single_table=True)
    workflow = nvt.Workflow(node).fit(
        {
            "a": ["x"],
            "b": [
                "p",
            ],
            "c": ["u"],
        }
    )
    assert workflow.transform({"a": "x", "b": "p", "c": "u"}) == {"a": 3, "b": 7, "c": 11}
    grown = workflow.update({"a": ["y", "z"], "b": ["p", "p"], "c": ["v", "v"]})
    assert set(grown.values()) == {3}
    out = workflow.transform({"a": ["x", "y", "z"], "b": ["p", "?", None], "c": ["u", "v", "?"]})
    assert {n: v.tolist() for n, v in out.items()} == {
        "a": [3, 12, 13], "b": [7, 6, 5], "c": [11, 14, 10],
    }  # fmt: skip
    workflow.update({"a": ["w"], "b": ["q"], "c": ["u"]})
    assert workflow.transform({"a": "w", "b": "q", "c": "v"}) == {"a": 15, "b": 16, "c": 14}
    op = node.op
    assert isinstance(op, ops.Categorify)
    assert op.decode([3, 12, 13, 15, 14], "a").to_pylist() == ["x", "y", "z", "w", None]


def test_values_left_out_of_several_vocabularies_count_on(tmp_path: Path) -> None:
    node = ["a", "b"] >> ops.Categorify(freq_threshold=2)
    workflow = nvt.Workflow(node).fit({"a": ["x", "x", "y"], "b": ["p", "p", "q"]})
    workflow.save(tmp_path / "whole")
    workflow.save(tmp_path / "small", updatable=False)
    for again in (workflow, nvt.Workflow.load(tmp_path / "whole")):
        assert again.update({"a": ["y", "new"], "b": ["q", "new"]}) == {"a": 1, "b": 1}
        assert again.transform({"a": "y", "b": "q"}) == {"a": 4, "b": 4}
        assert again.transform({"a": "new", "b": "new"}) == {"a": 2, "b": 2}
    with pytest.raises(OperatorError, match="save with updatable=True, or fit again"):
        nvt.Workflow.load(tmp_path / "small").update({"a": ["y"], "b": ["q"]})


def test_an_update_without_what_was_left_out_where_nothing_was(tmp_path: Path) -> None:
    workflow = nvt.Workflow(["a"] >> ops.Categorify()).fit({"a": ["x", "y"]})
    workflow.save(tmp_path / "w", updatable=False)
    loaded = nvt.Workflow.load(tmp_path / "w")
    assert loaded.update({"a": ["z", "x"]}) == {"a": 1}
    assert loaded.transform({"a": ["x", "y", "z"]})["a"].tolist() == [3, 4, 5]


def test_an_update_beside_a_vocabulary_that_was_given() -> None:
    node = ["a", "b"] >> ops.Categorify(vocabs={"a": ["y", "x"]})
    workflow = nvt.Workflow(node).fit({"a": ["x"], "b": ["p"]})
    assert workflow.update({"a": ["new"], "b": ["q"]}) == {"a": 0, "b": 1}
    assert workflow.transform({"a": "new", "b": "q"}) == {"a": 2, "b": 4}


def test_a_column_without_an_option_of_its_own_has_the_default() -> None:
    node = ["a", "b"] >> ops.Categorify(max_size={"a": 4}, freq_threshold={"a": 2})
    workflow = nvt.Workflow(node).fit({"a": ["x", "x", "y"], "b": ["p", "q", "r"]})
    op = node.op
    assert isinstance(op, ops.Categorify)
    assert op.cardinalities_ == {"a": 4, "b": 6}
    expected = {"num_buckets": None, "freq_threshold": 0, "max_size": 0}
    assert workflow.output_schema["b"].properties == expected
