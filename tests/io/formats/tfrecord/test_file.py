from __future__ import annotations

import gzip
import math
import struct
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tabfeed import Dataset
from tabfeed.errors import (
    ArgumentError,
    BadFileError,
    SchemaError,
    SchemaMismatchError,
    SkippedFileWarning,
)
from tabfeed.io.formats.base import ReadOptions
from tabfeed.io.formats.tfrecord import records as tfrecord_records
from tabfeed.io.formats.tfrecord import walk as tfrecord_walk
from tabfeed.io.formats.tfrecord.file import TFRecordFile, open_tfrecord
from tabfeed.io.formats.tfrecord.records import records_of
from tabfeed.io.formats.tfrecord.values import NotAnExampleError, parse_example
from tests.io.data_files import check_data_file, rows_of, write
from tests.io.tfrecords import (
    crc32c,
    delimited,
    entry,
    example,
    feature,
    floats,
    frame,
    frames,
    ints,
    masked,
    texts,
    varint,
)

# What TensorFlow 2.21 wrote for n=[-3], x=[0.5, 2.0], s=[b"hi"], and for an empty Example.
BY_TENSORFLOW = bytes.fromhex(
    "3700000000000000e7e8ca590a350a110a0178120c120a0a080000003f000000400a130a016e120e1a0c0a0afdff"
    "ffffffffffffff010a0b0a017312060a040a026869206ec338000000000000000029039807d8ea82a2"
)


