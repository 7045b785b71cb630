import struct
import weakref
from decimal import Decimal
from pathlib import Path

import polars as pl
import pyarrow as pa
import pyarrow.feather as feather
import pyarrow.fs as pafs
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tabfeed.errors import (
    ArgumentError,
    BadFileError,
    DuplicateColumnError,
    SchemaError,
    SchemaMismatchError,
    UnreadableFileError,
)
from tabfeed.io import Dataset
from tabfeed.io.formats import ipc
from tabfeed.io.formats.base import ReadOptions
from tabfeed.io.formats.ipc import IpcFile, IpcStream, open_ipc
from tabfeed.io.inspect import inspect
from tabfeed.io.storage.files import FileRef
from tests.io.data_files import check_data_file, locate, rows_of, write

OPTIONS = ReadOptions()
KINDS = {"file": pa.ipc.new_file, "stream": pa.ipc.new_stream}


def save(
    path: Path,
    table: pa.Table,
    *,
    kind: str = "file",
    rows: int = 4,
    compression: str | None = None,
) -> FileRef:
    options = pa.ipc.IpcWriteOptions(compression=compression)
    with KINDS[kind](str(path), table.schema, options=options) as writer:
        writer.write_table(table, max_chunksize=rows)
    return locate(path)


TABLE = pa.table(
    {
        "i": pa.array([1, None, 3, 4, 5, 6, 7, 8, 9, 10], pa.int16()),
        "s": ["a", None, "", "dd", "e", "f", "g", "h", "i", "j"],
        "l": [[1], None, [], [2, None], [3], [4], [5], [6], [7], [8]],
        "st": [{"x": 1.5, "y": "q"}] * 10,
        "n": pa.nulls(10),
        "b": [True, None] * 5,
        "f": pa.array([[1, 2]] * 10, pa.list_(pa.float32(), 2)),
        "d": pa.array([Decimal("1.25")] * 10),
        "c": pa.array(["x", "y", None, "x", "x"] * 2).dictionary_encode(),
        "m": pa.array([[("k", 1)]] * 10, pa.map_(pa.string(), pa.int32())),
    }
)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("compression", [None, "lz4", "zstd"])
def test_every_type(tmp_path: Path, kind: str, compression: str | None) -> None:
    location = save(tmp_path / "a.arrow", TABLE, kind=kind, compression=compression)
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
    file = open_ipc(save(tmp_path / "a.arrow", TABLE, compression="zstd"), OPTIONS)

    def refuse(*_: object) -> None:
        raise AssertionError("a batch was decoded")

    monkeypatch.setattr(IpcFile, "_decode", refuse)
    assert list(file.unit_rows) == [4, 4, 2]
    assert file.count(2) == 2
    assert file.nbytes(0, ["i"]) > 0


@pytest.mark.parametrize("compression", [None, "lz4"])
def test_sizes_are_those_in_memory(tmp_path: Path, compression: str | None) -> None:
    table = pa.table({"i": pa.array(range(10_000), pa.int64()), "s": ["abcd"] * 10_000})
    location = save(tmp_path / "a.arrow", table, rows=5_000, compression=compression)
    file = open_ipc(location, OPTIONS)
    assert file.nbytes(0, ["i"]) == pytest.approx(40_000, rel=0.01)
    assert file.nbytes(1, ["s"]) == pytest.approx(40_000, rel=0.01)
    assert file.nbytes(1, ["i", "s"]) == pytest.approx(80_000, rel=0.01)


def test_local_files_are_not_copied(tmp_path: Path) -> None:
    table = pa.table({"i": pa.array(range(200_000), pa.int64())})
    file = open_ipc(save(tmp_path / "a.arrow", table, rows=200_000), OPTIONS)
    before = pa.total_allocated_bytes()
    read = file.read([0], ["i"])
    assert pa.total_allocated_bytes() - before < 100_000
    assert read.equals(table)


def test_other_filesystems(tmp_path: Path) -> None:
    save(tmp_path / "a.arrow", TABLE, compression="lz4")
    save(tmp_path / "a.arrows", TABLE, kind="stream")
    root = pafs.SubTreeFileSystem(str(tmp_path), pafs.LocalFileSystem())
    for name in ("a.arrow", "a.arrows"):
        location = FileRef(name, name, root, (tmp_path / name).stat().st_size)
        assert open_ipc(location, OPTIONS).read([0, 1, 2], TABLE.column_names).equals(TABLE)


