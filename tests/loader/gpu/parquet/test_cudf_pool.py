"""The memory pylibcudf decodes into, shared by all loaders of a GPU; on an rmm of our own."""

from __future__ import annotations

import gc
import sys
import threading
import weakref
from contextlib import contextmanager
from types import SimpleNamespace

import pytest
import torch

from tabfeed.loader.gpu.parquet import cudf_blocks, cudf_pool
from tabfeed.loader.gpu.parquet.cudf_blocks import CudfBlockReader
from tabfeed.loader.gpu.parquet.cudf_pool import Grant

CUDA = torch.device("cuda:1")


class CudaMemoryResource:
    """What rmm begins with."""


class Pool:
    """Memory that is kept, as made for the GPU that is current then."""

    def __init__(self, release_threshold=None):
        self.release_threshold, self.device = release_threshold, Rmm.now.current


class Limited:
    def __init__(self, upstream, allocation_limit):
        self.upstream, self.limit, self.held = upstream, allocation_limit, 0

    def get_allocated_bytes(self):
        return self.held


class Rmm:
    """A resource for each GPU, and which GPU is current."""

    now: Rmm

    def __init__(self):
        Rmm.now = self
        self.current, self.resources = 0, {0: CudaMemoryResource(), 1: CudaMemoryResource()}
        self.mr = SimpleNamespace(
            CudaMemoryResource=CudaMemoryResource,
            CudaAsyncMemoryResource=Pool,
            LimitingResourceAdaptor=Limited,
            get_per_device_resource=self.resources.__getitem__,
            set_per_device_resource=self.resources.__setitem__,
        )
        self.streams = []

    @contextmanager
    def switch(self, device):
        before, self.current = self.current, torch.device(device).index
        try:
            yield
        finally:
            self.current = before

    def stream(self):
        self.streams.append(self.current)
        return SimpleNamespace(__cuda_stream__=lambda: (0, 100 + len(self.streams)))


@pytest.fixture(autouse=True)
def rmm(monkeypatch):
    rmm = Rmm()
    monkeypatch.setitem(sys.modules, "rmm", rmm)
    monkeypatch.setitem(sys.modules, "rmm.pylibrmm", SimpleNamespace(__path__=[]))
    monkeypatch.setitem(
        sys.modules, "rmm.pylibrmm.stream", SimpleNamespace(Stream=lambda: rmm.stream())
    )
    monkeypatch.setattr(torch.cuda, "device", rmm.switch)
    monkeypatch.setattr(
        torch.cuda, "ExternalStream", lambda handle, device: SimpleNamespace(of=(handle, device))
    )
    monkeypatch.setattr(cudf_pool, "_POOLS", {})
    return rmm


def test_what_is_there_before_is_back_afterwards(rmm):
    before = dict(rmm.resources)
    grant = Grant(CUDA, 100)
    current = rmm.resources[1]
    assert isinstance(current, Limited) and current.limit == 100
    assert current.upstream.release_threshold == 100
    assert rmm.resources[0] is before[0]  # another GPU's
    del grant, current
    assert rmm.resources == before


def test_pool_and_streams_are_on_the_gpu_of_the_loader(rmm):
    grant = Grant(CUDA, 100)
    assert rmm.resources[1].upstream.device == 1
    with grant.reading() as reading:
        assert reading.stream.of == (101, CUDA) and rmm.streams == [1]
    assert rmm.current == 0


def test_the_bound_is_the_sum_of_what_was_granted(rmm):
    train, valid = Grant(CUDA, 100), Grant(CUDA, 40)
    assert rmm.resources[1].limit == 140
    third = Grant(CUDA, 5)
    assert rmm.resources[1].limit == 145
    del train, third
    with valid.reading() as reading:
        assert reading.memory is rmm.resources[1] and reading.memory.limit == 40
    del valid
    assert isinstance(rmm.resources[1], CudaMemoryResource)
    again = Grant(CUDA, 7)
    assert rmm.resources[1].limit == 7 and again is not None


def test_each_gpu_has_its_own(rmm):
    grants = Grant(torch.device("cuda:0"), 30), Grant(CUDA, 20)
    assert (rmm.resources[0].limit, rmm.resources[1].limit) == (30, 20) and len(grants) == 2


def test_a_reading_ends_in_the_memory_it_began_in(rmm):
    """It is not let go before, nor what came after it, of which the reading may take as well."""
    train = Grant(CUDA, 100)
    with train.reading() as begun:
        first = weakref.ref(begun.memory)
        valid = Grant(CUDA, 40)
        second = weakref.ref(rmm.resources[1])
        with valid.reading() as other:
            assert other.memory is second() is not begun.memory
            assert other.own is not begun.own
        third = Grant(CUDA, 1)
        del other, begun
        gc.collect()
        assert first() is not None and second() is not None
        assert rmm.resources[1].limit == 141
    gc.collect()
    assert first() is None and second() is None and third is not None


