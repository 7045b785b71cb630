"""The pipeline that copies batches to a GPU: its memory and waits, and how long lists are."""

from __future__ import annotations

import pickle

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from tabfeed import Dataset
from tabfeed.loader.gpu import build
from tabfeed.loader.gpu.delivery import GpuStages, StreamStages, fallback_pipeline
from tabfeed.loader.options import GpuOptions
from tabfeed.loader.torch import Loader
from tests.loader.gpu.pretend import Stream, on_gpu, pretend_gpu
from tests.loader.gpu.test_host_fallback import CPU, ROW, loader, same


@pytest.fixture(autouse=True)
def pretend(monkeypatch):
    pretend_gpu(monkeypatch, free=10**9)


def copied(loader, memory):
    """A pipeline of the same batches, copied."""
    made = loader.pipeline
    return fallback_pipeline(made.stages, made.plan, made.options, CPU, memory, ROW)


@pytest.mark.parametrize("memory", [3 * 64 * ROW, 5_000, 20_000, 300_000, 10**8])
def test_it_keeps_within_memory(memory):
    plain = loader()
    made = copied(plain, memory)
    chunk = made.plan.chunk * 64 * ROW
    # Those ahead, that of which the model has a batch, and the one before it.
    assert (made.options.ahead + 2) * chunk <= memory
    assert made.plan.chunk <= plain.pipeline.plan.chunk
    assert same(plain, made)


def test_the_model_waits_for_the_copy_and_for_nothing_else(monkeypatch):
    waited = []
    monkeypatch.setattr(Stream, "wait_event", lambda stream, event: waited.append(event))
    made = copied(loader(), 20_000)
    assert isinstance(made.stages, StreamStages) and not isinstance(made.stages, GpuStages)
    assert len(list(made)) == len(made)
    assert len(waited) == made.plan.chunks


def test_in_another_process_batches_stay_on_the_cpu():
    made = copied(loader(), 20_000)
    again = pickle.loads(pickle.dumps(made))
    assert not isinstance(again.stages, StreamStages)
    assert same(loader(), again)


@pytest.mark.parametrize("reader", ["arrow", "auto"])
def test_less_memory_than_the_driver_says(monkeypatch, reader):
    """Another process may have taken it meanwhile, or the user limits this one."""

    def none_left(*_):
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(build, "DeviceBuffers", none_left)
    made = on_gpu(loader().pipeline, CPU, GpuOptions(reader))
    assert not isinstance(made.stages, GpuStages)
    assert "batches are made in host memory and copied" in made.reader_choice
    assert same(loader(), made)


def test_lists_of_row_groups_that_are_cut(tmp_path):
    lists = pa.ListArray.from_arrays(np.arange(2_001) * 300, np.arange(600_000))
    pq.write_table(pa.table({"words": lists, "x": np.zeros(2_000)}), tmp_path / "0.parquet")
    loader = Loader(Dataset(str(tmp_path), part_size="1MB"), 10)
    assert dict(loader.pipeline.stages.maker.layout.lengths) == {
        "words": pytest.approx(300, rel=0.1)
    }
    assert "lengths" not in repr(loader.pipeline.stages.maker.layout), "names in a cache are of it"


def test_lists_behind_transforms(tmp_path):
    lists = pa.ListArray.from_arrays(np.arange(2_001) * 300, np.arange(600_000))
    text = pa.array([["a", "b"]] * 2_000)
    table = pa.table({"words": lists, "text": text, "x": np.zeros(2_000)})
    pq.write_table(table, tmp_path / "0.parquet")

    def ids(table):
        new = pa.ListArray.from_arrays(np.arange(len(table) + 1) * 2, np.zeros(2 * len(table)))
        return table.select(["words"]).append_column("text", new)

    loader = Loader(Dataset(str(tmp_path)), 10, transforms=ids)
    assert dict(loader.pipeline.stages.maker.layout.lengths) == {
        "words": pytest.approx(300, rel=0.1),
        "text": 2,
    }
    assert next(iter(loader))[0]["text__values"].shape == (20,)
