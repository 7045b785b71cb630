"""`Workflow.update`: learning more data on top of what is known, as if fitted on both."""

from __future__ import annotations

import pickle
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import tabfeed as nvt
from tabfeed import ops
from tabfeed.errors import OperatorError


def _categorify(**options: Any) -> nvt.Workflow:
    return nvt.Workflow(["c"] >> ops.Categorify(**options))


def _ids(workflow: nvt.Workflow, values: list[Any]) -> list[int]:
    return workflow.transform(pa.table({"c": values})).column("c").to_pylist()


def test_update_appends_and_merges() -> None:
    first = {"c": ["a", "a", "b"], "x": [1.0, 2.0, 3.0], "y": [1, 0, 1]}
    second = {"c": ["c", "b", "c", None], "x": [10.0, 20.0, 30.0, 40.0], "y": [0, 0, 1, 1]}
    learned = (
        (["x"] >> ops.Normalize())
        + (["c"] >> ops.TargetEncoding("y", kfold=1, out_dtype="float64"))
        + (["c"] >> ops.JoinGroupby("x", stats=["count", "mean", "std", "min", "max"]))
        + (["x"] >> ops.FillMedian() >> ops.Rename(name="m"))
        + (["x"] >> ops.NormalizeMinMax() >> ops.Rename(name="r"))
    )
    fresh = (
        (["x"] >> ops.Normalize())
        + (["c"] >> ops.TargetEncoding("y", kfold=1, out_dtype="float64"))
        + (["c"] >> ops.JoinGroupby("x", stats=["count", "mean", "std", "min", "max"]))
        + (["x"] >> ops.FillMedian() >> ops.Rename(name="m"))
        + (["x"] >> ops.NormalizeMinMax() >> ops.Rename(name="r"))
    )
    workflow = nvt.Workflow((["c"] >> ops.Categorify()) + learned).fit(first)
    assert workflow.update(second) == {"c": 1}
    whole = nvt.Workflow(fresh).fit({n: [*first[n], *second[n]] for n in first})
    probe = pa.table({"c": ["a", "b", "c", None], "x": [1.0, None, 3.0, 4.0]})
    got, expected = workflow.transform(probe), whole.transform(probe)
    assert got.column("c").to_pylist() == [3, 4, 5, 1]
    for name in expected.column_names:
        assert got.column(name).to_pylist() == pytest.approx(expected.column(name).to_pylist()), (
            name
        )


def test_values_once_too_rare_count_on() -> None:
    workflow = _categorify(freq_threshold=3).fit({"c": ["a"] * 5 + ["b", "b", "c"]})
    assert workflow.update({"c": ["b", "c", "d"]}) == {"c": 1}
    assert _ids(workflow, ["a", "b", "c", "d"]) == [3, 4, 2, 2]
    assert workflow.update({"c": ["c", "d", "d"]}) == {"c": 2}
    assert _ids(workflow, ["a", "b", "c", "d"]) == [3, 4, 5, 6]


def test_values_past_max_size_count_on_and_wait_for_room() -> None:
    workflow = _categorify(max_size=5).fit({"c": ["a", "a", "a", "b", "b", "c"]})
    assert workflow.update({"c": ["c"] * 9}) == {"c": 0}
    assert _ids(workflow, ["a", "b", "c"]) == [3, 4, 2]
    (op,) = [n.op for n in [workflow.output_node]]
    assert isinstance(op, ops.Categorify) and (rest := op.vocabularies_["c"].rest) is not None
    assert rest.read().to_pydict() == {"v0": ["c"], "count": [10]}


def test_new_values_come_by_count_then_by_value() -> None:
    workflow = _categorify().fit({"c": ["z"]})
    assert workflow.update({"c": ["d", "b", "c", "c", "z"]}) == {"c": 3}
    assert workflow.transform({"c": ["z", "c", "b", "d"]})["c"].tolist() == [3, 4, 5, 6]


def test_a_combination_counts_on() -> None:
    node = [["c", "d"]] >> ops.Categorify(encode_type="combo", freq_threshold=2)
    workflow = nvt.Workflow(node).fit({"c": ["a", "a", "b", None], "d": [1, 1, 1, 1]})
    assert workflow.update({"c": ["b", None], "d": [1, 1]}) == {"c_d": 2}
    got = workflow.transform({"c": ["a", None, "b", "b"], "d": [1, 1, 1, 2]})["c_d"]
    assert got.tolist() == [3, 4, 5, 2]


