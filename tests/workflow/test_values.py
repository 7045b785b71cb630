"""Damaged workflows whose checksums are right: each error says where the damage is."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import tabfeed as nvt
from tabfeed import ops
from tabfeed.errors import ArtefactError, TabfeedError
from tests.workflow.damage import DATA, damage, graphs
from tests.workflow.test_artefact import rewrite


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Every workflow of `graphs`, saved."""
    folder = tmp_path_factory.mktemp("good")
    for name, graph in graphs().items():
        nvt.Workflow(graph).fit(DATA).save(folder / name)
    return folder


@pytest.fixture
def copy(good: Path, tmp_path: Path) -> Callable[[str], Path]:
    """A copy of one of them."""

    def make(name: str) -> Path:
        shutil.copytree(good / name, tmp_path / "w")
        return tmp_path / "w"

    return make


def place(body: dict[str, Any], operator: str) -> int:
    """Number of the node of an operator."""
    return next(
        i for i, n in enumerate(body["nodes"]) if n["operator"] == f"tabfeed.ops:{operator}"
    )


def put(folder: Path, operator: str, keys: str, value: Any) -> None:
    """Put a value, or take one away (``...``), at ``params.x.y`` of an operator's node."""

    def change(body: dict[str, Any]) -> None:
        holder: Any = body["nodes"][place(body, operator)]
        *before, last = [int(k) if k.isdigit() else k for k in keys.split(".")]
        for key in before:
            holder = holder[key]
        if value is ...:
            del holder[last]
        else:
            holder[last] = value

    rewrite(folder, change)


def refused(folder: Path) -> str:
    with pytest.raises(ArtefactError) as caught:
        nvt.Workflow.load(folder)
    message = str(caught.value)
    assert message.startswith(str(folder)), message
    return message.removeprefix(f"{folder}/workflow.json: ")


def test_all_of_them_load(good: Path) -> None:
    for name in graphs():
        loaded = nvt.Workflow.load(good / name)
        out = loaded.transform(DATA)
        assert out.column_names == loaded.output_schema.column_names
        assert loaded.output_schema == nvt.Workflow.load(good / name).output_schema


def test_every_operator_that_learns_is_among_them(good: Path) -> None:
    saved = {
        n["operator"]
        for name in graphs()
        for n in json.loads((good / name / "workflow.json").read_text())["nodes"]
    }
    kinds = [getattr(ops, n) for n in ops.__all__]
    learn = {k.__name__ for k in kinds if isinstance(k, type) and issubclass(k, ops.StatOperator)}
    assert {f"tabfeed.ops:{n}" for n in learn - {"StatOperator"}} <= saved


# -- structure ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda b: b.pop("format"), "is of format None"),
        (lambda b: b.update(format_version=0), "format_version: expected an integer from 1, got 0"),
        (
            lambda b: b.update(format_version="1"),
            'format_version: expected an integer from 1, got "1"',
        ),
        (lambda b: b.update(format_version=2, versions=[]), "by tabfeed None"),
        (lambda b: b.update(versions={"python": 3}), "versions.python: expected a text, got 3"),
        (lambda b: b.update(nodes={}), "nodes: expected a list, got {}"),
        (lambda b: b["nodes"].insert(0, 7), "nodes[0]: expected an object, got 7"),
        (lambda b: b["nodes"][1].pop("state"), "nodes[1]: 'state' is missing"),
        (
            lambda b: b["nodes"][1].update(fitted=1),
            "nodes[1].fitted: expected true or false, got 1",
        ),
        (
            lambda b: b["nodes"][1].update(operator=None),
            "nodes[1].operator: expected a text, got null",
        ),
        (
            lambda b: b["nodes"][1].update(parents=[1]),
            "nodes[1].parents[0]: expected the id of a node before, got 1",
        ),
        (
            lambda b: b["nodes"][1].update(parents=["0"]),
            'nodes[1].parents[0]: expected an integer from 0, got "0"',
        ),
        (
            lambda b: b["nodes"][1].update(parents=[-1]),
            "nodes[1].parents[0]: expected an integer from 0, got -1",
        ),
        (
            lambda b: b["nodes"][1].update(dependencies=[99]),
            "nodes[1].dependencies[0]: expected the id of a node before, got 99",
        ),
        (lambda b: b["nodes"][1].update(id=0), "nodes[1].id: expected an id of its own, got 0"),
        (lambda b: b.update(output=99), "output: expected the id of a node, got 99"),
        (lambda b: b.update(output=True), "output: expected an integer from 0, got true"),
        (lambda b: b["nodes"][1].update(params=[]), "nodes[1].params: expected an object, got []"),
        (lambda b: b.update(input_schema=[]), "input_schema: expected an object, got []"),
        (lambda b: b["input_schema"].pop("columns"), "input_schema: this is not a tabfeed schema"),
        (lambda b: b["input_schema"]["columns"].pop(), "there is no column"),
    ],
)
def test_structure(copy: Callable[[str], Path], change: Any, message: str) -> None:
    folder = copy("numbers")
    rewrite(folder, change)
    assert message in refused(folder)


