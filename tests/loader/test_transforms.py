"""Raw files through a fitted workflow inside the loader: as if they had been transformed first."""

from __future__ import annotations

import datetime as dt
import os
import pickle
from itertools import pairwise

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from tabfeed import Dataset, Workflow, ops
from tabfeed.errors import (
    ArgumentError,
    ColumnNotFoundError,
    LoaderError,
    NotFittedError,
    WorkflowError,
)
from tabfeed.loader import EmbeddingOperator, Padding
from tabfeed.loader.torch import DLDataLoader, Loader, TorchAsyncItr

ROWS = 90


def raw_table():
    numbers = range(ROWS)
    return pa.table(
        {
            "kind": pa.array([None if i % 11 == 0 else f"k{i % 7}" for i in numbers]),
            "size": pa.array([None if i % 5 == 0 else float(i) for i in numbers], pa.float64()),
            "tags": pa.array([tags_of(i) for i in numbers]),
            "label": pa.array([i % 2 for i in numbers], pa.int8()),
            "name": pa.array([f"n{i}" for i in numbers]),
            "when": pa.array([dt.datetime(2020, 1, 1) + dt.timedelta(hours=i) for i in numbers]),
            "unused": pa.array([b"never read"] * ROWS),
        }
    )


def tags_of(i):
    return None if i % 6 == 0 else [f"t{j}" for j in range(i % 4)]


@pytest.fixture
def raw(tmp_path):
    pq.write_table(raw_table(), tmp_path / "raw.parquet", row_group_size=20)
    return Dataset(str(tmp_path))


@pytest.fixture
def workflow(raw):
    ids = ["kind", "tags"] >> ops.Categorify()
    numbers = ["size"] >> ops.FillMissing() >> ops.Normalize(out_dtype="float32")
    return Workflow(ids + numbers + ["label", "name", "when"]).fit(raw)


def equal(a, b):
    if isinstance(a, pa.Array):
        return a.equals(b)
    if isinstance(a, tuple):
        return all(equal(x, y) for x, y in zip(a, b, strict=True))
    if isinstance(a, dict):
        return list(a) == list(b) and all(equal(a[k], b[k]) for k in a)
    if isinstance(a, torch.Tensor):
        return a.dtype == b.dtype and torch.equal(a, b)
    return np.array_equal(np.asarray(a), np.asarray(b))


def same_batches(one, other):
    pairs = list(zip(one, other, strict=True))
    assert len(pairs) == len(one) == 6
    return all(equal(a, b) for a, b in pairs)


@pytest.mark.parametrize("shuffle", [False, True])
def test_a_workflow_in_the_loader_equals_transforming_first(raw, workflow, shuffle):
    how = {"shuffle": shuffle, "targets": ["label"], "extras": ["name", "when"]}
    inside = Loader(raw, 16, transforms=workflow, **how)
    before = Loader(Dataset(workflow.transform(raw).to_arrow(), npartitions=1), 16, **how)
    if not shuffle:
        assert same_batches(inside, before)
    names = {}
    for loader in (inside, before):
        for inputs, label in loader:
            assert inputs["kind"].dtype == torch.int64 and inputs["size"].dtype == torch.float32
            o = inputs["tags__offsets"].tolist()
            for i, name in enumerate(inputs["name"].to_pylist()):
                tags = inputs["tags__values"][o[i] : o[i + 1]].tolist()
                when = inputs["when"][i].as_py()
                row = [inputs["kind"][i].item(), inputs["size"][i].item(), tags, label[i].item()]
                names.setdefault(name, []).append([*row, when])
    assert len(names) == ROWS
    for name, (one, other) in names.items():
        assert one == other
        assert one[-1] == dt.datetime(2020, 1, 1) + dt.timedelta(hours=int(name[1:]))
        assert one[3] == int(name[1:]) % 2


def test_every_door_takes_a_workflow(raw, workflow):
    ready = Dataset(workflow.transform(raw).to_arrow(), npartitions=1)
    columns = {"cats": ["kind", "tags"], "conts": ["size"], "labels": ["label"], "batch_size": 16}
    inside = TorchAsyncItr(raw, transforms=workflow, **columns)
    assert same_batches(inside, TorchAsyncItr(ready, **columns))
    assert same_batches(DLDataLoader(inside), TorchAsyncItr(ready, **columns))
    jax_loader = pytest.importorskip("tabfeed.loader.jax")
    how = {"targets": ["label"], "columns": ["kind", "size", "tags"]}
    one = jax_loader.Loader(raw, 16, transforms=workflow, **how)
    assert same_batches(one, jax_loader.Loader(ready, 16, **how))


def test_groups_follow_the_tags_the_workflow_gives(raw):
    ids = ["kind"] >> ops.Categorify()
    label = ["label"] >> ops.AddTags(["target"])
    size = ["size"] >> ops.FillMissing() >> ops.Normalize()
    flow = Workflow(ids + size + label).fit(raw)
    itr = TorchAsyncItr(raw, batch_size=16, transforms=flow)
    assert (itr.cats, itr.conts, itr.labels) == (["kind"], ["size"], ["label"])


def test_only_what_the_workflow_needs_is_read(raw, workflow, monkeypatch):
    asked = []
    read = Dataset.read

    def note(self, part, columns=None, **options):
        asked.append((set(columns), set(options["dictionary"])))
        return read(self, part, columns, **options)

    monkeypatch.setattr(Dataset, "read", note)
    list(Loader(raw, 16, transforms=workflow, extras=["name", "when"]))
    needed = {"kind", "size", "tags", "label", "name", "when"}
    assert {frozenset(columns) for columns, _ in asked} == {frozenset(needed)}
    assert all("kind" in encoded for _, encoded in asked)


