import bz2
import io
import json
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
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tabfeed import Dataset
from tabfeed.errors import ArgumentError, BadFileError, DuplicateColumnError, SchemaError
from tabfeed.io.formats.avro import open_avro
from tabfeed.io.formats.avro_container import _string, _varint
from tabfeed.io.formats.base import ReadOptions
from tabfeed.io.storage.files import FileRef
from tests.io.data_files import check_data_file, locate, rows_of, write

OPTIONS = ReadOptions()
SYNC = b"0123456789abcdef"


def record(**fields: Any) -> dict[str, Any]:
    listed = [{"name": n, "type": t} for n, t in fields.items()]
    return {"type": "record", "name": "row", "fields": listed}


def save(path: Path, schema: dict, rows: list[dict], **options: Any) -> FileRef:
    with path.open("wb") as f:
        fastavro.writer(f, fastavro.parse_schema(schema), rows, **options)
    return locate(path)


def container(schema: Any, blocks: list[tuple[int, bytes]], codec: str = "null") -> bytes:
    """A file made by hand, for what fastavro does not write here."""
    meta = _string(b"avro.schema") + _string(json.dumps(schema).encode())
    meta += _string(b"avro.codec") + _string(codec.encode())
    data = b"Obj\x01" + _varint(2) + meta + _varint(0) + SYNC
    for rows, body in blocks:
        data += _varint(rows) + _varint(len(body)) + body + SYNC
    return data


SCHEMA = record(a="long", s=["null", "string"])
ROWS = [{"a": i, "s": None if i % 3 == 0 else f"text {i}"} for i in range(1000)]
TABLE = pa.Table.from_pylist(ROWS, pa.schema({"a": pa.int64(), "s": pa.string()}))


@pytest.mark.parametrize("codec", ["null", "deflate", "bzip2", "xz"])
@pytest.mark.parametrize("size", [1, 2000, 10**9])
def test_codecs_fastavro_writes(tmp_path: Path, codec: str, size: int) -> None:
    location = save(tmp_path / "a.avro", SCHEMA, ROWS, codec=codec, sync_interval=300)
    file = open_avro(location, ReadOptions(block_size=size))
    assert len(file.unit_rows) == 1 if size == 10**9 else len(file.unit_rows) > 1
    assert sum(file.unit_rows) == 1000
    check_data_file(file, TABLE)


def snappy(data: bytes) -> bytes:
    packed: bytes = pa.Codec("snappy").compress(data, asbytes=True)
    return packed + zlib.crc32(data).to_bytes(4, "big")


def zstandard(data: bytes) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, "zstd") as stream:
        stream.write(data)
    return sink.getvalue().to_pybytes()


@pytest.mark.parametrize(("codec", "pack"), [("snappy", snappy), ("zstandard", zstandard)])
def test_codecs_made_by_hand(tmp_path: Path, codec: str, pack) -> None:
    blocks = [(2, pack(_varint(1) + _varint(-2))), (300, pack(b"".join(map(_varint, range(300)))))]
    location = write(tmp_path / "a.avro", container(record(a="long"), blocks, codec))
    file = open_avro(location, ReadOptions(block_size=1))
    assert list(file.unit_rows) == [2, 300]
    check_data_file(file, pa.table({"a": [1, -2, *range(300)]}))


@pytest.mark.parametrize("compression", ["uncompressed", "deflate", "snappy"])
def test_written_by_polars(tmp_path: Path, compression: str) -> None:
    pl.from_arrow(TABLE).write_avro(tmp_path / "a.avro", compression=compression)
    check_data_file(open_avro(locate(tmp_path / "a.avro"), OPTIONS), TABLE)


def test_sizes_are_estimated_from_the_first_rows_of_a_long_block(tmp_path: Path) -> None:
    pl.DataFrame({"a": range(5000)}).write_avro(tmp_path / "a.avro")
    file = open_avro(locate(tmp_path / "a.avro"), OPTIONS)
    assert file.nbytes(0, ["a"]) == 5000 * 8
    assert rows_of(file)[-1] == {"a": 4999}


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
    file = open_avro(save(tmp_path / "a.avro", fields, rows), OPTIONS)
    assert file.schema == pa.schema({"z": pa.int32(), "a": dtype, "n": dtype})
    assert rows_of(file) == rows
    assert rows_of(file, ["z"]) == [{"z": 1}, {"z": 2}]
    assert rows_of(file, ["n", "z"]) == [{"n": value, "z": 1}, {"n": None, "z": 2}]


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
    assert rows_of(open_avro(save(tmp_path / "a.avro", schema, rows), OPTIONS)) == rows


