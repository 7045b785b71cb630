"""`DLDataLoader` over a loader on a GPU: its device, pinned memory, worker processes."""

from __future__ import annotations

import threading
import warnings

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from tabfeed import Dataset
from tabfeed.loader.torch import DLDataLoader, Loader, TorchAsyncItr

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no NVIDIA GPU here"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # of forks, where threads run
]
ROWS = 60_000


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    folder, random = tmp_path_factory.mktemp("rows"), np.random.default_rng(0)
    table = {"key": np.arange(ROWS), "x": random.standard_normal(ROWS, dtype=np.float32)}
    table["words"] = [[k % 7] * (k % 3) for k in range(ROWS)]
    table["y"] = random.integers(0, 2, ROWS).astype(np.float32)
    pq.write_table(pa.table(table), folder / "a.parquet", row_group_size=8000)
    return Dataset(str(folder))


def load(dataset, columns=("key", "x", "y"), **options):
    how = {"shuffle": True, "targets": ["y"], "columns": list(columns), **options}
    return Loader(dataset, 2048, **how)


def tensors(batch):
    x, y = batch
    return [*x.values(), y]


def same(ones, others):
    return all(
        torch.equal(a.cpu(), b.cpu())
        for one, other in zip(ones, others, strict=True)
        for a, b in zip(tensors(one), tensors(other), strict=True)
    )


@pytest.mark.parametrize("device", [None, 0, "cuda", "cpu"])
def test_the_device_is_that_of_the_batches(dataset, device):
    loader = DLDataLoader(load(dataset, device=device))
    _, y = next(iter(loader))
    assert loader.device.type == y.device.type == ("cpu" if device == "cpu" else "cuda")
    itr = TorchAsyncItr(dataset, ["key"], ["x"], ["y"], batch_size=2048, device=device)
    assert DLDataLoader(itr).device == itr.device


def test_what_is_on_the_gpu_is_not_pinned(dataset):
    pinned = list(DLDataLoader(load(dataset), pin_memory=True))
    assert all(t.is_cuda for batch in pinned for t in tensors(batch))
    assert same(pinned, load(dataset, device="cpu"))
    on_cpu = DLDataLoader(load(dataset, device="cpu"), pin_memory=True)
    assert all(t.is_pinned() for t in tensors(next(iter(on_cpu))))


@pytest.mark.parametrize("context", ["fork", "spawn"])
@pytest.mark.parametrize("given_up", [False, True])
def test_workers_leave_the_gpu_alone(dataset, context, given_up):
    loader = load(dataset, reader="arrow")
    next(iter(loader))  # CUDA is in use here, which a forked process cannot take over
    loader.set_epoch(0)
    if given_up:  # batches are made in the computer's memory, and copied
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            loader.state.give_up()
    data = DLDataLoader(loader, num_workers=1, pin_memory=True, multiprocessing_context=context)
    batches = list(data)
    assert data.device.type == "cuda"
    assert all(t.is_pinned() for batch in batches for t in tensors(batch))
    assert same(batches, load(dataset, device="cpu"))
    loader.close()


@pytest.mark.parametrize(
    ("columns", "here"), [(["key", "y"], True), (["key", "words", "y"], False)]
)
def test_who_calls_a_function_of_map(dataset, columns, here):
    callers = set()

    def look(x, y):
        callers.add(threading.current_thread())
        return x, y * 2

    mapped = load(dataset, columns, reader="arrow").map(look)
    plain = load(dataset, columns, device="cpu").map(lambda x, y: (x, y * 2))
    assert same(mapped, plain)
    assert (threading.main_thread() in callers) == here
