"""Fitting, transforming whatever comes, updating, decoding, explaining."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import tabfeed as nvt
from tabfeed import Dataset, Workflow, ops
from tabfeed.errors import (
    ArgumentError,
    ColumnNotFoundError,
    NotFittedError,
    OperatorError,
    SchemaError,
    TabfeedError,
    UnknownArgumentError,
    WorkflowError,
)
from tabfeed.execute import LocalExecutor

DATA = {"c": ["b", "a", "b", None], "x": [1.0, None, 3.0, 5.0], "y": [0, 1, 1, 0]}


def features() -> Any:
    cats = ["c"] >> ops.Categorify()
    conts = ["x"] >> ops.FillMissing() >> ops.Clip(min_value=0) >> ops.LogOp() >> ops.Normalize()
    return cats + conts + ["y"]


@pytest.fixture
def workflow() -> nvt.Workflow:
    return nvt.Workflow(features()).fit(pa.table(DATA))


def test_fit_returns_the_workflow(workflow: nvt.Workflow) -> None:
    assert workflow.fit(pa.table(DATA)) is workflow
    assert repr(workflow) == (
        "<Workflow of Categorify, FillMissing, Clip, LogOp, Normalize, fitted, 3 columns out>"
    )
    assert repr(nvt.Workflow(["c"] >> ops.Categorify())) == "<Workflow of Categorify, not fitted>"


def test_what_comes_out_is_what_went_in(workflow: nvt.Workflow) -> None:
    table = pa.table(DATA)
    expected = workflow.transform(table)
    assert isinstance(expected, pa.Table)
    assert workflow.transform(pl.DataFrame(DATA)).equals(pl.from_arrow(expected))
    assert workflow.transform(pl.LazyFrame(DATA)).collect().equals(pl.from_arrow(expected))
    frame = workflow.transform(pd.DataFrame(DATA, index=list("qrst")))
    assert frame.index.tolist() == list("qrst")
    assert frame["c"].tolist() == expected.column("c").to_pylist()
    arrays = workflow.transform({n: table.column(n).to_numpy() for n in table.column_names})
    assert arrays["c"].tolist() == [3, 4, 3, 1]
    batch = workflow.transform(table.to_batches()[0])
    assert isinstance(batch, pa.RecordBatch) and batch.column("c").to_pylist() == [3, 4, 3, 1]
    lazy = workflow.transform(nvt.Dataset(table, npartitions=2))
    assert isinstance(lazy, nvt.Dataset) and lazy.to_arrow().equals(expected)
    assert lazy.schema == workflow.output_schema
    row = workflow.transform({"c": "b", "x": 3.0, "y": 1})
    assert row == {n: expected.column(n)[2].as_py() for n in expected.column_names}
    assert workflow(table).equals(expected)


def test_a_row_has_the_same_values_as_a_table(workflow: nvt.Workflow) -> None:
    rng = np.random.default_rng(0)
    values = [None, float("nan"), -3.0, *rng.exponential(50, 200).tolist()]
    rows = [{"c": "b", "x": v, "y": 1} for v in values]
    table = pa.table({"c": ["b"] * len(values), "x": pa.array(values), "y": [1] * len(values)})
    assert [workflow.transform(r) for r in rows] == workflow.transform(table).to_pylist()


@pytest.mark.parametrize(
    ("row", "error"),
    [
        ({"c": "b", "y": 1}, ColumnNotFoundError),
        ({"c": 5, "x": 1.0, "y": 1}, SchemaError),
        ({"c": "b", "x": "1", "y": 1}, SchemaError),
    ],
)
def test_rows_that_do_not_fit(workflow: nvt.Workflow, row: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        workflow.transform(row)


def test_numpy_values_in_a_row(workflow: nvt.Workflow) -> None:
    row = {"c": np.str_("b"), "x": np.float32(3.0), "y": np.int64(1)}
    assert workflow.transform(row) == workflow.transform({"c": "b", "x": 3.0, "y": 1})


def test_before_fit() -> None:
    unfitted = nvt.Workflow(features())
    with pytest.raises(NotFittedError, match=r"Categorify of \[c\]"):
        unfitted.transform(pa.table(DATA))
    with pytest.raises(NotFittedError):
        unfitted.transform(nvt.Dataset(DATA))
    with pytest.raises(NotFittedError):
        unfitted.transform({"c": "b", "x": 3.0, "y": 1})
    with pytest.raises(NotFittedError):
        _ = unfitted.output_schema


def test_clear_stats(workflow: nvt.Workflow) -> None:
    workflow.clear_stats()
    with pytest.raises(NotFittedError):
        workflow.transform(pa.table(DATA))


def test_a_graph_that_learns_nothing_needs_no_fit() -> None:
    out = nvt.Workflow(["x"] >> ops.FillMissing(7)).transform({"x": [1, None]})
    assert out["x"].tolist() == [1, 7]


def test_fit_again_forgets(workflow: nvt.Workflow) -> None:
    workflow.fit({"c": ["z"], "x": [1.0], "y": [0]})
    assert workflow.transform({"c": "b", "x": 1.0, "y": 0})["c"] == 2


def test_no_rows() -> None:
    empty = pa.table(DATA).slice(0, 0)
    with pytest.raises(WorkflowError, match="no rows to fit on"):
        nvt.Workflow(features()).fit(empty)


def test_empty_partitions_do_no_harm(tmp_path: Path) -> None:
    table = pa.table(DATA)
    for i, part in enumerate([table.slice(0, 0), table, table.slice(0, 0)]):
        pl.from_arrow(part).write_parquet(tmp_path / f"{i}.parquet")
    data = nvt.Dataset(tmp_path)
    fitted = nvt.Workflow(features()).fit(data)
    assert fitted.transform(data).to_arrow().num_rows == 4


def test_all_null_columns_have_documented_results() -> None:
    data = pa.table({"x": pa.nulls(3, pa.float64()), "c": pa.nulls(3, pa.string())})
    node = (["x"] >> ops.Normalize()) + (["c"] >> ops.Categorify())
    assert nvt.Workflow(node).fit_transform(data).to_pydict() == {"x": [None] * 3, "c": [1] * 3}


@pytest.mark.parametrize(
    ("op", "expected"),
    [
        (ops.Normalize(), {"n": [None, None]}),
        (ops.NormalizeMinMax(), {"n": [None, None]}),
        (ops.Clip(0.5, 2), {"n": [None, None]}),
        (ops.LogOp(), {"n": [None, None]}),
        (ops.FillMissing(3), {"n": [3, 3]}),
        (ops.FillMedian(), {"n": [0.0, 0.0]}),
        (ops.Bucketize([1]), {"n": [None, None]}),
        (ops.Categorify(), {"n": [1, 1]}),
        (ops.JoinGroupby(), {"n_count": [2, 2]}),
        (ops.TargetEncoding("y", kfold=1, p_smooth=0), {"TE_n_y": [0.5, 0.5]}),
    ],
    ids=lambda v: v.label if isinstance(v, ops.Operator) else "",
)
def test_columns_without_type_have_documented_results(op: Any, expected: Any) -> None:
    data = pa.table({"n": pa.nulls(2), "y": [0, 1]})
    workflow = nvt.Workflow(["n"] >> op).fit(data)
    assert workflow.transform(data).to_pydict() == expected


def test_an_infinite_target() -> None:
    with pytest.raises(OperatorError, match="the target 'y' holds infinite values"):
        nvt.Workflow(["c"] >> ops.TargetEncoding("y")).fit({"c": ["a"], "y": [float("inf")]})


def test_an_argument_that_is_not_there() -> None:
    with pytest.raises(UnknownArgumentError, match=r"has no argument 'outdtype'.*'out_dtype'"):
        ops.Normalize(outdtype="float32")  # type: ignore[call-arg]


@pytest.mark.parametrize("op", [ops.Normalize, ops.NormalizeMinMax])
def test_infinite_values_name_node_and_column(op: Any) -> None:
    with pytest.raises(OperatorError, match=r"<Normalize.* of \[x\]>: .*column 'x' holds infinite"):
        nvt.Workflow(["x"] >> op()).fit({"x": [1.0, float("inf")]})


def test_a_type_that_differs_from_fit(workflow: nvt.Workflow) -> None:
    wrong = pa.table({**DATA, "x": ["1", "2", "3", "4"]})
    with pytest.raises(SchemaError, match=r"'x' is string here and was double"):
        workflow.transform(wrong)
    with pytest.raises(SchemaError, match="'x'"):
        workflow.transform(nvt.Dataset(wrong))
    integers = pa.table({**DATA, "x": [1, 2, 3, 4]})
    assert workflow.transform(integers).num_rows == 4


def test_a_missing_column(workflow: nvt.Workflow) -> None:
    with pytest.raises(ColumnNotFoundError, match="'x'"):
        workflow.transform(pa.table({"c": ["a"], "y": [1]}))


def fails(column: pl.Series) -> pl.Series:
    if len(column):
        raise RuntimeError("boom")
    return column


def notes(error: BaseException) -> str:
    return " ".join(getattr(error, "__notes__", ()))


needs_notes = pytest.mark.skipif(not hasattr(Exception, "add_note"), reason="no notes in 3.10")


@needs_notes
def test_a_failing_function_keeps_its_error_and_names_its_node(tmp_path: Path) -> None:
    node = ["x"] >> ops.FillMissing() >> ops.LambdaOp(fails)
    with pytest.raises(RuntimeError, match="boom") as caught:
        nvt.Workflow(node).transform({"x": [1.0]})
    assert "raised by the function of <fails of [FillMissing of [x]]>" in notes(caught.value)
    pq.write_table(pa.table({"x": [1.0, 2.0]}), tmp_path / "a.parquet", row_group_size=1)
    data = nvt.Dataset(tmp_path, part_size=1)
    for run in (
        lambda: nvt.Workflow(node).transform(data).to_arrow(),
        lambda: nvt.Workflow(node >> ops.Normalize()).fit(data),
    ):
        with pytest.raises(RuntimeError, match="boom") as caught:
            run()
        assert "<fails of [FillMissing of [x]]>" in notes(caught.value)
        assert "a.parquet, row group 0" in notes(caught.value)


def stops(*_: Any) -> Any:
    raise StopIteration("on purpose")


def breaks(*_: Any) -> Any:
    raise KeyError("lost")


FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    "Filter": lambda f: ["x", "c"] >> ops.Filter(f),
    "LambdaOp": lambda f: ["x"] >> ops.LambdaOp(f, dtype="float64"),
    "Rename": lambda f: ["x"] >> ops.Rename(f),
    "Bucketize": lambda f: ["x"] >> ops.Bucketize(f),
    "Subgraph": lambda f: ops.Subgraph("s", ["x"] >> ops.Clip(0), loop_until=f),
}


@pytest.mark.parametrize("kind", FUNCTIONS)
def test_a_function_that_raises_stop_iteration_ends_nothing(kind: str) -> None:
    with pytest.raises(RuntimeError, match="StopIteration raised by stops") as caught:
        nvt.Workflow(FUNCTIONS[kind](stops)).transform(nvt.Dataset(DATA)).to_arrow()
    assert isinstance(caught.value, TabfeedError)


@needs_notes
@pytest.mark.parametrize("kind", FUNCTIONS)
def test_a_function_that_fails_is_named(kind: str) -> None:
    with pytest.raises(KeyError, match="lost") as caught:
        nvt.Workflow(FUNCTIONS[kind](breaks)).transform(DATA)
    assert type(caught.value) is KeyError
    assert "raised by the function of <" in notes(caught.value)


@dataclass(frozen=True)
class Frozen(Exception):
    """An error that takes no attributes, so no note either."""

    code: int


def freezes(*_: Any) -> Any:
    raise Frozen(7)


@pytest.mark.parametrize("kind", FUNCTIONS)
def test_an_error_that_takes_no_attributes_keeps_its_type(kind: str) -> None:
    with pytest.raises(Frozen):
        nvt.Workflow(FUNCTIONS[kind](freezes)).transform(DATA)


@pytest.mark.parametrize("threads", [1, 2])
def test_a_mapped_function_that_raises_stop_iteration_ends_nothing(threads: int) -> None:
    data = nvt.Dataset(DATA, npartitions=4).map(stops, schema=nvt.Dataset(DATA).schema)
    executor = LocalExecutor(threads)
    with pytest.raises(RuntimeError, match="StopIteration raised by stops"):
        list(data.iter_tables(executor=executor))
    with pytest.raises(RuntimeError, match="StopIteration"):
        list(executor.map(range(3), stops))


def test_a_failing_lazy_operator_names_its_node() -> None:
    workflow = nvt.Workflow(["x"] >> ops.Clip(0) >> ops.ReduceDtypeSize() >> ops.Clip(1)).fit(
        {"x": [1, 2]}
    )
    with pytest.raises(OperatorError, match=r"<ReduceDtypeSize of \[Clip of \[x\]\]> failed"):
        workflow.transform({"x": [1000]})


def test_only_needed_columns_are_read_and_phases_are_passes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    encoded = ["c"] >> ops.Categorify() >> ops.Normalize()
    node = encoded + (["x"] >> ops.Normalize()) + ["z"]
    data = nvt.Dataset(pa.table({**DATA, "z": [1, 2, 3, 4], "unused": [0, 0, 0, 0]}))
    reads: list[list[str]] = []
    original = nvt.Dataset.read

    def read(self: Any, index: Any, columns: Any = None, **options: Any) -> Any:
        reads.append(list(columns))
        return original(self, index, columns, **options)

    monkeypatch.setattr(nvt.Dataset, "read", read)
    nvt.Workflow(node).fit(data)
    assert reads == [["c", "x"], ["c"]]


def test_explain(workflow: nvt.Workflow) -> None:
    encoded = ["c"] >> ops.Categorify() >> ops.Normalize()
    text = nvt.Workflow(encoded + (["x"] >> ops.Normalize()) + ["y"]).explain()
    assert text.splitlines() == [
        "fit, pass 1 of 2: reads c, x",
        "  learns <Categorify of [c]>",
        "  learns <Normalize of [x]>",
        "fit, pass 2 of 2: reads c",
        "  learns <Normalize of [Categorify of [c]]>",
        "transform: reads c, x, y",
        "  makes c, x, y",
    ]
    assert "reads c, x" in workflow.explain()


def test_a_later_pass_does_not_read_what_an_earlier_one_learned_from() -> None:
    encoded = ["c"] >> ops.TargetEncoding("y") >> ops.Normalize()
    text = nvt.Workflow(encoded).explain()
    assert "fit, pass 1 of 2: reads c, y" in text and "fit, pass 2 of 2: reads c\n" in text
    nvt.Workflow(encoded).fit(pa.table(DATA))


def test_in_a_notebook(workflow: nvt.Workflow) -> None:
    shown = workflow._repr_html_()
    assert "<b>Workflow</b> · of Categorify" in shown and "fitted · 3 columns out" in shown
    assert shown.count("<rect") == 9  # five operators, three selections, and their sum
    assert "Categorify</text>" in shown and ">c</td>" in shown and ">int64</td>" in shown
    assert "<td" not in nvt.Workflow(features())._repr_html_()


def test_schemas(workflow: nvt.Workflow) -> None:
    assert workflow.input_schema.column_names == ["c", "x", "y"]
    assert workflow.output_dtypes == {"c": pa.int64(), "x": pa.float64(), "y": pa.int64()}
    assert workflow.input_dtypes["c"] == pa.string()


def test_decode(workflow: nvt.Workflow) -> None:
    table = pa.table(DATA)
    decoded = workflow.decode(workflow.transform(table))
    assert decoded.column("c").to_pylist() == DATA["c"]
    assert workflow.decode(workflow.transform(pd.DataFrame(DATA)))["c"].tolist()[:3] == [
        "b",
        "a",
        "b",
    ]


def test_embedding_sizes() -> None:
    columns = {f"C{i}": [f"{j}" for j in range(10 * i)] * (30 // i) for i in (1, 2, 10)}
    shortest = min(len(v) for v in columns.values())
    data = {n: v[:shortest] for n, v in columns.items()}
    node = list(data) >> ops.Categorify()
    workflow = nvt.Workflow(node).fit(data)
    sizes = ops.get_embedding_sizes(workflow)
    assert list(sizes) == ["C1", "C10", "C2"]
    assert sizes["C1"] == (13, 16)
    assert ops.get_embedding_sizes(node) == sizes
    lists = nvt.Workflow(["l", "c"] >> ops.Categorify()).fit(
        pa.table({"l": [["a"], ["b"]], "c": ["x", "y"]})
    )
    assert ops.get_embedding_sizes(lists) == ({"c": (5, 16)}, {"l": (5, 16)})


def test_fitted_workflows_travel_between_processes(workflow: nvt.Workflow) -> None:
    copy = pickle.loads(pickle.dumps(workflow))
    assert copy.transform(pa.table(DATA)).equals(workflow.transform(pa.table(DATA)))


def test_a_table_too_large_for_a_later_step_of_the_fit() -> None:
    values = [f"a long enough text {i}" for i in range(30_000)]
    data = nvt.Dataset({"c": values, "x": list(range(30_000))}, npartitions=4)
    for op in (ops.Categorify(), ops.TargetEncoding("x")):
        workflow = nvt.Workflow(["c"] >> op >> ops.Normalize())
        with pytest.raises(OperatorError, match=r"takes about .* memory_limit is 0.0001 GB"):
            workflow.fit(data, memory_limit=100_000)
        workflow.fit(data, memory_limit="100MB")


def test_spill_folders_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    values = [f"a long enough text {i % 3000}" for i in range(9000)]
    data = nvt.Dataset({"c": values, "x": list(range(9000))}, npartitions=4)
    node = (
        (["c"] >> ops.JoinGroupby("x")) + (["x"] >> ops.FillMedian()) + (["c"] >> ops.DataStats())
    )
    fitted = nvt.Workflow(node).fit(data, memory_limit="50kB")
    assert fitted.transform(data).head(1)["c_count"][0] == 3
    assert [p.name for p in tmp_path.iterdir()] == []


def test_a_failing_fit_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    values = [f"a long enough text {i}" for i in range(3000)]
    data = nvt.Dataset({"c": values, "x": [1.0] * 2999 + [float("inf")]}, npartitions=3)
    node = (["c"] >> ops.JoinGroupby()) + (["x"] >> ops.Normalize())
    with pytest.raises(OperatorError):
        nvt.Workflow(node).fit(data, memory_limit="20kB")
    assert [p.name for p in tmp_path.iterdir()] == []


class Forgetful(ops.Operator):
    """Makes a column of another name than it declares."""

    def transform(self, frame: pl.LazyFrame, inputs: ops.Inputs) -> pl.LazyFrame:
        return frame.select(1 - pl.col(n) for n in inputs.names)


def test_an_operator_that_does_not_make_what_it_declares() -> None:
    with pytest.raises(
        OperatorError, match=r"'x' was declared but not made; there are \['literal'\]"
    ):
        nvt.Workflow(["x"] >> Forgetful()).transform({"x": [1]})


def test_inputs_to_remove_must_be_names() -> None:
    workflow = nvt.Workflow(["x"] >> ops.Normalize()).fit({"x": [1.0, 2.0]})
    with pytest.raises(ArgumentError, match="takes names of columns, not 3"):
        workflow.remove_inputs([3])  # type: ignore[list-item]


@pytest.mark.parametrize(("end", "unit"), [("arrow", "record batch"), ("avro", "block")])
def test_a_unit_too_large_for_the_limit_is_refused_before_it_is_read(
    tmp_path: Path, end: str, unit: str
) -> None:
    rows = 20_000
    table = pa.table({"x": [i / 7 for i in range(rows)], "text": ["a" * 500] * rows})
    path = tmp_path / f"a.{end}"
    if end == "avro":
        pl.DataFrame(table).write_avro(path)
    else:
        with pa.ipc.new_file(
            path, table.schema, options=pa.ipc.IpcWriteOptions(compression="zstd")
        ) as f:
            f.write_table(table)
    length = ["text"] >> ops.LambdaOp(lambda c: c.str.len_bytes().cast(float)) >> ops.Normalize()
    with pytest.raises(ArgumentError, match=rf"a\.{end} has a {unit} .* MB.*memory_limit"):
        Workflow(length).fit(Dataset(path), memory_limit="10MB")
    assert Workflow(length).fit(Dataset(path), memory_limit="200MB").output_schema