def test_names_stand_for_their_types(tmp_path: Path) -> None:
    schema = {**record(a=NAMED, b="colour", c=POINT, d=["null", "geo.point"]), "namespace": "geo"}
    rows = [
        {"a": "red", "b": "green", "c": {"x": 1}, "d": {"x": 2}},
        {"a": "green", "b": "red", "c": {"x": 3}, "d": None},
    ]
    assert rows_of(open_avro(save(tmp_path / "a.avro", schema, rows), OPTIONS)) == rows


def test_maps_are_lists_of_entries(tmp_path: Path) -> None:
    schema = record(z="int", m={"type": "map", "values": ["null", "long"]})
    rows = [{"z": 1, "m": {"a": 1, "b": None}}, {"z": 2, "m": {}}]
    file = open_avro(save(tmp_path / "a.avro", schema, rows), OPTIONS)
    assert file.schema.field("m").type == pa.list_(
        pa.struct({"key": pa.string(), "value": pa.int64()})
    )
    assert rows_of(file) == [
        {"z": 1, "m": [{"key": "a", "value": 1}, {"key": "b", "value": None}]},
        {"z": 2, "m": []},
    ]
    assert rows_of(file, ["z"]) == [{"z": 1}, {"z": 2}]


def test_columns_of_nothing_but_nulls(tmp_path: Path) -> None:
    rows = [{"n": None, "a": 1}, {"n": None, "a": 2}]
    file = open_avro(save(tmp_path / "a.avro", record(n="null", a="long"), rows), OPTIONS)
    assert file.schema.field("n").type == pa.null()
    assert rows_of(file) == rows
    assert rows_of(file, ["n"]) == [{"n": None}] * 2
    only = save(tmp_path / "b.avro", record(n="null"), [{"n": None}] * 3)
    assert rows_of(open_avro(only, OPTIONS)) == [{"n": None}] * 3


def test_arrays_in_blocks_with_sizes(tmp_path: Path) -> None:
    array = (
        _varint(-2) + _varint(2) + _varint(1) + _varint(2) + _varint(1) + _varint(3) + _varint(0)
    )
    schema = record(l={"type": "array", "items": "long"}, z="int")
    data = container(schema, [(2, (array + _varint(9)) * 2)])
    file = open_avro(write(tmp_path / "a.avro", data), OPTIONS)
    assert rows_of(file) == [{"l": [1, 2, 3], "z": 9}] * 2
    assert rows_of(file, ["z"]) == [{"z": 9}] * 2


@pytest.mark.parametrize("codec", ["null", "deflate"])
def test_a_block_of_more_rows_than_the_sample(tmp_path: Path, codec: str) -> None:
    rows = [{"a": i, "s": f"text {i}"} for i in range(5000)]
    file = open_avro(
        save(tmp_path / "a.avro", SCHEMA, rows, codec=codec, sync_interval=10**6), OPTIONS
    )
    assert list(file.unit_rows) == [5000]
    assert 8 * 5000 <= file.nbytes(0, ["a"]) <= 9 * 5000
    assert rows_of(file) == rows


def test_no_rows(tmp_path: Path) -> None:
    file = open_avro(save(tmp_path / "a.avro", SCHEMA, []), OPTIONS)
    assert sum(file.unit_rows) == 0
    check_data_file(file, TABLE.slice(0, 0))


def test_a_long_header(tmp_path: Path) -> None:
    fields = {f"c{i}": "long" for i in range(5000)}
    file = open_avro(
        save(tmp_path / "a.avro", record(**fields), [dict.fromkeys(fields, 7)]), OPTIONS
    )
    assert rows_of(file, ["c4999"]) == [{"c4999": 7}]