@pytest.mark.parametrize("text", ["", "[]", "7", "null", "{", "NaN", '{"format": NaN}', "\ud800"])
def test_no_json(copy: Callable[[str], Path], text: str) -> None:
    folder = copy("numbers")
    (folder / "workflow.json").write_bytes(text.encode("utf-8", "surrogatepass"))
    rewrite(folder, None)
    refused(folder)


@pytest.mark.parametrize(
    "text", ["[]", "7", '{"workflow.json": 1}', '{"workflow.json": {"bytes": 1}}']
)
def test_no_checksums(copy: Callable[[str], Path], text: str) -> None:
    folder = copy("numbers")
    (folder / "checksums.json").write_text(text)
    refused(folder)


@pytest.mark.parametrize("depth", [150, 100_000])
@pytest.mark.parametrize("brackets", ["[]", ('{"a":', "}")])
def test_absurd_nesting(copy: Callable[[str], Path], depth: int, brackets: Any) -> None:
    folder = copy("numbers")
    deep = brackets[0] * depth + "1" + brackets[1] * depth
    text = (
        (folder / "workflow.json")
        .read_text()
        .replace('"params": {', f'"params": {{"x": {deep},', 1)
    )
    (folder / "workflow.json").write_text(text)
    rewrite(folder, None)
    assert "nested more than 100" in (message := refused(folder)) or "RecursionError" in message


def test_nesting_that_is_just_allowed(tmp_path: Path) -> None:
    value: Any = 1
    for _ in range(80):
        value = [value]
    nvt.Workflow(["x"] >> ops.AddProperties({"deep": value})).fit(DATA).save(tmp_path / "w")
    loaded = nvt.Workflow.load(tmp_path / "w")
    assert loaded.output_schema["x"].properties["deep"] == value
    for _ in range(20):
        value = [value]
    workflow = nvt.Workflow(["x"] >> ops.AddProperties({"deep": value})).fit(DATA)
    with pytest.raises(ArtefactError, match="nested more than 100 deep"):
        workflow.save(tmp_path / "deeper")


def test_a_structure_of_a_gigabyte(copy: Callable[[str], Path]) -> None:
    folder = copy("numbers")
    with (folder / "workflow.json").open("r+b") as file:
        file.truncate(1 << 30)  # refused for its size alone
    assert "is larger than 268,435,456 bytes" in refused(folder)
    (folder / "workflow.json").write_text("{}")
    with (folder / "checksums.json").open("r+b") as file:
        file.truncate(1 << 30)
    assert "is larger than 16,777,216 bytes" in refused(folder)


def test_a_graph_whose_paths_are_countless(copy: Callable[[str], Path]) -> None:
    folder = copy("numbers")

    def change(body: dict[str, Any]) -> None:
        nodes = [n for n in body["nodes"] if n["operator"].endswith(":Selection")][:1]
        nodes[0]["id"] = 0
        empty: dict[str, Any] = {"params": {}, "dependencies": [], "fitted": False, "state": {}}
        for i in range(1, 60):
            nodes.append(
                {"id": i, "operator": "tabfeed.ops.node:Concat", "parents": [i - 1] * 2, **empty}
            )
        nodes.append({"id": 60, "operator": "tabfeed.ops:AddTags", "parents": [59], **empty})
        nodes[-1]["params"] = {"tags": ["id"]}
        body.update(nodes=nodes, output=60)

    rewrite(folder, change)
    loaded = nvt.Workflow.load(folder)
    assert loaded.output_schema.column_names == loaded.input_schema.column_names
    assert len(repr(loaded.output_node)) <= 122


