"""A folder whose files are replaced while it is listed, and where a dataset in folders begins."""

from __future__ import annotations

import json
from collections.abc import Iterator

import fsspec
import pytest

from tabfeed.errors import UnfinishedDatasetError
from tabfeed.io.commit.manifest import MANIFEST, Manifest, outermost_key, read_manifest
from tabfeed.io.find_files import find_files
from tabfeed.io.storage.files import RemotePath


@pytest.fixture
def memory() -> Iterator[fsspec.AbstractFileSystem]:
    system = fsspec.filesystem("memory")
    yield system
    system.rm("/tabfeed-test", recursive=True)


def test_a_dataset_that_is_replaced_while_it_is_opened_is_looked_at_again(
    memory: fsspec.AbstractFileSystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The manifest is read, then a writer publishes, then the folder is listed."""
    root = "/tabfeed-test"

    def publish(name: str) -> None:
        for path in memory.find(root):
            memory.rm(path)
        memory.pipe(f"{root}/{name}", b"x")
        listed = json.dumps({"files": [{"name": name, "bytes": 1}]})
        memory.pipe(f"{root}/{MANIFEST}", listed.encode())

    publish("0.parquet")
    times = iter(range(1, 100))
    last = 3

    def read(folder: RemotePath) -> Manifest | None:
        manifest = read_manifest(folder)
        if (number := next(times)) <= last:
            publish(f"{number}.parquet")
        return manifest

    monkeypatch.setattr("tabfeed.io.folder.read_manifest", read)
    assert [f.path for f in find_files("memory://tabfeed-test").files] == [f"{root}/3.parquet"]
    last = 1000
    with pytest.raises(UnfinishedDatasetError, match="replaced again and again"):
        find_files("memory://tabfeed-test")


def test_a_dataset_begins_above_its_key_folders() -> None:
    assert outermost_key("/out/d=1/h=2") == "/out"
