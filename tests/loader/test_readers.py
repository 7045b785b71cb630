"""Partitions are read once for all who need them, and go when nobody does."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pyarrow as pa
import pytest

from tabfeed import Dataset
from tabfeed.errors import ColumnNotFoundError, LoaderError
from tabfeed.loader.columns import Group, Layout, Part
from tabfeed.loader.readers import PartReader, SharedParts, cut_fine
from tabfeed.testing.loader import write_rows


class Slow:
    def __init__(self, fail=()):
        self.reads, self.fail, self.lock = [], fail, threading.Lock()

    def read(self, number):
        with self.lock:
            self.reads.append(number)
        time.sleep(0.01)
        if number in self.fail:
            raise OSError(f"part {number}")
        return Part(number)


def test_threads_that_need_the_same_parts_read_each_once():
    reader = Slow()
    parts = SharedParts(reader, dict.fromkeys(range(6), 9))
    got = []
    threads = [
        threading.Thread(target=lambda: got.append(parts.get([0, 1, 2, 3, 4, 5]))) for _ in range(4)
    ]
    for t in threads:
        t.start()
    for t in threads:
        t.join(20)
    assert sorted(reader.reads) == [0, 1, 2, 3, 4, 5]
    assert [sorted((n, p.rows) for n, p in g.items()) for g in got] == [
        [(n, n) for n in range(6)]
    ] * 4


def test_a_part_goes_after_its_last_chunk_even_out_of_turn():
    parts = SharedParts(Slow(), {0: 0, 1: 1, 2: 5})
    parts.get([0, 1, 2])
    parts.done(1)
    assert set(parts._parts) == {0, 1, 2}  # chunk 0 may still need them
    parts.done(0)
    assert set(parts._parts) == {2}


def test_a_part_needed_again_is_read_again():
    reader = Slow()
    parts = SharedParts(reader, {0: 0})
    parts.get([0])
    parts.done(0)
    parts.get([0])
    assert reader.reads == [0, 0]


def test_an_error_reaches_all_who_ask():
    parts = SharedParts(Slow(fail=[1]), {0: 0, 1: 0})
    for _ in range(2):
        with pytest.raises(OSError, match="part 1"):
            parts.get([0, 1])


def test_after_close_nothing_is_read():
    parts = SharedParts(Slow(), {})
    parts.close()
    with pytest.raises(LoaderError, match="closed"):
        parts.get([0])


LAYOUT = Layout(groups=(Group("g", ("x",), np.dtype(np.int64)),))


def test_what_a_transform_does_wrong_is_told():
    ds = Dataset({"x": np.arange(10)})

    def read(transform):
        return PartReader(ds, ds.partitions, ds.partition_lens, LAYOUT, (transform,)).read(0)

    assert read(lambda t: t).rows == 10
    with pytest.raises(ColumnNotFoundError, match="there is no column 'x' in partition 0"):
        read(lambda t: t.rename_columns(["y"]))
    with pytest.raises(ZeroDivisionError) as caught:
        read(lambda t: 1 // 0)
    if hasattr(caught.value, "__notes__"):
        assert "partition 0" in caught.value.__notes__[0]
    with pytest.raises(LoaderError, match="gave NoneType"):
        read(lambda t: None)


def test_row_groups_are_partitions_unless_something_applies_to_whole_ones(tmp_path):
    ds = write_rows(tmp_path, (64, 40))
    assert cut_fine(ds, 10**9)[1] == [32, 32, 32, 8]
    assert cut_fine(ds, 20)[1] == [16, 16, 16, 16, 16, 16, 8]
    assert cut_fine(ds.map(lambda t: t), 10**9)[1] == ds.partition_lens
    filtered = Dataset(str(tmp_path), filters=[("key", ">=", 70)])
    assert cut_fine(filtered, 10**9)[1] == filtered.partition_lens
    parts, lens = cut_fine(ds, 20)
    tables = [ds.read(p) for p in parts]
    assert [t.num_rows for t in tables] == lens
    assert pa.concat_tables(tables).column("key").to_pylist() == list(range(104))


def test_a_thread_that_would_wait_reads_what_is_needed_next():
    begun, release = threading.Event(), threading.Event()

    class Held(Slow):
        def read(self, number):
            if number == 0:
                begun.set()
                assert release.wait(10)
            return super().read(number)

    reader = Held()
    parts = SharedParts(reader, {0: 1, 1: 2, 2: 3, 3: 4})
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(parts.get, [0])
        assert begun.wait(10)
        second = pool.submit(parts.get, [0])
        while 1 not in parts._parts:  # the test's timeout is the end of this wait
            time.sleep(0.01)
        release.set()
        assert list(first.result()) == list(second.result()) == [0]
    assert reader.reads == [1, 0]  # partition 1 early, 2 and 3 not: one at a time
    assert list(parts.get([1])) == [1]
    assert reader.reads == [1, 0]
