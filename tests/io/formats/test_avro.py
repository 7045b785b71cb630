import bz2
import io
import lzma
import zlib
from datetime import date, datetime, time, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

import fastavro
import polars as pl
import pyarrow as pa
import pytest

from tabfeed import Dataset
from tabfeed.errors import ArgumentError, BadFileError, DuplicateColumnError, SchemaError
from tests.io.avros import SYNC, container, record, save, snappy, string, v, varint
from tests.io.datasets import opened, rows_in, types_of, written

SCHEMA = record(a="long", s=["null", "string"])
ROWS = [{"a": i, "s": None if i % 3 == 0 else f"text {i}"} for i in range(1000)]


UTC = timezone.utc
CENTS = {"logicalType": "decimal", "precision": 10, "scale": 2}
NAMED = {"type": "enum", "name": "colour", "symbols": ["red", "green"]}
POINT = {"type": "record", "name": "point", "fields": [{"name": "x", "type": "int"}]}
TYPES: dict[str, tuple[Any, pa.DataType, Any]] = {
    "boolean": ("boolean", pa.bool_(), True),
    "int": ("int", pa.int32(), -7),
    "float": ("float", pa.float32(), 1.5),
    "double": ("double", pa.float64(), 1.25),
    "bytes": ("bytes", pa.binary(), b"\0\xff"),
    "string": ("string", pa.string(), "é"),
    "fixed": ({"type": "fixed", "name": "two", "size": 2}, pa.binary(), b"ab"),
    "enum": (NAMED, pa.dictionary(pa.int32(), pa.string()), "green"),
    "array": ({"type": "array", "items": ["null", "long"]}, pa.list_(pa.int64()), [1, None]),
    "arrays": (
        {"type": "array", "items": {"type": "array", "items": "string"}},
        pa.list_(pa.list_(pa.string())),
        [["a"], []],
    ),
    "record": (POINT, pa.struct({"x": pa.int32()}), {"x": 3}),
    "records": (
        {"type": "array", "items": ["null", POINT]},
        pa.list_(pa.struct({"x": pa.int32()})),
        [None, {"x": 4}],
    ),
    "date": ({"type": "int", "logicalType": "date"}, pa.date32(), date(2024, 2, 29)),
    "millis": (
        {"type": "long", "logicalType": "timestamp-millis"},
        pa.timestamp("ms", "UTC"),
        datetime(2024, 1, 2, 3, 4, 5, 6000, UTC),
    ),
    "micros": (
        {"type": "long", "logicalType": "timestamp-micros"},
        pa.timestamp("us", "UTC"),
        datetime(2024, 1, 2, 3, 4, 5, 6, UTC),
    ),
    "local": (
        {"type": "long", "logicalType": "local-timestamp-micros"},
        pa.timestamp("us"),
        datetime(2024, 1, 2, 3, 4, 5, 6),
    ),
    "time": ({"type": "int", "logicalType": "time-millis"}, pa.time64("ns"), time(1, 2, 3, 4000)),
    "times": ({"type": "long", "logicalType": "time-micros"}, pa.time64("ns"), time(1, 2, 3, 4)),
    "decimal": (
        {**CENTS, "type": "bytes"},
        pa.decimal128(10, 2),
        Decimal("-1.25"),
    ),
    "fixed decimal": (
        {
            "type": "fixed",
            "name": "d",
            "size": 6,
            "logicalType": "decimal",
            "precision": 10,
            "scale": 2,
        },
        pa.decimal128(10, 2),
        Decimal("-1.25"),
    ),
    "uuid": (
        {"type": "string", "logicalType": "uuid"},
        pa.string(),
        "12345678-1234-5678-1234-567812345678",
    ),
}


@pytest.mark.parametrize("kind", TYPES)
def test_types(tmp_path: Path, kind: str) -> None:
    schema, dtype, value = TYPES[kind]
    rows = [{"z": 1, "a": value, "n": value}, {"z": 2, "a": value, "n": None}]
    fields = record(z="int", a=schema, n=["null", _renamed(schema)])
    file = Dataset(save(tmp_path / "a.avro", fields, rows))
    assert types_of(file) == pa.schema({"z": pa.int32(), "a": dtype, "n": dtype})
    assert rows_in(file) == rows
    assert rows_in(file, ["z"]) == [{"z": 1}, {"z": 2}]
    assert rows_in(file, ["n", "z"]) == [{"n": value, "z": 1}, {"n": None, "z": 2}]