def test_columns_that_share_a_table_get_ids_behind_it() -> None:
    node = ["a", "b"] >> ops.Categorify(single_table=True)
    workflow = nvt.Workflow(node).fit({"a": ["x", "y"], "b": ["p", "q"]})
    before = workflow.transform({"a": ["x", "y", None], "b": ["p", "q", "new"]})
    assert [before["a"].tolist(), before["b"].tolist()] == [[3, 4, 1], [8, 9, 7]]
    assert workflow.update({"a": ["z", "z", "w"], "b": ["p", "r", "r"]}) == {"a": 3, "b": 3}
    after = workflow.transform({"a": ["x", "y", "z", "w", None], "b": ["p", "q", "r", "s", None]})
    assert after["a"].tolist() == [3, 4, 10, 11, 1]
    assert after["b"].tolist() == [8, 9, 12, 7, 6]
    assert workflow.update({"a": ["v"], "b": ["p"]}) == {"a": 1, "b": 1}
    assert workflow.transform({"a": "v", "b": "r"}) == {"a": 13, "b": 12}


def test_columns_without_new_values_get_no_ids_behind_a_shared_table() -> None:
    node = ["a", "b"] >> ops.Categorify(single_table=True)
    workflow = nvt.Workflow(node).fit({"a": ["x", "y"], "b": ["p", "p"]})
    op = node.op
    assert isinstance(op, ops.Categorify)
    workflow.update({"a": ["x"], "b": ["p"]})
    assert op.state()["extents"] == {}
    workflow.update({"a": ["y"], "b": ["q"]})
    assert op.state()["extents"] == {"b": [[1, 9]]}  # its second value has id 9


def test_a_shared_table_that_grew_is_saved_and_decoded(tmp_path: Path) -> None:
    workflow = nvt.Workflow(["a", "b"] >> ops.Categorify(single_table=True))
    workflow.fit({"a": ["x", "y"], "b": ["p", "q"]})
    workflow.update({"a": ["z"], "b": ["r"]})
    workflow.save(tmp_path / "w")
    loaded = nvt.Workflow.load(tmp_path / "w")
    data = {"a": ["x", "z", "y", None], "b": ["r", "p", "q", "new"]}
    ids = loaded.transform(pa.table(data))
    assert ids.equals(workflow.transform(pa.table(data)))
    assert loaded.decode(ids).to_pydict() == {**data, "b": ["r", "p", "q", None]}
    assert loaded.output_schema["a"].embedding_size == (11, 16)


def test_update_after_load_knows_what_was_too_rare(tmp_path: Path) -> None:
    _categorify(freq_threshold=2).fit({"c": ["a", "a", "b"]}).save(tmp_path / "w")
    loaded = nvt.Workflow.load(tmp_path / "w")
    shutil.rmtree(tmp_path / "w")
    assert loaded.update({"c": ["b", "c"]}) == {"c": 1}
    assert _ids(loaded, ["a", "b", "c"]) == [3, 4, 2]
    loaded.save(tmp_path / "w")
    assert nvt.Workflow.load(tmp_path / "w").update({"c": ["c"]}) == {"c": 1}


def test_saved_without_what_an_update_needs(tmp_path: Path) -> None:
    node = (["c"] >> ops.Categorify(freq_threshold=2)) + (["x"] >> ops.FillMedian())
    workflow = nvt.Workflow(node).fit({"c": ["a", "a", "b"], "x": [1.0, 2.0, 3.0]})
    workflow.save(tmp_path / "whole")
    workflow.save(tmp_path / "small", updatable=False)
    sizes = [len(list((tmp_path / n / "tables").iterdir())) for n in ("whole", "small")]
    assert sizes == [3, 1]
    loaded = nvt.Workflow.load(tmp_path / "small")
    assert loaded.transform({"c": "a", "x": None}) == {"c": 3, "x": 2.0}
    with pytest.raises(OperatorError, match="save with updatable=True"):
        loaded.update({"c": ["b"], "x": [1.0]})


def _long(values: Any) -> list[str]:
    return [f"a text longer than eight bytes {v}" for v in values]


