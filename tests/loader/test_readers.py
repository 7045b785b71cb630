"""Lots are read once for all who need them, and go when nobody does."""

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
from tabfeed.loader.readers import PartReader, SharedLots, cut_fine
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


def test_threads_that_need_the_same_lots_read_each_once():
    reader = Slow()
    lots = SharedLots(reader.read, dict.fromkeys(range(6), 9))
    got = []
    threads = [
        threading.Thread(target=lambda: got.append(lots.get([0, 1, 2, 3, 4, 5]))) for _ in range(4)
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
    lots = SharedLots(Slow().read, {0: 0, 1: 1, 2: 5})
    lots.get([0, 1, 2])
    lots.done(1)
    assert set(lots._lots) == {0, 1, 2}  # chunk 0 may still need them
    lots.done(0)
    assert set(lots._lots) == {2}


def test_a_lot_needed_again_is_read_again():
    reader = Slow()
    lots = SharedLots(reader.read, {0: 0})
    lots.get([0])
    lots.done(0)
    lots.get([0])
    assert reader.reads == [0, 0]


def test_an_error_reaches_all_who_ask():
    lots = SharedLots(Slow(fail=[1]).read, {0: 0, 1: 0})
    for _ in range(2):
        with pytest.raises(OSError, match="part 1"):
            lots.get([0, 1])


def test_after_close_nothing_is_read():
    lots = SharedLots(Slow().read, {})
    lots.close()
    with pytest.raises(LoaderError, match="closed"):
        lots.get([0])


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
    lots = SharedLots(reader.read, {0: 1, 1: 2, 2: 3, 3: 4})
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(lots.get, [0])
        assert begun.wait(10)
        second = pool.submit(lots.get, [0])
        while 1 not in lots._lots:  # the test's timeout is the end of this wait
            time.sleep(0.01)
        release.set()
        assert list(first.result()) == list(second.result()) == [0]
    assert reader.reads == [1, 0]  # lot 1 early, 2 and 3 not: one at a time
    assert list(lots.get([1])) == [1]
    assert reader.reads == [1, 0]


def test_as_many_lots_are_read_ahead_as_allowed():
    reader = Slow()
    lots = SharedLots(reader.read, {0: 1, 1: 2, 2: 3, 3: 4}, early=2)
    assert [lots.read_ahead() for _ in range(3)] == [True, True, False]
    assert reader.reads == [0, 1]
    lots.get([0])
    assert lots.read_ahead()
    assert reader.reads == [0, 1, 2]
    lots.close()
    assert not lots.read_ahead()


def test_columns_come_a_few_at_a_time(tmp_path):
    ds = write_rows(tmp_path, (64, 40))
    layout = Layout(groups=(Group("g", ("key",), np.dtype(np.int64)),), extras=())
    reader = PartReader(ds, ds.partitions, ds.partition_lens, layout)
    whole = reader.read(1)
    (piece,) = reader.pieces(1)
    assert piece.scalars["key"].tolist() == whole.scalars["key"].tolist()
