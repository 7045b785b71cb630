"""The graph language: what can be written, and that nothing changes by writing it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pytest

import tabfeed as nvt
from tabfeed import ColumnSelector, ops
from tabfeed.errors import (
    ColumnNotFoundError,
    DuplicateColumnError,
    GraphError,
    OperatorError,
)

DATA = pa.table({"a": [1.0, 2.0, None], "b": [3.0, 4.0, 5.0], "c": ["x", "y", "x"], "y": [0, 1, 1]})


def columns(node: Any) -> list[str]:
    out: list[str] = nvt.Workflow(node).fit_transform(DATA).column_names
    return out


def twice(column: pl.Series) -> pl.Series:
    return column * 2


@pytest.mark.parametrize(
    ("build", "expected"),
    [
        (lambda: "a" >> ops.FillMissing(), ["a"]),
        (lambda: ["a", "b"] >> ops.FillMissing, ["a", "b"]),
        (lambda: ops.Node.of(["a"]) >> twice, ["a"]),
        (lambda: ColumnSelector(["a"]) >> twice, ["a"]),
        (lambda: ColumnSelector(["a"]) >> ops.LogOp, ["a"]),
        (lambda: ColumnSelector(["y"]) + (["a"] >> ops.FillMissing()), ["y", "a"]),
        (lambda: ColumnSelector(["a", "b"]) >> ops.FillMissing(), ["a", "b"]),
        (lambda: ColumnSelector("*") >> ops.Rename(postfix="_"), ["a_", "b_", "c_", "y_"]),
        (lambda: ColumnSelector(dtypes="double") >> ops.FillMissing(), ["a", "b"]),
        (lambda: ColumnSelector("?") >> ops.AddTags("id"), ["a", "b", "c", "y"]),
        (lambda: (["a"] >> ops.FillMissing()) + ["y"], ["a", "y"]),
        (lambda: ["y"] + (["a"] >> ops.FillMissing()), ["y", "a"]),
        (lambda: "y" + (["a"] >> ops.FillMissing()), ["y", "a"]),
        (lambda: (["a"] >> ops.FillMissing()) + None, ["a"]),
        (lambda: None + (["a"] >> ops.FillMissing()), ["a"]),
        (lambda: (["a"] >> ops.FillMissing()) + [["b"] >> ops.Clip(0), "y"], ["a", "b", "y"]),
        (lambda: (["a", "b"] >> ops.FillMissing()) - "a", ["b"]),
        (lambda: (["a", "b"] >> ops.FillMissing()) - ["a"], ["b"]),
        (lambda: (["a", "b"] >> ops.FillMissing()) - ops.Node.of(["a"]), ["b"]),
        (lambda: (["a", "b"] >> ops.FillMissing())["b"], ["b"]),
        (lambda: (["a", "b"] >> ops.FillMissing())[["b", "a"]], ["b", "a"]),
        (lambda: [["a"] >> ops.FillMissing(), "b"] >> ops.Normalize(), ["a", "b"]),
        (lambda: [[["a"] >> ops.FillMissing(), "b"]] >> ops.HashedCross(9), ["a_X_b"]),
        (lambda: [["a", "c"]] >> ops.Categorify(encode_type="combo"), ["a_c"]),
        (lambda: ["a", "c", "y"], ["a", "c", "y"]),
        (lambda: ["c", ["c", "y"]] >> ops.JoinGroupby(), ["c_count", "c_y_count"]),
    ],
)
def test_what_can_be_written(build: Any, expected: list[str]) -> None:
    assert columns(build()) == expected


def test_groups_survive_operators_that_keep_names() -> None:
    node = [["a", "b"]] >> ops.FillMissing() >> ops.Categorify(encode_type="combo")
    assert columns(node) == ["a_b"]


def test_nodes_never_change() -> None:
    a = ["a"] >> ops.FillMissing()
    before = repr(a)
    _ = a + "b", a - "a", a["a"], a >> ops.Clip(0)
    assert repr(a) == before
    with pytest.raises(AttributeError, match="nodes never change"):
        a.op = ops.LogOp()  # type: ignore[misc]


def test_the_same_columns_twice_are_the_same_columns() -> None:
    a = ["a"] >> ops.FillMissing()
    assert columns(a + a) == ["a"]
    assert columns(ops.Node.of(["a", "b"]) + ops.Node.of(["b", "y"])) == ["a", "b", "y"]


def test_two_columns_of_one_name_are_refused() -> None:
    with pytest.raises(DuplicateColumnError, match="two columns named 'a'"):
        columns((["a"] >> ops.FillMissing()) + ["a"])


def test_one_learning_operator_cannot_be_in_two_places() -> None:
    op = ops.Normalize()
    with pytest.raises(GraphError, match="same Normalize object"):
        nvt.Workflow((["a"] >> op) + (["b"] >> op))


@pytest.mark.parametrize(
    ("build", "error", "message"),
    [
        (lambda: ["nope"] >> ops.Normalize(), ColumnNotFoundError, "'nope'"),
        (lambda: (["a"] >> ops.LogOp())["b"], ColumnNotFoundError, "'b' in the node"),
        (
            lambda: ["c"] >> ops.Normalize(),
            OperatorError,
            "Normalize works on numbers; column 'c' is string",
        ),
        (lambda: ["c"] >> ops.LogOp(), OperatorError, "<LogOp of .c.>: LogOp works on numbers"),
        (lambda: ["a"] >> ops.ListSlice(2), OperatorError, "for lists; column 'a'"),
        (lambda: ["a", "b"] >> ops.Rename(name="z"), OperatorError, "is for one column"),
        (
            lambda: ["a"] >> ops.TargetEncoding("c"),
            OperatorError,
            "column 'c' is string",
        ),
        (lambda: ["a"] >> ops.HashedCross(4), OperatorError, "two columns or more"),
    ],
)
def test_wrong_columns(build: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        nvt.Workflow(build()).fit(DATA)


@pytest.mark.parametrize("wrong", [3, {"a": 1}, ops.Normalize()])
def test_not_a_selection(wrong: Any) -> None:
    with pytest.raises(GraphError):
        nvt.Workflow(wrong)


def test_not_an_operator() -> None:
    with pytest.raises(GraphError, match="not 3"):
        ops.Node.of("a") >> 3


def test_subgraphs() -> None:
    part = ops.Subgraph("numbers", ["a", "b"] >> ops.FillMissing() >> ops.Normalize())
    workflow = nvt.Workflow(ops.Node.of(part) + "y").fit(DATA)
    assert workflow.subworkflows == ["numbers"]
    sub = workflow.get_subworkflow("numbers")
    assert sub.transform(DATA).column_names == ["a", "b"]
    assert sub.transform(DATA).column("a").equals(workflow.transform(DATA).column("a"))
    behind = (["a", "b", "c"] >> ops.AddTags("id")) >> ops.Subgraph("s", ["a"] >> ops.Clip(0))
    assert columns(behind) == ["a"]


def test_pictures() -> None:
    node = (["a"] >> ops.FillMissing() >> ops.Normalize()) + (["c"] >> ops.TargetEncoding("y"))
    mermaid = str(node.graph)
    assert mermaid.startswith("flowchart TD")
    assert '(["Normalize"])' in mermaid and "-.->" in mermaid
    svg = node.graph._repr_svg_()
    assert svg.startswith("<svg") and svg.count("<rect") == 7 and "Normalize" in svg


def test_remove_inputs_drops_what_is_made_of_nothing_else() -> None:
    node = (["a", "b"] >> ops.FillMissing()) + (["c"] >> ops.TargetEncoding("y", kfold=1)) + ["y"]
    workflow = nvt.Workflow(node).fit(DATA)
    served = workflow.remove_inputs(["y", "b"])
    assert served.output_schema.column_names == ["a", "TE_c_y"]
    assert served.input_schema.column_names == ["a", "c"]
    got = served.transform(DATA.select(["a", "c"]))
    assert got.column("TE_c_y").equals(workflow.transform(DATA).column("TE_c_y"))
    with pytest.raises(GraphError, match="nothing is left"):
        workflow.remove_inputs(["a", "b", "c", "y"])


def test_remove_inputs_from_wildcards() -> None:
    workflow = nvt.Workflow(ColumnSelector("*") >> ops.AddTags("id")).fit(DATA)
    served = workflow.remove_inputs("y")
    assert served.transform(DATA.select(["a", "b", "c"])).column_names == ["a", "b", "c"]


def enough(frame: pl.DataFrame) -> bool:
    """When to stop; can be imported again."""
    return bool(frame["x"].max() < 1)


def halved(column: pl.Series) -> pl.Series:
    return column / 2


def test_a_part_that_is_repeated(tmp_path: Path) -> None:
    part = ops.Subgraph("halve", ["x"] >> ops.LambdaOp(halved), loop_until=enough)
    node = (["x", "y"] >> ops.FillMissing(16.0)) >> part
    workflow = nvt.Workflow(node + "z").fit({"x": [8.0, None], "y": [1.0, 1.0], "z": [1, 2]})
    out = workflow.transform({"x": [8.0, None], "y": [1.0, 1.0], "z": [1, 2]})
    assert {n: v.tolist() for n, v in out.items()} == {"x": [0.25, 0.5], "z": [1, 2]}
    assert workflow.subworkflows == ["halve"]
    workflow.save(tmp_path / "w")
    loaded = nvt.Workflow.load(tmp_path / "w", trusted=[__name__])
    assert loaded.transform({"x": 4.0, "y": 0.0, "z": 5}) == {"x": 0.5, "z": 5}
    assert loaded.get_subworkflow("halve").transform({"x": 4.0, "y": 0.0, "z": 5}) == {"x": 0.5}


def test_operators_that_learn_inside_a_repeated_part() -> None:
    part = ops.Subgraph("scale", ["x"] >> ops.Normalize(), loop_until=lambda df: df["x"].max() < 1)
    workflow = nvt.Workflow(part).fit({"x": [0.0, 10.0, 20.0]})  # mean 10, deviation 10
    assert workflow.transform({"x": [35.0]})["x"].tolist() == [-0.75]


def test_a_part_that_is_never_enough() -> None:
    part = ops.Subgraph("same", ["x"] >> ops.Clip(0), loop_until=lambda df: False)
    with pytest.raises(OperatorError, match="did not hold after 1,000 times"):
        nvt.Workflow(part).transform({"x": [1]})
    other = ops.Subgraph("new", ["x"] >> ops.Rename(name="z"), loop_until=lambda df: False)
    with pytest.raises(OperatorError, match="must make the columns it takes in"):
        nvt.Workflow(other).transform({"x": [1]})


def test_what_a_node_knows_of_its_columns() -> None:
    node = ["a", "b"] >> ops.FillMissing(add_binary_cols=True)
    assert node.input_columns == ["a", "b"]
    assert node.output_columns == ["a", "b", "a_filled", "b_filled"]
    nvt.Workflow(node).fit_schema(nvt.Dataset(DATA).schema)
    assert node.output_schema["a"].dtype == pa.float64()


def test_a_name_may_mean_what_an_operator_in_front_made(tmp_path: Path) -> None:
    ads = pl.DataFrame({"ad": [1, 2], "doc": [10, 20]})
    topics = pl.DataFrame({"id": [10, 20], "kind": ["x", "y"], "topic": ["a", "b"]})
    first = ["ad"] >> ops.JoinExternal(ads, on="ad")
    both = first >> ops.JoinExternal(topics, on=["doc", "kind"], on_ext=["id", "kind"])
    data = pl.DataFrame({"ad": [2, 1, 3], "kind": ["y", "y", "x"]})  # `doc` is not in the data
    expected = [(2, 20, "b"), (1, 10, None), (3, None, None)]
    workflow = nvt.Workflow(both).fit(data)
    assert workflow.transform(data).rows() == expected
    workflow.save(tmp_path / "w")
    assert nvt.Workflow.load(tmp_path / "w").transform(data).rows() == expected
    assert workflow.input_schema.column_names == ["ad", "kind"]
    with pytest.raises(ColumnNotFoundError, match="no column 'other'"):
        nvt.Workflow(first >> ops.JoinExternal(ads, on="other", on_ext="ad")).fit(data)


FRAME = pa.table(
    {"geo": ["US>a", "US>b", "DE>c"], "user": ["u", "u", "v"], "a": [1.0, 2.0, 3.0], "y": [0, 1, 1]}
)


def country(column: pl.Series) -> pl.Series:
    """The part before the sign."""
    return column.str.slice(0, 2)


@pytest.mark.parametrize(
    ("build", "expected"),
    [
        (lambda c: c + "user" + [c + "user"], ["geo", "user", "geo_user"]),
        (lambda c: c + "user" + [[c, "user"]], ["geo", "user", "geo_user"]),
        (lambda c: [c + "user", c], ["geo", "geo_user"]),
        (lambda c: [c, c + "user"], ["geo", "geo_user"]),
        (lambda c: [c + "user"], ["geo_user"]),
        (lambda c: [c, "user"], ["geo", "user"]),
        (lambda c: (c + "user")[[["geo", "user"]]], ["geo_user"]),
        (lambda c: (c + "user" + [c + "user"])["geo", "user"], ["geo", "user", "geo_user"]),
        (lambda c: (c + "user" + [c + "user"]) - "geo", ["user"]),
        (lambda c: ColumnSelector([["geo", "user"], "y"]) - "user", ["y", "geo"]),
    ],
)
def test_a_sum_inside_a_list_is_a_group(build: Any, expected: list[str], tmp_path: Path) -> None:
    node = build(["geo"] >> ops.LambdaOp(country)) >> ops.Categorify(encode_type="combo")
    workflow = nvt.Workflow(node)
    out = workflow.fit_transform(FRAME)
    assert out.column_names == expected
    if "geo_user" in expected and isinstance(build(ops.Node.of("geo")), ops.Node):
        first, second, third = out.column("geo_user").to_pylist()
        assert first == second != third
    workflow.save(tmp_path / "w")
    loaded = nvt.Workflow.load(tmp_path / "w", trusted=[__name__])
    assert loaded.transform(FRAME).equals(workflow.transform(FRAME))


def test_names_that_are_taken_away_need_not_be_there_later() -> None:
    for taken in (["geo", "user"], ["geo", "us*"]):
        node = (ColumnSelector("*") - taken) >> ops.Normalize()
        workflow = nvt.Workflow(node).fit(FRAME)
        assert workflow.input_schema.column_names == ["a", "y"]
        assert workflow.transform(FRAME.select(["a", "y"])).column_names == ["a", "y"]
    with pytest.raises(ColumnNotFoundError, match="did you mean 'user'"):
        nvt.Workflow((ColumnSelector("*") - ["geo", "usr"]) >> ops.Normalize()).fit(FRAME)


def test_remove_inputs_knows_the_inputs() -> None:
    node = (["a"] >> ops.Normalize()) + ["user"]
    with pytest.raises(
        ColumnNotFoundError, match="'usr' in the graph's inputs; did you mean 'user'"
    ):
        node.remove_inputs(["usr"])
    workflow = nvt.Workflow(node).fit(FRAME)
    with pytest.raises(ColumnNotFoundError, match="'usr' in the workflow's inputs; did you mean"):
        workflow.remove_inputs("usr")
    assert workflow.remove_inputs("user").output_schema.column_names == ["a"]


def test_remove_inputs_keeps_the_groups_that_are_whole() -> None:
    cats = ops.Node.of([["geo", "user"]]) >> ops.FillMissing("")
    node = [cats, ["a", "y"]] >> ops.HashedCross(100)
    assert columns_of(node) == ["geo_X_user", "a_X_y"]
    served = nvt.Workflow(node).fit(FRAME).remove_inputs("y")
    assert served.output_schema.column_names == ["geo_X_user"]


def columns_of(node: Any) -> list[str]:
    out: list[str] = nvt.Workflow(node).fit_transform(FRAME).column_names
    return out


@pytest.mark.parametrize("name", ["*", "^a.*$", "a\0b"])
def test_a_name_that_polars_reads_as_another_is_refused(name: str) -> None:
    data = pa.table({name: [1, 1, 2], "a": [1.0, 2.0, 3.0]})
    with pytest.raises(OperatorError, match="a column cannot be named"):
        nvt.Workflow(["a"] >> ops.DifferenceLag(name)).fit_transform(data)
