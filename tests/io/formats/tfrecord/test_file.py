from __future__ import annotations

import gzip
import struct
import sys
import zlib
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
from tests.io.datasets import opened, rows_in, types_of
from tests.io.tfrecords import (
    crc32c,
    delimited,
    example,
    floats,
    frame,
    frames,
    ints,
    masked,
    texts,
)

# What TensorFlow 2.21 wrote for n=[-3], x=[0.5, 2.0], s=[b"hi"], and for an empty Example.
BY_TENSORFLOW = bytes.fromhex(
    "3700000000000000e7e8ca590a350a110a0178120c120a0a080000003f000000400a130a016e120e1a0c0a0afdff"
    "ffffffffffffff010a0b0a017312060a040a026869206ec338000000000000000029039807d8ea82a2"
)


# -- what is in the files ---------------------------------------------------------------


def test_columns_are_in_natural_order(tmp_path: Path) -> None:
    record = example({f"C{k}": ints(k) for k in (10, 2, 1, 11)})
    file = opened(tmp_path / "a.tfrecord", frame(record))
    assert file.column_names == ["C1", "C2", "C10", "C11"]


def test_many_records_long_names_and_large_values(tmp_path: Path) -> None:
    """Sizes of one, two and three bytes in the same block, and records of many blocks."""
    name = "n" * 150
    sizes = [0, 1, 100, 127, 128, 200, 20_000]
    records = [
        example({name: ints(i), "blob": texts(bytes([200]) * sizes[i % 7]), "m" * 127: ints(-i)})
        for i in range(70)
    ]
    file = opened(tmp_path / "a.tfrecord", frames(records))
    table = file.select([name, "blob", "m" * 127]).to_arrow()
    assert table.column(0).to_pylist() == list(range(70))
    assert [len(b) for b in table.column(1).to_pylist()] == sizes * 10
    assert table.column(2).to_pylist() == [-i for i in range(70)]


# -- the wire ---------------------------------------------------------------------------


@pytest.mark.parametrize("length", [2**31, 2**62, 2**63, 2**64 - 1])
def test_lengths_beyond_any_record(tmp_path: Path, length: int) -> None:
    head = struct.pack("<Q", length)
    data = frame(example({"a": ints(1)})) + head + masked(head) + b"x" * 100
    with pytest.raises(BadFileError, match="the length of a record is expected there"):
        rows_in(opened(tmp_path / "a.tfrecord", data))
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


def rows_left(path: Path) -> int:
    """Rows before the damage, which is left out."""
    with pytest.warns(SkippedFileWarning):
        return Dataset(path, on_bad_file="skip", part_size="1MiB").num_rows


def test_a_damaged_length(tmp_path: Path) -> None:
    data, size = many()
    at = size * 2500
    damaged = bytearray(data)
    damaged[at + 1] ^= 8
    file = opened(tmp_path / "a.tfrecord", bytes(damaged), part_size="1MiB")
    for read in (
        lambda: file.num_rows,
        lambda: file.select(["a"]).to_arrow(),
        lambda: Dataset(tmp_path / "a.tfrecord", part_size="10KB").to_arrow(),
    ):
        with pytest.raises(BadFileError, match=f"damaged at byte {at:,}: the length of a record"):
            read()
    assert rows_left(tmp_path / "a.tfrecord") == 2500


@pytest.mark.parametrize("lost", [1, 4, 5, 100, 530])
def test_a_file_cut_short(lost: int, tmp_path: Path) -> None:
    data, size = many()
    file = opened(tmp_path / "a.tfrecord", data[:-lost])
    for read in (lambda: file.num_rows, file.to_arrow):
        with pytest.raises(BadFileError, match=f"cut short: the record at byte {size * 2999:,} is"):
            read()
    assert rows_left(tmp_path / "a.tfrecord") == 2999


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
        _ = file.num_rows


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
    with pytest.raises(BadFileError, match="the length of a record is expected there"):
        _ = opened(tmp_path / "a.tfrecord", data).num_rows
    assert rows_left(tmp_path / "a.tfrecord") == 1


# -- types ------------------------------------------------------------------------------


def after_the_first_block(tmp_path: Path, last: bytes, **options: Any) -> tuple[Dataset, int]:
    """A file whose last record, beyond what types are inferred from, is another."""
    data, _ = many()
    return opened(tmp_path / "a.tfrecord", data + frame(last), **options), len(data)


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
    table = file.to_arrow()
    assert table.schema.equals(types_of(file))
    assert all(table.schema.field(n).type == t for n, t in dtypes.items())
    assert table.slice(3000).to_pylist() == [expected]
    first = table.slice(0, 1).to_pylist()[0]
    assert first["a"] in (7, [7]) and first["b"] in ("x" * 500, b"x" * 500)


def test_a_value_that_dtypes_cannot_hold(tmp_path: Path) -> None:
    file, at = after_the_first_block(tmp_path, example({"a": ints(300)}), dtypes={"a": pa.int8()})
    with pytest.raises(BadFileError, match=f"'a' is not int8, as dtypes= asks, .*{at:,}: 300"):
        file.select(["a"]).to_arrow()


def test_fixed_length_lists_by_dtypes(tmp_path: Path) -> None:
    data = frames(example({"v": floats(i, i + 1)}) for i in range(40))
    dtype = pa.list_(pa.float32(), 2)
    file = opened(tmp_path / "a.tfrecord", data, dtypes={"v": dtype})
    table = file.to_arrow()
    assert table.schema.field("v").type == dtype
    assert table.column("v")[5].as_py() == [5.0, 6.0]


def test_a_nested_type_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SchemaError, match="a value or a list of values"):
        opened(tmp_path / "a.tfrecord", BY_TENSORFLOW, dtypes={"n": pa.struct({"a": pa.int8()})})


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
    assert rows_in(file) == [{"v": None}] * 3


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
