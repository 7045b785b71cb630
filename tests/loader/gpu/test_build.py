"""The GPU's way of making batches, walked on the CPU: streams that do everything at once.

What needs a real GPU (overlap, reuse of memory across streams) is in ``tests/device``.
"""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from tabfeed import Dataset
from tabfeed.loader.gpu import buffers, memory_plan
from tabfeed.loader.gpu.delivery import GpuStages
from tabfeed.loader.gpu.memory_plan import MemoryPlan, MemoryRequest, plan_memory, plan_staging
from tabfeed.loader.options import GpuOptions, LoaderOptions
from tabfeed.loader.plan import Plan
from tabfeed.loader.read.arrow_columns import Group, Layout
from tabfeed.loader.torch import Loader, TorchAsyncItr
from tests.loader.gpu.pretend import on_gpu, pretend_gpu

CATS, CONTS = [f"c{i}" for i in range(4)], ["x0", "x1"]


@pytest.fixture(autouse=True)
def pretend(monkeypatch):
    pretend_gpu(monkeypatch, free=10**8)


@pytest.fixture
def dataset(tmp_path):
    random = np.random.default_rng(0)
    for number, rows in enumerate((900, 1000, 70)):
        table = {c: random.integers(0, 99, rows, dtype=np.int32) for c in CATS[:3]}
        table[CATS[3]] = random.integers(0, 99, rows, dtype=np.int32)
        table |= {c: random.standard_normal(rows, dtype=np.float32) for c in CONTS}
        table["y"] = random.integers(0, 2, rows)
        table["words"] = [[int(k)] * (k % 3) for k in range(rows)]
        pq.write_table(pa.table(table), tmp_path / f"{number}.parquet", row_group_size=150)
    return Dataset(str(tmp_path))


def walked(loader, memory=10**8):
    """The same loader, its batches made the GPU's way."""
    loader.pipeline = on_gpu(loader.pipeline, torch.device("cpu"), GpuOptions("arrow", memory))
    return loader


def tuples(dataset, **options):
    options = {"batch_size": 64, "shuffle": True, **options}
    return TorchAsyncItr(dataset, CATS, CONTS, ["y"], **options)


@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.parametrize("options", [{}, {"global_size": 3, "global_rank": 1}, {"streams": 5}])
def test_the_same_batches(dataset, shuffle, options):
    plain = tuples(dataset, shuffle=shuffle, **options)
    gpu_way = walked(tuples(dataset, shuffle=shuffle, **options))
    assert isinstance(gpu_way.pipeline.stages, GpuStages)
    for _ in range(2):
        pairs = list(zip(plain, gpu_way, strict=True))
        assert all(
            torch.equal(a, b) and a.dtype == b.dtype
            for one, other in pairs
            for a, b in zip(one, other, strict=True)
        )


def test_more_values_than_32_bits_can_number(dataset, monkeypatch):
    monkeypatch.setattr(buffers, "_LARGE", 1)
    pairs = zip(tuples(dataset), walked(tuples(dataset)), strict=True)
    assert all(torch.equal(a, b) for one, two in pairs for a, b in zip(one, two, strict=True))


def test_dicts_and_lists(dataset):
    def make():
        return Loader(dataset, 100, True, targets=["y"])

    for (a, ya), (b, yb) in zip(make(), walked(make()), strict=True):
        assert a.keys() == b.keys() and torch.equal(ya, yb)
        assert all(torch.equal(a[n], b[n]) and a[n].dtype == b[n].dtype for n in a)


def test_a_state_goes_over(dataset):
    plain, gpu_way = tuples(dataset), walked(tuples(dataset))
    batches = iter(gpu_way)
    for _ in range(5):
        next(batches)
    plain.load_state_dict(gpu_way.state_dict())
    rest = list(zip(plain, batches, strict=True))
    assert len(rest) == len(plain) - 5
    assert all(torch.equal(a[0], b[0]) for a, b in rest)


def test_a_program_far_ahead_of_its_gpu_waits(dataset, monkeypatch):
    marks, waited = [], []

    class Mark:
        def __init__(self, blocking=False):
            assert blocking, "whoever waits for it rests"
            marks.append(self)

        def query(self):
            return False

        def synchronize(self):
            waited.append(marks.index(self))

    queue, come_to = GpuStages.queue, []

    def queue_when(self, made):
        come_to.append(waited[-1] if waited else None)
        return queue(self, made)

    monkeypatch.setattr(torch.cuda, "Event", Mark)
    monkeypatch.setattr(GpuStages, "queue", queue_when)
    loader = walked(tuples(dataset, batch_size=16), memory=500_000)
    for _ in range(2):  # a second pass waits for the model to come to the end of the first
        for _ in loader:
            pass
    assert len(come_to) == len(marks) > 6
    # Before a chunk is queued, the model has come to the last but one before it.
    assert all(latest >= number - 2 for number, latest in enumerate(come_to) if number > 1)


def eight_columns():
    """What eight columns of ids need memory for."""
    plan = Plan((250_000,) * 64, 65_536, streams=4, chunk=2, block=32_768)
    layout = Layout(groups=(Group("c", tuple("abcdefgh"), np.dtype(np.int64)),), matrices=True)
    need = MemoryRequest.of(plan, layout, {"c": np.dtype(np.int32)})
    return replace(need, encoded_bytes=20.0, decompressed_bytes=30.0)