def test_functions_workflows_and_batch_operators_in_one_list(raw, workflow, tmp_path):
    np.save(tmp_path / "vectors.npy", np.arange(40, dtype=np.float32).reshape(20, 2))
    look_up = EmbeddingOperator(
        tmp_path / "vectors.npy", lookup_key="kind", embedding_name="vector", mmap=True
    )
    steps = [lambda t: t.slice(0), workflow, look_up, Padding(2, -1, mask=True)]
    how = {"extras": ["name", "when"], "targets": ["label"]}
    ragged = Loader(raw, 16, transforms=workflow, **how)
    for (inputs, _), (plain, _) in zip(
        Loader(raw, 16, transforms=steps, **how), ragged, strict=True
    ):
        ids = plain["kind"].tolist()
        assert inputs["vector"].tolist() == [[2.0 * k, 2.0 * k + 1] for k in ids]
        o, v = plain["tags__offsets"].tolist(), plain["tags__values"].tolist()
        rows = [v[a:b] for a, b in pairwise(o)]
        assert inputs["tags"].tolist() == [[*row, -1, -1][:2] for row in rows]
        assert inputs["tags__mask"].sum(1).tolist() == [min(2, len(row)) for row in rows]


def test_nested_tensors_of_a_workflow(raw, workflow):
    how = {"transforms": workflow, "columns": ["tags"], "targets": ["label"]}
    nested = Loader(raw, 16, lists="nested", **how)
    for (one, _), (plain, _) in zip(nested, Loader(raw, 16, **how), strict=True):
        assert one["tags"].is_nested and one["tags"].values().equal(plain["tags__values"])
        assert one["tags"].offsets().equal(plain["tags__offsets"])


def test_a_workflow_must_be_fitted_unless_it_has_nothing_to_learn(raw):
    with pytest.raises(NotFittedError, match="has not been fitted"):
        Loader(raw, 16, transforms=Workflow(["kind"] >> ops.Categorify()))
    plain = Workflow(["size"] >> ops.FillMissing() >> ops.LogOp())
    inputs, _ = next(iter(Loader(raw, 16, transforms=plain)))
    assert inputs["size"].tolist()[:2] == pytest.approx([0.0, np.log(2.0)])


def test_a_workflow_that_drops_rows_is_refused_with_the_remedy(raw):
    flow = Workflow(["size", "label"] >> ops.Dropna()).fit(raw)
    with pytest.raises(
        LoaderError, match=r"were expected.*write such data with Dataset\.to_parquet"
    ):
        list(Loader(raw, 16, transforms=flow))


def test_a_function_that_always_fails_is_found_at_once(raw):
    def fail(table):
        raise ZeroDivisionError("on purpose")

    with pytest.raises(ZeroDivisionError, match="on purpose"):
        Loader(raw, 16, transforms=fail)


def test_a_copy_sent_to_another_process_runs_the_workflow(raw, workflow):
    itr = Loader(raw, 16, transforms=workflow, columns=["kind"], targets=["label"])
    copy = pickle.loads(pickle.dumps(itr))
    assert [x["kind"].tolist() for x, _ in copy] == [x["kind"].tolist() for x, _ in itr]


def test_a_forked_child_says_that_polars_cannot_run_there(raw, workflow):
    """Without the check it would wait for ever: for threads that a fork does not copy."""
    pl.DataFrame({"a": [1, 2]}).lazy().select(pl.col("a") + 1).collect()  # they run by now
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        told = "nothing was raised"
        try:
            list(Loader(raw, 16, transforms=workflow, columns=["kind"]))
        except WorkflowError as e:
            told = str(e)
        finally:
            os.write(writing, told.encode())
            os._exit(0)
    os.waitpid(pid, 0)
    assert "start processes with spawn" in os.read(reading, 10_000).decode()
    assert len(list(Loader(raw, 16, transforms=workflow, columns=["kind"]))) == 6  # here it can


# -- pretrained vectors --------------------------------------------------------------------


def test_mapped_vectors_are_neither_read_nor_sent(tmp_path):
    np.save(tmp_path / "v.npy", np.zeros((1000, 64), np.float32))
    op = EmbeddingOperator(tmp_path / "v.npy", mmap=True)
    assert isinstance(op._matrix, np.memmap)
    assert len(pickle.dumps(op)) < 2000
    assert isinstance(pickle.loads(pickle.dumps(op))._matrix, np.memmap)
    loaded = EmbeddingOperator(tmp_path / "v.npy")
    assert not isinstance(loaded._matrix, np.memmap) and len(pickle.dumps(loaded)) > 250_000


def test_vectors_of_the_wrong_shape_or_key_are_refused():
    with pytest.raises(ArgumentError, match="must have two dimensions, not 1"):
        EmbeddingOperator(np.zeros(3))
    with pytest.raises(ArgumentError, match="has 2 ids for 3 vectors"):
        EmbeddingOperator(np.zeros((3, 1)), id_lookup_table=np.array([1, 2]))
    data = Dataset({"item": [1, 2], "price": [0.5, 1.5]})
    missing = EmbeddingOperator(np.zeros((3, 1)), lookup_key="itm")
    with pytest.raises(ColumnNotFoundError, match="did you mean 'item'"):
        list(Loader(data, 2, transforms=missing))
    floats = EmbeddingOperator(np.zeros((3, 1)), lookup_key="price")
    with pytest.raises(LoaderError, match="'price' is float64; ids must be integers"):
        list(Loader(data, 2, transforms=floats))


def test_padding_says_what_it_cannot_pad():
    data = Dataset({"x": [1, 2]})
    with pytest.raises(ColumnNotFoundError, match="the ragged columns"):
        list(Loader(data, 2, transforms=Padding(2, columns=["x"])))
    with pytest.raises(ArgumentError, match="padding_size is 0"):
        Padding(0)