def test_memory_that_is_still_held_is_kept(rmm):
    """An error on its way may hold what was decoded."""
    train = Grant(CUDA, 100)
    first = weakref.ref(rmm.resources[1])
    first().held = 10
    valid = Grant(CUDA, 40)
    with valid.reading():
        assert first() is not None
    first().held = 0
    with train.reading():
        pass
    gc.collect()
    assert first() is None


def test_a_resource_that_the_program_has_chosen_stays(rmm):
    own = rmm.resources[1] = Pool()
    grant = Grant(CUDA, 100)
    assert rmm.resources[1] is own
    with grant.reading() as reading:
        assert reading.memory.upstream is own and reading.memory.limit == 100
    del grant, reading
    assert rmm.resources[1] is own


def test_one_that_it_chooses_later_stays_too(rmm):
    train = Grant(CUDA, 100)
    own = rmm.resources[1] = Pool()
    valid = Grant(CUDA, 40)
    with valid.reading() as reading:
        assert reading.memory.upstream is own and reading.memory.limit == 140
    del train, valid, reading
    assert rmm.resources[1] is own


def test_streams_are_used_again(rmm):
    grant = Grant(CUDA, 100)
    for _ in range(3):
        with grant.reading(), grant.reading():
            pass
    assert len(rmm.streams) == 2


def test_a_stream_that_cannot_be_made(rmm, monkeypatch):
    grant = Grant(CUDA, 100)
    first = weakref.ref(rmm.resources[1])
    monkeypatch.setattr(rmm, "stream", lambda: 1 / 0)
    with pytest.raises(ZeroDivisionError), grant.reading():
        pass
    more = Grant(CUDA, 1)
    gc.collect()
    assert first() is None and more is not None


def test_a_pool_that_cannot_be_made(rmm, monkeypatch):
    train = Grant(CUDA, 100)
    monkeypatch.setattr(rmm.mr, "CudaAsyncMemoryResource", lambda **how: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        Grant(CUDA, 40)
    gc.collect()
    with train.reading() as reading:
        assert reading.memory.limit == 100


def test_many_come_and_go_in_threads(rmm):
    def work():
        for nbytes in range(1, 50):
            grant = Grant(CUDA, nbytes)
            with grant.reading() as reading:
                assert reading.memory.limit >= nbytes
            del grant, reading

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    pool = cudf_pool._POOLS[CUDA]
    assert isinstance(rmm.resources[1], CudaMemoryResource)
    assert (pool._granted, pool._bound, pool._now, pool._old) == ({}, 0, None, [])


# -- who reads into it -----------------------------------------------------------------------


class Column:
    """A column of pylibcudf's that has no nulls."""

    def null_count(self):
        return 0

    def size(self):
        return 10


def test_what_is_decoded_lies_in_this_memory(rmm, monkeypatch):
    asked = []
    table = SimpleNamespace(columns=lambda: [Column()])
    parquet = SimpleNamespace(read_parquet=lambda options, **how: asked.append(how))
    io, options = SimpleNamespace(parquet=parquet, SourceInfo=list), SimpleNamespace()
    options.set_column_names = options.set_row_groups = lambda names: None
    builder = SimpleNamespace(build=lambda: options)
    parquet.ParquetReaderOptions = SimpleNamespace(builder=lambda source: builder)
    parquet.read_parquet = lambda options, **how: (asked.append(how), SimpleNamespace(tbl=table))[1]

    def to_dlpack(table, **how):
        asked.append(how)
        return torch.zeros(10)

    plc = SimpleNamespace(interop=SimpleNamespace(to_dlpack=to_dlpack), Table=list)
    found = {"pylibcudf": plc, "pylibcudf.io": io}
    monkeypatch.setattr(cudf_blocks, "import_module", found.__getitem__)
    monkeypatch.setattr(torch.utils.dlpack, "from_dlpack", lambda capsule: capsule)
    device_buffers = SimpleNamespace(device=CUDA, width_groups={})
    reader = CudfBlockReader(SimpleNamespace(parts=None), device_buffers, 100, 2)
    monkeypatch.setattr(CudfBlockReader, "_row_groups", lambda self, partitions: ([], []))
    monkeypatch.setattr(CudfBlockReader, "_runs", [(None, 0, 1)])
    with reader._pool.reading() as reading:
        (matrix,) = reader._decoded([0], 10, reading)
        assert matrix.shape == (1, 10)
        for how in asked:
            assert how["mr"] is rmm.resources[1] and how["stream"] is reading.own
    assert len(asked) == 2


def test_readers_of_the_same_partitions_share_what_was_granted(rmm):
    arrow = SimpleNamespace(parts=1, reading=lambda parts: SimpleNamespace(parts=parts))
    reader = CudfBlockReader(arrow, SimpleNamespace(device=CUDA), 100, 2)
    reader._pool  # noqa: B018 - made here
    other = reader.reading(2)
    assert other._pool is reader._pool and other._calls is reader._calls
    assert rmm.resources[1].limit == 100
    del reader
    gc.collect()
    assert rmm.resources[1].limit == 100
    del other
    gc.collect()
    assert isinstance(rmm.resources[1], CudaMemoryResource)
