"""Batches made in the computer's memory and copied to a GPU: what is left if that has no room."""

from __future__ import annotations

import logging

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from tabfeed import Dataset
from tabfeed.errors import LoaderError, TabfeedWarning
from tabfeed.loader import Padding
from tabfeed.loader.options import GpuOptions
from tabfeed.loader.torch import Loader, TorchAsyncItr
from tests.loader.gpu.pretend import on_gpu, pretend_gpu

CPU = torch.device("cpu")
ROW = 16  # bytes of a row in a batch


@pytest.fixture(autouse=True)
def pretend(monkeypatch):
    pretend_gpu(monkeypatch, free=10**9)


def loader(**options):
    n = np.arange(4000)
    data = Dataset({"c": n, "x": n * 0.5, "y": (n % 2).astype(np.float32)}, npartitions=5)
    options = {"batch_size": 64, "shuffle": True, "threads": 8, **options}
    return TorchAsyncItr(data, ["c"], ["x"], ["y"], **options)


def same(one, other):
    pairs = list(zip(one, other, strict=True))
    return all(torch.equal(a, b) for x, y in pairs for a, b in zip(x, y, strict=True))


def test_no_room_for_some_batches_is_said_before_training_starts():
    said = "3 batches of 64 rows take about .* MB on the GPU, and the loader may use 0.0 MB of it"
    with pytest.raises(LoaderError, match=said):
        on_gpu(loader().pipeline, CPU, GpuOptions(device_memory=1000))
    tiny = on_gpu(loader(buffer_size=1).pipeline, CPU, GpuOptions())  # a chunk has a batch at least
    assert same(loader(buffer_size=1), tiny)


@pytest.mark.parametrize("length", [1, 8, 100, 400])
@pytest.mark.parametrize("in_files", [True, False])
def test_lists_take_the_memory_that_they_take(tmp_path, length, in_files):
    """Rows are as long as files say: a guess would be wrong by as much as lists are long."""
    rows = 20_000
    values = pa.array(np.arange(rows * length))
    lists = pa.ListArray.from_arrays(np.arange(rows + 1) * length, values)
    table = pa.table({"words": lists, "x": np.arange(rows, dtype=np.float32)})
    if in_files:
        pq.write_table(table, tmp_path / "0.parquet", row_group_size=2_000)
    memory = 5 * 10**6 + 300 * length * 64
    loader = Loader(Dataset(str(tmp_path) if in_files else table), 64, shuffle=True)
    made = on_gpu(loader.pipeline, CPU, GpuOptions("arrow", memory))
    chunk = made.plan.chunk * 64 * (length * 8 + 8)
    assert (made.options.ahead + 2) * chunk <= memory * 1.01
    assert sum(len(inputs["words__values"]) for inputs, _ in made) == rows * length


@pytest.mark.parametrize("ops", [[], [Padding(2)]])
def test_columns_of_lists_alone_are_copied(ops):
    data = Dataset({"words": [[1], [2, 3]] * 50})
    loader = Loader(data, 10, transforms=ops)
    made = on_gpu(loader.pipeline, CPU, GpuOptions())
    assert made.reader_choice == "Arrow: list columns are assembled in host memory"
    for (one, _), (other, _) in zip(loader, made, strict=True):
        assert all(torch.equal(one[name], other[name]) for name in one)


class Wider(Padding):
    """An operator of a user's own."""


def test_an_operator_of_the_cpu_is_named(caplog):
    data = Dataset({"words": [[1], [2, 3]] * 50, "y": np.zeros(100, np.float32)})
    loader = Loader(data, 10, transforms=[Wider(3)], targets=["y"])
    with (
        pytest.warns(TabfeedWarning, match="reading with Arrow: an operator works in host memory"),
        caplog.at_level(logging.INFO, "tabfeed"),
    ):
        made = on_gpu(loader.pipeline, CPU, GpuOptions("cudf"))
    assert made.reader_choice.startswith("Arrow: an operator works")
    assert "reader: Arrow: an operator works" in caplog.text
    assert len(list(made)) == 10


def test_chunks_ahead_are_no_more_than_asked_for():
    for depth, found in ((1, 1), (2, 2), (9, 3), (None, 3)):
        assert on_gpu(loader(depth=depth).pipeline, CPU, GpuOptions("arrow")).options.ahead == found