def test_parts_repeated_inside_each_other(copy: Callable[[str], Path]) -> None:
    folder = copy("numbers")

    def change(body: dict[str, Any]) -> None:
        last = body["output"]
        for i in range(last + 1, last + 31):
            body["nodes"].append({
                "id": i, "operator": "tabfeed.ops.loop:Loop", "parents": [i - 1],
                "params": {"name": "again", "loop_until": {"$call": "numpy:isfinite"}},
                "dependencies": [],
                "fitted": False, "state": {},
            })  # fmt: skip
        body["output"] = last + 30

    rewrite(folder, change)
    assert "nodes: 30 parts are repeated; 12 may be" in refused(folder)


# -- arguments --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "operator", "keys", "value", "message"),
    [
        (
            "joined",
            "HashBucket",
            "params.num_buckets",
            "x",
            'params.num_buckets: expected an integer or an object, got "x"',
        ),
        (
            "joined",
            "HashBucket",
            "params.num_buckets",
            2.5,
            "params.num_buckets: expected an integer or an object, got 2.5",
        ),
        (
            "joined",
            "HashBucket",
            "params.num_buckets",
            {"c": "x"},
            'params.num_buckets.c: expected an integer, got "x"',
        ),
        (
            "joined",
            "HashBucket",
            "params.num_buckets",
            {"$dict": [[1, 2]]},
            "params.num_buckets: expected an integer or an object",
        ),
        ("joined", "HashBucket", "params.num_buckets", 0, "params: num_buckets is 0"),
        ("joined", "HashBucket", "params.num_buckets", ..., "params: 'num_buckets' is missing"),
        ("joined", "HashBucket", "params.more", 1, "params.more: HashBucket has no such argument"),
        ("joined", "JoinExternal", "params.on", [1], "params.on[0]: expected a text, got 1"),
        (
            "joined",
            "JoinExternal",
            "params.on",
            None,
            "params.on: expected a list or a text, got null",
        ),
        (
            "joined",
            "JoinExternal",
            "params.df_ext",
            "../other.parquet",
            'params.df_ext: expected a Table, got "../other.parquet"',
        ),
        ("joined", "JoinExternal", "params.df_ext", ..., "params: 'df_ext' is missing"),
        (
            "joined",
            "ListSlice",
            "params.start",
            None,
            "params.start: expected an integer, got null",
        ),
        (
            "joined",
            "ListSlice",
            "params.pad",
            "yes",
            'params.pad: expected true or false, got "yes"',
        ),
        ("joined", "ListSlice", "params.pad_side", 1, "params.pad_side: expected a text, got 1"),
        (
            "numbers",
            "Clip",
            "params.min_value",
            "0",
            'params.min_value: expected a number or null, got "0"',
        ),
        (
            "numbers",
            "Clip",
            "params.min_value",
            {"$float": "x"},
            "params.min_value: this is not what $float holds",
        ),
        (
            "numbers",
            "Clip",
            "params.min_value",
            {"$new": 1},
            "params.min_value: '$new' is not something",
        ),
        (
            "numbers",
            "Bucketize",
            "params.boundaries",
            [1, "x"],
            'params.boundaries[1]: expected a number, got "x"',
        ),
        ("numbers", "LambdaOp", "params.f", "x", 'params.f: expected a function, got "x"'),
        ("ids", "Categorify", "params.vocabs", ["x"], "params.vocabs: expected an object or null"),
        (
            "ids",
            "Categorify",
            "params.dtype",
            {"$type": "int7"},
            "params.dtype: this is not what $type holds",
        ),
        (
            "ids",
            "Categorify",
            "params.freq_threshold",
            {"c": None},
            "params.freq_threshold.c: expected an integer, got null",
        ),
        ("shape", "AddTags", "params.tags", 5, "params.tags: expected a list or a text, got 5"),
        ("groups", "TargetEncoding", "params.kfold", 0, "params: kfold is 0"),
        (
            "groups",
            "TargetEncoding",
            "params.target_mean",
            {"y": "x"},
            'params.target_mean.y: expected a number, got "x"',
        ),
        (
            "groups",
            "JoinGroupby",
            "params.stats",
            "nothing",
            "params: 'nothing' is not a statistic",
        ),
    ],
)
def test_arguments(
    copy: Callable[[str], Path], name: str, operator: str, keys: str, value: Any, message: str
) -> None:
    folder = copy(name)
    number = place(json.loads((folder / "workflow.json").read_text()), operator)
    put(folder, operator, keys, value)
    assert refused(folder).startswith(f"nodes[{number}].{message}")