@pytest.mark.parametrize("deltas", [False, True])
def test_dictionaries_that_change_along_a_stream(tmp_path: Path, deltas: bool) -> None:
    second = ["a", "b", "c"] if deltas else ["c", "d"]
    arrays = [
        pa.DictionaryArray.from_arrays(pa.array([0, 1]), pa.array(["a", "b"])),
        pa.DictionaryArray.from_arrays(pa.array([0, 1]), pa.array(second)),
        pa.DictionaryArray.from_arrays(pa.array([1, 0]), pa.array(second)),
    ]
    batches = [pa.record_batch({"n": [i, i], "c": a}) for i, a in enumerate(arrays)]
    options = pa.ipc.IpcWriteOptions(emit_dictionary_deltas=deltas)
    with pa.ipc.new_stream(str(tmp_path / "a.arrows"), batches[0].schema, options=options) as w:
        for batch in batches:
            w.write_batch(batch)
    file = open_ipc(locate(tmp_path / "a.arrows"), OPTIONS)
    expected = [["a", "b"], second[:2], second[1::-1]]
    for unit in (2, 0, 1):
        assert file.read([unit], ["c"]).column("c").to_pylist() == expected[unit]
    everything = [v for part in expected for v in part]
    assert file.read([0, 1, 2], ["c", "n"]).column("c").to_pylist() == everything
    assert file.read([2], ["n"]).column("n").to_pylist() == [2, 2]


@pytest.mark.parametrize("kind", KINDS)
def test_no_rows(tmp_path: Path, kind: str) -> None:
    location = save(tmp_path / "a.arrow", TABLE.slice(0, 0), kind=kind)
    file = open_ipc(location, OPTIONS)
    assert sum(file.unit_rows) == 0
    assert file.read(range(len(file.unit_rows)), ["i"]).num_rows == 0


def test_a_stream_without_its_end_mark(tmp_path: Path) -> None:
    location = save(tmp_path / "a.arrows", TABLE, kind="stream")
    data = Path(location.path).read_bytes()
    assert data[-8:] == b"\xff\xff\xff\xff\0\0\0\0"
    check_data_file(open_ipc(write(tmp_path / "b.arrows", data[:-8]), OPTIONS), TABLE)


def test_streams_of_before_the_marker(tmp_path: Path) -> None:
    options = pa.ipc.IpcWriteOptions(use_legacy_format=True) if _has_legacy() else None
    if options is None:
        data = _without_markers(save(tmp_path / "a.arrows", TABLE.select(["i"]), kind="stream"))
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


def test_a_removed_file_stays_readable_through_its_tables(tmp_path: Path) -> None:
    file = open_ipc(save(tmp_path / "a.arrow", TABLE), OPTIONS)
    table = file.read([0, 1, 2], ["i"])
    (tmp_path / "a.arrow").unlink()
    assert table.column("i").to_pylist()[:3] == [1, None, 3]
    assert weakref.ref(file)() is file
    with pytest.raises(UnreadableFileError, match="gone now"):
        file.read([0], ["i"])


# -- bad files ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", r"is empty \(0 bytes\)"),
        (b"ARROW1\0\0", "cut short or damaged"),
        (b"ARROW1\0\0" + bytes(100), "cut short or damaged"),
        (b"hello world, this is text", "not an Arrow file or stream: it starts with b'hello wo'"),
        (b"FEA1" + bytes(100), "version 1"),
        (b"\xff\xff\xff\xff\x10\0\0\0", "cut short or damaged"),
        (b"\xff\xff\xff\xff" + b"\x40\0\0\0" + bytes(64), "cut short or damaged"),
        (b"PAR1", "not an Arrow file"),
    ],
)
def test_bad_files(tmp_path: Path, data: bytes, message: str) -> None:
    location = write(tmp_path / "bad.arrow", data)
    with pytest.raises(BadFileError, match=rf"bad\.arrow .*{message}"):
        _ = open_ipc(location, OPTIONS).unit_rows


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("compression", [None, "lz4"])
def test_cut_anywhere(tmp_path: Path, kind: str, compression: str | None) -> None:
    """Cut at any byte: refused, or (a stream cut between messages) the whole batches before."""
    location = save(
        tmp_path / "a", TABLE.select(["i", "s", "c"]), kind=kind, compression=compression
    )
    data = Path(location.path).read_bytes()
    whole = {0, 4, 8, 10}
    for end in range(1, len(data), 7):
        cut = write(tmp_path / "b", data[:end])
        try:
            file = open_ipc(cut, OPTIONS)
            rows = file.read(range(len(file.unit_rows)), ["i", "s"]).num_rows
        except BadFileError:
            continue
        assert kind == "stream"
        assert rows in whole