def _renamed(schema: Any) -> Any:
    """A second definition needs a name of its own."""
    if isinstance(schema, list):
        return [_renamed(s) for s in schema]
    if not isinstance(schema, dict):
        return schema
    named = {"name": schema["name"] + "2"} if "name" in schema else {}
    items = {"items": _renamed(schema["items"])} if "items" in schema else {}
    return {**schema, **named, **items}


def test_null_last_in_a_union(tmp_path: Path) -> None:
    schema = record(a=["string", "null"], e=[NAMED, "null"])
    rows = [{"a": "x", "e": "red"}, {"a": None, "e": None}]
    assert rows_in(Dataset(save(tmp_path / "a.avro", schema, rows))) == rows


def test_names_stand_for_their_types(tmp_path: Path) -> None:
    schema = {**record(a=NAMED, b="colour", c=POINT, d=["null", "geo.point"]), "namespace": "geo"}
    rows = [
        {"a": "red", "b": "green", "c": {"x": 1}, "d": {"x": 2}},
        {"a": "green", "b": "red", "c": {"x": 3}, "d": None},
    ]
    assert rows_in(Dataset(save(tmp_path / "a.avro", schema, rows))) == rows


def test_maps_are_lists_of_entries(tmp_path: Path) -> None:
    schema = record(z="int", m={"type": "map", "values": ["null", "long"]})
    rows = [{"z": 1, "m": {"a": 1, "b": None}}, {"z": 2, "m": {}}]
    file = Dataset(save(tmp_path / "a.avro", schema, rows))
    assert types_of(file).field("m").type == pa.list_(
        pa.struct({"key": pa.string(), "value": pa.int64()})
    )
    assert rows_in(file) == [
        {"z": 1, "m": [{"key": "a", "value": 1}, {"key": "b", "value": None}]},
        {"z": 2, "m": []},
    ]
    assert rows_in(file, ["z"]) == [{"z": 1}, {"z": 2}]


def test_columns_of_nothing_but_nulls(tmp_path: Path) -> None:
    rows = [{"n": None, "a": 1}, {"n": None, "a": 2}]
    file = Dataset(save(tmp_path / "a.avro", record(n="null", a="long"), rows))
    assert types_of(file).field("n").type == pa.null()
    assert rows_in(file) == rows
    assert rows_in(file, ["n"]) == [{"n": None}] * 2
    only = save(tmp_path / "b.avro", record(n="null"), [{"n": None}] * 3)
    assert rows_in(Dataset(only)) == [{"n": None}] * 3


def test_arrays_in_blocks_with_sizes(tmp_path: Path) -> None:
    array = varint(-2) + varint(2) + varint(1) + varint(2) + varint(1) + varint(3) + varint(0)
    schema = record(l={"type": "array", "items": "long"}, z="int")
    data = container(schema, [(2, (array + varint(9)) * 2)])
    file = opened(tmp_path / "a.avro", data)
    assert rows_in(file) == [{"l": [1, 2, 3], "z": 9}] * 2
    assert rows_in(file, ["z"]) == [{"z": 9}] * 2


def test_a_long_header(tmp_path: Path) -> None:
    fields = {f"c{i}": "long" for i in range(5000)}
    file = Dataset(save(tmp_path / "a.avro", record(**fields), [dict.fromkeys(fields, 7)]))
    assert rows_in(file, ["c4999"]) == [{"c4999": 7}]


# -- what cannot be read ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        (["int", "string"], "a union of int, string"),
        (["null", "int", "string"], "a union of null, int, string"),
        ({"type": "array", "items": NAMED}, "enum inside"),
        ({"type": "array", "items": "null"}, "'null' inside another"),
        ({"type": "bytes", "logicalType": "decimal", "precision": 45}, "decimal of 45 digits"),
        ("nowhere", "'nowhere' is not defined"),
    ],
)
def test_types_that_are_refused(tmp_path: Path, schema: Any, message: str) -> None:
    location = written(tmp_path / "a.avro", container(record(z="int", bad=schema), []))
    with pytest.raises(SchemaError, match=rf"a\.avro: column 'bad': .*{message}"):
        Dataset(location)


def test_a_record_that_holds_itself(tmp_path: Path) -> None:
    tree = {"type": "record", "name": "tree", "fields": [{"name": "t", "type": ["null", "tree"]}]}
    location = written(tmp_path / "a.avro", container(record(bad=tree), []))
    with pytest.raises(SchemaError, match="column 'bad': the record 'tree' holds itself"):
        Dataset(location)