@pytest.mark.parametrize(
    ("operator", "keys", "value"),
    [
        ("Clip", "params.max_value", 7.0),
        ("Clip", "params.max_value", True),
        ("Bucketize", "params.boundaries", {"$tuple": [0, 0.5]}),
        ("ValueCount", "params", {}),
        ("ListSlice", "params.start", 0.0),
        ("ListSlice", "params.pad", 0),
    ],
)
def test_arguments_that_python_takes(
    copy: Callable[[str], Path], operator: str, keys: str, value: Any
) -> None:
    """Written by a caller who passed 1 for True, or 7.0 for 7: it loaded before."""
    folder = copy("numbers")
    expected = nvt.Workflow.load(folder).output_schema.column_names
    put(folder, operator, keys, value)
    assert nvt.Workflow.load(folder).output_schema.column_names == expected


# -- what was learned -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "operator", "keys", "value", "message"),
    [
        ("scaled", "Normalize", "state", {}, ": 'summary' is missing"),
        ("scaled", "Normalize", "state.summary", [], ".summary: expected an object, got []"),
        ("scaled", "Normalize", "state.summary.x", ..., ".summary: 'x' is missing"),
        (
            "scaled",
            "Normalize",
            "state.summary.x",
            None,
            ".summary.x: expected an object, got null",
        ),
        (
            "scaled",
            "Normalize",
            "state.summary.x.count",
            -1,
            ".summary.x.count: expected an integer from 0, got -1",
        ),
        (
            "scaled",
            "Normalize",
            "state.summary.x.count",
            True,
            ".summary.x.count: expected an integer from 0, got true",
        ),
        (
            "scaled",
            "Normalize",
            "state.summary.x.sum",
            [1],
            ".summary.x.sum: expected a list of 2, got [1]",
        ),
        (
            "scaled",
            "Normalize",
            "state.summary.x.sum.1",
            10**9,
            ".summary.x.sum: expected a sum of floats",
        ),
        (
            "scaled",
            "Normalize",
            "state.summary.x.sum.1",
            -(10**9),
            ".summary.x.sum: expected a sum of floats",
        ),
        (
            "scaled",
            "Normalize",
            "state.summary.x.squares.0",
            2**6000,
            ".summary.x.squares: expected a sum of floats",
        ),
        (
            "scaled",
            "Normalize",
            "state.summary.x.min",
            "x",
            '.summary.x.min: expected a number, got "x"',
        ),
        (
            "scaled",
            "Normalize",
            "state.summary.x.min",
            None,
            ".summary.x: 120 values have a min and a max",
        ),
        ("scaled", "NormalizeMinMax", "state.summary.x.max", None, " values have a min and a max"),
        (
            "numbers",
            "ReduceDtypeSize",
            "state.summary.k",
            [1, 2, 3],
            ".summary.k: expected a list of 2",
        ),
        (
            "numbers",
            "ReduceDtypeSize",
            "state.summary.k",
            [0, 2**64],
            f".summary.k[1]: expected an integer from {-(2**63)} to {2**64 - 1}",
        ),
        (
            "numbers",
            "ReduceDtypeSize",
            "state.summary.k",
            [-(2**63) - 1, 0],
            ".summary.k[0]: expected an integer from",
        ),
        (
            "numbers",
            "ReduceDtypeSize",
            "state.summary.k",
            [-1, 2**63],
            ".summary.k: expected the smallest and the largest value",
        ),
        (
            "numbers",
            "ReduceDtypeSize",
            "state.summary.k",
            [3, 2],
            ".summary.k: expected the smallest and the largest value",
        ),
        (
            "numbers",
            "ReduceDtypeSize",
            "state.summary.k",
            [None, 2],
            ".summary.k: expected the smallest and the largest value",
        ),
        (
            "numbers",
            "ValueCount",
            "state.summary.l",
            [-1, 2],
            ".summary.l[0]: expected an integer from 0 to",
        ),
        (
            "numbers",
            "ValueCount",
            "state.summary.l",
            [1, None],
            ".summary.l: expected the shortest and the longest length",
        ),
        ("ids", "FillMedian", "state.medians.x", None, ".medians.x: expected a number, got null"),
        ("ids", "FillMedian", "state.medians", {}, ".medians: 'x' is missing"),
        ("ids", "FillMedian", "state.counts.x", 1, ".counts.x: expected a table, got 1"),
        ("ids", "FillMedian", "state.counts", ..., ": 'counts' is missing"),
        ("stats", "DataStats", "state.summary", 1, ".summary: expected an object, got 1"),
        ("stats", "DataStats", "state.output", None, ".output: expected an object, got null"),
        ("stats", "DataStats", "state.counts", [], ".counts: expected an object, got []"),
        ("groups", "JoinGroupby", "state.kinds", ["int"], ".kinds: expected a list of 2, got"),
        (
            "groups",
            "JoinGroupby",
            "state.kinds.0",
            "text",
            '.kinds[0]: expected one of "int", "uint", "float", got "text"',
        ),
        ("groups", "JoinGroupby", "state.values", None, ".values: expected a list, got null"),
        (
            "groups",
            "JoinGroupby",
            "state.values",
            ["x", "y", "z"],
            ": the table has no column 'n2'",
        ),
        ("groups", "JoinGroupby", "state.summary.k", ..., ".summary: 'k' is missing"),
        (
            "groups",
            "JoinGroupby",
            "state.summary.more",
            1,
            ".summary.more: expected a table, got 1",
        ),
        ("groups", "TargetEncoding", "state.targets", [1], ".targets[0]: expected a text, got 1"),
        ("groups", "TargetEncoding", "state.targets", ["y", "z"], ": the table has no column 'n1'"),
        (
            "ids",
            "Categorify",
            "state.groups",
            [["q"]],
            '.groups[0]: there is no vocabulary of ["q"]',
        ),
        ("ids", "Categorify", "state.groups", None, ".groups: expected a list, got null"),
        ("ids", "Categorify", "state.groups", [], ".groups: 'c' is missing"),
        ("ids", "Categorify", "state.vocabularies.c", ..., ".vocabularies: 'c' is missing"),
        (
            "ids",
            "Categorify",
            "state.vocabularies.c",
            7,
            ".vocabularies.c: expected a table, got 7",
        ),
        (
            "ids",
            "Categorify",
            "state.vocabularies.c",
            {"$table": 7},
            ".vocabularies.c: expected the name of a file, got 7",
        ),
        (
            "ids",
            "Categorify",
            "state.vocabularies.c",
            {"$table": "workflow.json"},
            ".vocabularies.c: ",
        ),
        (
            "ids",
            "Categorify",
            "state.vocabularies.c",
            {"$table": "tables/9999.parquet"},
            ".vocabularies.c: 'tables/9999.parquet' has no checksum",
        ),
        ("ids", "Categorify", "state.rest.c", 7, ".rest.c: expected a table, got 7"),
        ("ids", "Categorify", "state.rest", 7, ".rest: expected an object, got 7"),
        (
            "ids",
            "Categorify",
            "state.extents",
            {"c": [[1]]},
            ".extents.c[0]: expected a list of 2, got [1]",
        ),
        (
            "ids",
            "Categorify",
            "state.extents",
            {"c": [[-1, 9]]},
            ".extents.c[0][0]: expected an integer from 0",
        ),
        (
            "ids",
            "Categorify",
            "state.extents",
            {"c": [[1, 2**60]]},
            ".extents.c[0][1]: expected an integer from 0",
        ),
        (
            "ids",
            "Categorify",
            "state.extents",
            {"c": [[999, 999]]},
            ".extents.c: positions and ids must ascend",
        ),
        (
            "ids",
            "Categorify",
            "state.extents",
            {"c": [[3, 9], [2, 99]]},
            ".extents.c: positions and ids must ascend",
        ),
        (
            "ids",
            "Categorify",
            "state.extents",
            {"c": [[2, 99], [3, 9]]},
            ".extents.c: positions and ids must ascend",
        ),
        (
            "ids",
            "Categorify",
            "state.extents",
            {"q": [[2, 99]]},
            ".extents.q: positions and ids must ascend",
        ),
    ],
)
def test_what_was_learned(
    copy: Callable[[str], Path], name: str, operator: str, keys: str, value: Any, message: str
) -> None:
    folder = copy(name)
    number = place(json.loads((folder / "workflow.json").read_text()), operator)
    put(folder, operator, keys, value)
    found = refused(folder)
    assert found.startswith(f"nodes[{number}].state") and message in found, found


