"""Files on other filesystems, and what goes wrong there; each format is tested by its own name."""

import gzip
import io
import sys
import threading
from itertools import pairwise
from pathlib import Path
from typing import Any

import fastavro
import fsspec
import pyarrow as pa
import pyarrow.fs as pafs
import pytest

from tabfeed.errors import BadFileError, UnreadableFileError
from tabfeed.io import ReadOptions
from tabfeed.io.formats.avro import open_avro
from tabfeed.io.formats.ipc import open_ipc
from tabfeed.io.formats.text.base import LineRanges
from tabfeed.io.formats.text.csv import open_csv
from tabfeed.io.formats.text.jsonl import open_jsonl
from tabfeed.io.formats.text.stream import Text, last_line_end
from tabfeed.io.storage.files import FileRef
from tests.io.data_files import check_data_file, write

TABLE = pa.table({"a": list(range(500)), "b": [f"v{i}" for i in range(500)]})
SMALL = ReadOptions(block_size=700)


def as_bytes(kind: str) -> bytes:
    rows = TABLE.to_pylist()
    if kind.startswith("csv"):
        return ("a,b\n" + "".join(f"{r['a']},{r['b']}\n" for r in rows)).encode()
    if kind.startswith("jsonl"):
        return "".join(f'{{"a":{r["a"]},"b":"{r["b"]}"}}\n' for r in rows).encode()
    if kind == "avro":
        fields = [{"name": "a", "type": "long"}, {"name": "b", "type": "string"}]
        sink = io.BytesIO()
        schema = fastavro.parse_schema({"type": "record", "name": "r", "fields": fields})
        fastavro.writer(sink, schema, rows, sync_interval=200)
        return sink.getvalue()
    out = pa.BufferOutputStream()
    new = pa.ipc.new_file if kind == "arrow" else pa.ipc.new_stream
    with new(out, TABLE.schema) as writer:
        writer.write_table(TABLE, max_chunksize=70)
    return out.getvalue().to_pybytes()


OPEN: dict[str, Any] = {
    "csv": open_csv,
    "csv.gz": open_csv,
    "jsonl": open_jsonl,
    "jsonl.gz": open_jsonl,
    "avro": open_avro,
    "arrow": open_ipc,
    "arrows": open_ipc,
}


@pytest.mark.parametrize("kind", OPEN)
def test_other_filesystems(tmp_path: Path, kind: str) -> None:
    """By way of fsspec, as URLs are; its memory filesystem has one position for all readers."""
    data = as_bytes(kind)
    path = tmp_path / f"t.{kind}"
    path.write_bytes(gzip.compress(data) if kind.endswith(".gz") else data)
    filesystem = pafs.PyFileSystem(pafs.FSSpecHandler(fsspec.filesystem("file")))
    file = OPEN[kind](FileRef(f"far:{path}", str(path), filesystem, path.stat().st_size), SMALL)
    assert len(file.unit_rows) > 5
    check_data_file(file, TABLE)


class Locked(FileRef):
    """A file that may not be read."""

    def open(self) -> pa.NativeFile:
        raise PermissionError(13, "Permission denied")

    stream = open


@pytest.mark.parametrize("kind", ["csv", "csv.gz", "jsonl", "avro"])
def test_forbidden(tmp_path: Path, kind: str) -> None:
    place = write(tmp_path / f"t.{kind}", as_bytes(kind))
    locked = Locked(place.name, place.path, place.filesystem, place.size)
    with pytest.raises(UnreadableFileError, match=rf"t\.{kind} may not be read: Permission"):
        OPEN[kind](locked, SMALL)


def test_forbidden_arrow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: str) -> pa.NativeFile:
        raise PermissionError(13, "Permission denied")

    location = write(tmp_path / "t.arrow", as_bytes("arrow"))
    monkeypatch.setattr(pa, "memory_map", refuse)
    with pytest.raises(UnreadableFileError, match="may not be read"):
        open_ipc(location, SMALL)


def test_ranges_cover_every_line_once(tmp_path: Path) -> None:
    lines = [b"x" * n + b"\n" for n in (3, 0, 50, 1, 1, 1, 20, 0, 0, 9)]
    location = write(tmp_path / "t", b"head\n" + b"".join(lines))
    for size in range(1, 100):
        ranges = LineRanges(location, 5, size)
        bounds = [ranges[i] for i in reversed(range(len(ranges)))][::-1]
        assert bounds[0][0] == 5
        assert bounds[-1][1] == location.size
        assert all(a[1] == b[0] for a, b in pairwise(bounds))
        text = Path(location.path).read_bytes()
        assert all(text[end - 1 : end] == b"\n" for _, end in bounds)
        assert sum(ranges.nbytes(i) for i in range(len(ranges))) == location.size - 5


def find_cuts(ranges: LineRanges) -> None:
    for i in range(1000, 9000):
        ranges._bounds[i] = 10 * i


def test_ranges_are_divided_while_other_threads_find_cuts(tmp_path: Path) -> None:
    location = write(tmp_path / "t", b"1\n" * 50_000)
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        for _ in range(10):
            ranges = LineRanges(location, 0, 10)
            ranges._bounds.update((i, 10 * i) for i in range(1000))
            thread = threading.Thread(target=find_cuts, args=(ranges,))
            thread.start()
            while thread.is_alive():
                divided = ranges.divided(2)
                assert (len(divided), divided[0]) == (2 * len(ranges), (0, 6))
            thread.join()
    finally:
        sys.setswitchinterval(interval)


def test_rows_as_they_stream_by(tmp_path: Path) -> None:
    text = Text(write(tmp_path / "t", b"1\n22\n333\n4"))
    assert list(text.rows(0, 5, last_line_end)) == [b"1\n22\n", b"333\n", b"4"]
    assert list(text.rows(2, 2, last_line_end, left=7)) == [b"22\n", b"333\n"]
    assert list(text.rows(10, 5, last_line_end)) == []
    with pytest.raises(BadFileError, match="changed its length"):
        list(text.rows(0, 5, last_line_end, left=11))


def test_streams_that_are_behind_are_resumed(tmp_path: Path) -> None:
    text = Text(write(tmp_path / "t.gz", gzip.compress(b"0123456789")))
    with text.at(2) as first, text.at(5) as second:
        assert (first(2), second(2)) == (b"23", b"56")
    assert sorted(s.position for s in text._idle) == [4, 7]
    with text.at(6) as read:  # from 4, not from the start and not from 7
        assert read(100) == b"6789"
    assert sorted(s.position for s in text._idle) == [7, 10]
    with text.at(0) as read:
        assert read(1) == b"0"
