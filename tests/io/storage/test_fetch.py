"""Reading from a server that is slow, fails, lies and changes its mind."""

from __future__ import annotations

import os
from pathlib import Path

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tabfeed import Dataset
from tabfeed.errors import UnreadableFileError
from tests.faulty_server import FaultyServer
from tests.io.storage.served import KINDS, TABLE, opened, options_of, write


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
