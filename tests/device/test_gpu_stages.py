"""Where a GPU makes the batches of a loader with operators, and where it has too little memory."""

from __future__ import annotations

import sys
import warnings

import numpy as np
import pytest
import torch

from tabfeed.errors import TabfeedWarning
from tabfeed.loader import EmbeddingOperator, Padding
from tabfeed.loader.gpu import build
from tabfeed.loader.gpu.delivery import GpuStages
from tabfeed.loader.gpu.devices import free_bytes
from tabfeed.loader.torch import Loader
from tests.device.test_gpu_ops import same, write_files

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no NVIDIA GPU here"),
]


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    return write_files(tmp_path_factory.mktemp("ops"))


def pairs(dataset, ops, **options):
    loaders = [
        Loader(dataset, 512, True, targets=["y"], transforms=ops, device=device, **options)
        for device in ("cpu", "cuda")
    ]
    assert isinstance(loaders[1].pipeline.stages, GpuStages) and loaders[1].pipeline.stages.ops
    return zip(*loaders, strict=True)


def test_padding_of_every_dtype(dataset):
    assert all(same(*pair) for pair in pairs(dataset, [Padding(3, 7, mask=True)]))


@pytest.mark.parametrize("kind", ["float16", "float32", "float64", "int32", "uint16"])
def test_vectors_of_every_dtype(dataset, kind):
    vectors = np.random.default_rng(0).integers(0, 99, (9000, 6)).astype(kind)
    ids = np.random.default_rng(1).permutation(12_000)[:9000]
    ops = [
        EmbeddingOperator(vectors, "k", "direct", unknown_value=3),
        EmbeddingOperator(vectors, "u", "by_id", id_lookup_table=ids),
        EmbeddingOperator(vectors, "w_int64", "lists"),
    ]
    assert all(same(*pair) for pair in pairs(dataset, ops))


def test_a_table_that_does_not_fit_stays_in_the_computers_memory(dataset):
    op = EmbeddingOperator(np.ones((12_000, 100), np.float32), "k")
    loader = Loader(
        dataset, 512, targets=["y"], transforms=[op], device="cuda", device_memory="4MB"
    )
    assert not isinstance(loader.pipeline.stages, GpuStages)
    inputs, _ = next(iter(loader))
    assert inputs["embeddings"].is_cuda and inputs["embeddings"].shape == (512, 100)


def test_a_gpu_that_is_nearly_full_gets_smaller_chunks(dataset):
    torch.cuda.empty_cache()
    plain = Loader(dataset, 512, True, targets=["y"], device="cuda")
    held = torch.empty(
        free_bytes(torch.device("cuda")) - 128 * 2**20, dtype=torch.int8, device="cuda"
    )
    try:
        tight = Loader(dataset, 512, True, targets=["y"], device="cuda")
        keys = [k for inputs, _ in tight for k in inputs["k"].tolist()]
    finally:
        del held
        torch.cuda.empty_cache()
    assert keys == [k for inputs, _ in plain for k in inputs["k"].tolist()]


def test_without_pylibcudf_it_is_said_once(dataset, monkeypatch):
    monkeypatch.setitem(sys.modules, "pylibcudf", None)
    monkeypatch.setattr(build, "why_not_unpacked", lambda *of: "nvCOMP is not there either")
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        loader = Loader(dataset, 512, columns=["k", "u"], device="cuda", reader="cudf")
        assert all(len(list(loader)) == 24 for _ in range(2))
    assert [w.category for w in told] == [TabfeedWarning]
    assert "pylibcudf cannot be imported" in str(told[0].message)
