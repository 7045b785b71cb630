"""Readers of a loader on a GPU: which one decodes, and the memory it takes and gives back."""

from __future__ import annotations

import gc
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from tabfeed import Dataset
from tabfeed.loader.gpu import auto_choice
from tabfeed.loader.gpu.buffers import DeviceBuffers
from tabfeed.loader.gpu.parquet.encoded_blocks import EncodedBlockReader
from tabfeed.loader.torch import Loader
from tests.device.test_gpu_loader import CATS, CONTS, batches, needs_cudf, same, write_files

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no NVIDIA GPU here"),
]


@pytest.fixture(scope="module", params=["snappy", "none", "zstd"])
def dataset(tmp_path_factory, request):
    return write_files(tmp_path_factory.mktemp("gpu"), request.param)


@pytest.mark.parametrize("reader", ["arrow", "cudf"])
def test_memory_that_is_given_back_is_never_seen_by_the_model(dataset, reader, monkeypatch):
    """Each batch is dropped at once, and read only much later by a slow stream."""
    needs_cudf(reader)
    give = DeviceBuffers.give

    def poison(device_buffers, number, event):
        side = torch.cuda.Stream()
        side.wait_event(event)
        with torch.cuda.stream(side):
            for whole in device_buffers.width_groups.values():
                whole[number].fill_(-1)
        give(device_buffers, number, side.record_event())

    monkeypatch.setattr(DeviceBuffers, "give", poison)
    got = []
    for batch in batches(dataset, "cuda", reader=reader, batch_size=2048):
        torch.cuda._sleep(20_000_000)
        got.append(tuple(t.clone() for t in batch))
        del batch
        junk = [torch.full((2048, 5), -1, device="cuda") for _ in range(4)]
        del junk
    torch.cuda.synchronize()
    wanted = list(batches(dataset, "cpu", batch_size=2048))
    assert len(got) == len(wanted)
    assert all(same(a, b) for a, b in zip(got, wanted, strict=True))


def most_held(make, cycles):
    """Most bytes that a loader holds in two epochs, before a model that takes so many cycles.

    What was given back counts until the GPU has come by the last use of it.
    """
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    loader = make()
    for _ in range(2):
        for batch in loader:
            torch.cuda._sleep(cycles)  # while the program goes on
            del batch
    pool = getattr(loader.pipeline.stages.reader, "pool_bytes", 0)
    return torch.cuda.memory_stats()["active_bytes.all.peak"] - before + pool


@pytest.mark.parametrize("reader", ["arrow", "cudf"])
def test_the_budget_is_kept(dataset, reader):
    needs_cudf(reader)
    make = partial(batches, dataset, "cuda", reader=reader, device_memory="40MB")
    assert most_held(make, cycles=0) <= 40e6


@pytest.mark.parametrize("reader", ["arrow", "cudf"])
def test_the_budget_is_kept_for_a_model_that_lags_behind(long_dataset, reader):
    needs_cudf(reader)
    make = partial(batches, long_dataset, "cuda", reader=reader, device_memory="60MB")
    assert most_held(make, cycles=2_000_000) <= 60e6  # a millisecond a step


@pytest.fixture(scope="module")
def long_dataset(tmp_path_factory):
    folder = tmp_path_factory.mktemp("long")
    random = np.random.default_rng(1)
    rows = 40 * 33_000
    table = {c: random.integers(0, 10**6, rows, dtype=np.int32) for c in CATS}
    table |= {c: random.standard_normal(rows, dtype=np.float32) for c in CONTS}
    table["y"] = random.integers(0, 2, rows).astype(np.float32)
    pq.write_table(pa.table(table), folder / "rows.parquet", row_group_size=33_000)
    return Dataset(str(folder), part_size=33_000 * 50)


