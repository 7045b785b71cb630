"""Every format over HTTP, from a server that stumbles; and the file that Arrow sees."""

from __future__ import annotations

import gzip
import io
from collections.abc import Iterator
from pathlib import Path

import fastavro
import pyarrow as pa
import pytest

from tabfeed import Dataset
from tabfeed.errors import SourceNotFoundError, UnreadableFileError
from tests.faulty_server import FaultyServer
from tests.io.tfrecords import example, frame, ints

ROWS = [{"a": i, "b": f"v{i}"} for i in range(3000)]
CSV = ("a,b\n" + "".join(f"{r['a']},{r['b']}\n" for r in ROWS)).encode()
JSONL = "".join(f'{{"a":{r["a"]},"b":"{r["b"]}"}}\n' for r in ROWS).encode()


def avro() -> bytes:
    fields = [{"name": "a", "type": "long"}, {"name": "b", "type": "string"}]
    sink = io.BytesIO()
    fastavro.writer(
        sink, {"type": "record", "name": "r", "fields": fields}, ROWS, sync_interval=2000
    )
    return sink.getvalue()


def arrow() -> bytes:
    table = pa.Table.from_pylist(ROWS)
    out = pa.BufferOutputStream()
    with pa.ipc.new_file(out, table.schema) as writer:
        writer.write_table(table, max_chunksize=500)
    return bytes(out.getvalue())


CONTENT = {
    "t.csv": CSV,
    "t.csv.gz": gzip.compress(CSV),
    "t.jsonl": JSONL,
    "t.jsonl.gz": gzip.compress(JSONL),
    "t.avro": avro(),
    "t.arrow": arrow(),
}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("web")
    for name, data in CONTENT.items():
        (folder / name).write_bytes(data)
    return folder


@pytest.fixture(scope="module")
def running(root: Path) -> Iterator[FaultyServer]:
    with FaultyServer(folder=root) as server:
        yield server


@pytest.fixture
def server(running: FaultyServer) -> FaultyServer:
    running.calm()
    return running


@pytest.mark.parametrize("name", CONTENT)
def test_every_format(server: FaultyServer, name: str) -> None:
    dataset = Dataset(f"{server.url}/{name}", part_size="20KB")
    server.fail("500", match=f"GET .*{name}")
    server.fail("truncate", match=f"GET .*{name}", after=1)
    assert dataset.to_arrow().to_pylist() == ROWS


@pytest.mark.parametrize("name", ["t.csv", "t.jsonl.gz", "t.avro", "t.arrow"])
def test_a_change_is_noticed_in_every_format(server: FaultyServer, root: Path, name: str) -> None:
    dataset = Dataset(f"{server.url}/{name}", part_size="20KB")
    (root / name).write_bytes(CONTENT[name])  # the same bytes, yet another object
    with pytest.raises(UnreadableFileError, match=rf"{name} has changed since"):
        dataset.to_arrow()


def test_tfrecords(server: FaultyServer, root: Path) -> None:
    records = frame(example({"a": ints(7, 8)})) * 5
    (root / "t.tfrecord").write_bytes(records)
    (root / "u.tfrecord").write_bytes(gzip.compress(records))
    for name in ("t.tfrecord", "u.tfrecord"):
        found = Dataset(f"{server.url}/{name}").to_arrow()
        assert found.to_pydict() == {"a": [[7, 8]] * 5}


def test_what_is_not_there(server: FaultyServer) -> None:
    with pytest.raises((SourceNotFoundError, UnreadableFileError), match=r"nothing\.csv"):
        Dataset(f"{server.url}/nothing.csv")