@pytest.fixture(params=["walked", "one by one"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Both readers, whatever the number of records."""
    monkeypatch.setattr(tfrecord_walk, "FEW", 1 if request.param == "walked" else 10**9)
    yield request.param


def opened(path: Path, data: bytes, **options: Any) -> TFRecordFile:
    return open_tfrecord(write(path, data), ReadOptions(**options))


# -- what is in the files ---------------------------------------------------------------


def test_a_file_by_tensorflow(tmp_path: Path, way: str) -> None:
    file = opened(tmp_path / "a.tfrecord", BY_TENSORFLOW)
    assert file.schema == pa.schema(
        [("n", pa.int64()), ("s", pa.string()), ("x", pa.list_(pa.float32()))]
    )
    assert rows_of(file) == [
        {"n": -3, "s": "hi", "x": [0.5, 2.0]},
        {"n": None, "s": None, "x": None},
    ]


def sample(count: int = 50) -> tuple[bytes, pa.Table]:
    """Every shape of feature, and the table it should become."""
    records, rows = [], []
    for i in range(count):
        row: dict[str, Any] = {
            "big": [2**63 - 1, -(2**63), 2**62, 2**56, -1][i % 5],
            "blob": bytes([255, i]),
            "few": None if i % 3 == 0 else i / 4,
            "ids": [(-7) ** k for k in range(i % 5)],
            "names": None if i % 7 == 0 else [f"n{k}" * k for k in range(i % 4)],
            "small": i % 2,
            "text": "" if i % 10 == 0 else "ü" * (i * 7),
            "vector": [i / 8, math.inf, -0.0],
        }
        rows.append(row)
        features = {
            "text": texts(row["text"].encode()),
            "small": ints(row["small"]),
            "big": ints(row["big"]),
            "vector": floats(*row["vector"]),
            "ids": ints(*row["ids"]),
            "blob": texts(row["blob"]),
        }
        if row["few"] is not None:
            features["few"] = floats(row["few"])
        if row["names"] is not None:
            features["names"] = texts(*(n.encode() for n in row["names"]))
        records.append(example(features))
    schema = pa.schema(
        {
            "big": pa.int64(),
            "blob": pa.binary(),
            "few": pa.float32(),
            "ids": pa.list_(pa.int64()),
            "names": pa.list_(pa.string()),
            "small": pa.int64(),
            "text": pa.string(),
            "vector": pa.list_(pa.float32()),
        }
    )
    return frames(records), pa.Table.from_pylist(rows, schema)


@pytest.mark.parametrize("block_size", [1, 2000, 2**20])
def test_every_way_to_read_gives_the_same(tmp_path: Path, way: str, block_size: int) -> None:
    data, table = sample()
    file = opened(tmp_path / "a.tfrecord", data, block_size=block_size)
    assert len(file.unit_rows) in {1: [50], 2000: range(10, 30), 2**20: [1]}[block_size]
    assert sum(r or 0 for r in file.unit_rows) == 50
    check_data_file(file, table)


@pytest.mark.parametrize("name", ["a.tfrecord.gz", "a.tfrecord", "a.tfrecords.gzip", "a.zlib"])
@pytest.mark.parametrize("pack", [gzip.compress, zlib.compress, lambda b: zlib.compress(b, 0)])
def test_compression_is_told_by_content(tmp_path: Path, name: str, pack: Any) -> None:
    data, table = sample()
    packed = pack(data)
    file = opened(tmp_path / name, packed, block_size=2000)
    assert len(file.unit_rows) > 5
    check_data_file(file, table)


def test_a_plain_file_with_the_name_of_a_compressed_one(tmp_path: Path) -> None:
    data, table = sample()
    check_data_file(opened(tmp_path / "a.tfrecord.gz", data), table)


def test_gzip_in_two_members(tmp_path: Path) -> None:
    data, table = sample()
    packed = gzip.compress(data[:1000]) + gzip.compress(data[1000:])
    check_data_file(opened(tmp_path / "a.tfrecord", packed), table)


def test_features_in_any_order(tmp_path: Path) -> None:
    """Each record of 300 in an order of its own: the walk sorts them out."""
    rng = np.random.default_rng(0)
    names = [f"feature_number_{k}" for k in range(20)]
    records = []
    for i in range(300):
        order = rng.permutation(20)
        records.append(example({names[k]: ints(i * 100 + int(k)) for k in order}))
    file = opened(tmp_path / "a.tfrecord", frames(records))
    table = file.read([0], names)
    for k in range(20):
        assert table.column(names[k]).to_pylist() == [i * 100 + k for i in range(300)]
    walk = next(records_of(file.ref, frames(records), 0)).walk
    assert not walk.odd.any()


def test_columns_are_in_natural_order(tmp_path: Path) -> None:
    record = example({f"C{k}": ints(k) for k in (10, 2, 1, 11)})
    file = opened(tmp_path / "a.tfrecord", frame(record))
    assert file.schema.names == ["C1", "C2", "C10", "C11"]


def test_many_records_long_names_and_large_values(tmp_path: Path) -> None:
    """Sizes of one, two and three bytes in the same block, and records of many blocks."""
    name = "n" * 150
    sizes = [0, 1, 100, 127, 128, 200, 20_000]
    records = [
        example({name: ints(i), "blob": texts(bytes([200]) * sizes[i % 7]), "m" * 127: ints(-i)})
        for i in range(70)
    ]
    file = opened(tmp_path / "a.tfrecord", frames(records))
    table = file.read([0], [name, "blob", "m" * 127])
    assert table.column(0).to_pylist() == list(range(70))
    assert [len(b) for b in table.column(1).to_pylist()] == sizes * 10
    assert table.column(2).to_pylist() == [-i for i in range(70)]


# -- the wire ---------------------------------------------------------------------------


def wrapped(value: bytes) -> bytes:
    return delimited(1, entry("a", value))


LEGAL = {
    "in pieces": (wrapped(feature(ints(1)) + feature(ints(2, 3))), [1, 2, 3]),
    "unpacked": (wrapped(delimited(3, b"\x08\x05" + b"\x08" + varint(-1))), [5, -1]),
    "packed and unpacked": (wrapped(delimited(3, b"\x08\x05\x0a\x02\x06\x07")), [5, 6, 7]),
    "another kind before": (wrapped(feature(floats(1.0)) + feature(ints(4))), [4]),
    "a feature twice": (
        delimited(1, entry("a", feature(ints(1))) + entry("a", feature(ints(9)))),
        [9],
    ),
    "features twice": (wrapped(feature(ints(1))) + wrapped(feature(ints(8))), [8]),
    "value before name": (
        delimited(1, delimited(1, delimited(2, feature(ints(7))) + delimited(1, b"a"))),
        [7],
    ),
    "long sizes": (b"\x0a\x8e\x80\x00\x0a\x8b\x00\x0a\x81\x00a\x12\x05\x1a\x03\x0a\x01\x2a", [42]),
    "long number": (wrapped(delimited(3, delimited(1, b"\x85\x80\x00"))), [5]),
    "bits beyond 64": (wrapped(delimited(3, delimited(1, b"\xff" * 9 + b"\x7f"))), [-1]),
    "empty list": (wrapped(feature(ints())), []),
    "empty piece": (wrapped(delimited(3, delimited(1, b""))), []),
    "nothing": (wrapped(b""), None),
    "no value": (delimited(1, delimited(1, delimited(1, b"a"))), None),
    "no features": (b"", None),
    "empty features": (delimited(1, b""), None),
}


@pytest.mark.parametrize("case", LEGAL)
def test_unusual_but_legal(case: str, tmp_path: Path, way: str) -> None:
    record, expected = LEGAL[case]
    usual = example({"a": ints(1, 2)})
    data = frames([usual] * 30 + [record] + [usual] * 30 + [record])
    file = opened(tmp_path / "a.tfrecord", data)
    assert file.read([0], ["a"]).column(0).to_pylist() == [
        *[[1, 2]] * 30,
        expected,
        *[[1, 2]] * 30,
        expected,
    ]


ILLEGAL = {
    "text": b"Hello",
    "a field that no Example has": example({"a": ints(1)}) + b"\x18\x01",
    "another message": delimited(1, b"some text"),
    "an endless number": wrapped(delimited(3, delimited(1, b"\xff" * 11))),
    "a number cut short": wrapped(delimited(3, delimited(1, b"\x80"))),
    "eleven bytes": wrapped(delimited(3, delimited(1, b"\x80" * 10 + b"\x01"))),
    "five bytes of floats": delimited(1, entry("f", delimited(2, delimited(1, b"12345")))),
    "a size that is too large": b"\x0a\x05\x0a\x7f\x0a\x01a",
    "a name that is not text": delimited(
        1, delimited(1, delimited(1, b"\xff") + delimited(2, feature(ints(1))))
    ),
    "a group": b"\x0b\x0c",
    "a tag alone": b"\x0a",
}


@pytest.mark.parametrize("case", ILLEGAL)
def test_a_record_that_is_no_example(case: str, tmp_path: Path, way: str) -> None:
    with pytest.raises(NotAnExampleError):
        parse_example(ILLEGAL[case])
    usual = frame(example({"a": ints(1, 2)}))
    data = usual * 40 + frame(ILLEGAL[case]) + usual * 40
    with pytest.raises(BadFileError, match="is not an Example") as caught:
        opened(tmp_path / "a.tfrecord", data)
    assert f"the record at byte {len(usual) * 40:,} is not" in str(caught.value)
    assert caught.value.file == str(tmp_path / "a.tfrecord")


def test_a_record_far_larger_than_the_compressed_file(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(tfrecord_records, "_ALWAYS_READ", 1000)
    small = frame(example({"a": texts(b"x")}))
    bomb = frame(example({"a": texts(bytes(300_000))}))
    path = tmp_path / "a.tfrecord"
    with pytest.raises(BadFileError, match=r"has a record of 300,\d+ bytes at byte \d+"):
        rows_of(opened(path, gzip.compress(small + bomb), block_size=1))
    first = frame(example({"a": texts(bytes(3_000_000))}))
    with pytest.raises(BadFileError, match=r"record of 3,000,\d+ bytes at byte 0 \(decompressed\)"):
        opened(path, gzip.compress(first + small))
    assert len(rows_of(opened(path, first + small))) == 2


@pytest.mark.parametrize("length", [2**31, 2**62, 2**63, 2**64 - 1])
def test_lengths_beyond_any_record(tmp_path: Path, length: int) -> None:
    head = struct.pack("<Q", length)
    data = frame(example({"a": ints(1)})) + head + masked(head) + b"x" * 100
    with pytest.raises(BadFileError, match="the length of a record is expected there"):
        rows_of(opened(tmp_path / "a.tfrecord", data))
    with pytest.raises(BadFileError, match="is not a TFRecord file"):
        opened(tmp_path / "b.tfrecord", head + masked(head) + b"x" * 100)


def test_a_sequence_example_is_refused(tmp_path: Path) -> None:
    record = example({"a": ints(1)}) + delimited(2, delimited(1, delimited(1, b"steps")))
    with pytest.raises(BadFileError, match="byte 0 is a SequenceExample; tabfeed reads Examples"):
        opened(tmp_path / "a.tfrecord", frame(record))


# -- damage -----------------------------------------------------------------------------


def many(count: int = 3000) -> tuple[bytes, int]:
    """Records of one length, some megabytes beyond what is looked at when a file is opened."""
    one = frame(example({"a": ints(7), "b": texts(b"x" * 500)}))
    return one * count, len(one)


def test_a_damaged_record(tmp_path: Path) -> None:
    data, size = many()
    at = size * 2500
    damaged = bytearray(data)
    damaged[at + size // 2] ^= 1
    file = opened(tmp_path / "a.tfrecord", bytes(damaged), block_size=2**18)
    assert sum(r or 0 for r in file.unit_rows) == 3000
    unit = next(i for i, u in enumerate(file._units) if u.start <= at < u.end)
    assert file.read([unit - 1], ["a"]).num_rows == file.count(unit - 1)
    wanted = f"the checksum of the record at byte {at:,} does not match"
    with pytest.raises(BadFileError, match=wanted):
        file.read([unit], ["a"])
    with pytest.raises(BadFileError, match=wanted):
        list(file.batches(unit, ["a"], 100))


def test_a_damaged_length(tmp_path: Path) -> None:
    data, size = many()
    at = size * 2500
    damaged = bytearray(data)
    damaged[at + 1] ^= 8
    file = opened(tmp_path / "a.tfrecord", bytes(damaged), block_size=2**18)
    assert file.unit_rows[-1] is None
    assert sum(r or 0 for r in file.unit_rows) == 2500
    assert file.read(range(len(file.unit_rows) - 1), ["a"]).num_rows == 2500
    for read in (
        file.count,
        lambda u: file.read([u], ["a"]),
        lambda u: list(file.batches(u, [], 9)),
    ):
        with pytest.raises(BadFileError, match=f"damaged at byte {at:,}: the length of a record"):
            read(len(file.unit_rows) - 1)


@pytest.mark.parametrize("lost", [1, 4, 5, 100, 530])
def test_a_file_cut_short(lost: int, tmp_path: Path) -> None:
    data, size = many()
    file = opened(tmp_path / "a.tfrecord", data[:-lost], block_size=2**18)
    assert sum(r or 0 for r in file.unit_rows) == 2999
    with pytest.raises(BadFileError, match=f"cut short: the record at byte {size * 2999:,} is"):
        file.count(len(file.unit_rows) - 1)
    with pytest.raises(BadFileError, match="cut short"):
        Dataset(tmp_path / "a.tfrecord").to_arrow()
    with pytest.raises(BadFileError, match="cut short"):
        _ = Dataset(tmp_path / "a.tfrecord").num_rows


@pytest.mark.parametrize("kept", [1, 11, 12, 13, 30])
def test_a_file_cut_short_within_its_first_record(kept: int, tmp_path: Path) -> None:
    with pytest.raises(BadFileError, match=r"cut short|is not a TFRecord file"):
        opened(tmp_path / "a.tfrecord", BY_TENSORFLOW[:kept])


@pytest.mark.parametrize("pack", [gzip.compress, zlib.compress])
def test_a_compressed_file_cut_short(pack: Any, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    data = frames(example({"a": texts(rng.bytes(900))}) for _ in range(1500))
    packed = pack(data)
    (tmp_path / "a.tfrecord").write_bytes(packed[: len(packed) * 9 // 10])
    with pytest.raises(BadFileError, match="cut short"):
        Dataset(tmp_path / "a.tfrecord").to_arrow()
    with pytest.warns(SkippedFileWarning, match="cut short"):
        left = Dataset(tmp_path / "a.tfrecord", on_bad_file="skip", part_size="1MiB").num_rows
    assert 900 < left < 1350


def test_the_length_of_a_compressed_file_may_not_lie(tmp_path: Path) -> None:
    """The last record promises a byte more than there is; only reading on can tell."""
    data, _ = many(2000)
    file = opened(tmp_path / "a.tfrecord", gzip.compress(data[:-1]))
    with pytest.raises(BadFileError, match="cut short"):
        file.count(len(file.unit_rows) - 1)


def test_leaving_out_what_is_damaged(tmp_path: Path) -> None:
    data, size = many()
    damaged = bytearray(data)
    damaged[size * 2500 + size // 2] ^= 1
    (tmp_path / "a.tfrecord").write_bytes(damaged[:-7])
    (tmp_path / "b.tfrecord").write_bytes(data)
    with pytest.warns(SkippedFileWarning):
        dataset = Dataset(tmp_path, on_bad_file="skip", part_size="1MiB")
        rows = dataset.num_rows
    assert 5000 < rows < 5999
    assert rows == sum(t.num_rows for t in dataset.iter_tables())
    assert len(dataset.skipped) == 2
    assert f"byte {size * 2500:,}" in dataset.skipped[0].reason
    assert "cut short" in dataset.skipped[1].reason


def test_a_file_that_is_something_else(tmp_path: Path) -> None:
    with pytest.raises(BadFileError, match="is not a TFRecord file: it starts with b'PAR1"):
        opened(tmp_path / "a.tfrecord", b"PAR1" + bytes(100))


def test_a_length_beyond_all_bounds(tmp_path: Path) -> None:
    length = struct.pack("<Q", 2**62)
    data = frame(example({"a": ints(1)})) + length + masked(length) + b"abc"
    file = opened(tmp_path / "a.tfrecord", data)
    assert file.unit_rows == [1, None]


def test_a_file_that_shrinks(tmp_path: Path) -> None:
    data, _ = many()
    file = opened(tmp_path / "a.tfrecord", data)
    assert sum(r or 0 for r in file.unit_rows) == 3000
    (tmp_path / "a.tfrecord").write_bytes(data[: len(data) // 2])
    with pytest.raises(BadFileError, match="changed its length"):
        file.read([0], ["a"])


# -- types ------------------------------------------------------------------------------


def after_the_first_block(tmp_path: Path, last: bytes, **options: Any) -> tuple[TFRecordFile, int]:
    """A file whose last record, beyond what types are inferred from, is another."""
    data, _ = many()
    return opened(tmp_path / "a.tfrecord", data + frame(last), **options), len(data)


@pytest.mark.parametrize(
    ("last", "message"),
    [
        ({"a": floats(1.0)}, "feature 'a' is float in the record at byte {at}, and int64 in the"),
        ({"a": ints(1, 2)}, "feature 'a' has 2 values in the record at byte {at}, and one in the"),
        ({"a": ints()}, "feature 'a' has 0 values in the record at byte {at}, and one in the"),
        ({"b": texts(b"\xff")}, "feature 'b' is not string, as in the first records, in the rec"),
        ({"c": ints(1)}, "has a feature 'c' in the record at byte {at} that its first records la"),
    ],
)
def test_a_feature_that_changes(
    last: dict[str, Any], message: str, tmp_path: Path, way: str
) -> None:
    file, at = after_the_first_block(tmp_path, example(last))
    units = range(len(file.unit_rows))
    with pytest.raises(BadFileError) as caught:
        file.read(units, ["a", "b"])
    assert message.format(at=f"{at:,}") in str(caught.value)
    assert f"byte {at:,}" in str(caught.value)
    assert caught.value.column == next(iter(last))
    others = [c for c in ("a", "b") if c not in last]
    assert file.read(units, others[:1]).num_rows == 3001


@pytest.mark.parametrize(
    ("last", "dtypes", "expected"),
    [
        ({"a": ints(1, 2)}, {"a": pa.list_(pa.int64())}, {"a": [1, 2], "b": None}),
        ({"b": texts(b"\xff")}, {"b": pa.binary()}, {"a": None, "b": b"\xff"}),
        ({"c": ints(1)}, {"c": pa.int8()}, {"a": None, "b": None, "c": 1}),
        ({"c": floats(0.5)}, {"c": pa.float64()}, {"a": None, "b": None, "c": 0.5}),
        (
            {"c": texts(b"t")},
            {"c": pa.dictionary(pa.int32(), pa.string())},
            {"a": None, "b": None, "c": "t"},
        ),
        ({"a": ints(-5)}, {"a": pa.float32()}, {"a": -5.0, "b": None}),
    ],
)
def test_dtypes_say_how(
    last: dict[str, Any], dtypes: dict[str, Any], expected: dict[str, Any], tmp_path: Path
) -> None:
    file, _ = after_the_first_block(tmp_path, example(last), dtypes=dtypes)
    units = range(len(file.unit_rows))
    table = file.read(units, file.schema.names)
    assert table.schema.equals(file.schema)
    assert all(table.schema.field(n).type == t for n, t in dtypes.items())
    assert table.slice(3000).to_pylist() == [expected]
    first = table.slice(0, 1).to_pylist()[0]
    assert first["a"] in (7, [7]) and first["b"] in ("x" * 500, b"x" * 500)


def test_a_value_that_dtypes_cannot_hold(tmp_path: Path) -> None:
    file, at = after_the_first_block(tmp_path, example({"a": ints(300)}), dtypes={"a": pa.int8()})
    with pytest.raises(BadFileError, match=f"'a' is not int8, as dtypes= asks, .*{at:,}: 300"):
        file.read(range(len(file.unit_rows)), ["a"])


def test_fixed_length_lists_by_dtypes(tmp_path: Path) -> None:
    data = frames(example({"v": floats(i, i + 1)}) for i in range(40))
    dtype = pa.list_(pa.float32(), 2)
    file = opened(tmp_path / "a.tfrecord", data, dtypes={"v": dtype})
    table = file.read([0], ["v"])
    assert table.schema.field("v").type == dtype
    assert table.column("v")[5].as_py() == [5.0, 6.0]


def test_a_nested_type_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SchemaError, match="a value or a list of values"):
        opened(tmp_path / "a.tfrecord", BY_TENSORFLOW, dtypes={"n": pa.struct({"a": pa.int8()})})


def test_a_type_that_changes_within_the_first_records(tmp_path: Path, way: str) -> None:
    one = frame(example({"a": ints(1)}))
    data = one * 30 + frame(example({"a": texts(b"1")})) + one
    with pytest.raises(BadFileError, match=f"'a' is bytes in the record at byte {30 * len(one)}"):
        opened(tmp_path / "a.tfrecord", data)


def test_files_that_disagree(tmp_path: Path) -> None:
    (tmp_path / "a.tfrecord").write_bytes(frame(example({"v": ints(1)})))
    (tmp_path / "b.tfrecord").write_bytes(frame(example({"v": ints(1, 2)})))
    with pytest.raises(SchemaMismatchError, match="dtypes="):
        Dataset(tmp_path)
    dataset = Dataset(tmp_path, dtypes={"v": "list<int64>"})
    assert dataset.to_arrow().column("v").to_pylist() == [[1], [1, 2]]


def test_a_file_without_records(tmp_path: Path) -> None:
    """Writers of many shards leave some empty."""
    (tmp_path / "a.tfrecord").write_bytes(b"")
    (tmp_path / "b.tfrecord").write_bytes(gzip.compress(b""))
    (tmp_path / "c.tfrecord").write_bytes(frame(example({"v": ints(5)})))
    assert Dataset(tmp_path).to_arrow().to_pydict() == {"v": [5]}
    assert Dataset(tmp_path / "a.tfrecord").num_rows == 0
    assert Dataset(tmp_path / "b.tfrecord", dtypes={"v": "int64"}).to_arrow().to_pydict() == {
        "v": []
    }


def test_examples_without_features(tmp_path: Path) -> None:
    with pytest.raises(BadFileError, match="Examples without features"):
        opened(tmp_path / "a.tfrecord", frame(b"") * 3)
    file = opened(tmp_path / "a.tfrecord", frame(b"") * 3, dtypes={"v": pa.int64()})
    assert rows_of(file) == [{"v": None}] * 3


# -- Dataset ----------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["x.tfrecords", "x.tfrecord-00000-of-00002", "x.tfrecord.zlib"])
def test_names_that_tell(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(BY_TENSORFLOW)
    assert Dataset(tmp_path).num_rows == 2


def test_first_bytes_that_tell(tmp_path: Path) -> None:
    (tmp_path / "part-0").write_bytes(BY_TENSORFLOW)
    assert Dataset(tmp_path / "part-0").num_rows == 2
    (tmp_path / "part-0").write_bytes(gzip.compress(BY_TENSORFLOW))
    assert Dataset(tmp_path / "part-0", engine="tfrecord").num_rows == 2


def test_partitions_and_filters(tmp_path: Path) -> None:
    data = frames(example({"i": ints(i), "t": texts(b"%d" % i)}) for i in range(1000))
    for shard in range(2):
        (tmp_path / f"{shard}.tfrecord").write_bytes(data)
    dataset = Dataset(tmp_path / "*.tfrecord", npartitions=7)
    assert dataset.partition_lens == [285, 286, 286, 285, 286, 286, 286]
    assert dataset.to_arrow().column("i").to_pylist() == list(range(1000)) * 2
    some = Dataset(tmp_path, filters=[("i", ">=", 990)], columns=["t"])
    assert some.to_arrow().column("t").to_pylist() == [str(i) for i in range(990, 1000)] * 2


def test_tensorflow_is_not_needed(tmp_path: Path) -> None:
    import subprocess

    (tmp_path / "a.tfrecord").write_bytes(BY_TENSORFLOW)
    code = (
        "import sys, tabfeed; tabfeed.Dataset(sys.argv[1]).to_arrow(); "
        "assert not {'tensorflow', 'google.protobuf'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=True)


# -- checksums --------------------------------------------------------------------------


def test_checksums_of_every_length(tmp_path: Path) -> None:
    """Right ones are taken, wrong ones refused, and the record is named."""
    lengths = [*range(20, 140), 4095, 4096, 4097, 8192, 9000, 70_000]
    values = [np.random.default_rng(n).bytes(n) for n in lengths]
    data = frames(example({"a": texts(b"\xff" + v)}) for v in values)
    (tmp_path / "a.tfrecord").write_bytes(data)
    table = Dataset(tmp_path / "a.tfrecord").to_arrow()
    assert table.column("a").to_pylist() == [b"\xff" + v for v in values]
    start = 0
    for value in values:
        end = start + len(frame(example({"a": texts(b"\xff" + value)})))
        damaged = bytearray(data)
        damaged[end - 5] ^= 128
        (tmp_path / "a.tfrecord").write_bytes(damaged)
        with pytest.raises(BadFileError, match=f"checksum of the record at byte {start:,} does"):
            Dataset(tmp_path / "a.tfrecord")
        start = end
    assert start == len(data)


@pytest.mark.parametrize("length", [17, 255, 256, 65_537, 2**24 + 513, 2**31 - 1])
def test_checksums_of_lengths(tmp_path: Path, length: int) -> None:
    """A length and its checksum alone tell what the file is; not with a bit of either changed."""
    path = tmp_path / "part-0"
    head = struct.pack("<Q", length)
    path.write_bytes(head + masked(head))
    with pytest.raises(BadFileError, match="is cut short: the record at byte 0 is not all there"):
        Dataset(path)
    for bit in range(96):
        damaged = bytearray(head + masked(head))
        damaged[bit // 8] ^= 1 << bit % 8
        path.write_bytes(damaged)
        with pytest.raises(ArgumentError, match=r"the format of .*part-0 cannot be told"):
            Dataset(path)


def test_known_checksums() -> None:
    """The test vectors of RFC 3720, for the checksums that the tests themselves write."""
    vectors = {
        bytes(32): 0x8A9136AA,
        b"\xff" * 32: 0x62A8AB43,
        bytes(range(32)): 0x46DD794E,
        bytes(range(31, -1, -1)): 0x113FDB5C,
    }
    for text, expected in vectors.items():
        assert crc32c(text) == expected


def test_small_windows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Headers and footers that lie across the windows in which frames are looked for."""
    records = [example({"a": texts(b"x" * (i * i % 97))}) for i in range(200)]
    data = frames(records)
    for window in (1, 7, 16, 100):
        monkeypatch.setattr(tfrecord_records, "_WINDOW", window)
        monkeypatch.setattr(tfrecord_records, "_PACKED_WINDOW", window)
        for packed in (data, gzip.compress(data)):
            file = opened(tmp_path / "a.tfrecord", packed, block_size=500)
            assert sum(r or 0 for r in file.unit_rows) == 200
            for cut in (1, 5, 30):
                short = opened(tmp_path / "a.tfrecord", data[:-cut], block_size=500)
                assert short.unit_rows[-1] is None
                assert sum(r or 0 for r in short.unit_rows) == 199
