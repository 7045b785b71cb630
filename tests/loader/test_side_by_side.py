"""pylibcudf and Arrow reading the same epoch side by side, walked on the CPU.

Here something else decodes in pylibcudf's place; like it, it takes memory on the "GPU" as soon as
it has read, and can do few readings at a time.
"""

from __future__ import annotations

import random
import threading
import time

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from tabfeed import Dataset
from tabfeed.loader.torch import TorchAsyncItr, gpu, gpu_buffers
from tabfeed.loader.torch.cudf_lots import CudfLotReader
from tabfeed.loader.torch.gpu import GpuOptions, on_gpu
from tabfeed.loader.torch.gpu_lots import bring
from tests.loader.pretend import Stream, pretend_gpu

ROWS, GROUPS = 33_000, 40  # fewer rows would be read together


class StandIn(CudfLotReader):
    """Reads as pylibcudf does, of which there is none here."""

    slow = 0.0

    def read(self, epoch, numbers):
        with self._turns:
            COUNTED["quick"] += len(numbers)
            time.sleep(random.random() * self.slow)
            lots = self.arrow.read(epoch, numbers)
            bring(lots, self.slabs, Stream())
        return lots

    def read_beside(self, epoch, numbers):
        COUNTED["beside"] += len(numbers)
        return super().read_beside(epoch, numbers)


COUNTED = {"quick": 0, "beside": 0}


@pytest.fixture(autouse=True)
def pretend(monkeypatch):
    pretend_gpu(monkeypatch)
    monkeypatch.setattr(gpu, "why_not_cudf", lambda *of: None)
    monkeypatch.setattr(gpu, "CudfLotReader", StandIn)
    monkeypatch.setattr(gpu, "cpu_count", lambda: 6)
    monkeypatch.setattr(gpu.Decoders, "can_read", lambda reader: True)
    monkeypatch.setattr(gpu_buffers, "_PATIENCE", 20)
    COUNTED.update(quick=0, beside=0)


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    folder = tmp_path_factory.mktemp("rows")
    values = np.random.default_rng(0).permutation(np.arange(ROWS * GROUPS, dtype=np.int32))
    table = pa.table({"c": values, "x": values.astype(np.float32), "y": values.astype(np.float32)})
    pq.write_table(table, folder / "rows.parquet", row_group_size=ROWS)
    dataset = Dataset(str(folder), part_size=ROWS * 18)
    assert dataset.npartitions == GROUPS
    return dataset


def loader_of(dataset, **options):
    return TorchAsyncItr(dataset, ["c"], ["x"], ["y"], batch_size=2048, device="cpu", **options)


def side_by_side(dataset, memory, **options):
    loader = loader_of(dataset, **options)
    loader.feed = on_gpu(loader.feed, torch.device("cpu"), GpuOptions("cudf", memory))
    loader.feed.recipe.reader.arrow.processes = 0
    return loader


def least_memory(dataset, *, shuffle=True):
    """Of which little stays free when one lot is decoded at a time."""
    memory = 30_000_000
    while not side_by_side(dataset, memory, shuffle=shuffle).feed.recipe.ahead.beside:
        memory -= 500_000
    return memory


@pytest.mark.timeout(120)
@pytest.mark.parametrize("slow", [0.0, 0.01])
@pytest.mark.parametrize("shuffle", [True, False])
def test_the_same_batches_whoever_reads(dataset, monkeypatch, slow, shuffle):
    monkeypatch.setattr(StandIn, "slow", slow)
    both = side_by_side(dataset, least_memory(dataset, shuffle=shuffle), shuffle=shuffle)
    assert both.feed.recipe.ahead.beside
    plain = loader_of(dataset, shuffle=shuffle)
    for _ in range(4):
        pairs = list(zip(plain, both, strict=True))
        assert all(torch.equal(a, b) for one, two in pairs for a, b in zip(one, two, strict=True))
    assert COUNTED["quick"] and COUNTED["beside"]


@pytest.mark.timeout(120)
@pytest.mark.parametrize("threads", [1, 3])
def test_few_threads(dataset, threads):
    both = side_by_side(dataset, least_memory(dataset), shuffle=True, threads=threads)
    assert sum(len(y) for _, _, y in both) == ROWS * GROUPS


@pytest.mark.timeout(120)
def test_slow_neighbours_leave_the_work_to_the_quick_reader(dataset, monkeypatch):
    entered = threading.Event()

    def slowly(self, epoch, numbers):
        entered.set()
        time.sleep(0.3)
        return self.arrow.read(epoch, numbers)

    monkeypatch.setattr(StandIn, "read_beside", slowly)
    both = side_by_side(dataset, least_memory(dataset), shuffle=True)
    rows = sum(len(y) for _, _, y in both)
    assert rows == ROWS * GROUPS and entered.is_set()
    assert COUNTED["quick"] > GROUPS / 3


@pytest.mark.timeout(120)
def test_a_state_in_mid_epoch(dataset):
    both = side_by_side(dataset, least_memory(dataset), shuffle=True)
    batches = iter(both)
    taken = [next(batches) for _ in range(200)]
    again = side_by_side(dataset, least_memory(dataset), shuffle=True)
    again.load_state_dict(both.state_dict())
    rows = torch.cat([y for _, _, y in [*taken, *again]])
    assert torch.equal(rows.sort().values, torch.arange(ROWS * GROUPS, dtype=torch.float32))


@pytest.mark.timeout(120)
def test_processes_read_beside_once_they_are_up(dataset):
    both = side_by_side(dataset, least_memory(dataset), shuffle=True)
    both.feed.recipe.reader.arrow.processes = 1
    plain = loader_of(dataset, shuffle=True)
    for _ in range(30):
        pairs = zip(plain, both, strict=True)
        assert all(torch.equal(a, b) for one, two in pairs for a, b in zip(one, two, strict=True))
        if COUNTED["beside"]:
            break
        assert COUNTED["quick"]
        time.sleep(0.2)
    assert COUNTED["beside"]
    both.feed.recipe.reader.arrow._decoders.close()


def test_what_is_said_of_it(dataset):
    both = side_by_side(dataset, least_memory(dataset), shuffle=True)
    assert both.reader_choice == (
        "pylibcudf: as asked for; Arrow reads beside it, since memory is small"
    )
    roomy = side_by_side(dataset, 10**8, shuffle=True)
    assert roomy.reader_choice == "pylibcudf: as asked for"


def test_arrow_alone_where_memory_is_too_small_for_both(dataset):
    memory = least_memory(dataset)
    while True:
        loader = loader_of(dataset, shuffle=True)
        loader.feed = on_gpu(loader.feed, torch.device("cpu"), GpuOptions("cudf", memory))
        if not loader.reader_choice.startswith("pylibcudf"):
            break
        memory -= 200_000
    assert loader.reader_choice == "Arrow: pylibcudf needs more device_memory"
    assert sum(len(y) for _, _, y in loader) == ROWS * GROUPS
