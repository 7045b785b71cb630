"""The store and the permutation of ``cache="device"`` on a real GPU."""

from __future__ import annotations

import pytest
import torch

from tabfeed.errors import LoaderError
from tabfeed.loader.gpu.devices import free_bytes
from tabfeed.loader.gpu.resident.permute import permutation
from tabfeed.loader.gpu.resident.pipeline import ResidentStages
from tests.device.test_resident import CUDA, ROWS, load, whole, write_files

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no NVIDIA GPU here"),
]


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    return write_files(tmp_path_factory.mktemp("resident"))


def test_the_gpu_draws_the_permutation_of_the_cpu():
    for rows, at_once in ((10**6, 2**22), (10**6, 10**5)):
        words = (rows, 2**64 - 3)
        there = permutation(rows, words, CUDA, at_once=at_once)
        assert torch.equal(there.cpu(), permutation(rows, words, torch.device("cpu")))


def test_each_epoch_is_a_permutation_of_all_rows(dataset):
    loader = load(dataset)
    assert isinstance(loader.pipeline.stages, ResidentStages)
    epochs = [[key for batch in loader for key in whole(batch)] for _ in range(3)]
    assert all(sorted(keys) == list(range(ROWS)) for keys in epochs)
    assert epochs[0] != epochs[1] != epochs[2]
    again = [key for batch in load(dataset, threads=1, batch_size=4096) for key in whole(batch)]
    assert again == epochs[0]


def test_the_budget_is_kept(dataset):
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    needed = load(dataset, batch_size=512).pipeline.stages.store._size.known
    loader = load(dataset, batch_size=512, device_memory=needed)
    for _ in range(2):
        for batch in loader:
            del batch
    assert torch.cuda.max_memory_allocated() - before <= needed


def test_a_gpu_that_is_nearly_full(dataset):
    torch.cuda.empty_cache()
    held = torch.empty(free_bytes(CUDA) - 48 * 2**20, dtype=torch.uint8, device="cuda")
    try:
        with pytest.raises(LoaderError, match="raise device_memory if the GPU has room"):
            load(dataset, batch_size=ROWS)
    finally:
        del held
        torch.cuda.empty_cache()
