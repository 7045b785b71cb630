"""Several passes over one loader on a GPU, and batches that are only copied there."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from tabfeed import Dataset
from tabfeed.errors import LoaderError
from tabfeed.loader.torch import Loader, TorchAsyncItr

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no NVIDIA GPU here"),
]
ROWS = 2_000_000


def write_files(folder):
    """More row groups than lie on the GPU at a time."""
    random = np.random.default_rng(0)
    table = {"c": np.arange(ROWS, dtype=np.int32)}
    table["x"] = random.standard_normal(ROWS, dtype=np.float32)
    table["y"] = random.integers(0, 2, ROWS).astype(np.float32)
    pq.write_table(pa.table(table), folder / "0.parquet", row_group_size=20_000)
    return Dataset(str(folder))


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    return write_files(tmp_path_factory.mktemp("rows"))


def batches(dataset, device, **options):
    options = {"batch_size": 4096, "shuffle": True, "seed": 5, **options}
    return TorchAsyncItr(dataset, ["c"], ["x"], ["y"], device=device, **options)


def same(one, other):
    pairs = list(zip(one, other, strict=True))
    return all(torch.equal(a.cpu(), b.cpu()) for x, y in pairs for a, b in zip(x, y, strict=True))


def test_two_passes_in_turns_and_single_batches_in_between(dataset):
    wanted, loader = list(batches(dataset, "cpu")), batches(dataset, "cuda")
    one = iter(loader)
    loader.set_epoch(0)
    found = [], []
    for number, pair in enumerate(zip(one, loader, strict=True)):
        for passed, batch in zip(found, pair, strict=True):
            passed.append([t.cpu() for t in batch])
        if number % 100 == 50:
            assert loader.peek()[0].is_cuda
    assert same(wanted, found[0]) and same(wanted, found[1])


@pytest.mark.parametrize("megabytes", [1, 4])
def test_copies_keep_within_memory(dataset, megabytes):
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    loader = batches(dataset, "cuda", device_memory=f"{megabytes}MB")
    for batch in loader:
        torch.cuda._sleep(2_000_000)
        del batch
    held = torch.cuda.memory_stats()["active_bytes.all.peak"] - before
    assert 0 < held <= megabytes * 10**6


def test_too_little_memory_for_a_few_batches_is_said_at_once(dataset):
    with pytest.raises(LoaderError, match="3 batches of 65,536 rows take about"):
        batches(dataset, "cuda", batch_size=65_536, device_memory="1MB")


@pytest.mark.parametrize("length", [2, 100])
def test_lists_keep_within_memory(tmp_path, length):
    rows = 200_000
    lists = pa.ListArray.from_arrays(np.arange(rows + 1) * length, np.arange(rows * length))
    table = pa.table({"words": lists, "x": np.arange(rows, dtype=np.float32)})
    pq.write_table(table, tmp_path / "0.parquet", row_group_size=20_000)
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    loader = Loader(Dataset(str(tmp_path)), 4096, shuffle=True, device="cuda", device_memory=10**8)
    count = torch.zeros((), dtype=torch.int64, device="cuda")
    for inputs, _ in loader:
        torch.cuda._sleep(2_000_000)
        count += inputs["words__values"].sum()
        del inputs
    held = torch.cuda.memory_stats()["active_bytes.all.peak"] - before
    assert int(count) == int(np.arange(rows * length).sum())
    assert held <= 1.02 * 10**8


def test_lists_alone(tmp_path):
    table = pa.table({"words": [[n] * (n % 4) for n in range(5000)]})
    pq.write_table(table, tmp_path / "0.parquet")
    gpu, cpu = (
        Loader(Dataset(str(tmp_path)), 100, shuffle=True, device=device)
        for device in ("cuda", "cpu")
    )
    for (one, _), (other, _) in zip(gpu, cpu, strict=True):
        assert all(one[name].is_cuda and torch.equal(one[name].cpu(), other[name]) for name in one)
