"""TFRecord files as data files: both readers, units, what damage costs, every way to read."""

from __future__ import annotations

import gzip
import math
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tabfeed.errors import (
    BadFileError,
)
from tabfeed.io import ReadOptions
from tabfeed.io.formats.tfrecord import records as tfrecord_records
from tabfeed.io.formats.tfrecord import walk as tfrecord_walk
from tabfeed.io.formats.tfrecord.file import TFRecordFile, open_tfrecord
from tabfeed.io.formats.tfrecord.records import records_of
from tabfeed.io.formats.tfrecord.values import NotAnExampleError, parse_example
from tests.io.data_files import check_data_file, rows_of, write
from tests.io.formats.tfrecord.test_file import BY_TENSORFLOW, many
from tests.io.tfrecords import (
    delimited,
    entry,
    example,
    feature,
    floats,
    frame,
    frames,
    ints,
    texts,
    varint,
)


def opened(path: Path, data: bytes, **options: Any) -> TFRecordFile:
    return open_tfrecord(write(path, data), ReadOptions(**options))


@pytest.fixture(params=["walked", "one by one"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Both readers, whatever the number of records."""
    monkeypatch.setattr(tfrecord_walk, "FEW", 1 if request.param == "walked" else 10**9)
    yield request.param


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


def test_a_file_that_shrinks(tmp_path: Path) -> None:
    data, _ = many()
    file = opened(tmp_path / "a.tfrecord", data)
    assert sum(r or 0 for r in file.unit_rows) == 3000
    (tmp_path / "a.tfrecord").write_bytes(data[: len(data) // 2])
    with pytest.raises(BadFileError, match="changed its length"):
        file.read([0], ["a"])


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
    data, _ = many()
    file, at = opened(tmp_path / "a.tfrecord", data + frame(example(last))), len(data)
    units = range(len(file.unit_rows))
    with pytest.raises(BadFileError) as caught:
        file.read(units, ["a", "b"])
    assert message.format(at=f"{at:,}") in str(caught.value)
    assert f"byte {at:,}" in str(caught.value)
    assert caught.value.column == next(iter(last))
    others = [c for c in ("a", "b") if c not in last]
    assert file.read(units, others[:1]).num_rows == 3001


def test_a_type_that_changes_within_the_first_records(tmp_path: Path, way: str) -> None:
    one = frame(example({"a": ints(1)}))
    data = one * 30 + frame(example({"a": texts(b"1")})) + one
    with pytest.raises(BadFileError, match=f"'a' is bytes in the record at byte {30 * len(one)}"):
        opened(tmp_path / "a.tfrecord", data)


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
