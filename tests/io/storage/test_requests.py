"""Requests one by one: how ranges are joined and fetched, what is tried again, and listings."""

from __future__ import annotations

import gc
import os
import threading
from pathlib import Path
from typing import Any

import fsspec
import pyarrow.fs as pafs
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tabfeed.errors import UnreadableFileError
from tabfeed.io.storage import fetch as fetching
from tabfeed.io.storage import remote
from tabfeed.io.storage import retry as retrying
from tabfeed.io.storage.fetch import Range, begin, requests_for
from tabfeed.io.storage.files import FileRef, path_of
from tests.faulty_server import FaultyServer
from tests.io.storage.served import KINDS, TABLE, opened, options_of, paths_of, write
from tests.waiting import wait_until

MIB = 2**20


def test_a_hole_is_read_where_it_is_a_small_part_of_the_whole() -> None:
    wide = [Range(0, 40 * MIB // 4), Range(11 * MIB, 20 * MIB)]
    assert requests_for(wide) == [Range(0, 20 * MIB)]
    narrow = [Range(0, 100), Range(200, 300)]
    assert requests_for(narrow) == narrow
    far = [Range(0, 15 * MIB), Range(20 * MIB, 30 * MIB)]  # 5 MiB: too much whatever is around it
    assert requests_for(far) == far


def test_neighbours_are_joined_up_to_the_largest_request() -> None:
    columns = [Range(i * 10 * MIB, (i + 1) * 10 * MIB) for i in range(4)]
    assert requests_for(columns, 32 * MIB) == [Range(0, 30 * MIB), Range(30 * MIB, 40 * MIB)]


def test_what_is_too_large_for_one_request_is_cut_evenly() -> None:
    cut = requests_for([Range(0, 90)], 40)
    assert cut == [Range(0, 30), Range(30, 60), Range(60, 90)]


def test_overlaps_repeats_and_nothing() -> None:
    assert requests_for([Range(0, 10), Range(5, 20), Range(0, 10), Range(3, 3)]) == [Range(0, 20)]
    assert requests_for([]) == []


@given(st.lists(st.tuples(st.integers(0, 500), st.integers(0, 60)), max_size=12))
def test_every_byte_wanted_comes_once_and_few_others(pairs: list[tuple[int, int]]) -> None:
    wanted = [Range(start, start + size) for start, size in pairs]
    requests = requests_for(wanted, largest=50)
    got = [i for r in requests for i in range(*r)]
    needed = {i for r in wanted for i in range(*r)}
    assert needed <= set(got)
    assert len(got) == len(set(got))
    assert len(got) <= 1.25 * len(needed)
    assert all(0 < r.size <= 50 for r in requests)


class Clock:
    """Time that passes only while one sleeps."""

    now = 0.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.mark.parametrize("luck", [0.5, 1.0, 1.5])
def test_what_fails_is_tried_until_the_deadline(luck: float, monkeypatch) -> None:
    clock = Clock()
    monkeypatch.setattr(retrying, "time", clock)
    monkeypatch.setattr(retrying.random, "uniform", lambda *_: luck)

    def call(_: float) -> float:
        if clock.now < outage:
            raise OSError("HTTP status 503")
        return clock.now

    outage = 29.7
    assert retrying.retry(call, 30.0) < 30
    outage, clock.now = 100.0, 0.0
    with pytest.raises(OSError, match=r"HTTP status 503; tried \d+ times in 29\.8 s"):
        retrying.retry(call, 30.0)


class Folders(fsspec.AbstractFileSystem):
    """A store without a listing of its own for whole trees; each look at a folder may fail."""

    protocol = "folders"
    cachable = False

    def __init__(self, failing: list[str]) -> None:
        super().__init__()
        self.failing = failing

    def ls(self, path: str, detail: bool = True, **_: Any) -> list[dict[str, Any]]:
        """A tree of two folders, which is down where a name is among `failing`."""
        if path in self.failing:
            self.failing.remove(path)
            raise OSError("503 Service Unavailable")
        tree = {"": ["r"], "r": ["r/a", "r/b"], "r/a": ["r/a/x"], "r/b": ["r/b/x"]}
        if path not in tree:
            raise FileNotFoundError(path)
        kinds = {name: "directory" if name in tree else "file" for name in tree[path]}
        return [{"name": n, "size": 0, "type": kind} for n, kind in kinds.items()]


@pytest.mark.parametrize("failing", [[], ["r"], ["r/b"], ["r/a", "r/b"]])
def test_no_folder_is_left_out_of_a_listing(failing: list[str]) -> None:
    def names(system: fsspec.AbstractFileSystem, *, deep: bool) -> list[str]:
        options = remote.RemoteOptions(deadline=20.0)
        arrow = retrying.with_retries(pafs.PyFileSystem(pafs.FSSpecHandler(system)), "", options)
        return [i.path for i in arrow.get_file_info(pafs.FileSelector("r", recursive=deep))]

    assert names(Folders(failing.copy()), deep=True) == ["r/a", "r/b", "r/a/x", "r/b/x"]
    assert names(Folders(failing.copy()), deep=False) == ["r/a", "r/b"]


@KINDS
def test_an_object_replaced_after_listing_is_noticed(
    kind: str, server: FaultyServer, folder: Path
) -> None:
    place = path_of(paths_of(kind, server)[1], options_of(kind, server))
    size = int(place.info().size)
    listed = FileRef(place.name, place.path, place.filesystem, size, remote=place.remote)
    write(folder, 1, TABLE.slice(100))
    pq.write_table(TABLE.slice(0, 10), folder / "bucket/part_1.parquet")
    try:
        with pytest.raises(UnreadableFileError, match="changed since the dataset was listed"):
            listed.pinned()
    finally:
        write(folder, 1)


def test_connections_are_not_exceeded_and_threads_go(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetching, "_IDLE_SECONDS", 0.05)
    monkeypatch.setattr(fetching, "_pools", {})
    others = set(threading.enumerate())
    with FaultyServer(folder=folder, latency=0.05) as slow:
        place = path_of(paths_of("http", slow)[0], {"connections": 2})
        location = FileRef(
            place.name, place.path, place.filesystem, int(place.info().size), remote=place.remote
        ).pinned()
        slow.calm()
        fetches = [begin(location, [Range(i * 2000, i * 2000 + 500)]) for i in range(6)]
        for i, fetch in enumerate(fetches):
            assert fetch.wait().get(i * 2000, i * 2000 + 500) is not None
        assert 2 <= slow.stats()["most"] <= 4  # two that read, two that look at versions
    del fetches, fetch
    gc.collect()
    wait_until(lambda: all(t.name != "tabfeed-fetch" for t in set(threading.enumerate()) - others))


def test_a_forked_child_reads_with_connections_of_its_own(server: FaultyServer) -> None:
    datasets = [opened(kind, server) for kind in ("arrow", "http")]
    for dataset in datasets:
        dataset.read(0)  # connections and threads there before the fork
    with fetching._begun_lock, fetching._pools_lock, remote._remotes_lock:
        pid = os.fork()  # as if threads of the parent were inside
    if pid == 0:
        status = 1
        try:
            wrong = [d for d in datasets if not d.to_arrow().equals(TABLE.slice(0, 3000))]
            status = 2 if wrong else 0
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def test_without_a_version_an_object_is_read_all_the_same() -> None:
    memory = fsspec.filesystem("memory")
    memory.pipe("/test_fetch/x", b"0123456789" * 20_000)
    try:
        place = path_of("memory://test_fetch/x")
        location = FileRef(place.name, place.path, place.filesystem, 200_000, remote=place.remote)
        with location.open() as file:
            assert file.read(4) == b"0123"
            assert file.size() == 200_000
            file.seek(99_999)
            assert [file.read(60_001)[:2], file.read(40_000)[-2:], file.read(1)] == [
                b"90",
                b"89",
                b"",
            ]
    finally:
        memory.rm("/test_fetch", recursive=True)


# -- a file of bytes -----------------------------------------------------------------------


def located(server: FaultyServer) -> FileRef:
    place = path_of(f"{server.url}/digits")
    return FileRef(place.name, place.path, place.filesystem, 2**20, remote=place.remote).pinned()


def test_announced_ranges_come_in_one_request(server: FaultyServer) -> None:
    server.calm()
    ranges = [Range(100, 2000), Range(2000, 4000), Range(4010, 9000)]
    with located(server).open(ranges) as file:
        assert file.size() == 2**20
        for start, stop in ranges:
            assert file.read_at(stop - start, start) == bytes(i % 256 for i in range(start, stop))
    assert server.count("GET /digits") == 1


def test_reading_on_fetches_ahead_in_growing_steps(server: FaultyServer) -> None:
    server.calm()
    with located(server).open() as file:
        got = b"".join(iter(lambda: file.read(10_000), b""))
    assert got == bytes(range(256)) * 4096
    assert 3 <= server.count("GET /digits") <= 8  # of 64 KiB, 128 KiB, 256 KiB, ...


def test_jumping_about_fetches_little(server: FaultyServer) -> None:
    server.calm()
    with located(server).open() as file:
        for start in (900_000, 10, 500_000, 2**20 - 5):
            file.seek(start)
            assert file.read(5) == bytes((start + i) % 256 for i in range(5))
    assert server.stats()["bytes"] <= 4 * 2**16
