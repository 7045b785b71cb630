"""Lots are read once for all who need them, and go when nobody does."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from tabfeed.errors import LoaderError
from tabfeed.loader.read.arrow_columns import Part
from tabfeed.loader.read.block_window import Ahead, BlockWindow


class Slow:
    def __init__(self, fail=()):
        self.reads, self.fail, self.lock = [], fail, threading.Lock()

    def read_all(self, numbers):
        return [self.read(n) for n in numbers]

    def read(self, number):
        with self.lock:
            self.reads.append(number)
        time.sleep(0.01)
        if number in self.fail:
            raise OSError(f"part {number}")
        return Part(number)


def test_threads_that_need_the_same_lots_read_each_once():
    reader = Slow()
    blocks = BlockWindow(reader.read_all, dict.fromkeys(range(6), 9))
    got = []
    threads = [
        threading.Thread(target=lambda: got.append(blocks.get([0, 1, 2, 3, 4, 5])))
        for _ in range(4)
    ]
    for t in threads:
        t.start()
    for t in threads:
        t.join(20)
    assert sorted(reader.reads) == [0, 1, 2, 3, 4, 5]
    assert [sorted((n, p.rows) for n, p in g.items()) for g in got] == [
        [(n, n) for n in range(6)]
    ] * 4


def test_a_lot_goes_after_its_last_chunk_even_out_of_turn():
    blocks = BlockWindow(Slow().read_all, {0: 0, 1: 1, 2: 5})
    blocks.get([0, 1, 2])
    blocks.done(1)
    assert set(blocks._blocks) == {0, 1, 2}  # chunk 0 may still need them
    blocks.done(0)
    assert set(blocks._blocks) == {2}


def test_a_lot_needed_again_is_read_again():
    reader = Slow()
    blocks = BlockWindow(reader.read_all, {0: 0})
    blocks.get([0])
    blocks.done(0)
    blocks.get([0])
    assert reader.reads == [0, 0]


def test_an_error_reaches_all_who_ask():
    blocks = BlockWindow(Slow(fail=[1]).read_all, {0: 0, 1: 0})
    for _ in range(2):
        with pytest.raises(OSError, match="part 1"):
            blocks.get([0, 1])


def test_after_close_nothing_is_read():
    blocks = BlockWindow(Slow().read_all, {})
    blocks.close()
    with pytest.raises(LoaderError, match="closed"):
        blocks.get([0])


def test_a_thread_that_would_wait_reads_what_is_needed_next():
    begun, release = threading.Event(), threading.Event()

    class Held(Slow):
        def read(self, number):
            if number == 0:
                begun.set()
                assert release.wait(10)
            return super().read(number)

    reader = Held()
    blocks = BlockWindow(reader.read_all, {0: 1, 1: 2, 2: 3, 3: 4})
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(blocks.get, [0])
        assert begun.wait(10)
        second = pool.submit(blocks.get, [0])
        while 1 not in blocks._blocks:  # the test's timeout is the end of this wait
            time.sleep(0.01)
        release.set()
        assert list(first.result()) == list(second.result()) == [0]
    assert reader.reads == [1, 0]  # block 1 early, 2 and 3 not: one at a time
    assert list(blocks.get([1])) == [1]
    assert reader.reads == [1, 0]


def test_as_many_lots_are_read_ahead_as_allowed():
    reader = Slow()
    blocks = BlockWindow(reader.read_all, {0: 1, 1: 2, 2: 3, 3: 4}, ahead=Ahead(2))
    assert [blocks.read_ahead() for _ in range(3)] == [True, True, False]
    assert reader.reads == [0, 1]
    blocks.get([0])
    assert blocks.read_ahead()
    assert reader.reads == [0, 1, 2]
    blocks.close()
    assert not blocks.read_ahead()


def test_lots_that_are_faster_together_are_read_together():
    calls = []

    def read(numbers):
        calls.append(list(numbers))
        return list(numbers)

    blocks = BlockWindow(read, dict.fromkeys(range(7), 9), ahead=Ahead(4, together=3))
    assert blocks.get([0, 1, 2, 3]) == {n: n for n in range(4)}
    assert calls == [[0, 1, 2], [3]]
    assert blocks.read_ahead() and calls[-1] == [4, 5, 6]
    assert not blocks.read_ahead()


def test_with_many_threads_a_chunk_waits_for_its_lots():
    begun, release = threading.Event(), threading.Event()
    reads = []

    def read(numbers):
        reads.extend(numbers)
        begun.set()
        assert release.wait(10)
        return list(numbers)

    blocks = BlockWindow(read, {0: 1, 1: 2}, ahead=Ahead(2, by_all=False))
    with ThreadPoolExecutor(2) as pool:
        both = [pool.submit(blocks.get, [0])]
        assert begun.wait(10)
        both.append(pool.submit(blocks.get, [0]))
        time.sleep(0.05)
        release.set()
        assert [f.result() for f in both] == [{0: 0}, {0: 0}]
    assert reads == [0]
