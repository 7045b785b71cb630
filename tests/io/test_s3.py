"""A real S3 server (moto's), behind one that counts and fails: listing, reading, writing."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow.fs as pafs
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
from tabfeed.io.commit import JOURNAL, MANIFEST, STAGING
from tabfeed.io.filesystem import place_of
from tabfeed.io.s3 import in_arrows_terms
from tests.faulty_server import FaultyServer

ROWS = {"x": list(range(9000)), "g": [i % 3 for i in range(9000)]}


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


@pytest.mark.parametrize("kind", ["arrow", "s3fs"])
def test_writing_listing_and_reading(store: Store, kind: str) -> None:
    options, url = store.options(kind), f"s3://data/{kind}"
    written = Dataset(ROWS, npartitions=3).to_parquet(f"{url}/plain", storage_options=options)
    assert written.files == [f"{url}/plain/part_{i}.parquet" for i in range(3)]
    assert store.keys(f"{kind}/plain") == [MANIFEST, *(f"part_{i}.parquet" for i in range(3))]
    assert written.to_arrow().to_pydict() == ROWS
    some = Dataset(f"{url}/plain/part_[01].parquet", storage_options=options)
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
    assert store.keys(f"{kind}/plain") == [MANIFEST, "part_0.parquet"]
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
    with pytest.raises(UnreadableFileError, match=r"s3://data/x cannot be found: .*ACCESS_DENIED"):
        Dataset("s3://data/x", storage_options=store.options())
    with pytest.raises(UnreadableFileError, match=r"http.*/x cannot be found: .*403"):
        Dataset(f"{store.server.url}/x")


def test_nothing_is_seen_of_a_writing_that_failed(store: Store) -> None:
    options, url = store.options(), "s3://data/failed"
    Dataset({"x": [1, 2]}).to_parquet(url, storage_options=options)
    store.server.fail("403", match=f"(PUT|POST) .*{STAGING}/part_1", times=1000)
    with pytest.raises(WriteError, match=r"s3://data/failed.*before is untouched"):
        Dataset(ROWS, npartitions=3).to_parquet(url, overwrite=True, storage_options=options)
    store.server.calm()
    assert Dataset(url, storage_options=options).to_arrow().to_pydict() == {"x": [1, 2]}
    assert store.keys("failed") == [MANIFEST, "part_0.parquet"]


def test_the_manifest_is_put_last_and_a_half_replaced_folder_is_refused(store: Store) -> None:
    options, url = store.options(), "s3://data/half"
    Dataset({"x": [1, 2]}).to_parquet(url, storage_options=options)
    store.server.fail("403", match=f"PUT .*half/{MANIFEST}", times=1000)
    with pytest.raises(WriteError, match="some of its files are old and some new"):
        Dataset(ROWS).to_parquet(url, overwrite=True, storage_options=options)
    store.server.calm()
    assert JOURNAL in store.keys("half")
    with pytest.raises(UnfinishedDatasetError, match="half replaced"):
        Dataset(url, storage_options=options)
    again = Dataset(ROWS).to_parquet(url, storage_options=options)  # completes it
    assert again.num_rows == 9000
    assert store.keys("half") == [MANIFEST, "part_0.parquet"]


def test_a_server_that_stumbles_while_it_is_written_to(store: Store) -> None:
    store.server.fail("500", match="(PUT|POST) ", times=2, after=2)
    url, options = "s3://data/stumble", store.options()
    assert Dataset(ROWS).to_parquet(url, storage_options=options).num_rows == 9000


# -- options ----------------------------------------------------------------------------


def test_options_that_arrow_lacks_go_to_s3fs() -> None:
    names = {"key": "k", "secret": "s", "endpoint_url": "http://localhost:1"}
    assert isinstance(place_of("s3://b/a", names).filesystem, pafs.S3FileSystem)
    other = place_of("s3://b/a", {**names, "requester_pays": True})
    assert isinstance(other.filesystem, pafs.PyFileSystem)
    assert other.name == place_of("s3://b/a", names).name == "s3://b/a"
    assert in_arrows_terms({"key": "k"}) is None  # half a credential
    assert in_arrows_terms({"anon": True, "use_ssl": False}) == {
        "anonymous": True,
        "scheme": "http",
    }


@pytest.mark.parametrize("bad", [{"connections": 0}, {"deadline": 0}, {"connections": True}])
def test_our_own_options_are_checked(bad: dict[str, Any]) -> None:
    with pytest.raises(ArgumentError, match=f"{next(iter(bad))} is"):
        place_of("memory://x", bad)
