import struct
import weakref
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pytest

from tabfeed.errors import (
    ArgumentError,
    BadFileError,
    DuplicateColumnError,
    SchemaError,
    SchemaMismatchError,
    UnreadableFileError,
)
from tabfeed.io import Dataset
from tests.io.datasets import opened, rows_in, written

KINDS = {"file": pa.ipc.new_file, "stream": pa.ipc.new_stream}


def save(
    path: Path,
    table: pa.Table,
    *,
    kind: str = "file",
    rows: int = 4,
    compression: str | None = None,
) -> Path:
    options = pa.ipc.IpcWriteOptions(compression=compression)
    with KINDS[kind](str(path), table.schema, options=options) as writer:
        writer.write_table(table, max_chunksize=rows)
    return path


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
def test_no_rows(tmp_path: Path, kind: str) -> None:
    dataset = Dataset(save(tmp_path / "a.arrow", TABLE.slice(0, 0), kind=kind))
    assert dataset.num_rows == sum(dataset.partition_lens) == 0
    assert rows_in(dataset, ["i"]) == []


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
    location = written(tmp_path / "bad.arrow", data)
    with pytest.raises(BadFileError, match=rf"bad\.arrow .*{message}"):
        _ = Dataset(location).partition_lens


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("compression", [None, "lz4"])
def test_cut_anywhere(tmp_path: Path, kind: str, compression: str | None) -> None:
    """Cut at any byte: refused, or (a stream cut between messages) the whole batches before."""
    location = save(
        tmp_path / "a", TABLE.select(["i", "s", "c"]), kind=kind, compression=compression
    )
    data = location.read_bytes()
    whole = {0, 4, 8, 10}
    for end in range(1, len(data), 7):
        cut = written(tmp_path / "b", data[:end])
        try:
            rows = Dataset(cut, "ipc").select(["i", "s"]).to_arrow().num_rows
        except BadFileError:
            continue
        assert kind == "stream"
        assert rows in whole


def test_compressed_as_a_whole(tmp_path: Path) -> None:
    with pytest.raises(BadFileError, match="compressed as a whole"):
        opened(tmp_path / "a.arrow.gz", b"x")


def test_duplicate_names(tmp_path: Path) -> None:
    table = pa.table([pa.array([1]), pa.array([2])], names=["a", "a"])
    with pytest.raises(DuplicateColumnError, match="named 'a'"):
        Dataset(save(tmp_path / "a.arrow", table))


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
    path = save(tmp_path / "a.arrow", table, kind=kind, rows=3)
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
    path = save(tmp_path / "a.arrow", pa.table({"x": union, "y": [1, 2]}), kind=kind)
    with pytest.raises(SchemaMismatchError, match=r"'x' of .*a\.arrow is sparse_union.*columns="):
        Dataset(path)
    kept = Dataset(path, columns=["y"], filters=[("y", ">", 1)])
    assert kept.to_arrow().to_pylist() == [{"y": 2}]


def test_a_stream_that_ends_before_its_file(tmp_path: Path) -> None:
    location = save(tmp_path / "a.arrows", pa.table({"x": range(8)}), kind="stream", rows=4)
    data = location.read_bytes()
    second = data.rindex(b"\xff\xff\xff\xff", 0, data.rindex(b"\xff\xff\xff\xff"))
    location.write_bytes(data[: second + 4] + b"\0\0\0\0" + data[second + 8 :])
    with pytest.raises(BadFileError, match=r"its stream ends at byte .* before more data"):
        Dataset(location).to_arrow()
    location.write_bytes(data + data[-8:] + bytes(100))  # ended twice, filled up
    assert Dataset(location).num_rows == 8


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
    file = Dataset(tmp_path / "a.arrows", npartitions=3)
    expected = [["a", "b"], second[:2], second[1::-1]]
    for unit in (2, 0, 1):
        assert file.select(["c"]).read(unit)["c"].to_pylist() == expected[unit]
    everything = [v for part in expected for v in part]
    assert file.select(["c", "n"]).to_arrow()["c"].to_pylist() == everything
    assert file.select(["n"]).read(2)["n"].to_pylist() == [2, 2]


def test_a_removed_file_stays_readable_through_its_tables(tmp_path: Path) -> None:
    file = Dataset(save(tmp_path / "a.arrow", TABLE))
    table = file.select(["i"]).to_arrow()
    (tmp_path / "a.arrow").unlink()
    assert table.column("i").to_pylist()[:3] == [1, None, 3]
    assert weakref.ref(file)() is file
    with pytest.raises(UnreadableFileError, match="gone now"):
        file.select(["i"]).to_arrow()


@pytest.mark.parametrize("compression", [None, "zstd"])
def test_flipped_bytes_never_crash(tmp_path: Path, compression: str | None) -> None:
    table = TABLE.select(["i", "s", "l", "c"])
    data = save(tmp_path / "a.arrow", table, compression=compression).read_bytes()
    for place in range(0, len(data), 5):
        broken = data[:place] + bytes([data[place] ^ 0x55]) + data[place + 1 :]
        try:
            file = opened(tmp_path / "b.arrow", broken)
            _ = file.partition_lens
            rows_in(file)
        except (BadFileError, DuplicateColumnError):
            pass
