"""A real S3 server (moto's), behind one that counts and fails: listing, reading, writing."""

from __future__ import annotations

import io
import json
import logging
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tabfeed import Dataset
from tabfeed.errors import (
    ArgumentError,
    DatasetExistsError,
    SourceNotFoundError,
    UnfinishedDatasetError,
    UnreadableFileError,
    WriteError,
)
from tabfeed.execute import LocalExecutor
from tests.faulty_server import FaultyServer

MANIFEST, JOURNAL, STAGING = "_tabfeed.json", "_tabfeed_commit.json", "_tabfeed_writing"
ROWS = {"x": list(range(9000)), "g": [i % 3 for i in range(9000)]}

KINDS = pytest.mark.parametrize("kind", ["arrow", "s3fs"])
TRIED = r"(500|INTERNAL_FAILURE|InternalError|no).*; tried \d+ times in \d\.\d s\. Check the"


@dataclass
class Store:
    server: FaultyServer
    client: Any  # boto3's

    def options(self, kind: str = "arrow") -> dict[str, Any]:
        given = {"key": "k", "secret": "s", "endpoint_url": self.server.url}
        extra = {"arrow": {}, "s3fs": {"default_block_size": 2**23}}[kind]
        return {**given, "client_kwargs": {"region_name": "us-east-1"}, **extra}

    def keys(self, prefix: str) -> list[str]:
        found = self.client.list_objects_v2(Bucket="data", Prefix=prefix).get("Contents", [])
        names = [str(o["Key"]) for o in found]
        return sorted(n.removeprefix(f"{prefix}/") for n in names if not n.endswith("/"))

    def put(self, key: str, body: bytes = b"") -> None:
        self.client.put_object(Bucket="data", Key=key, Body=body)


def during(rows: dict[str, list[int]], hook: Callable[[], None]) -> Dataset:
    """A dataset of two partitions; writing it calls `hook` before it has read the second."""

    def watch(table: pa.Table) -> pa.Table:
        if table["x"][0].as_py() == rows["x"][-1]:
            hook()
        return table

    ds = Dataset(rows, npartitions=2)
    return ds.map(watch, schema=ds.schema)


def unmarked(names: list[str]) -> list[str]:
    """Names without the mark of the writer."""
    return [re.sub("-w[0-9a-f]{16}", "", name) for name in names]


@pytest.fixture(scope="module")
def running() -> Iterator[Store]:
    pytest.importorskip("moto")
    import boto3
    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    moto = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    moto.start()
    host, port = moto.get_host_and_port()
    keys = {"aws_access_key_id": "k", "aws_secret_access_key": "s", "region_name": "us-east-1"}
    client = boto3.client("s3", endpoint_url=f"http://{host}:{port}", **keys)
    client.create_bucket(Bucket="data")
    try:
        with FaultyServer(upstream=f"http://{host}:{port}") as server:
            yield Store(server, client)
    finally:
        client.close()
        moto.stop()


@pytest.fixture
def store(running: Store) -> Store:
    running.server.calm()
    return running


@KINDS
def test_writing_listing_and_reading(store: Store, kind: str) -> None:
    options, url = store.options(kind), f"s3://data/{kind}"
    written = Dataset(ROWS, npartitions=3).to_parquet(f"{url}/plain", storage_options=options)
    keys = store.keys(f"{kind}/plain")
    assert written.files == [f"{url}/plain/{name}" for name in keys[1:]]
    assert unmarked(keys) == [MANIFEST, *(f"part_{i}.parquet" for i in range(3))]
    assert written.to_arrow().to_pydict() == ROWS
    some = Dataset(f"{url}/plain/part_[01]-*.parquet", storage_options=options)
    assert some.files == written.files[:2]
    assert some.num_rows == 6000

    hive = written.to_parquet(f"{url}/hive", partition_on="g", storage_options=options)
    days = Dataset(f"{url}/hive", filters=[("g", "==", 2)], storage_options=options)
    assert days.to_arrow()["x"].to_pylist() == ROWS["x"][2::3]
    assert len(hive.files) == 9

    with pytest.raises(DatasetExistsError, match=f"{url}/plain already holds"):
        Dataset(ROWS).to_parquet(f"{url}/plain", storage_options=options)
    replaced = Dataset(ROWS).to_parquet(
        f"{url}/plain", output_files=1, overwrite=True, storage_options=options
    )
    assert replaced.num_rows == 9000
    assert unmarked(store.keys(f"{kind}/plain")) == [MANIFEST, "part_0.parquet"]
    with pytest.raises(SourceNotFoundError, match=f"no file or folder {url}/palin"):
        Dataset(f"{url}/palin", storage_options=options)


