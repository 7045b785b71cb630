"""`DLDataLoader` over a loader on a GPU, as far as that shows without one."""

from __future__ import annotations

import gc
import threading
from dataclasses import replace

import pytest
import torch

from tabfeed.errors import LoaderError
from tabfeed.loader.options import GpuOptions
from tabfeed.loader.torch import DLDataLoader, Loader, TorchAsyncItr
from tabfeed.testing.loader import write_rows
from tests.loader.gpu.pretend import on_gpu, pretend_gpu

# torch's own remarks on memory that it cannot pin, and on processes.
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning:torch")
CUDA = torch.device("cuda:1")


@pytest.fixture(scope="module", autouse=True)
def _collected():
    """Collects what torch's iterators leave here, and not on whichever thread comes upon it later.

    Their end waits for worker processes, and until then no other thread can collect anything.
    """
    yield
    gc.collect()


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    return write_rows(tmp_path_factory.mktemp("rows"))


def plain(dataset, columns=("key", "x", "y"), **options):
    """On the CPU, without lists."""
    return Loader(dataset, 10, columns=list(columns), targets=["y"], device="cpu", **options)


def copying(dataset):
    """A loader that makes batches in the computer's memory, and copies them to a GPU."""
    loader = plain(dataset)
    finish = loader.pipeline.stages.finish
    loader.pipeline = loader.pipeline.finishing(replace(finish, device=CUDA))
    vars(loader)["device"] = CUDA
    return loader


def keys(batches):
    return [x["key"].tolist() for x, _ in batches]


def test_the_device_is_that_of_the_loader(dataset, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert DLDataLoader(plain(dataset)).device == torch.device("cpu")
    assert DLDataLoader(copying(dataset)).device == CUDA
    itr = TorchAsyncItr(dataset, ["key"], ["x"], ["y"], batch_size=10, device="cpu")
    assert DLDataLoader(itr).device == torch.device("cpu")


@pytest.mark.parametrize(("device", "pins"), [("cpu", 14), (CUDA, 0)])
def test_what_is_on_a_gpu_is_not_pinned(dataset, monkeypatch, device, pins):
    pinned = []

    def pin(batch, device=None):
        pinned.append(batch)
        return batch

    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    monkeypatch.setattr(torch.utils.data._utils.pin_memory, "pin_memory", pin)
    loader = plain(dataset)
    vars(loader)["device"] = torch.device(device)
    assert len(keys(DLDataLoader(loader, pin_memory=True))) == 14
    assert len(pinned) == pins
    assert DLDataLoader(loader, pin_memory=True, num_workers=1).pin_memory  # theirs are not there


@pytest.mark.parametrize("context", ["fork", "spawn"])
def test_a_worker_leaves_the_gpu_alone(dataset, context):
    loader = copying(dataset)
    with pytest.raises((AssertionError, RuntimeError)):  # there is no such device
        next(iter(loader))
    batches = list(DLDataLoader(loader, num_workers=1, multiprocessing_context=context))
    assert keys(batches) == keys(plain(dataset))
    assert {t.device.type for x, y in batches for t in (*x.values(), y)} == {"cpu"}


def test_a_worker_of_a_loader_that_makes_batches_on_the_gpu(dataset, monkeypatch):
    pretend_gpu(monkeypatch, free=10**8)
    loader = plain(dataset)
    loader.pipeline = on_gpu(loader.pipeline, torch.device("cpu"), GpuOptions("arrow"))
    assert type(loader.pipeline.stages).__name__ == "GpuStages"
    assert keys(DLDataLoader(loader, num_workers=1)) == keys(plain(dataset))


def test_a_worker_cannot_have_what_lies_on_the_gpu(dataset, monkeypatch):
    pretend_gpu(monkeypatch, free=10**8)
    loader = plain(dataset, cache="device")
    with pytest.raises(LoaderError, match="num_workers=0"):
        keys(DLDataLoader(loader, num_workers=1, multiprocessing_context="fork"))


@pytest.mark.parametrize(
    ("columns", "here"), [(["key", "y"], True), (["key", "words", "y"], False)]
)
def test_who_calls_a_function_of_map_on_a_gpu(dataset, monkeypatch, columns, here):
    pretend_gpu(monkeypatch, free=10**8)
    loader = plain(dataset, columns=columns)
    loader.pipeline = on_gpu(loader.pipeline, torch.device("cpu"), GpuOptions("arrow"))
    callers = set()

    def look(x, y):
        callers.add(threading.current_thread())
        return x, y

    assert len(list(loader.map(look))) == 14
    assert (threading.main_thread() in callers) == here