@pytest.mark.parametrize("compression", [None, "zstd"])
def test_flipped_bytes_never_crash(tmp_path: Path, compression: str | None) -> None:
    table = TABLE.select(["i", "s", "l", "c"])
    location = save(tmp_path / "a", table, compression=compression)
    data = Path(location.path).read_bytes()
    for place in range(0, len(data), 5):
        broken = data[:place] + bytes([data[place] ^ 0x55]) + data[place + 1 :]
        try:
            file = open_ipc(write(tmp_path / "b", broken), OPTIONS)
            _ = [file.nbytes(u, file.schema.names) for u in range(len(file.unit_rows))]
            file.read(range(len(file.unit_rows)), file.schema.names).to_pylist()
        except (BadFileError, DuplicateColumnError):
            pass


def test_compressed_as_a_whole(tmp_path: Path) -> None:
    with pytest.raises(BadFileError, match="compressed as a whole"):
        open_ipc(write(tmp_path / "a.arrow.gz", b"x"), OPTIONS)


def test_duplicate_names(tmp_path: Path) -> None:
    table = pa.table([pa.array([1]), pa.array([2])], names=["a", "a"])
    with pytest.raises(DuplicateColumnError, match="named 'a'"):
        open_ipc(save(tmp_path / "a.arrow", table), OPTIONS)


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
    location = save(tmp_path / "a", stored, kind=kind, rows=size, compression=compression)
    check_data_file(open_ipc(location, OPTIONS), table)


