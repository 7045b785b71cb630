"""What pylibcudf reads, walked on the CPU.

Here something else decodes in pylibcudf's place; like it, it takes memory on the "GPU" as soon as
it has read, and can do few readings at a time.
"""

from __future__ import annotations

import random
import time

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from tabfeed import Dataset
from tabfeed.loader.gpu import build
from tabfeed.loader.gpu.parquet.cudf_blocks import CudfBlockReader
from tabfeed.loader.gpu.staging import copy_to_device
from tabfeed.loader.options import GpuOptions
from tabfeed.loader.torch import TorchAsyncItr
from tests.loader.gpu.pretend import Stream, on_gpu, pretend_gpu

ROWS, GROUPS = 33_000, 40  # fewer rows would be read together
LITTLE = 20_000_000


class StandIn(CudfBlockReader):
    """Reads as pylibcudf does, of which there is none here."""

    slow = 0.0

    def read(self, epoch, numbers):
        with self._calls:
            time.sleep(random.random() * self.slow)
            blocks = self.arrow.read(epoch, numbers)
            copy_to_device(blocks, self.device_buffers, Stream())
        return blocks


@pytest.fixture(autouse=True)
def pretend(monkeypatch):
    pretend_gpu(monkeypatch)
    monkeypatch.setattr(build, "why_not_unpacked", lambda *of: "this is no GPU")
    monkeypatch.setattr(build, "why_not_cudf", lambda *of: None)
    monkeypatch.setattr(build, "CudfBlockReader", StandIn)


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


def by_cudf(dataset, memory=LITTLE, **options):
    loader = loader_of(dataset, **options)
    loader.pipeline = on_gpu(loader.pipeline, torch.device("cpu"), GpuOptions("cudf", memory))
    return loader


@pytest.mark.parametrize("memory", [LITTLE, 10**8])
@pytest.mark.parametrize("slow", [0.0, 0.01])
@pytest.mark.parametrize("shuffle", [True, False])
def test_the_same_batches_as_on_the_cpu(dataset, monkeypatch, slow, shuffle, memory):
    monkeypatch.setattr(StandIn, "slow", slow)
    gpu_way, plain = by_cudf(dataset, memory, shuffle=shuffle), loader_of(dataset, shuffle=shuffle)
    assert isinstance(gpu_way.pipeline.stages.reader, StandIn)
    for _ in range(2):
        pairs = list(zip(plain, gpu_way, strict=True))
        assert all(torch.equal(a, b) for one, two in pairs for a, b in zip(one, two, strict=True))


def test_columns_of_several_dtypes(tmp_path):
    random = np.random.default_rng(0)
    values = {"c": random.integers(0, 2**40, ROWS), "d": random.integers(0, 9, ROWS, np.int32)}
    values |= {"x": random.standard_normal(ROWS), "y": random.integers(0, 2, ROWS, np.int8)}
    pq.write_table(pa.table(values), tmp_path / "rows.parquet", row_group_size=ROWS // 3)
    one, other = (
        TorchAsyncItr(
            Dataset(str(tmp_path)), ["c", "d"], ["x"], ["y"], batch_size=512, shuffle=True,
            device="cpu",
        )
        for _ in range(2)
    )  # fmt: skip
    other.pipeline = on_gpu(other.pipeline, torch.device("cpu"), GpuOptions("cudf"))
    assert isinstance(other.pipeline.stages.reader, StandIn)
    for _ in range(2):
        pairs = list(zip(one, other, strict=True))
        assert all(torch.equal(a, b) for x, y in pairs for a, b in zip(x, y, strict=True))


@pytest.mark.parametrize("threads", [1, 3])
def test_few_threads(dataset, threads):
    loader = by_cudf(dataset, shuffle=True, threads=threads)
    assert sum(len(y) for _, _, y in loader) == ROWS * GROUPS


def test_a_state_in_mid_epoch(dataset):
    loader = by_cudf(dataset, shuffle=True)
    batches = iter(loader)
    taken = [next(batches) for _ in range(200)]
    again = by_cudf(dataset, shuffle=True)
    again.load_state_dict(loader.state_dict())
    rows = torch.cat([y for _, _, y in [*taken, *again]])
    assert torch.equal(rows.sort().values, torch.arange(ROWS * GROUPS, dtype=torch.float32))


def test_only_blocks_without_nulls_are_decoded_on_the_gpu(tmp_path, monkeypatch):
    """Footers say which have some, so that none is decoded in vain."""
    values = np.random.default_rng(0).standard_normal(ROWS * 6).astype(np.float32)
    x = pa.array(values, mask=np.isin(np.arange(len(values)) // ROWS, (1, 4)) & (values > 3))
    pq.write_table(pa.table({"x": x, "y": values}), tmp_path / "rows.parquet", row_group_size=ROWS)
    dataset, asked = Dataset(str(tmp_path), part_size=ROWS * 10), []

    def decode(self, epoch, numbers):
        asked.extend(p for n in numbers for p in epoch.partitions(n))
        blocks = self.arrow.read(epoch, numbers)
        copy_to_device(blocks, self.device_buffers, Stream())
        return blocks

    monkeypatch.setattr(CudfBlockReader, "_read", decode)
    monkeypatch.setattr(build, "CudfBlockReader", CudfBlockReader)
    host, other = (
        TorchAsyncItr(dataset, [], ["x"], ["y"], batch_size=2048, shuffle=True, device="cpu")
        for _ in range(2)
    )
    other.pipeline = on_gpu(other.pipeline, torch.device("cpu"), GpuOptions("cudf"))
    for _ in range(2):
        for (_, a, y), (_, b, z) in zip(host, other, strict=True):
            assert torch.equal(a.nan_to_num(9), b.nan_to_num(9)) and torch.equal(y, z)
    assert sorted(asked) == sorted([0, 2, 3, 5] * 2)


def test_what_is_said_of_it(dataset):
    assert by_cudf(dataset).reader_choice == (
        "pylibcudf: as requested; tabfeed's own decoder cannot be used: this is no GPU"
    )


def test_arrow_where_memory_is_too_small(dataset):
    memory = LITTLE
    while (loader := by_cudf(dataset, memory, shuffle=True)).reader_choice.startswith("pylibcudf"):
        memory -= 200_000
    assert loader.reader_choice == "Arrow: the GPU needs more device_memory to decode"
    assert sum(len(y) for _, _, y in loader) == ROWS * GROUPS
