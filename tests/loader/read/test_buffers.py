"""Buffers go round, and never while somebody looks at them."""

from __future__ import annotations

import gc
import pickle
import threading

import numpy as np
import torch

from tabfeed.loader.read.buffers import BufferPool, Scratch


def test_a_buffer_comes_back_when_its_last_view_is_gone():
    pool = BufferPool()
    array = pool.empty((3, 1000), np.int64)
    address = array.ctypes.data
    views = [array[:, 10:20], array[1], array.T[5:7].reshape(-1)]
    del array
    for _ in range(len(views)):
        assert pool.empty((3, 1000), np.int64).ctypes.data != address
        views.pop()
    gc.collect()
    assert address in {a.ctypes.data for a in [pool.empty((3, 1000), np.int64) for _ in range(5)]}


def test_a_tensor_keeps_its_buffer():
    pool = BufferPool()
    array = pool.empty((2, 100), np.float32)
    array[:] = 7
    kept = torch.from_numpy(array).t().split(10)[3]
    del array
    for _ in range(5):
        pool.empty((2, 100), np.float32)[:] = 0
    assert kept.eq(7).all()


def test_arrays_are_aligned_and_writable():
    for rows in (1, 7, 1001):
        array = BufferPool().empty((3, rows), np.float64)
        assert array.ctypes.data % 64 == 0
        array[:] = 1
        assert array.sum() == 3 * rows


def test_an_empty_array_needs_no_buffer():
    assert BufferPool().empty((3, 0), np.int32).shape == (3, 0)


def test_free_buffers_are_let_go_when_too_many():
    pool = BufferPool(keep=10_000)
    held = [pool.empty((n,), np.uint8) for n in (50_000, 90_000, 200_000)]
    held.clear()
    pool.empty((1_000_000,), np.uint8)
    assert pool.free_bytes <= 1_100_000


def test_a_copied_pool_is_empty():
    pool = BufferPool(keep=123)
    pool.empty((1000,), np.uint8)
    assert pickle.loads(pickle.dumps(pool)).free_bytes == 0


def test_threads_never_share_memory():
    pool, wrong = BufferPool(), []

    def work(value):
        for _ in range(300):
            array = pool.empty((500,), np.int64)
            array[:] = value
            if (array != value).any():
                wrong.append(value)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert wrong == []


def test_scratch_grows_and_is_of_each_thread():
    scratch = Scratch()
    first = scratch.get("a", 10, np.int32)
    assert scratch.get("a", 5, np.int64).ctypes.data == first.ctypes.data
    assert len(scratch.get("a", 10_000, np.int32)) == 10_000
    other = []
    thread = threading.Thread(target=lambda: other.append(scratch.get("a", 1, np.int32)))
    thread.start()
    thread.join()
    assert other[0].ctypes.data != scratch.get("a", 1, np.int32).ctypes.data
