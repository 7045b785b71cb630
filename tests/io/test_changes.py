"""A file that is replaced after it was opened, by one with as many bytes, is noticed."""

from __future__ import annotations

import gzip
import os
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tabfeed import Dataset
from tabfeed.errors import UnreadableFileError
from tabfeed.loader.torch import Loader
from tests.io.storage.test_remote_file import CONTENT
from tests.io.tfrecords import example, frame, ints


def content(name: str) -> bytes:
    table = pa.table({"a": list(range(3000)), "b": [i * 0.5 for i in range(3000)]})
    sink = pa.BufferOutputStream()
    if name.endswith("parquet"):
        pq.write_table(table, sink, row_group_size=500)
    elif name == "stream.arrow":
        with pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table, max_chunksize=500)
    elif name.startswith("t.tfrecord"):
        records = b"".join(frame(example({"a": ints(i)})) for i in range(3000))
        return gzip.compress(records) if name.endswith("gz") else records
    else:
        return CONTENT[name]
    return bytes(sink.getvalue())


NAMES = ["t.parquet", "stream.arrow", "t.tfrecord", "t.tfrecord.gz", *CONTENT]


@pytest.mark.parametrize(
    "how", ["another file", "the same file, written anew", "the same file, its time set back"]
)
@pytest.mark.parametrize("name", NAMES)
def test_every_format(tmp_path: Path, name: str, how: str) -> None:
    path = tmp_path / name
    path.write_bytes(content(name))
    if how.endswith("set back") and not os.major(path.stat().st_dev):
        pytest.skip("of files on network filesystems, only size and time of writing are compared")
    dataset = Dataset(str(path), part_size="10KB")
    dataset.read(0)
    change(path, how)
    with pytest.raises(UnreadableFileError, match=f"{name} has changed since the dataset was op"):
        dataset.read(dataset.npartitions - 1)
    assert Dataset(str(path)).to_arrow().num_rows == 3000


def change(path: Path, how: str) -> None:
    before = path.stat()
    if how == "another file":
        path.with_suffix(".new").write_bytes(path.read_bytes())
        path.with_suffix(".new").replace(path)
        return
    path.write_bytes(path.read_bytes())
    later = 0 if how.endswith("set back") else 4_000_000
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns + later))
    while path.stat().st_ctime_ns == before.st_ctime_ns:  # the clock of a filesystem is coarse
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns + later))


@pytest.mark.parametrize("name", ["t.parquet", "stream.arrow"])
def test_a_loader_in_mid_epoch(tmp_path: Path, name: str) -> None:
    for number in range(40):
        (tmp_path / f"{number:02}_{name}").write_bytes(content(name))
    # One thread, a few rows ahead: what is far off has not been read when the first batch comes.
    near = {"threads": 1, "depth": 1, "host_memory": 200_000}
    batches = iter(Loader(Dataset(str(tmp_path)), 500, columns=["a"], **near))
    next(batches)
    for path in tmp_path.iterdir():
        change(path, "the same file, written anew")
    with pytest.raises(UnreadableFileError, match=f"{name} has changed since the dataset was op"):
        list(batches)


def test_other_rights_and_links_are_no_change(tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    path.write_bytes(content(path.name))
    alone = Dataset(str(path), part_size="10KB")
    whole = alone.to_arrow()
    path.chmod(0o400)
    assert alone.to_arrow().equals(whole)
    os.link(path, tmp_path / "monday")
    assert alone.to_arrow().equals(whole)
    linked = Dataset(str(path), part_size="10KB")
    os.link(path, tmp_path / "tuesday")
    (tmp_path / "monday").unlink()  # as many links as when it was opened
    assert linked.to_arrow().equals(whole)
    (tmp_path / "tuesday").unlink()
    assert linked.to_arrow().equals(whole)