def test_the_environment_is_enough(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    Dataset({"x": [1, 2]}).to_parquet("s3://data/env", storage_options=store.options())
    for name, value in (
        ("AWS_ACCESS_KEY_ID", "k"),
        ("AWS_SECRET_ACCESS_KEY", "s"),
        ("AWS_ENDPOINT_URL", store.server.url),
        ("AWS_REGION", "us-east-1"),
    ):
        monkeypatch.setenv(name, value)
    assert Dataset("s3://data/env").to_arrow().to_pydict() == {"x": [1, 2]}


def test_a_listing_that_is_refused_or_fails_names_the_place(store: Store) -> None:
    store.server.fail("403", times=1000)
    with pytest.raises(UnreadableFileError, match=r"s3://data/x may not be read: .*ACCESS_DENIED"):
        Dataset("s3://data/x", storage_options=store.options())
    with pytest.raises(UnreadableFileError, match=r"http.*/x may not be read: .*403"):
        Dataset(f"{store.server.url}/x")


def test_nothing_is_seen_of_a_writing_that_failed(store: Store) -> None:
    options, url = store.options(), "s3://data/failed"
    Dataset({"x": [1, 2]}).to_parquet(url, storage_options=options)
    store.server.fail("403", match=f"(PUT|POST) .*{STAGING}/[^/]*/part_1", times=1000)
    with pytest.raises(WriteError, match=r"s3://data/failed.*before is untouched"):
        Dataset(ROWS, npartitions=3).to_parquet(url, overwrite=True, storage_options=options)
    store.server.calm()
    assert Dataset(url, storage_options=options).to_arrow().to_pydict() == {"x": [1, 2]}
    assert unmarked(store.keys("failed")) == [MANIFEST, "part_0.parquet"]


@pytest.mark.parametrize("kind", ["arrow", "s3fs"])
def test_a_manifest_that_cannot_be_put_leaves_the_old_dataset(store: Store, kind: str) -> None:
    options, url = store.options(kind), f"s3://data/half_{kind}"
    Dataset({"x": [1, 2]}).to_parquet(url, storage_options=options)
    before = store.keys(f"half_{kind}")
    store.server.fail("403", match=f"PUT .*half_{kind}/{MANIFEST}", times=1000)
    with pytest.raises(WriteError, match=f"could not write {url}: .*before is untouched"):
        Dataset(ROWS).to_parquet(url, overwrite=True, storage_options=options)
    store.server.calm()
    assert Dataset(url, storage_options=options).to_arrow().to_pydict() == {"x": [1, 2]}
    assert store.keys(f"half_{kind}") == before
    again = Dataset(ROWS).to_parquet(url, overwrite=True, storage_options=options)
    assert again.num_rows == 9000
    assert unmarked(store.keys(f"half_{kind}")) == [MANIFEST, "part_0.parquet"]


def test_a_manifest_whose_answer_is_lost_is_published_once(store: Store) -> None:
    """The request is sent again, and then the condition does not hold any more."""
    options, url = store.options(), "s3://data/lost"
    store.server.fail("lost", match=f"PUT .*lost/{MANIFEST}", times=1)
    Dataset(ROWS).to_parquet(url, storage_options=options)
    assert store.server.count(f"PUT .*lost/{MANIFEST}") > 1
    assert Dataset(url, storage_options=options).num_rows == 9000


def test_a_half_replaced_folder_of_an_older_tabfeed_is_completed(store: Store) -> None:
    options, url = store.options(), "s3://data/older"
    store.put(f"older/{JOURNAL}", json.dumps({"writing": ["b"], "removing": ["a"]}).encode())
    for name in ("a", "b", "mine", f"{STAGING}/c"):
        store.put(f"older/{name}")
    with pytest.raises(UnfinishedDatasetError, match="half replaced"):
        Dataset(url, storage_options=options)
    Dataset(ROWS).to_parquet(url, storage_options=options)
    assert Dataset(url, storage_options=options).num_rows == 9000
    assert unmarked(store.keys("older")) == [MANIFEST, "mine", "part_0.parquet"]


def test_a_dataset_of_an_older_tabfeed_opens_and_is_replaced(store: Store) -> None:
    options, url = store.options(), "s3://data/plain_names"
    body = io.BytesIO()
    pq.write_table(pa.table({"x": [1, 2]}), body)
    entry = {"name": "part_0.parquet", "bytes": body.tell(), "rows": 2}
    store.put("plain_names/part_0.parquet", body.getvalue())
    store.put(f"plain_names/{MANIFEST}", json.dumps({"files": [entry], "schema": None}).encode())
    assert Dataset(url, storage_options=options).to_arrow().to_pydict() == {"x": [1, 2]}
    Dataset(ROWS).to_parquet(url, overwrite=True, storage_options=options)
    assert Dataset(url, storage_options=options).num_rows == 9000
    assert unmarked(store.keys("plain_names")) == [MANIFEST, "part_0.parquet"]
    assert "plain_names/part_0.parquet" not in store.keys("plain_names")


# -- several writers --------------------------------------------------------------------


@pytest.fixture(params=["arrow", "s3fs", "without s3fs"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """How the store is reached; without s3fs there are no conditional requests."""
    if request.param == "without s3fs":
        monkeypatch.setattr("tabfeed.io.commit.object_store._s3fs", lambda filesystem: None)
    return "s3fs" if request.param == "s3fs" else "arrow"


@pytest.mark.parametrize("there", [False, True])
def test_of_two_writers_the_one_that_publishes_second_fails(
    store: Store, way: str, there: bool, request: pytest.FixtureRequest
) -> None:
    folder = request.node.name.replace("[", "_").replace("]", "")
    options, url = store.options(way), f"s3://data/{folder}"
    if there:
        Dataset({"x": [0]}).to_parquet(url, storage_options=options)

    def publish_first() -> None:
        Dataset({"x": [1, 2]}).to_parquet(url, overwrite=True, storage_options=options)
        staged = [k for k in store.keys(folder) if STAGING in k and "part_0" in k]
        assert len(staged) == 1  # the late one's is left alone

    late = during({"x": [8, 9]}, publish_first)
    one = LocalExecutor(threads=1)
    with pytest.raises(WriteError, match=r"another writer published .* first.*nothing of this one"):
        late.to_parquet(url, overwrite=True, storage_options=options, output_files=2, executor=one)
    assert Dataset(url, storage_options=options).to_arrow().to_pydict() == {"x": [1, 2]}
    assert unmarked(store.keys(folder)) == [MANIFEST, "part_0.parquet"]


def test_what_a_dead_writer_left_is_removed_and_a_living_one_is_left_alone(
    store: Store, way: str, request: pytest.FixtureRequest
) -> None:
    folder = request.node.name.replace("[", "_").replace("]", "").replace(" ", "_")
    options, url = store.options(way), f"s3://data/{folder}"
    Dataset({"x": [1, 2]}).to_parquet(url, storage_options=options)
    before = store.keys(folder)
    dead, living = "0" * 16, "1" * 16
    for writer, renewed in ((dead, time.time() - 3600), (living, time.time())):
        copied = f"part_0-w{writer}.parquet"
        sign = {"machine": "another", "renewed": renewed, "writing": [copied]}
        store.put(
            f"{folder}/{STAGING}/{writer}/writer.json",
            json.dumps({**sign, "removing": []}).encode(),
        )
        store.put(f"{folder}/{STAGING}/{writer}/part_0.parquet", b"staged")
        store.put(f"{folder}/{copied}", b"copied")
        for name in (f"{STAGING}/{writer}/part_1.parquet", f"part_1-w{writer}.parquet"):
            store.client.create_multipart_upload(Bucket="data", Key=f"{folder}/{name}")
    assert Dataset(url, storage_options=options).to_arrow().to_pydict() == {"x": [1, 2]}

    def look() -> None:
        kept = [k for k in store.keys(folder) if k not in before]
        assert len([k for k in kept if dead in k]) == 3  # until the manifest has changed

    during({"x": [8, 9]}, look).to_parquet(url, overwrite=True, storage_options=options)
    kept = [k for k in store.keys(folder) if k not in before]
    assert not [k for k in kept if dead in k]
    assert len([k for k in kept if living in k]) == 3
    uploads = store.client.list_multipart_uploads(Bucket="data", Prefix=folder).get("Uploads", [])
    if request.node.callspec.params["way"] != "without s3fs":
        assert len(uploads) == 2
        assert all(living in u["Key"] for u in uploads)


def test_a_writer_taken_for_dead_gives_up(store: Store, way: str) -> None:
    options, url = store.options(way), f"s3://data/evicted_{way}"

    def evict() -> None:
        keys = store.keys(f"evicted_{way}")
        assert len([k for k in keys if k.endswith("part_0.parquet")]) == 1
        for key in keys:
            store.client.delete_object(Bucket="data", Key=f"evicted_{way}/{key}")

    evicted, one = during({"x": [8, 9]}, evict), LocalExecutor(threads=1)
    with pytest.raises(WriteError, match="took this one for dead"):
        evicted.to_parquet(url, storage_options=options, output_files=2, executor=one)
    assert store.keys(f"evicted_{way}") == []


def test_an_object_of_the_same_size_that_is_another_is_refused(store: Store) -> None:
    options, url = store.options(), "s3://data/etag"
    (name,) = Dataset({"x": [1, 2]}).to_parquet(url, storage_options=options).files
    key = name.removeprefix("s3://data/")
    body = store.client.get_object(Bucket="data", Key=key)["Body"].read()
    store.client.copy_object(Bucket="data", Key=f"copy/{key[5:]}", CopySource=f"data/{key}")
    store.put(key, body[:10] + bytes([body[10] ^ 1]) + body[11:])
    with pytest.raises(UnfinishedDatasetError, match=r"is another object than the one .* ETag"):
        Dataset(url, storage_options=options)


def test_a_copy_of_a_dataset_may_have_other_etags(store: Store) -> None:
    options, url = store.options(), "s3://data/original"
    Dataset({"x": [1, 2]}).to_parquet(url, storage_options=options)
    for name in store.keys("original"):
        body = store.client.get_object(Bucket="data", Key=f"original/{name}")["Body"].read()
        if name == MANIFEST:
            body = re.sub(rb'"etag": "[^"]*"', b'"etag": "none"', body)
        store.put(f"copied/{name}", body)
    copied = Dataset("s3://data/copied", storage_options=options)
    assert copied.to_arrow().to_pydict() == {"x": [1, 2]}


def test_a_server_that_stumbles_while_it_is_written_to(store: Store) -> None:
    store.server.fail("500", match="(PUT|POST) ", times=2, after=2)
    url, options = "s3://data/stumble", store.options()
    assert Dataset(ROWS).to_parquet(url, storage_options=options).num_rows == 9000


@KINDS
def test_an_outage_while_opening_is_waited_for(store: Store, kind: str) -> None:
    options, url = store.options(kind), f"s3://data/outage_{kind}"
    Dataset(ROWS, npartitions=2).to_parquet(url, storage_options=options)
    for request in ("HEAD", "GET .*list-type", "GET .*part"):
        store.server.fail("500", match=request, times=9)
        assert Dataset(url, storage_options=options).num_rows == 9000
        store.server.calm()


@KINDS
def test_an_outage_while_writing_is_waited_for(store: Store, kind: str) -> None:
    options, url = store.options(kind), f"s3://data/stumble_{kind}"
    for request in ("(PUT|POST) .*part", "HEAD", "(POST|DELETE)"):
        store.server.fail("500", match=request, times=6)
        written = Dataset(ROWS).to_parquet(url, overwrite=True, storage_options=options)
        assert written.to_arrow().to_pydict() == ROWS
        store.server.calm()


@KINDS
def test_an_outage_that_lasts_says_what_happened(store: Store, kind: str) -> None:
    url, options = f"s3://data/down_{kind}", {**store.options(kind), "deadline": 3.0}
    Dataset({"x": [1, 2]}).to_parquet(url, storage_options=options)
    store.server.fail("500", times=10_000)
    with pytest.raises(UnreadableFileError, match=TRIED) as caught:
        Dataset(url, storage_options=options)
    assert f"{url} cannot be opened: " in str(caught.value)
    store.server.calm()
    store.server.fail("500", match="(PUT|POST) ", times=10_000)
    # On a busy machine the server may not get to its answer in the time that is left.
    with pytest.raises(
        WriteError, match=f"could not write {url}.*(500|INTERNAL|Internal|no answer)"
    ) as failed:
        Dataset(ROWS).to_parquet(url, overwrite=True, storage_options=options)
    assert "Check the server and the network" in str(failed.value)
    assert "space" not in str(failed.value)
    store.server.calm()


@KINDS
def test_missing_rights_are_an_error_at_once(store: Store, kind: str) -> None:
    url, options = f"s3://data/rights_{kind}", store.options(kind)
    Dataset({"x": [1, 2]}).to_parquet(url, storage_options=options)
    store.server.fail("403", match="(PUT|POST) ", times=10_000)
    with pytest.raises(WriteError, match="Check the credentials and what they allow") as caught:
        Dataset(ROWS).to_parquet(url, overwrite=True, storage_options=options)
    assert "tried" not in str(caught.value)
    store.server.fail("403", times=10_000)
    with pytest.raises(UnreadableFileError, match=f"{url} may not be read: ") as refused:
        Dataset(url, storage_options=options)
    assert "tried" not in str(refused.value)
    store.server.calm()


# -- options ----------------------------------------------------------------------------


@pytest.mark.parametrize("bad", [{"connections": 0}, {"deadline": 0}, {"connections": True}])
def test_our_own_options_are_checked(bad: dict[str, Any]) -> None:
    with pytest.raises(ArgumentError, match=f"{next(iter(bad))} is"):
        Dataset("memory://x", storage_options=bad)