def test_counting_decodes_nothing(tmp_path: Path, monkeypatch) -> None:
    location = save(tmp_path / "a.avro", SCHEMA, ROWS, sync_interval=300)

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("something was decoded")

    monkeypatch.setattr(pl, "read_avro", refuse)
    file = open_avro(location, ReadOptions(block_size=2000))
    assert sum(file.count(u) for u in range(len(file.unit_rows))) == 1000


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
    location = write(tmp_path / "a.avro", container(record(z="int", bad=schema), []))
    with pytest.raises(SchemaError, match=rf"a\.avro: column 'bad': .*{message}"):
        open_avro(location, OPTIONS)


def test_a_record_that_holds_itself(tmp_path: Path) -> None:
    tree = {"type": "record", "name": "tree", "fields": [{"name": "t", "type": ["null", "tree"]}]}
    location = write(tmp_path / "a.avro", container(record(bad=tree), []))
    with pytest.raises(SchemaError, match="column 'bad': the record 'tree' holds itself"):
        open_avro(location, OPTIONS)


def test_files_that_are_not_tables(tmp_path: Path) -> None:
    with pytest.raises(SchemaError, match="single values, not records"):
        open_avro(write(tmp_path / "a.avro", container("long", [])), OPTIONS)
    with pytest.raises(BadFileError, match="without fields"):
        open_avro(write(tmp_path / "a.avro", container(record(), [])), OPTIONS)
    twice = record(a="long")
    twice["fields"] *= 2
    with pytest.raises(DuplicateColumnError, match="named 'a'"):
        open_avro(write(tmp_path / "a.avro", container(twice, [])), OPTIONS)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", r"is empty \(0 bytes\)"),
        (b"hello world", "is not an Avro file: it starts with b'hell'"),
        (b"Obj\x01", "within its header"),
        (container(SCHEMA, [])[:40], "within its header"),
        (container(SCHEMA, [], codec="lzo"), "compressed with 'lzo'; tabfeed reads null, deflate"),
        (b"Obj\x01" + _varint(0) + SYNC, "is not an Avro file"),
    ],
)
def test_bad_files(tmp_path: Path, data: bytes, message: str) -> None:
    with pytest.raises(BadFileError, match=rf"bad\.avro .*{message}"):
        open_avro(write(tmp_path / "bad.avro", data), OPTIONS)


def test_compressed_as_a_whole(tmp_path: Path) -> None:
    with pytest.raises(BadFileError, match="compressed as a whole"):
        open_avro(write(tmp_path / "a.avro.gz", b"x"), OPTIONS)


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
                file = open_avro(write(tmp_path / "a.avro", variant), OPTIONS)
                rows = rows_of(file)
            except (BadFileError, SchemaError, DuplicateColumnError):
                continue
            if variant is not broken:
                assert rows == ROWS[: len(rows)]
    capfd.readouterr()


def test_announced_rows_that_are_not_there(tmp_path: Path) -> None:
    data = container(record(a="long"), [(3, _varint(1) + _varint(2))])
    file = open_avro(write(tmp_path / "a.avro", data), OPTIONS)
    with pytest.raises(BadFileError, match="cut short or damaged"):
        rows_of(file)


def test_wrong_checksum(tmp_path: Path) -> None:
    block = snappy(_varint(1))[:-1] + b"\0"
    data = container(record(a="long"), [(1, block)], "snappy")
    with pytest.raises(BadFileError, match="checksum"):
        rows_of(open_avro(write(tmp_path / "a.avro", data), OPTIONS))


def v(*numbers: int) -> bytes:
    return b"".join(map(_varint, numbers))


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
    location = write(tmp_path / "bad.avro", container(record(a=schema), [(rows, body)], codec))
    with pytest.raises(BadFileError, match=rf"bad\.avro .*{message}"):
        rows_of(open_avro(location, OPTIONS))
    capfd.readouterr()


def test_many_small_bombs(tmp_path: Path) -> None:
    pack = bz2.compress(v(10**7) + bytes(10**7))
    file = open_avro(
        write(tmp_path / "a.avro", container(record(a="bytes"), [(1, pack)] * 20, "bzip2")), OPTIONS
    )
    with pytest.raises(BadFileError, match="unpacks to more than 134,217,728 bytes"):
        file.read([0], ["a"])