@pytest.mark.parametrize("megabytes", [110, 120, 130, 150])
def test_the_budget_is_kept_while_another_reader_takes_over(long_dataset, monkeypatch, megabytes):
    """The program has a batch of the first one's last chunks, which are larger."""
    needs_cudf("cudf")
    for name, value in {"_WARM": 0, "_SECONDS": 0, "_CHUNKS": 1, "_WAITS": -1, "_GAIN": 0}.items():
        monkeypatch.setattr(auto_choice, name, value)
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    loader = batches(long_dataset, "cuda", reader="auto", device_memory=f"{megabytes}MB")
    host, chunk = batches(long_dataset, "cpu"), loader.pipeline.plan.chunk
    for _ in range(100):
        assert all(same(a, b) for a, b in zip(host, loader, strict=True))
        if loader.state.choice.settled:
            break
    assert (
        loader.reader_choice.startswith("the GPU: steps came")
        and loader.pipeline.plan.chunk < chunk
    )
    held = torch.cuda.memory_stats()["active_bytes.all.peak"] - before
    assert held <= megabytes * 1e6


def pool_limit():
    """Most bytes that pylibcudf may have at the moment; 0 if nothing of ours bounds it."""
    current = pytest.importorskip("rmm").mr.get_per_device_resource(torch.cuda.current_device())
    return getattr(current, "get_allocation_limit", int)()


def test_two_loaders_of_pylibcudf_share_one_bounded_pool(tmp_path):
    """To train and to validate, a batch of each in turn."""
    needs_cudf("cudf")
    random, rows = np.random.default_rng(5), 90_000
    table = {c: random.integers(0, 10**6, rows, dtype=np.int32) for c in CATS}
    table |= {c: random.standard_normal(rows, dtype=np.float32) for c in [*CONTS, "y"]}
    file = tmp_path / "rows.parquet"
    pq.write_table(pa.table(table), file, row_group_size=15_000, compression="zstd")
    gc.collect()
    before, data = pool_limit(), Dataset(str(file))
    train, valid = (
        batches(data, "cuda", reader="cudf", device_memory=memory) for memory in ("100MB", "60MB")
    )
    granted = [loader.pipeline.stages.reader.pool_bytes for loader in (train, valid)]
    for one, other, right in zip(train, valid, batches(data, "cpu"), strict=True):
        assert same(right, one) and same(right, other)
    assert pool_limit() == before + sum(granted)
    valid.close()
    del valid
    gc.collect()
    assert sum(len(y) for _, _, y in train) == rows
    assert pool_limit() == before + granted[0]
    train.close()
    del train
    gc.collect()
    if not before:
        assert pool_limit() == 0


def test_files_are_unpacked_within_their_memory(long_dataset):
    pytest.importorskip("pylibcudf")
    megabytes = 60
    gpu, host = (
        batches(long_dataset, device, reader="cudf", device_memory=f"{megabytes}MB")
        for device in ("cuda", "cpu")
    )
    assert isinstance(gpu.pipeline.stages.reader, EncodedBlockReader)
    assert gpu.reader_choice == "the GPU: as requested"
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    for _ in range(3):
        for a, b in zip(host, gpu, strict=True):
            assert same(a, b)
            del b
    held = torch.cuda.max_memory_allocated() - before
    assert held <= megabytes * 1e6 + long_dataset.num_rows  # `same` makes a few tensors too


def test_columns_of_every_width(tmp_path):
    pytest.importorskip("pylibcudf")
    random, rows = np.random.default_rng(3), 30_000
    kinds = ["i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", "f4", "f8"]
    table = {k: random.integers(0, 100, rows).astype(k) for k in kinds}
    table |= {f"{k}_wide": random.integers(0, 10**9, rows).astype(k) for k in kinds[4:]}
    table |= {"steps": np.repeat(np.arange(30), 1000).astype("i4"), "one": np.ones(rows, "f4")}
    for number, options in enumerate(({}, {"use_dictionary": False}, {"max_rows_per_page": 700})):
        file = tmp_path / f"{number}.parquet"
        pq.write_table(pa.table(table), file, row_group_size=9000, **options)
    ds = Dataset(str(tmp_path))
    one, other = (
        Loader(ds, 512, True, targets=["one"], device=device, reader="cudf")
        for device in ("cpu", "cuda")
    )
    assert isinstance(other.pipeline.stages.reader, EncodedBlockReader)
    for _ in range(2):
        for (a, y), (b, z) in zip(one, other, strict=True):
            assert a.keys() == b.keys() and torch.equal(y, z.cpu())
            assert all(torch.equal(a[name], b[name].cpu()) for name in a)