@pytest.mark.parametrize("make", [_long, lambda v: [int(x) for x in v]], ids=["text", "numbers"])
@pytest.mark.parametrize("limits", [("1kB", "1kB"), (None, "1kB"), ("1kB", None)])
@pytest.mark.parametrize("options", [{}, {"freq_threshold": 3}, {"max_size": 500}])
def test_on_disk_and_in_memory_agree(make: Any, limits: Any, options: dict[str, Any]) -> None:
    rng = np.random.default_rng(1)
    first, second = (make(rng.zipf(1.3, 3000) % 2000 + shift) for shift in (0, 300))
    expected = _categorify(**options).fit({"c": first})
    grew = expected.update({"c": second})
    workflow = _categorify(**options)
    workflow.fit(nvt.Dataset({"c": first}, npartitions=3), memory_limit=limits[0])
    got = workflow.update(nvt.Dataset({"c": second}, npartitions=3), memory_limit=limits[1])
    assert got == grew
    probe = [*dict.fromkeys([*first, *second])]
    assert _ids(workflow, probe) == _ids(expected, probe)
    assert _ids(workflow, probe) != [2] * len(probe)


def test_ids_stay_when_new_data_is_on_disk() -> None:
    first = _long(range(3000))
    workflow = _categorify().fit({"c": first}, memory_limit="1kB")
    before = _ids(workflow, first)
    data = nvt.Dataset({"c": _long(range(2000, 5000))}, npartitions=4)
    assert workflow.update(data, memory_limit="1kB") == {"c": 2000}
    assert _ids(workflow, first) == before
    assert sorted(_ids(workflow, _long(range(3000, 5000)))) == [*range(3003, 5003)]


def test_medians_and_statistics_of_many_values(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tabfeed.ops.state.memory._LEAST_KEPT", 0)  # so that counts stay on disk
    values = np.random.default_rng(0).permutation(4001).astype(float)
    node = (["x"] >> ops.FillMedian()) + (["y"] >> ops.DataStats())
    workflow = nvt.Workflow(node)
    one, two = values[:1500], values[1500:]
    data = nvt.Dataset({"x": one, "y": _long(one)}, npartitions=3)
    workflow.fit(data, memory_limit="1kB")
    workflow.update(nvt.Dataset({"x": two, "y": _long(two)}, npartitions=3), memory_limit="1kB")
    found = {type(p.op): p.op for p in workflow.output_node.parents}
    assert found[ops.FillMedian].medians_ == {"x": 2000.0}
    assert found[ops.DataStats].output["y"]["cardinality"] == 4001


def test_numbers_of_another_width_and_columns_without_values() -> None:
    node = (["c"] >> ops.Categorify()) + (["x"] >> ops.DataStats())
    nothing = pa.table({"c": pa.nulls(2, pa.int64()), "x": pa.nulls(2, pa.int64())})
    workflow = nvt.Workflow(node).fit(nothing)
    assert workflow.update(pa.table({"c": [1, 2, 2], "x": [1, 2, 2]})) == {"c": 2}
    assert workflow.update(pa.table({"c": [3.0, 2.0, None], "x": [0.5, 2.0, None]})) == {"c": 1}
    probe = pa.table({"c": [2, 1, 3], "x": [0, 0, 0]})
    assert workflow.transform(probe).column("c").to_pylist() == [3, 4, 5]
    stats = workflow.output_node.parents[1].op
    assert isinstance(stats, ops.DataStats) and stats.output["x"]["cardinality"] == 3
    assert stats.output["x"]["per_nan"] == pytest.approx(100 * 3 / 8)


def test_an_update_that_fails_changes_nothing() -> None:
    node = (["c"] >> ops.Categorify()) + (["x"] >> ops.Clip(max_value=9) >> ops.Normalize())
    late = ["x"] >> ops.Normalize() >> ops.Rename(name="n") >> ops.Normalize()
    workflow = nvt.Workflow(node + late).fit({"c": ["a"], "x": [1.0]})
    before = workflow.transform({"c": ["a", "b"], "x": [1.0, 2.0]})
    with pytest.raises(OperatorError, match="infinite"):
        workflow.update({"c": ["b", "c"], "x": [1.0, float("inf")]})
    after = workflow.transform({"c": ["a", "b"], "x": [1.0, 2.0]})
    assert {n: v.tolist() for n, v in after.items()} == {n: v.tolist() for n, v in before.items()}


def test_a_copy_in_another_process_transforms_but_cannot_be_updated() -> None:
    node = (["c"] >> ops.Categorify(freq_threshold=2)) + (["x"] >> ops.FillMedian())
    workflow = nvt.Workflow(node).fit({"c": ["a", "a", "b"], "x": [1.0, 2.0, 3.0]})
    copy = pickle.loads(pickle.dumps(workflow))
    assert copy.transform({"c": "a", "x": None}) == {"c": 3, "x": 2.0}
    with pytest.raises(OperatorError, match="save with updatable=True"):
        copy.update({"c": ["b"], "x": [1.0]})
    assert workflow.update({"c": ["b"], "x": [1.0]}) == {"c": 1}
