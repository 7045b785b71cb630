"""Which device is meant, whether it is there, and what happens if it has little memory."""

from __future__ import annotations

import sys
import warnings
from types import SimpleNamespace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from tabfeed import Dataset
from tabfeed.errors import ArgumentError, LoaderError, TabfeedWarning
from tabfeed.loader.torch import TorchAsyncItr, devices, gpu
from tabfeed.loader.torch.devices import check_device, choose_device, free_bytes
from tabfeed.loader.torch.gpu import GpuOptions, GpuRecipe, on_gpu
from tests.loader.pretend import pretend_gpu


@pytest.mark.parametrize("device", ["duck", "cuda:x", -1, 1.5])
def test_what_is_no_device(device):
    with pytest.raises(ArgumentError, match='give "cpu", "cuda", "cuda:1" or a GPU'):
        choose_device(device)


def test_the_default_is_the_gpu_if_there_is_one(monkeypatch):
    for there, name in ((True, "cuda"), (False, "cpu")):
        monkeypatch.setattr(torch.cuda, "is_available", lambda there=there: there)
        assert choose_device(None) == torch.device(name)


def test_a_gpu_that_is_not_there(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(LoaderError, match="device is 'cuda', but torch finds no GPU here"):
        check_device(torch.device("cuda"))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    check_device(torch.device("cuda:1"))
    with pytest.raises(LoaderError, match="device is 'cuda:2', but there are 2 GPUs, from 0 on"):
        check_device(torch.device("cuda:2"))


def gpu_with(monkeypatch, free, reserved=0, allocated=0):
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (free, 10**11))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: reserved)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: allocated)
    known = SimpleNamespace(total_memory=10**11)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: known)


def test_what_torch_keeps_unused_is_free(monkeypatch):
    gpu_with(monkeypatch, 100, reserved=70, allocated=30)
    assert free_bytes(torch.device("cuda")) == 140


def test_a_quarter_of_what_is_free_stays_so(monkeypatch):
    cuda = torch.device("cuda")
    gpu_with(monkeypatch, 5 * 10**10)
    assert GpuOptions().memory(cuda) == 10**9
    assert GpuOptions(device_memory="2GB").memory(cuda) == 2 * 10**9
    assert GpuOptions(device_memory=0.25).memory(cuda) == 25 * 10**9
    gpu_with(monkeypatch, 10**8)
    for given in (None, "2GB", 0.25):
        assert GpuOptions(device_memory=given).memory(cuda) == 75 * 10**6


@pytest.fixture
def loader():
    data = Dataset({"c": list(range(500)), "y": [0.5] * 500})
    return TorchAsyncItr(data, ["c"], labels=["y"], batch_size=50, shuffle=True, device="cpu")


def test_less_free_memory_means_smaller_chunks_and_the_same_batches(loader, monkeypatch):
    pretend_gpu(monkeypatch, free=10**8)
    cpu = torch.device("cpu")
    wide = on_gpu(loader.feed, cpu, GpuOptions("arrow"))
    pretend_gpu(monkeypatch, free=10**6)
    tight = on_gpu(loader.feed, cpu, GpuOptions("arrow"))
    assert isinstance(wide.recipe, GpuRecipe) and isinstance(tight.recipe, GpuRecipe)
    assert tight.plan.chunk < wide.plan.chunk
    for one, other in zip(wide, tight, strict=True):
        assert torch.equal(one[0], other[0])


def test_without_pylibcudf_arrow_serves_and_it_is_said_once(tmp_path, monkeypatch):
    pretend_gpu(monkeypatch)
    monkeypatch.setitem(sys.modules, "pylibcudf", None)
    table = pa.table({"c": range(500), "y": pa.array([0.5] * 500, pa.float32())})
    pq.write_table(table, tmp_path / "a.parquet")
    loader = TorchAsyncItr(Dataset(str(tmp_path)), ["c"], labels=["y"], batch_size=50, device="cpu")
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        loader.feed = on_gpu(loader.feed, torch.device("cpu"), GpuOptions("cudf"))
        for _ in range(2):
            assert [y for c, _, _ in loader for y in c[:, 0].tolist()] == list(range(500))
    assert [w.category for w in told] == [TabfeedWarning]  # once, and for two epochs
    assert "reading with Arrow: pylibcudf cannot be imported" in str(told[0].message)
    assert "pip install tabfeed[gpu]" in str(told[0].message)


def test_modules_agree_on_what_a_device_is():
    assert gpu.check_device is devices.check_device