def _replace(column: str, values: Any) -> Callable[[pa.Table], pa.Table]:
    return lambda t: t.set_column(t.column_names.index(column), column, values(len(t)))


@pytest.mark.parametrize(
    ("name", "operator", "keys", "change", "message"),
    [
        (
            "ids",
            "Categorify",
            "state.vocabularies.c",
            lambda t: t.select(["v0"]),
            "expected a table of v0, ..., count: int64, got v0: string",
        ),
        (
            "ids",
            "Categorify",
            "state.vocabularies.c",
            lambda t: t.select(["count", "v0"]),
            "expected a table of v0",
        ),
        (
            "ids",
            "Categorify",
            "state.vocabularies.c",
            lambda t: t.append_column("count", t["count"]),
            "expected columns of different names",
        ),
        (
            "ids",
            "Categorify",
            "state.vocabularies.c",
            _replace("count", lambda n: pa.array([1] * n, pa.int32())),
            "expected a table of v0",
        ),
        (
            "ids",
            "Categorify",
            "state.vocabularies.c",
            _replace("count", lambda n: pa.nulls(n, pa.int64())),
            "a vocabulary has no nulls",
        ),
        (
            "ids",
            "Categorify",
            "state.vocabularies.c",
            _replace("v0", lambda n: pa.nulls(n, pa.string())),
            "a vocabulary has no nulls",
        ),
        (
            "ids",
            "Categorify",
            "state.vocabularies.c",
            lambda t: t.add_column(1, "v1", t["v0"]),
            "expected values of 1 columns",
        ),
        (
            "combined",
            "Categorify",
            "state.vocabularies.c_k",
            lambda t: t.drop_columns(["v1"]).filter(t["v0"].is_valid()),
            "expected values of 2 columns",
        ),
        (
            "groups",
            "JoinGroupby",
            "state.summary.k",
            lambda t: t.drop_columns(["k0"]),
            "the table has no column 'k0'",
        ),
        (
            "groups",
            "JoinGroupby",
            "state.summary.k",
            lambda t: t.drop_columns(["rows"]),
            "the table has no column 'rows'",
        ),
        (
            "groups",
            "JoinGroupby",
            "state.summary.k",
            _replace("sum1", lambda n: pa.array(["x"] * n)),
            "column 'sum1' of the table is string, not a number",
        ),
        (
            "groups",
            "TargetEncoding",
            "state.summary.k",
            lambda t: t.drop_columns(["k1"]),
            "the table has no column 'k1'",
        ),
        (
            "groups",
            "TargetEncoding",
            "state.summary.c_k",
            lambda t: t.drop_columns(["k2"]),
            "the table has no column 'k2'",
        ),
        (
            "similar",
            "ColumnSimilarity",
            "params.left_features",
            lambda t: t.drop_columns(["row"]),
            "features as a table have the columns",
        ),
        (
            "similar",
            "ColumnSimilarity",
            "params.left_features",
            _replace("row", lambda n: pa.array([-1] * n)),
            "the features name rows -1 to",
        ),
        (
            "similar",
            "ColumnSimilarity",
            "params.left_features",
            _replace("column", lambda n: pa.array([3] * n)),
            "the features name columns 3 to 3; the matrix has 3",
        ),
        (
            "similar",
            "ColumnSimilarity",
            "params.left_features",
            _replace("column", lambda n: pa.array([0.5] * n)),
            "each value must be an integer",
        ),
        (
            "similar",
            "ColumnSimilarity",
            "params.left_features",
            _replace("value", lambda n: pa.nulls(n, pa.float64())),
            "each value must be a number",
        ),
        (
            "similar",
            "ColumnSimilarity",
            "params.left_features",
            lambda t: t.replace_schema_metadata({"rows": "-1", "columns": "3"}),
            "the features name rows",
        ),
    ],
)
def test_tables(
    copy: Callable[[str], Path], name: str, operator: str, keys: str, change: Any, message: str
) -> None:
    folder = copy(name)
    body = json.loads((folder / "workflow.json").read_text())
    number = place(body, operator)
    holder: Any = body["nodes"][number]
    for key in keys.split("."):
        holder = holder[key]
    path = folder / next(iter(holder.values()))
    table = pq.ParquetFile(path).read()
    pq.write_table(change(table), path)
    rewrite(folder, None)
    found = refused(folder)
    assert found.startswith(f"nodes[{number}].") and message in found, found


