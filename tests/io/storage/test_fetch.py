"""Reading from a server that is slow, fails, lies and changes its mind."""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import polars as pl
import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tabfeed import Dataset
from tabfeed.errors import UnreadableFileError
from tabfeed.io.storage import fetch as fetching
from tabfeed.io.storage import remote
from tabfeed.io.storage import retry as retrying
from tabfeed.io.storage.fetch import Range, begin, requests_for
from tabfeed.io.storage.files import FileRef, path_of
from tests.faulty_server import FaultyServer
from tests.waiting import wait_until

TABLE = pa.table({"a": list(range(4000)), "b": [i * 0.5 for i in range(4000)]})


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("served")
    (root / "bucket").mkdir()
    for number in range(3):
        write(root, number)
    return root


def write(root: Path, number: int, table: pa.Table = TABLE) -> None:
    part = table.slice(number * 1000, 1000)
    options: dict[str, Any] = {"compression": "none", "use_dictionary": False}
    pq.write_table(part, root / f"bucket/part_{number}.parquet", row_group_size=250, **options)


@pytest.fixture(scope="module")
def running(folder: Path) -> Iterator[FaultyServer]:
    with FaultyServer(folder=folder) as server:
        yield server


@pytest.fixture
def server(running: FaultyServer) -> FaultyServer:
    running.calm()
    return running


def options_of(kind: str, server: FaultyServer, deadline: float = 20.0) -> dict[str, Any]:
    if kind == "http":
        return {"deadline": deadline}
    s3 = {"key": "k", "secret": "s", "endpoint_url": server.url, "deadline": deadline}
    if kind == "s3fs":  # an option that Arrow lacks
        return {**s3, "client_kwargs": {"region_name": "us-east-1"}, "default_block_size": 2**23}
    return {**s3, "region_name": "us-east-1"}


def paths_of(kind: str, server: FaultyServer, count: int = 3) -> list[str]:
    start = "s3://bucket" if kind == "arrow" else f"{server.url}/bucket"
    return [f"{start}/part_{i}.parquet" for i in range(count)]


def opened(kind: str, server: FaultyServer, deadline: float = 20.0) -> Dataset:
    return Dataset(paths_of(kind, server), storage_options=options_of(kind, server, deadline))


KINDS = pytest.mark.parametrize("kind", ["arrow", "http"])


@KINDS
def test_only_the_columns_asked_for_travel_in_few_requests(kind: str, server: FaultyServer) -> None:
    dataset = opened(kind, server)
    server.calm()
    assert dataset.select(["b"]).to_arrow()["b"].to_pylist() == TABLE["b"].to_pylist()[:3000]
    sent = server.stats()["bytes"]
    assert 3000 * 8 <= sent <= 1.3 * 3000 * 8  # of 16 bytes a row; pages have headers
    server.calm()
    assert dataset.to_arrow().equals(TABLE.slice(0, 3000))
    assert server.count("GET .*part_") == 3  # a file each: its row groups lie side by side


@KINDS
def test_a_second_opening_reads_no_footer(kind: str, server: FaultyServer) -> None:
    opened(kind, server)
    server.calm()
    assert opened(kind, server).num_rows == 3000
    assert server.count("GET .*part_") == 0


@KINDS
@pytest.mark.parametrize("fault", ["500", "503", "reset", "truncate"])
def test_what_may_pass_is_tried_again(kind: str, fault: str, server: FaultyServer) -> None:
    dataset = opened(kind, server)
    server.fail(fault, match="GET .*part_1", times=2)
    assert dataset.to_arrow().equals(TABLE.slice(0, 3000))


@KINDS
@pytest.mark.parametrize("fault", ["hang", "slow"])
def test_an_answer_that_does_not_come_is_asked_for_again(
    kind: str, fault: str, server: FaultyServer
) -> None:
    dataset = opened(kind, server, deadline=8.0)
    server.fail(fault, match="GET .*part_1")
    assert dataset.to_arrow().equals(TABLE.slice(0, 3000))


@KINDS
def test_what_does_not_pass_ends_with_the_name_of_the_object(
    kind: str, server: FaultyServer
) -> None:
    dataset = opened(kind, server, deadline=1.5)
    server.fail("500", match="GET .*part_1", times=10_000)
    with pytest.raises(UnreadableFileError, match=r"part_1\.parquet cannot be read: .*tried \d"):
        dataset.to_arrow()


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


@pytest.mark.parametrize("fault", ["500", "503", "reset"])
@pytest.mark.parametrize("pattern", ["*.parquet", "**/*.parquet", ""])
def test_a_listing_that_fails_midway_is_tried_again(
    fault: str, pattern: str, server: FaultyServer
) -> None:
    options = options_of("s3fs", server)
    for answered in range(3):
        server.calm()
        server.fail(fault, match="GET .*list-type", times=3, after=answered)
        assert Dataset(f"s3://bucket/{pattern}", storage_options=options).num_rows == 3000


def test_a_listing_that_fails_for_good_says_so(server: FaultyServer) -> None:
    options = options_of("s3fs", server, deadline=3.0)
    for answered in range(3):
        server.calm()
        server.fail("503", match="GET .*list-type", times=10_000, after=answered)
        with pytest.raises(UnreadableFileError, match=r"SlowDown.*tried \d+ times in \d\.\d s"):
            Dataset("s3://bucket/*.parquet", storage_options=options)


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
def test_a_dead_server_is_no_hang(kind: str, server: FaultyServer) -> None:
    dataset = opened(kind, server, deadline=1.0)
    server.fail("hang", match="GET .*part_2", times=10_000)
    with pytest.raises(UnreadableFileError, match=r"part_2\.parquet cannot be read: "):
        dataset.to_arrow()