def test_files_that_are_not_tables(tmp_path: Path) -> None:
    with pytest.raises(SchemaError, match="single values, not records"):
        opened(tmp_path / "a.avro", container("long", []))
    with pytest.raises(BadFileError, match="without fields"):
        opened(tmp_path / "a.avro", container(record(), []))
    twice = record(a="long")
    twice["fields"] *= 2
    with pytest.raises(DuplicateColumnError, match="named 'a'"):
        opened(tmp_path / "a.avro", container(twice, []))


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", r"is empty \(0 bytes\)"),
        (b"hello world", "is not an Avro file: it starts with b'hell'"),
        (b"Obj\x01", "within its header"),
        (container(SCHEMA, [])[:40], "within its header"),
        (container(SCHEMA, [], codec="lzo"), "compressed with 'lzo'; tabfeed reads null, deflate"),
        (b"Obj\x01" + varint(0) + SYNC, "is not an Avro file"),
    ],
)
def test_bad_files(tmp_path: Path, data: bytes, message: str) -> None:
    with pytest.raises(BadFileError, match=rf"bad\.avro .*{message}"):
        opened(tmp_path / "bad.avro", data)


def test_compressed_as_a_whole(tmp_path: Path) -> None:
    with pytest.raises(BadFileError, match="compressed as a whole"):
        opened(tmp_path / "a.avro.gz", b"x")


@pytest.mark.parametrize("codec", ["null", "deflate"])
def test_cut_or_flipped_anywhere(tmp_path: Path, codec: str, capfd) -> None:
    """Refused; or, cut between blocks, what is before; or one value is another."""
    sink = io.BytesIO()
    fastavro.writer(sink, fastavro.parse_schema(SCHEMA), ROWS[:40], codec=codec, sync_interval=100)
    data = sink.getvalue()
    for place in range(0, len(data), 3):
        broken = data[:place] + bytes([data[place] ^ 0x55]) + data[place + 1 :]
        for variant in (data[:place], broken):
            try:
                rows = rows_in(opened(tmp_path / "a.avro", variant))
            except (BadFileError, SchemaError, DuplicateColumnError):
                continue
            if variant is not broken:
                assert rows == ROWS[: len(rows)]
    capfd.readouterr()


def test_announced_rows_that_are_not_there(tmp_path: Path) -> None:
    data = container(record(a="long"), [(3, varint(1) + varint(2))])
    file = opened(tmp_path / "a.avro", data)
    with pytest.raises(BadFileError, match="cut short or damaged"):
        rows_in(file)


def test_wrong_checksum(tmp_path: Path) -> None:
    block = snappy(varint(1))[:-1] + b"\0"
    data = container(record(a="long"), [(1, block)], "snappy")
    with pytest.raises(BadFileError, match="checksum"):
        rows_in(opened(tmp_path / "a.avro", data))


DEFLATE = zlib.compressobj(9, zlib.DEFLATED, -15)
BOMB = DEFLATE.compress(bytes(2**28)) + DEFLATE.flush()
WIDE = {
    "type": "record",
    "name": "wide",
    "fields": [{"name": f"f{i}", "type": ["null", "long"]} for i in range(3000)],
}