def test_a_table_that_is_no_parquet(copy: Callable[[str], Path]) -> None:
    for table in ("tables/0000.parquet", "tables/0001.parquet"):
        folder = copy("ids")
        (folder / table).write_bytes(b"PAR1 and more PAR1")
        rewrite(folder, None)
        assert f"{folder}/{table} cannot be read as Parquet" in refused(folder)
        shutil.rmtree(folder)


def test_a_table_of_broken_text(copy: Callable[[str], Path]) -> None:
    """What is not UTF-8 must not reach code that trusts it is."""
    folder = copy("ids")
    table = pq.ParquetFile(folder / "tables" / "0000.parquet").read()
    words = [w.encode() + b"\xff\xfe" for w in table["v0"].to_pylist()]
    broken = pa.array(words, pa.binary()).view(pa.string())
    pq.write_table(table.set_column(0, "v0", broken), folder / "tables" / "0000.parquet")
    rewrite(folder, None)
    assert "cannot be read as Parquet" in refused(folder)


def test_a_damaged_table_that_is_read_later(copy: Callable[[str], Path]) -> None:
    folder = copy("groups")
    body = json.loads((folder / "workflow.json").read_text())
    state = body["nodes"][place(body, "JoinGroupby")]["state"]
    path = folder / state["summary"]["k"]["$stored"]
    data = bytearray(path.read_bytes())
    data[4:400] = bytes(396)
    path.write_bytes(bytes(data))
    rewrite(folder, None)
    loaded = nvt.Workflow.load(folder)
    with pytest.raises(ArtefactError, match="a table of the saved workflow cannot be read"):
        loaded.transform(DATA)


# -- anything at all ----------------------------------------------------------------------


def mishaps(good: Path, folder: Path, seeds: range) -> Iterator[str]:
    names = list(graphs())
    for seed in seeds:
        rng = random.Random(seed)
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(good / rng.choice(names), folder)
        damage(folder, rng)
        try:
            loaded = nvt.Workflow.load(folder)
        except ArtefactError as e:
            if not str(e).startswith(str(folder)):
                yield f"{seed}: nameless: {e}"
            continue
        except Exception as e:
            yield f"{seed}: load: {e!r}"
            continue
        try:
            loaded.transform(DATA)
            loaded.transform(DATA.slice(3, 1).to_pylist()[0])
        except TabfeedError:
            pass
        except Exception as e:
            yield f"{seed}: transform: {e!r}"


def test_any_damage_is_an_error_of_ours_or_none(good: Path, tmp_path: Path) -> None:
    with np.errstate(all="ignore"):
        assert list(mishaps(good, tmp_path / "w", range(250))) == []
