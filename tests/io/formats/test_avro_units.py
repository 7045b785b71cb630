"""Avro files as data files: units, sizes, every way to read."""

import bz2
from pathlib import Path

import polars as pl
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tabfeed.errors import BadFileError
from tabfeed.io import ReadOptions
from tabfeed.io.formats.avro import open_avro
from tests.io.avros import container, record, save, snappy, v, varint
from tests.io.data_files import check_data_file, locate, rows_of, write
from tests.io.formats.test_avro import NAMED, ROWS, SCHEMA

OPTIONS = ReadOptions()


TABLE = pa.Table.from_pylist(ROWS, pa.schema({"a": pa.int64(), "s": pa.string()}))


@pytest.mark.parametrize("codec", ["null", "deflate", "bzip2", "xz"])
@pytest.mark.parametrize("size", [1, 2000, 10**9])
def test_codecs_fastavro_writes(tmp_path: Path, codec: str, size: int) -> None:
    location = locate(save(tmp_path / "a.avro", SCHEMA, ROWS, codec=codec, sync_interval=300))
    file = open_avro(location, ReadOptions(block_size=size))
    assert len(file.unit_rows) == 1 if size == 10**9 else len(file.unit_rows) > 1
    assert sum(file.unit_rows) == 1000
    check_data_file(file, TABLE)


def zstandard(data: bytes) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, "zstd") as stream:
        stream.write(data)
    return sink.getvalue().to_pybytes()


@pytest.mark.parametrize(("codec", "pack"), [("snappy", snappy), ("zstandard", zstandard)])
def test_codecs_made_by_hand(tmp_path: Path, codec: str, pack) -> None:
    blocks = [(2, pack(varint(1) + varint(-2))), (300, pack(b"".join(map(varint, range(300)))))]
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


@pytest.mark.parametrize("codec", ["null", "deflate"])
def test_a_block_of_more_rows_than_the_sample(tmp_path: Path, codec: str) -> None:
    rows = [{"a": i, "s": f"text {i}"} for i in range(5000)]
    file = open_avro(
        locate(save(tmp_path / "a.avro", SCHEMA, rows, codec=codec, sync_interval=10**6)), OPTIONS
    )
    assert list(file.unit_rows) == [5000]
    assert 8 * 5000 <= file.nbytes(0, ["a"]) <= 9 * 5000
    assert rows_of(file) == rows


def test_no_rows(tmp_path: Path) -> None:
    file = open_avro(locate(save(tmp_path / "a.avro", SCHEMA, [])), OPTIONS)
    assert sum(file.unit_rows) == 0
    check_data_file(file, TABLE.slice(0, 0))


def test_rows_are_listed_once(tmp_path: Path) -> None:
    location = locate(save(tmp_path / "a.avro", SCHEMA, ROWS, sync_interval=300))
    file = open_avro(location, ReadOptions(block_size=1))
    assert file.unit_rows is file.unit_rows


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
    location = locate(save(tmp_path / "a.avro", FIELDS, rows, **options))
    colours = pa.array(["red", "green"])
    numbers = pa.array([None if r["e"] is None else ["red", "green"].index(r["e"]) for r in rows])
    table = pa.Table.from_pylist([{**r, "e": None} for r in rows], ARROW)
    column = pa.DictionaryArray.from_arrays(numbers.cast(pa.int32()), colours)
    table = table.set_column(4, ARROW.field("e"), column)
    check_data_file(open_avro(location, ReadOptions(block_size=size)), table)


def test_a_block_that_is_too_large_is_not_read(tmp_path: Path, monkeypatch) -> None:
    pl.DataFrame({"x": range(100_000)}).write_avro(tmp_path / "a.avro")
    file = open_avro(locate(tmp_path / "a.avro"), OPTIONS)
    monkeypatch.setattr(type(file), "_data", None)
    assert file.bytes_at_once(0, ["x"], 100_000) > 1_000_000


def test_many_small_bombs(tmp_path: Path) -> None:
    pack = bz2.compress(v(10**7) + bytes(10**7))
    file = open_avro(
        write(tmp_path / "a.avro", container(record(a="bytes"), [(1, pack)] * 20, "bzip2")), OPTIONS
    )
    with pytest.raises(BadFileError, match="unpacks to more than 134,217,728 bytes"):
        file.read([0], ["a"])


def test_counting_decodes_nothing(tmp_path: Path, monkeypatch) -> None:
    location = locate(save(tmp_path / "a.avro", SCHEMA, ROWS, sync_interval=300))

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("something was decoded")

    monkeypatch.setattr(pl, "read_avro", refuse)
    file = open_avro(location, ReadOptions(block_size=2000))
    assert sum(file.count(u) for u in range(len(file.unit_rows))) == 1000