@pytest.mark.parametrize(
    ("schema", "rows", "body", "codec", "message"),
    [
        ("long", 2**40, v(1), "null", "cannot hold the 1,099,511,627,776 rows"),
        ("null", 2**40, b"", "null", "cannot hold the 1,099,511,627,776 rows"),
        ("null", 2**30, b"", "null", "cannot hold the 1,073,741,824 rows"),
        ("long", 2**40, BOMB[:100], "deflate", "cannot hold the 1,099,511,627,776 rows"),
        ("double", 2**20, BOMB[:100], "deflate", "compressed data are cut short"),
        ("double", 2, v(1, 2), "null", "cannot hold the 2 rows"),
        ("bytes", 1, BOMB, "deflate", "unpacks to more than 134,217,728 bytes"),
        ("bytes", 1, bz2.compress(bytes(2**28)), "bzip2", "unpacks to more than 134,217,728 bytes"),
        ("bytes", 1, lzma.compress(bytes(2**28)), "xz", "unpacks to more than 134,217,728 bytes"),
        ("bytes", 1, b"\xff\xff\xff\xff\x0f" + b"x" * 9, "snappy", "unpacks to more than"),
        ("long", 1, v(1, 2), "null", "1 rows do not take the 2 bytes that hold them"),
        ("long", 0, v(1), "null", "0 rows do not take the 1 bytes"),
        (["null", "long"], 2, v(2, 1, 5), "null", "cut short or damaged"),  # 0 was null
        (["null", "long"], 2, v(-2, 1, 5), "null", "cut short or damaged"),
        ("int", 1, v(2**40), "null", "1099511627776 not in range"),
        ({"type": "enum", "name": "e", "symbols": ["a"]}, 1, v(7), "null", "out of bounds"),
        ({"type": "enum", "name": "e", "symbols": ["a"]}, 1, v(2**32), "null", "not in range"),
        ({**CENTS, "type": "bytes"}, 1, v(16) + b"\x7f" * 16, "null", "does not fit in precision"),
        (["null", WIDE], 10**5, bytes(10**5), "null", "nearly all of them nulls"),
    ],
)
def test_blocks_that_claim_too_much(
    tmp_path: Path, schema: Any, rows: int, body: bytes, codec: str, message: str, capfd
) -> None:
    location = written(tmp_path / "bad.avro", container(record(a=schema), [(rows, body)], codec))
    with pytest.raises(BadFileError, match=rf"bad\.avro .*{message}"):
        rows_in(Dataset(location))
    capfd.readouterr()


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ({"type": "fixed", "name": "f", "size": 0}, "a fixed of 0 bytes"),
        ({"type": "fixed", "name": "f", "size": 2**62}, "a fixed of 4611686018427387904 bytes"),
        ({"type": "record", "name": "e", "fields": []}, "a record without fields"),
        ({"type": "bytes", "logicalType": "decimal", "precision": 0}, "decimal of 0 digits"),
        ({**CENTS, "type": "bytes", "scale": 11}, "11 of them after the point"),
    ],
)
def test_types_without_a_value(tmp_path: Path, schema: Any, message: str) -> None:
    location = written(tmp_path / "a.avro", container(record(bad=schema), []))
    with pytest.raises(SchemaError, match=rf"a\.avro: column 'bad': .*{message}"):
        Dataset(location)


def test_schemas_that_are_too_deep_or_too_large(tmp_path: Path) -> None:
    def nested(levels: int) -> bytes:
        inner = '{"type":"array","items":' * levels + '"long"' + "}" * levels
        schema = '{"type":"record","name":"r","fields":[{"name":"a","type":' + inner + "}]}"
        return container(None, []).replace(string(b"null"), string(schema.encode()), 1)

    with pytest.raises(SchemaError, match="column 'a': nested more than 64 levels"):
        opened(tmp_path / "a.avro", nested(100))
    with pytest.raises(BadFileError, match="recursion"):
        opened(tmp_path / "a.avro", nested(50_000))
    fields: list[Any] = [{"name": "x", "type": "long"}]
    for i in range(20):  # each holds the one before twice
        twice = {"type": "record", "name": f"r{i}", "fields": fields}
        fields = [{"name": "p", "type": twice}, {"name": "q", "type": f"r{i}"}]
    data = container(record(a={"type": "record", "name": "top", "fields": fields}), [])
    with pytest.raises(SchemaError, match="too many types"):
        opened(tmp_path / "a.avro", data)


@pytest.mark.parametrize("compression", ["uncompressed", "snappy"])
def test_a_block_beyond_the_memory_limit_is_refused(tmp_path: Path, compression: Any) -> None:
    pl.DataFrame({"x": range(100_000)}).write_avro(tmp_path / "a.avro", compression=compression)
    dataset = Dataset(tmp_path / "a.avro")
    with pytest.raises(ArgumentError, match=r"a\.avro has a block .* raise memory_limit, .* fewer"):
        dataset.to_parquet(tmp_path / "out", memory_limit=2_000_000)
    with pytest.raises(ArgumentError, match="raise memory_limit"):
        dataset.shuffle_by_keys("x", memory_limit=2_000_000)
    with pytest.raises(ArgumentError, match="raise memory_limit"):
        Dataset.merge(Dataset({"x": [1]}), dataset, on="x", how="left", memory_limit=2_000_000)
    assert not (tmp_path / "out").exists()
    assert dataset.to_parquet(tmp_path / "out", memory_limit="20MB").num_rows == 100_000


def test_a_failure_that_does_not_come_again_is_of_no_column(tmp_path: Path, monkeypatch) -> None:
    save(tmp_path / "a.avro", SCHEMA, ROWS)
    dataset = Dataset(tmp_path / "a.avro")
    read, calls = pl.read_avro, []

    def fails_once(*args: Any, **options: Any) -> pl.DataFrame:
        calls.append(args)
        if len(calls) == 1:
            raise OSError("a fault")
        return read(*args, **options)

    monkeypatch.setattr(pl, "read_avro", fails_once)
    with pytest.raises(
        BadFileError, match=r"a\.avro is an Avro file .* damaged: a fault"
    ) as caught:
        dataset.to_arrow()
    assert caught.value.column is None