@KINDS
def test_expired_credentials_are_not_tried_again(kind: str, server: FaultyServer) -> None:
    dataset = opened(kind, server)
    server.calm()
    server.fail("403", match="part_0", times=10_000)
    with pytest.raises(UnreadableFileError, match=r"part_0\.parquet cannot be read: ") as caught:
        dataset.read(0)
    assert "tried" not in str(caught.value)
    assert server.stats()["requests"] <= 6  # not the dozens that patience would make of it


@KINDS
def test_an_object_replaced_after_opening_is_noticed(
    kind: str, server: FaultyServer, folder: Path
) -> None:
    dataset = opened(kind, server)
    other = TABLE.set_column(0, "a", pa.array([-i for i in range(4000)]))
    write(folder, 1, other)  # as many bytes, other content
    try:
        with pytest.raises(UnreadableFileError, match=r"part_1\.parquet has changed since"):
            dataset.to_arrow()
        assert opened(kind, server).to_arrow()["a"].to_pylist()[1000] == -1000
    finally:
        write(folder, 1)


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


def test_an_object_that_is_gone(server: FaultyServer, folder: Path) -> None:
    dataset = opened("arrow", server)
    (folder / "bucket/part_2.parquet").unlink()
    try:
        with pytest.raises(UnreadableFileError, match=r"part_2\.parquet"):
            dataset.to_arrow()
    finally:
        write(folder, 2)


def test_a_web_server_without_ranges_is_refused(server: FaultyServer) -> None:
    dataset = opened("http", server)
    server.fail("ignore-range", match="GET .*part_0", times=100)
    with pytest.raises(UnreadableFileError, match="sends the whole object where a part"):
        dataset.read(0, ["a"])


# -- fetching ahead ---------------------------------------------------------------------


def test_what_was_begun_is_found_and_what_is_dropped_is_not_fetched(server: FaultyServer) -> None:
    dataset = opened("arrow", server)
    server.calm()
    held = dataset.begin_read(0)
    assert sum(f.wait().nbytes for f in held) > 0
    before = server.count("GET .*part_0")
    dataset.read(0)
    assert server.count("GET .*part_0") == before
    del held
    dataset.read(0)
    assert server.count("GET .*part_0") == 2 * before


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


# -- how much is asked ------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["arrow", "s3fs"])
def test_a_folder_costs_its_listing_and_the_footers(tmp_path: Path, kind: str) -> None:
    for number in range(30):
        (tmp_path / "bucket/many").mkdir(parents=True, exist_ok=True)
        pq.write_table(TABLE.slice(number, 1), tmp_path / f"bucket/many/{number}.parquet")
    with FaultyServer(folder=tmp_path) as server:
        options = {"key": "k", "secret": "s", "endpoint_url": server.url}
        options |= {"arrow": {}, "s3fs": {"default_block_size": 2**23}}[kind]
        options["client_kwargs"] = {"region_name": "us-east-1"}
        assert Dataset("s3://bucket/many", storage_options=options).num_rows == 30
        assert server.count(r"GET .*\d\.parquet") == 30
        # s3fs has ETags from the listing; Arrow asks for each object's size, and learns its ETag.
        assert server.count(r"HEAD .*\d\.parquet") == {"arrow": 30, "s3fs": 0}[kind]
        assert server.stats()["requests"] <= {"arrow": 80, "s3fs": 55}[kind]


@KINDS
def test_a_list_of_paths_costs_one_look_at_each(
    kind: str, server: FaultyServer, folder: Path
) -> None:
    for number in range(20):
        pq.write_table(TABLE.slice(number, 1), folder / f"bucket/few_{number}.parquet")
    start = "s3://bucket" if kind == "arrow" else f"{server.url}/bucket"
    paths = [f"{start}/few_{i}.parquet" for i in range(20)]
    assert Dataset(paths, storage_options=options_of(kind, server)).num_rows == 20
    assert server.count("HEAD .*few_") == server.count("GET .*few_") == 20
    assert server.stats()["requests"] <= 60


@KINDS
@pytest.mark.parametrize("format", ["csv", "jsonl", "arrow", "avro"])
def test_opening_costs_one_look_and_one_read_of_each(
    kind: str, format: str, server: FaultyServer, folder: Path
) -> None:
    frame = pl.DataFrame({"x": [1, 2]})
    write = {
        "csv": frame.write_csv,
        "jsonl": frame.write_ndjson,
        "arrow": frame.write_ipc,
        "avro": frame.write_avro,
    }[format]
    for number in range(5):
        write(folder / f"bucket/small_{number}.{format}")
    start = "s3://bucket" if kind == "arrow" else f"{server.url}/bucket"
    paths = [f"{start}/small_{i}.{format}" for i in range(5)]
    dataset = Dataset(paths, storage_options=options_of(kind, server))
    assert dataset.schema.column_names == ["x"]
    assert server.count("HEAD .*small_") == server.count("GET .*small_") == 5
    assert dataset.num_rows == 10


@KINDS
def test_a_forked_child_lists_opens_and_reads(kind: str, server: FaultyServer) -> None:
    dataset = opened(kind, server)
    dataset.read(0)
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            rows = dataset.read(1).num_rows + opened(kind, server).num_rows
            status = 0 if rows == 4000 else 2
        finally:
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


# -- which requests bring which ranges -----------------------------------------------

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
