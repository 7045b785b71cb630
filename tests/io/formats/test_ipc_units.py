"""Arrow IPC files as data files: units, sizes, memory, every way to read."""

import struct
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.feather as feather
import pyarrow.fs as pafs
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tabfeed.errors import (
    BadFileError,
)
from tabfeed.io import Dataset, ReadOptions
from tabfeed.io.formats import ipc
from tabfeed.io.formats.ipc import IpcFile, IpcStream, open_ipc
from tabfeed.io.inspect import inspect
from tabfeed.io.storage.files import FileRef
from tests.io.data_files import check_data_file, locate, rows_of, write
from tests.io.formats.test_ipc import KINDS, TABLE, save

OPTIONS = ReadOptions()


def located(path: Path, table: pa.Table, **options: Any) -> FileRef:
    return locate(save(path, table, **options))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("compression", [None, "lz4", "zstd"])
def test_every_type(tmp_path: Path, kind: str, compression: str | None) -> None:
    location = located(tmp_path / "a.arrow", TABLE, kind=kind, compression=compression)
    file = open_ipc(location, OPTIONS)
    assert type(file) is (IpcFile if kind == "file" else IpcStream)
    assert list(file.unit_rows) == [4, 4, 2]
    check_data_file(file, TABLE)


def test_feather(tmp_path: Path) -> None:
    feather.write_feather(TABLE.drop_columns(["m"]), str(tmp_path / "a.feather"), chunksize=3)
    file = open_ipc(locate(tmp_path / "a.feather"), OPTIONS)
    assert list(file.unit_rows) == [3, 3, 3, 1]
    check_data_file(file, TABLE.drop_columns(["m"]))


@pytest.mark.parametrize("compression", ["uncompressed", "lz4"])
@pytest.mark.parametrize("newest", [False, True])
def test_written_by_polars(tmp_path: Path, compression: str, newest: bool) -> None:
    words = ["a", None, "a text that is longer than twelve bytes"]
    frame = pl.DataFrame(
        {"s": words, "l": [["x"], None, []], "c": pl.Series(words, dtype=pl.Categorical)}
    )
    level = pl.CompatLevel.newest() if newest else pl.CompatLevel.oldest()
    frame.write_ipc(tmp_path / "a.arrow", compression=compression, compat_level=level)
    file = open_ipc(locate(tmp_path / "a.arrow"), OPTIONS)
    assert file.schema.types[:2] == [pa.string(), pa.list_(pa.string())]
    assert file.schema.field("c").type.value_type == pa.string()
    assert rows_of(file) == [
        {"s": words[0], "l": ["x"], "c": words[0]},
        {"s": None, "l": None, "c": None},
        {"s": words[2], "l": [], "c": words[2]},
    ]
    assert file.nbytes(0, ["s"]) > 39


def test_rows_are_known_without_decoding(tmp_path: Path, monkeypatch) -> None:
    file = open_ipc(located(tmp_path / "a.arrow", TABLE, compression="zstd"), OPTIONS)

    def refuse(*_: object) -> None:
        raise AssertionError("a batch was decoded")

    monkeypatch.setattr(IpcFile, "_decode", refuse)
    assert list(file.unit_rows) == [4, 4, 2]
    assert file.count(2) == 2
    assert file.nbytes(0, ["i"]) > 0


@pytest.mark.parametrize("compression", [None, "lz4"])
def test_sizes_are_those_in_memory(tmp_path: Path, compression: str | None) -> None:
    table = pa.table({"i": pa.array(range(10_000), pa.int64()), "s": ["abcd"] * 10_000})
    location = located(tmp_path / "a.arrow", table, rows=5_000, compression=compression)
    file = open_ipc(location, OPTIONS)
    assert file.nbytes(0, ["i"]) == pytest.approx(40_000, rel=0.01)
    assert file.nbytes(1, ["s"]) == pytest.approx(40_000, rel=0.01)
    assert file.nbytes(1, ["i", "s"]) == pytest.approx(80_000, rel=0.01)


def test_local_files_are_not_copied(tmp_path: Path) -> None:
    table = pa.table({"i": pa.array(range(200_000), pa.int64())})
    file = open_ipc(located(tmp_path / "a.arrow", table, rows=200_000), OPTIONS)
    before = pa.total_allocated_bytes()
    read = file.read([0], ["i"])
    assert pa.total_allocated_bytes() - before < 100_000
    assert read.equals(table)


def test_other_filesystems(tmp_path: Path) -> None:
    located(tmp_path / "a.arrow", TABLE, compression="lz4")
    located(tmp_path / "a.arrows", TABLE, kind="stream")
    root = pafs.SubTreeFileSystem(str(tmp_path), pafs.LocalFileSystem())
    for name in ("a.arrow", "a.arrows"):
        location = FileRef(name, name, root, (tmp_path / name).stat().st_size)
        assert open_ipc(location, OPTIONS).read([0, 1, 2], TABLE.column_names).equals(TABLE)


def test_a_stream_without_its_end_mark(tmp_path: Path) -> None:
    location = located(tmp_path / "a.arrows", TABLE, kind="stream")
    data = Path(location.path).read_bytes()
    assert data[-8:] == b"\xff\xff\xff\xff\0\0\0\0"
    check_data_file(open_ipc(write(tmp_path / "b.arrows", data[:-8]), OPTIONS), TABLE)