_UNUSUAL = {
    "interval": pa.array([pa.MonthDayNano([1, 2, 3]), None] * 2, pa.month_day_nano_interval()),
    "runs": pa.RunEndEncodedArray.from_arrays(pa.array([3, 4], pa.int16()), pa.array(["a", None])),
    "view": pa.array(["a", None, "longer than twelve bytes", ""], pa.string_view()),
    "list_view": pa.array([[1], None, [], [2, 3]], pa.list_view(pa.int8())),
    "large_list_view": pa.array([[1], None, [], [2, 3]], pa.large_list_view(pa.int8())),
    "codes": pa.DictionaryArray.from_arrays(
        pa.array([0, 1, None, 0], pa.uint64()), pa.array([1.5, 2])
    ),
    "lists": pa.DictionaryArray.from_arrays(pa.array([0, 1, None, 0]), pa.array([[1], [2]])),
    "struct": pa.array([{}, None, {}, {}], pa.struct([])),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", _UNUSUAL)
def test_unusual_types(tmp_path: Path, kind: str, name: str) -> None:
    table = pa.table({"x": _UNUSUAL[name], "y": [0, 1, 2, 3]})
    path = save(tmp_path / "a.arrow", table, kind=kind, rows=3).path
    assert Dataset(path).to_arrow().to_pylist() == table.to_pylist()
    small = Dataset(path, part_size=1)
    parts = [row for i in range(small.npartitions) for row in small.read(i).to_pylist()]
    assert parts == table.to_pylist()
    kept = Dataset(path, filters=[("y", ">", 1)]).to_arrow()
    assert kept.to_pylist() == table.to_pylist()[2:]


@pytest.mark.parametrize("kind", KINDS)
def test_a_union_is_refused_unless_it_is_left_out(tmp_path: Path, kind: str) -> None:
    union = pa.UnionArray.from_sparse(
        pa.array([0, 1], pa.int8()), [pa.array([1, 2]), pa.array(["a", "b"])]
    )
    path = save(tmp_path / "a.arrow", pa.table({"x": union, "y": [1, 2]}), kind=kind).path
    with pytest.raises(SchemaMismatchError, match=r"'x' of .*a\.arrow is sparse_union.*columns="):
        Dataset(path)
    kept = Dataset(path, columns=["y"], filters=[("y", ">", 1)])
    assert kept.to_arrow().to_pylist() == [{"y": 2}]


def test_a_buffer_that_claims_more_than_memory(tmp_path: Path) -> None:
    table = pa.table({"x": pa.array(range(1000), pa.int64())})
    location = save(tmp_path / "a.arrow", table, rows=1000, compression="zstd")
    data = bytearray(Path(location.path).read_bytes())
    at = data.index(struct.pack("<q", 8000))
    data[at : at + 8] = struct.pack("<q", 2**60)
    Path(location.path).write_bytes(data)
    with pytest.raises(BadFileError, match=r"a\.arrow is an Arrow file .*damaged: .*size 11529"):
        open_ipc(location, OPTIONS).read([0], ["x"])


def test_want_of_memory_is_not_damage(tmp_path: Path, monkeypatch) -> None:
    file = open_ipc(save(tmp_path / "a.arrow", TABLE), OPTIONS)

    def no_memory(*_: object) -> None:
        raise pa.ArrowMemoryError("malloc of size 64000 failed")

    monkeypatch.setattr(IpcFile, "_decode", no_memory)
    with pytest.raises(MemoryError):
        file.read([0], ["i"])


def test_a_stream_that_ends_before_its_file(tmp_path: Path) -> None:
    location = save(tmp_path / "a.arrows", pa.table({"x": range(8)}), kind="stream", rows=4)
    data = Path(location.path).read_bytes()
    second = data.rindex(b"\xff\xff\xff\xff", 0, data.rindex(b"\xff\xff\xff\xff"))
    Path(location.path).write_bytes(data[: second + 4] + b"\0\0\0\0" + data[second + 8 :])
    with pytest.raises(BadFileError, match=r"its stream ends at byte .* before more data"):
        Dataset(location.path).to_arrow()
    Path(location.path).write_bytes(data + data[-8:] + bytes(100))  # ended twice, filled up
    assert Dataset(location.path).num_rows == 8


@pytest.mark.parametrize("kind", KINDS)
def test_record_batches_are_listed_once(tmp_path: Path, kind: str, monkeypatch) -> None:
    location = save(tmp_path / "a.arrow", TABLE, kind=kind, rows=1)
    file = open_ipc(location, OPTIONS)
    assert file.unit_rows is file.unit_rows
    finds = []
    find = type(file)._find
    monkeypatch.setattr(type(file), "_find", lambda self, f: finds.append(1) or find(self, f))
    ds = Dataset(location.path, part_size=1)
    assert [ds.read(i).num_rows for i in range(ds.npartitions)] == [1] * 10
    inspect(ds)
    assert len(finds) == 1


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("compression", [None, "zstd"])
@pytest.mark.parametrize("column", [pa.nulls(12_345), pa.array([1] * 12_345)], ids=["null", "int"])
def test_more_rows_than_the_bytes_can_hold_are_refused(
    tmp_path: Path, kind: str, compression: str | None, column: pa.Array
) -> None:
    path = tmp_path / "a.arrow"
    save(path, pa.table({"x": column}), kind=kind, rows=12_345, compression=compression)
    rows, absurd = struct.pack("<q", 12_345), struct.pack("<q", 2**60)
    path.write_bytes(path.read_bytes().replace(rows, absurd))
    with pytest.raises(BadFileError, match=r"a\.arrow .*batch 0 claims 1,152,921,504,6.* rows"):
        _ = Dataset(path).npartitions


@pytest.mark.parametrize("compression", [None, "lz4"])
def test_a_buffer_longer_than_its_message_is_refused(
    tmp_path: Path, compression: str | None
) -> None:
    path = tmp_path / "a.arrow"
    table = pa.table({"x": pa.array(range(12_341), pa.int16())})
    save(path, table, rows=12_341, compression=compression)
    nbytes, absurd = struct.pack("<q", 2 * 12_341), struct.pack("<q", 2**62)
    path.write_bytes(path.read_bytes().replace(nbytes, absurd, 1))
    with pytest.raises(
        BadFileError, match=r"a\.arrow .*a buffer .*4,611,686,018,427,387,90. bytes"
    ):
        _ = Dataset(path).npartitions


@pytest.mark.parametrize("kind", KINDS)
def test_names_that_are_not_utf8_none_at_all_and_no_columns(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "a.arrow"
    save(path, pa.table({"abcd": [1]}), kind=kind)
    path.write_bytes(path.read_bytes().replace(b"abcd", b"\xff\xfed\x80"))
    with pytest.raises(BadFileError, match=r"a\.arrow is .*damaged.*utf-8"):
        Dataset(path)
    save(path, pa.table({"b": [1], "": [2]}), kind=kind)
    with pytest.raises(SchemaError, match=r"a\.arrow has a column without a name, as column 1"):
        Dataset(path)
    save(path, pa.table({}), kind=kind)
    with pytest.raises(BadFileError, match=r"a\.arrow has no columns"):
        Dataset(path)


def test_a_compressed_batch_beyond_the_memory_limit_is_refused(tmp_path: Path) -> None:
    table = pa.table({"x": pa.array(range(100_000), pa.int64())})
    save(tmp_path / "a.arrow", table, rows=100_000, compression="zstd")
    save(tmp_path / "b.arrow", table, rows=100_000)
    match = r"a\.arrow has a record batch .* raise memory_limit, which is 1\.0 MB"
    with pytest.raises(ArgumentError, match=match):
        Dataset(tmp_path / "a.arrow").to_parquet(tmp_path / "a", memory_limit="1MB", shuffle="FULL")
    assert not (tmp_path / "a").exists()
    assert Dataset(tmp_path / "a.arrow").to_parquet(tmp_path / "a", memory_limit="4MB").num_rows
    assert Dataset(tmp_path / "b.arrow").to_parquet(tmp_path / "b", memory_limit="1MB").num_rows


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
