"""`Padding` and `EmbeddingOperator` as on a GPU, walked on the CPU: equal bit for bit."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from tabfeed import Dataset
from tabfeed.errors import ColumnNotFoundError, LoaderError
from tabfeed.loader.assemble.batch_ops import EmbeddingOperator, Padding
from tabfeed.loader.assemble.chunk import Chunk
from tabfeed.loader.gpu import batch_ops
from tabfeed.loader.gpu.batch_ops import GpuOps
from tabfeed.loader.gpu.delivery import GpuStages
from tabfeed.loader.options import GpuOptions
from tabfeed.loader.read.arrow_columns import Group, Layout, Lists
from tabfeed.loader.torch import Loader
from tests.loader.gpu.pretend import on_gpu, pretend_gpu

CPU = torch.device("cpu")
BOUNDS = np.array([0, 2, 4])
OFFSETS = np.array([0, 3, 3, 4, 6])
VALUES = ["i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", "f2", "f4", "f8", "?"]


def both(op, **parts):
    """What an operator makes of a chunk on the CPU, and on a GPU that gets it as arrays."""
    host, there = (
        Chunk(BOUNDS, **{kind: dict(found) for kind, found in parts.items()}) for _ in "ab"
    )
    op(host)
    GpuOps.of([op], Layout(), CPU).ops[0](there)
    return host, there


def same(array, tensor):
    """Equal in dtype and in every bit."""
    if isinstance(tensor, torch.Tensor):
        tensor = tensor.numpy()
    assert array.dtype == tensor.dtype and array.shape == tensor.shape
    return array.tobytes() == tensor.tobytes()


@pytest.mark.parametrize("kind", VALUES)
@pytest.mark.parametrize("width", [1, 2, 5])
def test_padding(kind, width):
    lists = Lists(np.array([1, 2, 3, 4, 0, 6]).astype(kind), OFFSETS)
    value = 1 if kind == "?" else 7
    host, there = both(Padding(width, value, mask=True), lists={"words": lists})
    assert same(host.columns["words"], there.columns["words"])
    assert same(host.columns["words__mask"], there.columns["words__mask"])
    assert not there.lists
    assert there.columns["words"][1].tolist() == [np.array(value, kind).item()] * width


def test_padding_with_what_is_no_number():
    values = np.array([np.nan, -0.0, np.inf, 1, 2, 3], np.float32)
    host, there = both(Padding(4, np.nan), lists={"w": Lists(values, OFFSETS)})
    assert same(host.columns["w"], there.columns["w"])


def test_padding_of_nothing_but_empty_rows():
    lists = Lists(np.empty(0, np.int64), np.zeros(5, np.int64))
    host, there = both(Padding(3, 9), lists={"w": lists})
    assert same(host.columns["w"], there.columns["w"])


def test_some_columns_and_a_wrong_one():
    lists = {n: Lists(np.arange(6), OFFSETS) for n in ("a", "b")}
    _, there = both(Padding(2, columns=["a"]), lists=lists)
    assert list(there.columns) == ["a"] and list(there.lists) == ["b"]
    op = GpuOps.of([Padding(2, columns=["wodrs"])], Layout(), CPU).ops[0]
    with pytest.raises(ColumnNotFoundError, match="wodrs"):
        op(Chunk(BOUNDS, lists={"words": lists["a"]}))


@pytest.mark.parametrize("kind", ["i1", "u1", "i4", "u4", "i8", "u8"])
@pytest.mark.parametrize("table", ["f2", "f4", "f8", "i4", "u2"])
def test_vectors_by_row_number(kind, table):
    vectors = np.arange(15).reshape(5, 3).astype(table)
    keys = np.array([4, 0, 5, 99]).astype(kind)
    if kind[0] == "i":
        keys[3] = -1
    if kind == "u8":
        keys[3] = 2**64 - 1
    host, there = both(EmbeddingOperator(vectors, "k", unknown_value=7), columns={"k": keys})
    assert same(host.columns["embeddings"], there.columns["embeddings"])
    assert there.columns["embeddings"][2:].tolist() == [[7] * 3] * 2
    assert isinstance(there.columns["k"], torch.Tensor)


def test_vectors_by_id_the_first_of_equal_ones():
    ids = np.array([70, -5, 30, 70, 10], np.int32)
    op = EmbeddingOperator(np.eye(5), "k", "v", id_lookup_table=ids, unknown_value=np.nan)
    host, there = both(op, columns={"k": np.array([70, 11, -5, 10**6])})
    assert same(host.columns["v"], there.columns["v"])
    assert there.columns["v"][0].tolist() == [1, 0, 0, 0, 0]


def test_vectors_of_lists_and_of_lists_of_one_length():
    vectors = np.arange(20, dtype=np.float32).reshape(10, 2)
    lists = Lists(np.array([1, 9, 10, 0, 2, 2]), OFFSETS)
    host, there = both(EmbeddingOperator(vectors, "w", "v"), lists={"w": lists})
    assert same(host.lists["v"].values, there.lists["v"].values)
    assert there.lists["v"].offsets is there.lists["w"].offsets
    fixed = np.array([[1, 2], [3, 40], [5, 6], [7, 8]])
    host, there = both(EmbeddingOperator(vectors, "w", "v"), columns={"w": fixed})
    assert same(host.columns["v"], there.columns["v"]) and there.columns["v"].shape == (4, 2, 2)


def test_vectors_of_lists_can_be_padded():
    vectors = np.arange(20, dtype=np.float32).reshape(10, 2)
    lists = Lists(np.array([1, 9, 10, 0, 2, 2]), OFFSETS)
    host, there = Chunk(BOUNDS, lists={"w": lists}), Chunk(BOUNDS, lists={"w": lists})
    ops = [EmbeddingOperator(vectors, "w", "v"), Padding(2, -1)]
    for op, other in zip(ops, GpuOps.of(ops, Layout(), CPU).ops, strict=True):
        op(host)
        other(there)
    assert same(host.columns["v"], there.columns["v"])
    assert there.columns["v"].tolist()[1:3] == [[[-1, -1], [-1, -1]], [[0, 1], [-1, -1]]]


def test_a_table_is_copied_once_and_in_blocks(tmp_path, monkeypatch):
    monkeypatch.setattr(batch_ops, "_BLOCK", 24)
    vectors = np.arange(30, dtype=np.float32).reshape(10, 3)
    np.save(tmp_path / "v.npy", vectors)
    op = EmbeddingOperator(tmp_path / "v.npy", "k", mmap=True)
    there = GpuOps.of([op], Layout(), CPU).ops[0]
    tables = set()
    for _ in range(2):
        chunk = Chunk(BOUNDS, columns={"k": np.array([9, 3, 0, 1])})
        there(chunk)
        assert chunk.columns["embeddings"].tolist() == vectors[[9, 3, 0, 1]].tolist()
        tables.add(there._table)
    assert len(tables) == 1


def test_keys_must_be_integers_and_there():
    op = GpuOps.of([EmbeddingOperator(np.eye(2), "k")], Layout(), CPU).ops[0]
    with pytest.raises(LoaderError, match="column 'k' is float32; ids must be integers"):
        op(Chunk(BOUNDS, columns={"k": np.ones(4, np.float32)}))
    with pytest.raises(ColumnNotFoundError, match="'k'"):
        op(Chunk(BOUNDS, columns={"key": np.ones(4, np.int64)}))


def test_what_a_gpu_cannot_do_stays_on_the_cpu():
    text = EmbeddingOperator(np.eye(2), "k", id_lookup_table=np.array([1.0, 2.0]))
    wide = EmbeddingOperator(np.eye(2), "k", id_lookup_table=np.array([1, 2], np.uint64))
    odd = EmbeddingOperator(np.eye(2, dtype=np.complex64), "k")

    class Own(Padding):
        pass

    for op in (text, wide, odd, Own(2), print):
        assert GpuOps.of([op], Layout(), CPU) is None
    assert GpuOps.of([], Layout(), CPU) == GpuOps()


def test_memory_that_operators_need():
    layout = Layout(
        groups=(Group("c", ("k",), np.dtype(np.int64)),),
        lists=(("w", np.dtype(np.int32)),),
        fixed=(("f", 5, np.dtype(np.int64)),),
    )
    table = np.zeros((100, 3), np.float32)

    def of(*ops):
        found = GpuOps.of(ops, layout, CPU)
        return found.row_bytes, found.table_bytes

    assert of(Padding(6)) == (24, 0)
    assert of(Padding(6, mask=True)) == (30, 0)
    assert of(EmbeddingOperator(table, "k")) == (12, 1200)
    assert of(EmbeddingOperator(table, "f", id_lookup_table=np.arange(100))) == (60, 2800)
    assert of(Padding(6), EmbeddingOperator(table, "w")) == (24 + 72, 1200)


@pytest.fixture
def dataset(tmp_path):
    key = np.arange(900)
    table = {
        "k": key.astype(np.int32),
        "w": [[int(i)] * (i % 4) for i in key],
        "y": (key % 2).astype(np.float32),
    }
    pq.write_table(pa.table(table), tmp_path / "a.parquet", row_group_size=200)
    return Dataset(str(tmp_path))


@pytest.mark.parametrize(
    ("form", "shuffle"), [("ragged", True), ("ragged", False), ("nested", True), ("padded", True)]
)
def test_a_loader_with_operators_makes_its_batches_there(dataset, form, shuffle, monkeypatch):
    pretend_gpu(monkeypatch)
    vectors = np.random.default_rng(0).standard_normal((500, 4)).astype(np.float32)

    def make():
        ops = [EmbeddingOperator(vectors, "k"), EmbeddingOperator(vectors, "w", "wv")]
        ops += [Padding(3, columns=["w"], mask=True)]
        how = {"targets": ["y"], "transforms": ops, "lists": form, "device": "cpu"}
        return Loader(dataset, 64, shuffle, **how)

    plain, walked = make(), make()
    walked.pipeline = on_gpu(walked.pipeline, CPU, GpuOptions("arrow"))
    assert isinstance(walked.pipeline.stages, GpuStages) and walked.pipeline.stages.ops
    for (a, ya), (b, yb) in zip(plain, walked, strict=True):
        assert a.keys() == b.keys() and torch.equal(ya, yb)
        for name in a:
            one, other = a[name], b[name]
            if one.is_nested:
                one, other = (t.values() for t in (one, other))
            assert one.dtype == other.dtype and torch.equal(one, other)


def test_with_a_table_larger_than_the_memory_batches_are_copied(dataset, monkeypatch):
    pretend_gpu(monkeypatch, free=10**8)
    op = EmbeddingOperator(np.zeros((10**6, 30), np.float32), "k")
    loader = Loader(dataset, 64, targets=["y"], transforms=[op], device="cpu")
    copied = on_gpu(loader.pipeline, CPU, GpuOptions("arrow"))
    assert not isinstance(copied.stages, GpuStages) and copied.stages.ops == (op,)
