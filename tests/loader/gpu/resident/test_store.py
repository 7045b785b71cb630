"""The store and stages of ``cache="device"``, walked on the CPU: what they read and keep."""

from __future__ import annotations

import pickle
import threading
from contextlib import contextmanager, nullcontext

import pytest
import torch

from tabfeed.errors import LoaderError
from tabfeed.loader.gpu.resident import pipeline
from tabfeed.loader.gpu.resident import store as resident_store
from tabfeed.loader.gpu.resident.pipeline import ResidentStages
from tabfeed.loader.read.blocks import BlockReader
from tests.loader.gpu.pretend import pretend_gpu
from tests.loader.gpu.resident.test_pipeline import ROWS, dicts, flat, keys, tuples, write_files


@pytest.fixture(autouse=True)
def pretend(monkeypatch):
    pretend_gpu(monkeypatch)


@pytest.fixture
def dataset(tmp_path):
    return write_files(tmp_path)


def test_each_epoch_is_a_permutation_of_all_rows(dataset):
    loader = tuples(dataset)
    assert isinstance(loader.pipeline.stages, ResidentStages)
    first, second = keys(loader), keys(loader)
    assert sorted(flat(first)) == sorted(flat(second)) == list(range(ROWS))
    assert first != second
    assert [len(b) for b in first] == [32] * 8 + [14]


def test_files_are_read_once(dataset, monkeypatch):
    read = []
    fill = BlockReader.fill

    def counted(self, partitions, *rest):
        read.extend(partitions)
        return fill(self, partitions, *rest)

    monkeypatch.setattr(BlockReader, "fill", counted)
    loader = tuples(dataset, threads=3)
    assert not read
    for _ in range(3):
        keys(loader)
    assert len(read) == len(set(read)) and len(read) >= 6


def test_a_broken_pass_leaves_what_it_read(dataset, monkeypatch):
    read, fill = [], BlockReader.fill

    def failing(self, partitions, *rest):
        if len(read) == 3 and not fixed:
            raise LoaderError("the disk is gone")
        read.extend(partitions)
        return fill(self, partitions, *rest)

    fixed = []
    monkeypatch.setattr(BlockReader, "fill", failing)
    loader = tuples(dataset, threads=2)
    with pytest.raises(LoaderError, match="the disk is gone"):
        next(iter(loader))
    fixed.append(True)
    assert sorted(flat(keys(loader))) == list(range(ROWS))
    assert len(read) == len(set(read))


def test_lists_that_turn_out_too_large(dataset):
    least = dicts(dataset).pipeline.stages.store._size.known
    loader = dicts(dataset, device_memory=least + 100)
    with pytest.raises(LoaderError, match="device_memory allows"):
        next(iter(loader))


def test_half_of_what_is_free_is_the_default(dataset, monkeypatch):
    pretend_gpu(monkeypatch, free=10**6)
    assert tuples(dataset).pipeline.stages.store._size.allowed == 5 * 10**5


def test_chunks_become_smaller_before_it_is_refused(dataset):
    large = tuples(dataset, batch_size=1).pipeline
    least = large.stages.store._size.known
    small = tuples(dataset, batch_size=1, device_memory=least - 1000).pipeline
    assert small.plan.chunk < large.plan.chunk
    assert small.stages.store._size.known <= least - 1000


def test_other_frameworks_refuse(dataset):
    from tabfeed.loader.read.cache import with_cache

    with pytest.raises(LoaderError, match="only the torch loaders do; use cache="):
        with_cache(None, "device", 0)


def test_worker_processes_are_refused(dataset):
    with pytest.raises(LoaderError, match="use num_workers=0"):
        pickle.dumps(tuples(dataset))
    loader = tuples(dataset)
    for whole in (False, True):
        loader.pipeline.stages.store._process += 1  # as in a forked child
        with pytest.raises(
            LoaderError, match="the process that made the loader; use num_workers=0"
        ):
            next(iter(loader))
        loader.pipeline.stages.store._process -= 1
        assert whole or keys(loader)


def test_it_is_gone_with_the_loader(dataset):
    import gc
    import weakref

    loader = tuples(dataset)
    keys(loader)
    store = weakref.ref(loader.pipeline.stages.store)
    loader.close()
    del loader
    gc.collect()
    assert store() is None


def test_page_locked_memory_is_given_back(dataset):
    loader = tuples(dataset)
    keys(loader)
    store = loader.pipeline.stages.store
    assert store._pinned is None and store.whole


def test_sizes_are_told_as_people_read_them():
    assert resident_store.gigabytes(12_300_000_000) == "12.3 GB"
    assert resident_store.gigabytes(1_500_000) == "1.5 MB"


@pytest.mark.parametrize(
    "error",
    [torch.OutOfMemoryError("CUDA out of memory"), RuntimeError("CUDA error: out of memory")],
)
@pytest.mark.parametrize("where", ["chunk", "order", "fill", "lists", "function"])
def test_no_memory_left_in_mid_epoch(dataset, monkeypatch, error, where):
    """It says what to do, and goes on when there is some again."""
    full = []

    def fails(call):
        def called(*arguments, **options):
            if full:
                raise error
            return call(*arguments, **options)

        return called

    loader = dicts(dataset).map(
        fails(lambda x, y: (x, y)) if where == "function" else lambda *xy: xy
    )
    if where == "chunk":
        monkeypatch.setattr(ResidentStages, "_gathered", fails(ResidentStages._gathered))
    elif where == "order":
        monkeypatch.setattr(pipeline, "permutation", fails(pipeline.permutation))
    elif where == "fill":
        monkeypatch.setattr(resident_store.Store, "_fill", fails(resident_store.Store._fill))
    elif where == "lists":
        monkeypatch.setattr(
            resident_store.Store, "_concatenated", fails(resident_store.Store._concatenated)
        )
    if where not in ("fill", "lists"):
        assert len(list(loader)) == 9
    full.append(True)
    with pytest.raises(
        LoaderError, match="the GPU has no memory left for the next batches"
    ) as told:
        list(loader)
    assert told.value.__cause__ is error
    for word in ("would change their order", "state_dict()", 'cache=None, "memory" or "disk"'):
        assert word in str(told.value)
    full.clear()
    found = [int(k) for x, _ in loader for k in x["c"]]
    assert sorted(found) == list(range(ROWS))


def test_other_errors_stay_what_they_are(dataset, monkeypatch):
    def fails(self, chunk, index):
        raise RuntimeError("an odd index")

    monkeypatch.setattr(ResidentStages, "_gathered", fails)
    with pytest.raises(RuntimeError, match="an odd index"):
        list(dicts(dataset))


def test_threads_work_on_the_gpu_of_the_loader(dataset, monkeypatch):
    """It is current whenever a stream is taken up, since it is set back to the one before it."""
    entered, missed = threading.local(), []

    @contextmanager
    def on_device(device):
        before, entered.yes = getattr(entered, "yes", False), True
        try:
            yield
        finally:
            entered.yes = before

    def stream(stream):
        if not getattr(entered, "yes", False):
            missed.append(stream)
        return nullcontext()

    loader = tuples(dataset)
    monkeypatch.setattr(pipeline, "on_device", on_device)
    monkeypatch.setattr(torch.cuda, "stream", stream)
    assert len(keys(loader)) == 9 and not missed