def test_streams_of_before_the_marker(tmp_path: Path) -> None:
    options = pa.ipc.IpcWriteOptions(use_legacy_format=True) if _has_legacy() else None
    if options is None:
        data = _without_markers(located(tmp_path / "a.arrows", TABLE.select(["i"]), kind="stream"))
        location = write(tmp_path / "b.arrows", data)
    else:
        with pa.ipc.new_stream(str(tmp_path / "b.arrows"), TABLE.schema, options=options) as w:
            w.write_table(TABLE)
        location = locate(tmp_path / "b.arrows")
    file = open_ipc(location, OPTIONS)
    assert file.read(range(len(file.unit_rows)), ["i"]).column("i").to_pylist() == [
        1, None, 3, 4, 5, 6, 7, 8, 9, 10,
    ]  # fmt: skip


def _has_legacy() -> bool:
    try:
        pa.ipc.IpcWriteOptions(use_legacy_format=True)
    except TypeError:
        return False
    return True


def _without_markers(location: FileRef) -> bytes:
    """The stream as Arrow 0.14 wrote it: each message without its first four bytes."""
    data = Path(location.path).read_bytes()
    with pa.OSFile(location.path) as f:
        found = list(ipc.messages(f, location.size))
    return b"".join(data[m.start + 4 : m.end] for m in found) + struct.pack("<i", 0)


# -- properties ---------------------------------------------------------------------------

ROW = st.fixed_dictionaries(
    {
        "i": st.none() | st.integers(-(2**31), 2**31 - 1),
        "f": st.none() | st.floats(allow_nan=False),
        "s": st.none() | st.text(max_size=5),
        "b": st.none() | st.binary(max_size=5),
        "l": st.none() | st.lists(st.none() | st.text(max_size=2), max_size=3),
    }
)
SCHEMA = pa.schema(
    {
        "i": pa.int32(),
        "f": pa.float64(),
        "s": pa.string(),
        "b": pa.binary(),
        "l": pa.list_(pa.string()),
    }
)


@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    st.lists(ROW, max_size=20),
    st.integers(1, 8),
    st.sampled_from(list(KINDS)),
    st.sampled_from([None, "lz4", "zstd"]),
    st.booleans(),
)
def test_any_table(
    tmp_path: Path, rows: list, size: int, kind: str, compression: str | None, large: bool
) -> None:
    table = pa.Table.from_pylist(rows, SCHEMA)
    stored = table
    if large:
        types = [pa.int32(), pa.float64(), pa.large_string(), pa.large_binary()]
        types.append(pa.large_list(pa.large_string()))
        stored = table.cast(pa.schema(list(zip(SCHEMA.names, types, strict=True))))
    location = located(tmp_path / "a", stored, kind=kind, rows=size, compression=compression)
    check_data_file(open_ipc(location, OPTIONS), table)


def test_want_of_memory_is_not_damage(tmp_path: Path, monkeypatch) -> None:
    file = open_ipc(located(tmp_path / "a.arrow", TABLE), OPTIONS)

    def no_memory(*_: object) -> None:
        raise pa.ArrowMemoryError("malloc of size 64000 failed")

    monkeypatch.setattr(IpcFile, "_decode", no_memory)
    with pytest.raises(MemoryError):
        file.read([0], ["i"])


@pytest.mark.parametrize("kind", KINDS)
def test_record_batches_are_listed_once(tmp_path: Path, kind: str, monkeypatch) -> None:
    location = located(tmp_path / "a.arrow", TABLE, kind=kind, rows=1)
    file = open_ipc(location, OPTIONS)
    assert file.unit_rows is file.unit_rows
    finds = []
    find = type(file)._find
    monkeypatch.setattr(type(file), "_find", lambda self, f: finds.append(1) or find(self, f))
    ds = Dataset(location.path, part_size=1)
    assert [ds.read(i).num_rows for i in range(ds.npartitions)] == [1] * 10
    inspect(ds)
    assert len(finds) == 1


def test_slices_of_a_mapped_batch_take_no_more_than_their_rows(tmp_path: Path) -> None:
    pl.DataFrame({"s": ["a text longer than twelve bytes"] * 200_000}).write_ipc(
        tmp_path / "a.arrow", compression="uncompressed", compat_level=pl.CompatLevel.newest()
    )
    file = open_ipc(locate(tmp_path / "a.arrow"), OPTIONS)
    before = pa.total_allocated_bytes()
    for unit in range(len(file.unit_rows)):
        for batch in file.batches(unit, ["s"], 1000):
            assert batch.schema.field("s").type == pa.string()
            assert pa.total_allocated_bytes() - before < 200_000


def test_a_buffer_that_claims_more_than_memory(tmp_path: Path) -> None:
    table = pa.table({"x": pa.array(range(1000), pa.int64())})
    location = located(tmp_path / "a.arrow", table, rows=1000, compression="zstd")
    data = bytearray(Path(location.path).read_bytes())
    at = data.index(struct.pack("<q", 8000))
    data[at : at + 8] = struct.pack("<q", 2**60)
    Path(location.path).write_bytes(data)
    with pytest.raises(BadFileError, match=r"a\.arrow is an Arrow file .*damaged: .*size 11529"):
        open_ipc(location, OPTIONS).read([0], ["x"])