def test_rows_are_listed_once(tmp_path: Path) -> None:
    location = save(tmp_path / "a.avro", SCHEMA, ROWS, sync_interval=300)
    file = open_avro(location, ReadOptions(block_size=1))
    assert file.unit_rows is file.unit_rows


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
    location = write(tmp_path / "a.avro", container(record(bad=schema), []))
    with pytest.raises(SchemaError, match=rf"a\.avro: column 'bad': .*{message}"):
        open_avro(location, OPTIONS)


def test_schemas_that_are_too_deep_or_too_large(tmp_path: Path) -> None:
    def nested(levels: int) -> bytes:
        inner = '{"type":"array","items":' * levels + '"long"' + "}" * levels
        schema = '{"type":"record","name":"r","fields":[{"name":"a","type":' + inner + "}]}"
        return container(None, []).replace(_string(b"null"), _string(schema.encode()), 1)

    with pytest.raises(SchemaError, match="column 'a': nested more than 64 levels"):
        open_avro(write(tmp_path / "a.avro", nested(100)), OPTIONS)
    with pytest.raises(BadFileError, match="recursion"):
        open_avro(write(tmp_path / "a.avro", nested(50_000)), OPTIONS)
    fields: list[Any] = [{"name": "x", "type": "long"}]
    for i in range(20):  # each holds the one before twice
        twice = {"type": "record", "name": f"r{i}", "fields": fields}
        fields = [{"name": "p", "type": twice}, {"name": "q", "type": f"r{i}"}]
    data = container(record(a={"type": "record", "name": "top", "fields": fields}), [])
    with pytest.raises(SchemaError, match="too many types"):
        open_avro(write(tmp_path / "a.avro", data), OPTIONS)


# -- properties ---------------------------------------------------------------------------

TEXT = st.text(st.characters(codec="utf-8"), max_size=6)
ROW = st.fixed_dictionaries(
    {
        "i": st.none() | st.integers(-(2**63), 2**63 - 1),
        "f": st.floats(allow_nan=False),
        "s": st.none() | TEXT,
        "b": st.binary(max_size=4),
        "e": st.none() | st.sampled_from(["red", "green"]),
        "l": st.none() | st.lists(st.none() | TEXT, max_size=3),
    }
)
FIELDS = record(
    i=["null", "long"],
    f="double",
    s=["null", "string"],
    b="bytes",
    e=["null", NAMED],
    l=["null", {"type": "array", "items": ["null", "string"]}],
)
ARROW = pa.schema(
    {
        "i": pa.int64(),
        "f": pa.float64(),
        "s": pa.string(),
        "b": pa.binary(),
        "e": pa.dictionary(pa.int32(), pa.string()),
        "l": pa.list_(pa.string()),
    }
)


@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    st.lists(ROW, max_size=20),
    st.integers(1, 300),
    st.integers(1, 100),
    st.sampled_from(["null", "deflate"]),
)
def test_any_table(tmp_path: Path, rows: list, size: int, interval: int, codec: str) -> None:
    options = {"codec": codec, "sync_interval": interval}
    location = save(tmp_path / "a.avro", FIELDS, rows, **options)
    colours = pa.array(["red", "green"])
    numbers = pa.array([None if r["e"] is None else ["red", "green"].index(r["e"]) for r in rows])
    table = pa.Table.from_pylist([{**r, "e": None} for r in rows], ARROW)
    column = pa.DictionaryArray.from_arrays(numbers.cast(pa.int32()), colours)
    table = table.set_column(4, ARROW.field("e"), column)
    check_data_file(open_avro(location, ReadOptions(block_size=size)), table)


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


def test_a_block_that_is_too_large_is_not_read(tmp_path: Path, monkeypatch) -> None:
    pl.DataFrame({"x": range(100_000)}).write_avro(tmp_path / "a.avro")
    file = open_avro(locate(tmp_path / "a.avro"), OPTIONS)
    monkeypatch.setattr(type(file), "_data", None)
    assert file.bytes_at_once(0, ["x"], 100_000) > 1_000_000


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
