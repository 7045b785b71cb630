"""`Padding`, `EmbeddingOperator` and bad circumstances on a real GPU."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from tabfeed import Dataset
from tabfeed.errors import ArgumentError, LoaderError
from tabfeed.loader import EmbeddingOperator, Padding
from tabfeed.loader.torch import Loader
from tabfeed.testing.loader import check_loader

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no NVIDIA GPU here"),
]
KINDS = ["int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "float32", "float64"]


def write_files(folder):
    key = np.arange(12_000)
    table = {"k": key.astype(np.int32), "u": key.astype(np.uint32), "y": key.astype(np.float32)}
    for kind in KINDS:
        words = [[int(i) % 100] * (i % 4) for i in key]
        table[f"w_{kind}"] = pa.array(words, pa.list_(pa.from_numpy_dtype(np.dtype(kind))))
    pq.write_table(pa.table(table), folder / "a.parquet", row_group_size=2500)
    return Dataset(str(folder))


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    return write_files(tmp_path_factory.mktemp("ops"))


def same(one, other):
    (a, ya), (b, yb) = one, other
    assert a.keys() == b.keys() and torch.equal(ya, yb.cpu())
    for name in a:
        assert b[name].is_cuda and a[name].dtype == b[name].dtype
        assert a[name].numpy().tobytes() == b[name].cpu().numpy().tobytes(), name
    return True


def test_vectors_that_are_read_late_are_whole(dataset):
    vectors = np.arange(12_000, dtype=np.float32)[:, None] * np.ones(8, np.float32)
    op = EmbeddingOperator(vectors, "k")
    got = []
    for inputs, _ in Loader(dataset, 256, True, targets=["y"], transforms=[op], device="cuda"):
        torch.cuda._sleep(5_000_000)
        got.append((inputs["k"].clone(), inputs["embeddings"].clone()))
        del inputs
        junk = [torch.full((4096, 8), -1.0, device="cuda") for _ in range(4)]
        del junk
    torch.cuda.synchronize()
    assert sum(len(k) for k, _ in got) == 12_000
    assert all(torch.equal(k[:, None].float().expand(-1, 8), v) for k, v in got)


class KeyedJaggedTensor:
    """Keeps its tensors as TorchRec's does."""

    def __init__(self, keys, values, lengths):
        self._keys, self._values, self._lengths = keys, values, lengths

    def values(self):
        return self._values

    def lengths(self):
        return self._lengths


def read_lists(inputs, form):
    """Copies of what there is of a column, queued behind everything else."""
    if form == "jagged":
        held = inputs["jagged"].values(), inputs["jagged"].lengths()
    elif form == "nested":
        held = inputs["w_int64"].values(), inputs["w_int64"].offsets().diff()
    elif form == "padded":
        held = inputs["w_int64"], inputs["w_int64__mask"]
    else:
        held = inputs["w_int64__values"], inputs["w_int64__offsets"].diff()
    return inputs["k"].clone(), held[0].clone(), held[1].clone()


@pytest.mark.parametrize("cache", [None, "device"])
@pytest.mark.parametrize("mapped", [False, True])
@pytest.mark.parametrize("form", ["ragged", "nested", "padded", "jagged"])
def test_lists_that_are_read_late_are_whole(dataset, monkeypatch, form, mapped, cache):
    """Batches are dropped long before the GPU comes to them, and others are made meanwhile."""
    if form == "jagged":
        names = ("torchrec", "torchrec.sparse", "torchrec.sparse.jagged_tensor")
        for name in names:
            module = SimpleNamespace(__path__=[], KeyedJaggedTensor=KeyedJaggedTensor)
            monkeypatch.setitem(sys.modules, name, module)
    loader = Loader(dataset, 256, True, columns=["k", "w_int64"], targets=["y"], lists=form,
                    cache=cache, device="cuda")  # fmt: skip
    if mapped:  # to an object of the program's own
        loader = loader.map(lambda x, y: (SimpleNamespace(x=x), y))
    got = []
    for _ in range(4):
        for inputs, _ in loader:
            torch.cuda._sleep(5_000_000)
            got.append(read_lists(inputs.x if mapped else inputs, form))
            del inputs
    torch.cuda.synchronize()
    assert sum(len(k) for k, _, _ in got) == 4 * 12_000
    for keys, values, told in got:
        keys = keys.long()
        if form == "padded":
            values, told = values[told], told.sum(1)
        assert torch.equal(told.long(), keys % 4)
        assert torch.equal(values, torch.repeat_interleave(keys % 100, keys % 4))


@pytest.mark.parametrize("device", ["duck", -1])
def test_what_is_no_device(dataset, device):
    with pytest.raises(ArgumentError, match='give "cpu", "cuda", "cuda:1" or a GPU'):
        Loader(dataset, 512, device=device)


def test_a_gpu_that_does_not_exist(dataset):
    for options in ({}, {"cache": "device"}, {"static_batch": True, "drop_last": True}):
        with pytest.raises(LoaderError, match="GPUs, from 0 on"):
            Loader(dataset, 512, device=99, columns=["k"], **options)


def test_every_promise_of_a_loader_holds_with_operators():
    vectors = np.arange(1000, dtype=np.float32)[:, None]

    def make(dataset, transforms=None, **options):
        given = transforms if isinstance(transforms, list) else [transforms] if transforms else []
        ops = [*given, EmbeddingOperator(vectors, "key", "twin"), Padding(4, -1)]
        return Loader(dataset, targets=["y"], transforms=ops, device="cuda", **options)

    def read(batch):
        inputs, y = batch
        found = {name: t.cpu().numpy() for name, t in inputs.items()}
        assert np.array_equal(found.pop("twin")[:, 0], found["key"].astype(np.float32))
        found["words"] = [row[row >= 0] for row in found["words"]]
        return found | {"y": y.cpu().numpy()}

    check_loader(make, read)
