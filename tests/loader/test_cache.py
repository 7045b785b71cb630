"""Caches: what fits is kept, the budget is never exceeded, nothing is left behind."""

from __future__ import annotations

import gc
import pickle

import numpy as np
import pyarrow as pa

from tabfeed.loader.cache import DiskCache, MemoryCache, with_cache
from tabfeed.loader.columns import Lists, Part


class Counting:
    def __init__(self):
        self.reads = []

    def read(self, number):
        self.reads.append(number)
        return Part(
            3,
            {
                "i": np.arange(3) + number,
                "flag": np.array([True, False, True]),
                "v": np.ones((3, 2), np.float32) * number,
            },
            {"w": Lists(np.array([1, 2]), np.array([0, 2, 2, 2]))},
            {"t": pa.array(["a", None, "c"])},
        )


def same(a, b):
    assert a.rows == b.rows
    for name in a.scalars:
        np.testing.assert_array_equal(a.scalars[name], b.scalars[name])
    assert a.scalars["flag"].astype(bool).tolist() == [True, False, True]
    assert b.scalars["v"].shape == (3, 2)
    np.testing.assert_array_equal(a.lists["w"].values, b.lists["w"].values)
    np.testing.assert_array_equal(a.lists["w"].offsets, b.lists["w"].offsets)
    assert a.extras["t"].equals(b.extras["t"])


def test_memory_up_to_the_budget():
    reader = Counting()
    size = reader.read(0).nbytes
    reader.reads.clear()
    cache = MemoryCache(reader, 2 * size)
    for _ in range(3):
        for number in range(3):
            same(Counting().read(number), cache.read(number))
    assert reader.reads == [0, 1, 2, 2, 2]
    copy = pickle.loads(pickle.dumps(cache))
    assert copy._kept == {} and copy._left == 2 * size


def test_disk_is_mapped_and_cleaned_up():
    reader = Counting()
    cache = DiskCache(reader)
    for _ in range(2):
        for number in range(3):
            same(Counting().read(number), cache.read(number))
    assert reader.reads == [0, 1, 2]
    folder = cache._folder
    assert sorted(p.name for p in folder.iterdir()) == ["0.arrow", "1.arrow", "2.arrow"]
    copy = pickle.loads(pickle.dumps(cache))
    del cache
    gc.collect()
    assert not folder.exists()
    same(Counting().read(1), copy.read(1))


def test_a_full_disk_is_no_error(monkeypatch):
    import tabfeed.loader.cache as module

    def full(part, path):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(module, "_save", full)
    reader = Counting()
    cache = DiskCache(reader)
    cache.read(0)
    cache.read(0)
    assert reader.reads == [0, 0]


def test_none_is_none():
    reader = Counting()
    assert with_cache(reader, None, 1) is reader


def test_a_forked_child_does_not_wait_for_a_lock_of_its_parent():
    import os

    cache = MemoryCache(Counting(), 10**6)
    with cache._lock:  # as if a thread of the parent were inside
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                status = 0 if cache.read(1).rows == 3 else 2
            finally:
                os._exit(status)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