def used(share):
    """Bytes that they take, divided so."""
    chunks = share.steps * 65_536 * ((share.depth + 2) * 64 + 2 * 36)
    unpacking = share.decode_streams * share.blocks_per_call * 250_000 * (20 + 30)
    return share.blocks * share.block_rows * 32 + chunks + share.cudf_bytes + unpacking


@pytest.mark.parametrize("how", ["arrow", "cudf", "pages"])
@pytest.mark.parametrize("memory", [60_000_000, 3 * 10**8, 10**9])
def test_memory_is_divided_within_its_bounds(how, memory):
    need = eight_columns()
    assert (need.block_bytes, need.batch_bytes, need.scratch_bytes) == (32, 64, 36)
    share = plan_memory(replace(need, decoder=how), memory)
    if share is None:
        assert memory == 60_000_000
        return
    assert used(share) <= memory
    assert bool(share.decode_streams) == (how == "pages")
    assert bool(share.cudf_calls) == (how == "cudf")
    assert share.block_rows == 250_000
    # Two blocks a stream may be open at once; more, if the chunks ahead reach over several.
    assert share.blocks >= 4 * (2 + share.depth * share.steps * 65_536 // 4 // 250_000)


@pytest.mark.parametrize("memory", range(50_000_000, 10**9, 50_000_000))
def test_there_is_room_for_the_copy_of_a_batch(memory):
    need = eight_columns()
    share = plan_memory(replace(need, spare_batches=1), memory)
    if share is None:
        assert memory < 10**8
    elif share.steps > 1:  # else the batch is the chunk
        assert used(share) + 65_536 * 64 <= memory


def test_too_little_memory_for_anything_is_none():
    plan = Plan((250_000,) * 64, 65_536, streams=4, chunk=2, block=32_768)
    layout = Layout(groups=(Group("c", ("a",), np.dtype(np.int64)),), matrices=True)
    assert plan_memory(MemoryRequest.of(plan, layout, {"c": np.dtype(np.int32)}), 1000) is None


@pytest.mark.parametrize(
    ("blocks", "threads", "processes", "workers"),
    [(100, 14, 14, 1), (22, 14, 14, 1), (15, 7, 14, 2), (11, 3, 14, 5), (1, 1, 8, 8)],
)
def test_few_large_blocks_are_decoded_by_several_processes_each(
    dataset, monkeypatch, blocks, threads, processes, workers
):
    monkeypatch.setattr(memory_plan, "cpu_count", lambda: 16)
    plan = Plan((250_000,) * 64, 65_536, streams=4, chunk=2, block=32_768)
    group = Group("c", tuple("abcdefgh"), np.dtype(np.int64))
    need = MemoryRequest.of(plan, Layout(groups=(group,), matrices=True), {"c": np.dtype(np.int32)})
    options = LoaderOptions(host_memory=blocks * need.whole_block)
    reader = replace(tuples(dataset).pipeline.stages.reader, layout=Layout(groups=(group,)))
    found = plan_staging(need, MemoryPlan(2, 2, need.block_rows, 8), options, reader)
    assert (found.threads, found.processes, found.workers_per_block) == (
        threads,
        processes,
        workers,
    )
    assert found.count == 8 + found.early <= max(blocks, 9)


def test_closing_a_loader_ends_its_processes(dataset, monkeypatch):
    monkeypatch.setattr(memory_plan, "cpu_count", lambda: 5)
    loader = walked(tuples(dataset))
    decoders = loader.pipeline.stages.reader._decoders
    for _ in range(2):
        first = [batch[0].clone() for batch in loader]
        all_ = list(decoders._all)
        assert len(all_) == 4
        loader.close()
        assert not any(decoder.alive for decoder in all_) and not decoders._all
        assert len(first) == len(loader)


@pytest.mark.parametrize("workers", [1, 3])
def test_processes_that_decode(dataset, monkeypatch, workers):
    monkeypatch.setattr(memory_plan, "cpu_count", lambda: 8)
    loader = walked(tuples(dataset))
    reader = loader.pipeline.stages.reader
    assert (reader.processes, reader.workers_per_block) == (7, 1)
    reader.processes = reader.workers_per_block = workers
    for epoch in range(6):
        plain = tuples(dataset)
        plain.set_epoch(epoch)
        pairs = zip(plain, loader, strict=True)
        assert all(torch.equal(a, b) for one, two in pairs for a, b in zip(one, two, strict=True))
    reader.close()


def test_with_too_little_memory_batches_are_copied(dataset):
    loader = walked(tuples(dataset), memory=10_000)
    assert not isinstance(loader.pipeline.stages, GpuStages)
    assert len(list(loader)) == len(loader)
    said = re.fullmatch(
        "Arrow: batches are made in host memory and copied; to make them on the GPU, "
        r'give device_memory="(\d+)MB" or more',
        loader.reader_choice,
    )
    enough = walked(tuples(dataset), memory=int(said[1]) * 10**6)
    assert isinstance(enough.pipeline.stages, GpuStages)


def test_a_copy_for_another_process_is_of_the_cpu(dataset):
    import pickle

    copied = pickle.loads(pickle.dumps(walked(tuples(dataset)).state))
    assert not isinstance(copied.pipeline.stages, GpuStages)
    assert len(list(copied)) == len(copied)
