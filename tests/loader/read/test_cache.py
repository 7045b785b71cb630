"""Caches: what fits is kept, the budget is never exceeded, no half is ever read."""

from __future__ import annotations

import gc
import os
import pickle
import signal
import subprocess
import sys

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tabfeed import Dataset
from tabfeed.loader.build import dict_layout
from tabfeed.loader.read import cache, cache_folder
from tabfeed.loader.read.arrow_columns import Lists, Part
from tabfeed.loader.read.cache import DiskCache, MemoryCache
from tabfeed.loader.read.cache_folder import CacheFolder, default_limit
from tabfeed.loader.read.partition_reader import PartReader
from tabfeed.loader.row_sizes import cut_fine


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("TABFEED_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv("TABFEED_CACHE_SIZE", raising=False)
    return tmp_path / "cache"


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


def test_memory_keeps_what_comes_a_few_columns_at_a_time():
    class InPieces(Counting):
        def pieces(self, number):
            whole = self.read(number)
            for name, array in whole.scalars.items():
                yield Part(3, {name: array})
            yield Part(3, lists=whole.lists)
            yield Part(3, extras=whole.extras)

    reader = InPieces()
    size = Counting().read(0).nbytes
    cache = MemoryCache(reader, size)
    assert [len(p.scalars) for p in cache.pieces(0)] == [1, 1, 1, 0, 0]
    (kept,) = cache.pieces(0)
    same(Counting().read(0), kept)
    assert cache.read(0) is kept and reader.reads == [0]
    assert len(list(cache.pieces(1))) == len(list(cache.pieces(1))) == 5  # there is no room for it
    left = MemoryCache(reader, size)
    next(left.pieces(0))  # and left there
    assert not left._kept


def test_disk_is_mapped_and_cleaned_up():
    reader = Counting()
    cache = DiskCache(reader)
    for _ in range(2):
        for number in range(3):
            same(Counting().read(number), cache.read(number))
    assert reader.reads == [0, 1, 2]
    folder = cache._own.path
    assert sorted(p.name for p in folder.glob("*.arrow")) == ["0.arrow", "1.arrow", "2.arrow"]
    copy = pickle.loads(pickle.dumps(cache))
    del cache
    gc.collect()
    assert not folder.exists()
    same(Counting().read(1), copy.read(1))


def test_a_full_disk_is_no_error(monkeypatch):
    def full(self, name, size):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(CacheFolder, "create", full)
    reader = Counting()
    cache = DiskCache(reader)
    cache.read(0)
    cache.read(0)
    assert reader.reads == [0, 0]


def test_a_forked_child_does_not_wait_for_a_lock_of_its_parent():
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


def write_data(path, start=0, rows=200):
    x = np.arange(start, start + rows)
    pq.write_table(pa.table({"x": x, "y": x * 0.5}), path, row_group_size=50)


def total(folder):
    return sum(p.stat().st_size for p in folder.iterdir())


def test_a_limit_that_is_no_amount_is_refused(folder, monkeypatch):
    monkeypatch.setenv("TABFEED_CACHE_SIZE", "lots")
    with pytest.raises(ValueError, match="TABFEED_CACHE_SIZE is 'lots'"):
        default_limit(folder)


WRITER = """
import sys, time
from pathlib import Path
from tabfeed.loader.read.cache_folder import CacheFolder
cache = CacheFolder(Path(sys.argv[1]), 10_000)
with cache.create("half.arrow", 6_000) as file:
    file.write(b"x" * 3_000)
    file.flush()
    print("writing", flush=True)
    time.sleep(60)
"""


def test_kill_9_in_mid_write_leaves_nothing_that_stays(folder):
    process = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(folder)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout.readline() == "writing\n"
    cache = CacheFolder(folder, 10_000)
    with pytest.raises(OSError, match="is full: 6,000 of 10,000"):
        cache.create("other.arrow", 6_000).__enter__()
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    assert cache.find("half.arrow") is None
    assert total(folder) == 6_000
    with cache.create("other.arrow", 6_000) as file:  # takes the room of the dead
        file.write(b"y" * 5_000)
    assert [p.name for p in folder.iterdir() if p.suffix != ".lock" and p.name != ".lock"] == [
        "other.arrow"
    ]
    assert total(folder) == 5_000


def test_more_than_was_reserved_is_not_kept(folder):
    cache = CacheFolder(folder, 10_000)
    with pytest.raises(OSError, match="20 bytes where 10"), cache.create("a", 10) as file:
        file.write(b"x" * 20)
    assert cache.find("a") is None
    assert total(folder) == 0


SHARER = """
import random, sys
from tabfeed import Dataset
from tabfeed.errors import WriteError
from tabfeed.loader.build import dict_layout
from tabfeed.loader.read.cache import DiskCache
from tabfeed.loader.read.partition_reader import PartReader
from tabfeed.loader.row_sizes import cut_fine
dataset = Dataset(sys.argv[1])
partitions, lens, _ = cut_fine(dataset, 50)
reader = PartReader(dataset, partitions, lens, dict_layout(dataset.schema, ["x", "y"]))
cache = DiskCache(reader)
for _ in range(20):
    for number in random.sample(range(20), 20):
        part = cache.read(number)
        wanted = list(range(number * 50, number * 50 + 50))
        assert part.scalars["x"].tolist() == wanted
        assert part.scalars["y"].tolist() == [x / 2 for x in wanted]
"""


def test_two_processes_share_a_folder_too_small_for_both(tmp_path, folder, monkeypatch):
    write_data(tmp_path / "a.parquet", rows=1000)
    environment = os.environ | {"TABFEED_CACHE_SIZE": "30KB"}
    arguments = [sys.executable, "-c", SHARER, str(tmp_path / "a.parquet")]
    processes = [subprocess.Popen(arguments, env=environment) for _ in range(2)]
    assert [p.wait() for p in processes] == [0, 0]
    assert 0 < total(folder) <= 30_000
    assert not list(folder.glob("*.partial"))


def test_pages_that_changed_places_are_noticed():
    page = 4096
    data = np.random.default_rng(0).integers(0, 256, 3 * page + 5, np.uint8)
    other = np.roll(data[: 3 * page], page)
    assert cache.checksum(np.concatenate([other, data[-5:]])) != cache.checksum(data)
    for place in (0, page, len(data) - 1):  # in a block, and behind the last one
        changed = data.copy()
        changed[place] ^= 1
        assert cache.checksum(changed) != cache.checksum(data)


def test_what_changed_while_it_was_read_is_not_kept(tmp_path, folder, monkeypatch):
    path = tmp_path / "a.parquet"
    write_data(path)
    dataset = Dataset(str(path))
    partitions, lens, _ = cut_fine(dataset, 50)
    reader = PartReader(dataset, partitions, lens, dict_layout(dataset.schema, ["x", "y"]))
    real = PartReader.read

    def read(self, number):
        part = real(self, number)
        os.utime(path)
        return part

    monkeypatch.setattr(PartReader, "read", read)
    assert DiskCache(reader).read(0).rows == 50
    assert not list(folder.glob("*.arrow"))


def test_a_process_that_holds_the_folder_is_not_waited_for_without_an_end(folder, monkeypatch):
    monkeypatch.setattr(cache_folder, "_PATIENCE", 0.05)
    shared = CacheFolder(folder, 10_000)
    with (
        shared._alone(),
        pytest.raises(OSError, match="another process holds"),
        shared.create("a", 10),
    ):
        pass
    with shared.create("a", 10) as file:
        file.write(b"x")
    assert shared.find("a") is not None
