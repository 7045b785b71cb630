from __future__ import annotations

import datetime as dt
import json
import math
import os
import subprocess
import sys
import textwrap
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.dataset as pads
import pyarrow.parquet as pq
import pytest

from tabfeed import Dataset
from tabfeed.errors import ArgumentError, BadFileError, SchemaError
from tests.bit_rot import rot


def write(folder: Path, tables: list[pa.Table], **options: Any) -> pq.ParquetFile:
    """One file of all rows, which come in as many parts as there are tables."""
    table = pa.concat_tables(tables)
    ds = Dataset(table, npartitions=len(tables))
    ds.to_parquet(folder, output_files=["x"], **options)
    (entry,) = json.loads((folder / "_tabfeed.json").read_text())["files"]
    assert (entry["name"], entry["rows"]) == ("x.parquet", table.num_rows)
    return pq.ParquetFile(folder / "x.parquet")


def group_rows(file: pq.ParquetFile) -> list[int]:
    return [file.metadata.row_group(i).num_rows for i in range(file.num_row_groups)]


def test_row_groups_have_the_rows_asked_for(tmp_path: Path) -> None:
    parts = [pa.table({"x": np.arange(n)}) for n in (3, 0, 4, 1, 9)]
    file = write(tmp_path, parts, row_group_size=5)
    assert group_rows(file) == [5, 5, 5, 2]
    assert file.read()["x"].to_pylist() == [v for p in parts for v in p["x"].to_pylist()]


def test_a_row_group_has_a_million_rows_at_most(tmp_path: Path) -> None:
    table = pa.table({"x": pa.array(np.zeros(1_200_000, np.int8))})
    assert group_rows(write(tmp_path, [table])) == [1_000_000, 200_000]


def test_no_rows_keep_the_schema(tmp_path: Path) -> None:
    table = pa.table({"x": pa.array([], pa.int16()), "y": pa.array([], pa.list_(pa.string()))})
    for layout in ("compact", "fast"):
        file = write(tmp_path / layout, [table], layout=layout)
        assert file.metadata.num_rows == 0
        assert file.schema_arrow.equals(table.schema)


# -- the fast layout --------------------------------------------------------------------


def test_fast_pages_are_plain_uncompressed_and_long(tmp_path: Path) -> None:
    n = 100_000
    table = pa.table({"i": np.arange(n, dtype=np.int32), "t": ["a", "b"] * (n // 2)})
    file = write(tmp_path, [table], layout="fast", compression="zstd")
    for i in range(2):
        chunk = file.metadata.row_group(0).column(i)
        assert chunk.compression == "UNCOMPRESSED"
        assert chunk.encodings == ("RLE", "PLAIN")
        assert not chunk.has_dictionary_page
    stored = file.metadata.row_group(0).column(0).total_compressed_size
    assert stored < 4 * n + 100  # one page of 400 kB, not one of 20,000 rows each


def test_fast_columns_without_nulls_are_declared_so(tmp_path: Path) -> None:
    table = pa.table({"x": [1, 2], "y": [1, None], "l": [[1], [2]], "t": ["a", "b"]})
    file = write(tmp_path, [table], layout="fast")
    assert [f.nullable for f in file.schema_arrow] == [False, True, True, False]
    assert file.read().to_pydict() == table.to_pydict()
    compact = write(tmp_path / "compact", [table])
    assert all(f.nullable for f in compact.schema_arrow)


@pytest.mark.parametrize("row_group_size", [2, 3])
def test_a_null_after_the_first_row_group_is_not_lost(tmp_path: Path, row_group_size: int) -> None:
    parts = [
        pa.table({"x": pa.array([1, 2, 3, 4], pa.int64()), "y": ["a", "b", "c", None]}),
        pa.table({"x": pa.array([5, None, 7], pa.int64()), "y": ["d", "e", "f"]}),
        pa.table({"x": pa.array([8], pa.int64()), "y": pa.array([None], pa.string())}),
    ]
    file = write(tmp_path, parts, layout="fast", row_group_size=row_group_size)
    assert file.read()["x"].to_pylist() == [1, 2, 3, 4, 5, None, 7, 8]
    assert file.read()["y"].to_pylist() == ["a", "b", "c", None, "d", "e", "f", None]
    assert max(group_rows(file)) == row_group_size
    assert all(f.nullable for f in file.schema_arrow)
    assert sorted(os.listdir(tmp_path)) == ["_tabfeed.json", "x.parquet"]


def test_a_flipped_bit_is_found_when_reading_or_validating(tmp_path: Path) -> None:
    """Compact files are verified at every read, fast ones when asked: that halves the speed."""
    table = pa.table({"x": np.arange(10_000, dtype=np.int64)})
    for layout in ("compact", "fast"):
        ds = Dataset(table).to_parquet(
            tmp_path / layout, layout=layout, compression=None, row_group_size=10_000
        )
        path = tmp_path / layout / "part_0.parquet"
        content = bytearray(path.read_bytes())
        content[content.index(np.int64(5000).tobytes())] ^= 1
        rot(path, bytes(content))
        assert not ds.validate().ok
        assert "part_0.parquet" in ds.validate().damaged[0]
        if layout == "compact":
            with pytest.raises(BadFileError, match="x"):
                ds.to_arrow()
        else:
            assert ds.num_rows == 10_000


# -- what Parquet cannot hold -----------------------------------------------------------


@pytest.mark.parametrize(
    "dtype",
    [
        pa.struct([]),
        pa.list_(pa.struct([])),
        pa.list_(pa.int32(), 0),
        pa.struct([("a", pa.list_(pa.int8(), 0))]),
        pa.month_day_nano_interval(),
    ],
)
def test_types_that_parquet_cannot_hold_are_named_first(tmp_path: Path, dtype: pa.DataType) -> None:
    empty = pa.schema([("good", pa.int8()), ("odd one", dtype)]).empty_table()
    with pytest.raises(SchemaError, match=r"column 'odd one' is .*, which Parquet cannot hold"):
        Dataset(empty).to_parquet(tmp_path / "x")
    assert not (tmp_path / "x").exists()


def test_values_that_parquet_cannot_hold_name_their_column(tmp_path: Path) -> None:
    table = pa.table({"ok": [1], "when": pa.array([2**62], pa.timestamp("s"))})
    with pytest.raises(SchemaError, match=r"column 'when' \(timestamp\[s\]\)"):
        Dataset(table).to_parquet(tmp_path / "x")
    assert not (tmp_path / "x").exists()


def test_nulls_where_the_schema_allows_none(tmp_path: Path) -> None:
    schema = pa.schema([pa.field("x", pa.int64(), nullable=False)])
    table = pa.table({"x": pa.array([1, None])}, schema=schema)
    with pytest.raises(SchemaError, match=r"column 'x' is declared not null and has 1 nulls"):
        Dataset(table).to_parquet(tmp_path / "x")


@pytest.mark.parametrize("values", [["a", None, "b"], [4, None, 5]])
def test_null_as_a_value_of_a_dictionary(tmp_path: Path, values: list[Any]) -> None:
    encoded = pa.DictionaryArray.from_arrays(pa.array([0, 1, 2, 1, None]), pa.array(values))
    ds = Dataset(pa.table({"d": encoded})).to_parquet(tmp_path / "x")
    assert ds.schema["d"].dtype == pa.dictionary(pa.int64(), pa.array(values).type)
    first, _, last = values
    assert ds.to_arrow()["d"].to_pylist() == [first, None, last, None, None]


def test_dictionaries_that_outgrow_their_indices_only_together(tmp_path: Path) -> None:
    small = pa.dictionary(pa.int8(), pa.string())
    chunks = [
        pa.array([f"{letter}{i}" for i in range(100)]).dictionary_encode().cast(small)
        for letter in "ab"
    ]
    table = pa.table({"d": pa.chunked_array(chunks)})
    ds = Dataset(table).to_parquet(tmp_path / "x", row_group_size=100)
    assert ds.to_arrow()["d"].to_pylist() == table["d"].to_pylist()
    with pytest.raises(SchemaError, match="'d'"):
        Dataset(table).to_parquet(tmp_path / "y", shuffle="FULL")


# -- options ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"layout": "quick"}, "layout is 'quick'"),
        ({"row_group_size": 0}, "row_group_size is 0"),
        ({"compression": "zip"}, "compression is 'zip'; it must be snappy"),
    ],
)
def test_options_are_checked(tmp_path: Path, options: dict[str, Any], words: str) -> None:
    with pytest.raises(ArgumentError, match=words):
        Dataset({"x": [1]}).to_parquet(tmp_path, **options)


@pytest.mark.parametrize("codec", ["snappy", "ZSTD", "lz4", "gzip", "brotli", "none", None])
def test_codecs(tmp_path: Path, codec: str | None) -> None:
    file = write(tmp_path, [pa.table({"x": [1] * 100})], compression=codec)
    names = {"lz4": "LZ4", "none": "UNCOMPRESSED", None: "UNCOMPRESSED"}
    expected = names.get(codec, str(codec).upper())
    assert file.metadata.row_group(0).column(0).compression == expected
    assert file.read()["x"].to_pylist() == [1] * 100


# -- folders named by keys --------------------------------------------------------------

TRICKY = ["", "a/b", "k=v", "..", "%41", "naïve ☂", "a b", None, "__HIVE_DEFAULT_PARTITION__", "1"]


def test_keys_of_all_characters_and_null(tmp_path: Path) -> None:
    table = pa.table({"x": range(len(TRICKY)), "the/key = 1": TRICKY})
    ds = Dataset(table).to_parquet(tmp_path / "o", partition_on="the/key = 1")
    got = ds.to_arrow().sort_by("x")
    assert got.to_pydict() == table.to_pydict()
    assert {p.name for p in (tmp_path / "o").iterdir() if p.is_dir()} >= {
        "the%2Fkey%20%3D%201=a%2Fb",
        "the%2Fkey%20%3D%201=__HIVE_DEFAULT_PARTITION__",
        "the%2Fkey%20%3D%201=..",
    }


@pytest.mark.parametrize(
    ("dtype", "values"),
    [
        (pa.date32(), [dt.date(2024, 2, 29), None, dt.date(1, 1, 1)]),
        (pa.date64(), [dt.date(2024, 2, 29), None]),
        (pa.bool_(), [True, False, None]),
        (pa.float32(), [0.1, -0.0, math.inf, None, 3.0]),
        (pa.float64(), [0.1, 1 / 3, 1e300]),
        (pa.int8(), [-128, 0, None]),
        (pa.uint64(), [2**64 - 1, 0]),
        (pa.string(), ["1", "2", "007", None]),
        (pa.string(), ["1", "2"]),
        (pa.timestamp("ns", "Europe/Berlin"), [1, 10**18 + 7, None]),
        (pa.timestamp("s"), [0, 1_700_000_000]),
        (pa.decimal128(5, 2), [Decimal("1.50"), Decimal("2.00")]),
        (pa.decimal32(5, 0), [Decimal("7"), Decimal("-8")]),
        (pa.dictionary(pa.int8(), pa.string()), ["a", "b", None, "a"]),
        (pa.dictionary(pa.int32(), pa.int64()), [5, 6, None, 5]),
    ],
)
def test_keys_come_back_with_type_value_and_place(
    tmp_path: Path, dtype: pa.DataType, values: list[Any]
) -> None:
    if pa.types.is_dictionary(dtype):
        column = pa.array(values, dtype.value_type).dictionary_encode().cast(dtype)
    else:
        column = pa.array(values, dtype)
    table = pa.table({"first": range(len(values)), "k": column, "last": ["z"] * len(values)})
    ds = Dataset(table).to_parquet(tmp_path / "o", partition_on=["k"])
    for result in (ds, Dataset(tmp_path / "o")):
        assert result.column_names == ["first", "k", "last"]
        assert result.schema["k"].dtype == dtype
        got = result.to_arrow().sort_by("first")
        assert got["k"].type == dtype
        assert repr(got["k"].to_pylist()) == repr(column.to_pylist())
    key = Dataset(tmp_path / "o", columns=["k"], dtypes={"last": "large_string"})
    assert key.schema["k"].dtype == dtype


def test_typed_keys_can_be_filtered(tmp_path: Path) -> None:
    days = [dt.date(2024, 1, d) for d in (1, 2, 3)]
    Dataset({"x": [1, 2, 3], "day": pa.array(days)}).to_parquet(tmp_path, partition_on="day")
    ds = Dataset(tmp_path, filters=[("day", ">=", dt.date(2024, 1, 2))])
    assert sorted(ds.to_arrow()["x"].to_pylist()) == [2, 3]
    assert ds.npartitions == 2


def test_a_folder_added_later_that_does_not_fit_the_type(tmp_path: Path) -> None:
    """Then the folders' names decide, as for any other dataset."""
    Dataset({"x": [1, 2], "k": [1.5, 2.5]}).to_parquet(tmp_path, partition_on="k")
    (tmp_path / "k=none").mkdir()
    pq.write_table(pa.table({"x": [3]}), tmp_path / "k=none" / "part_0.parquet")
    with pytest.warns(UserWarning, match="added after it was written"):
        ds = Dataset(tmp_path)
    assert ds.schema["k"].dtype == pa.string()
    assert sorted(ds.to_arrow()["k"].to_pylist()) == ["1.5", "2.5", "none"]


def test_two_keys_nest_and_others_can_read_them(tmp_path: Path) -> None:
    table = pa.table({"x": range(6), "a": [1, 1, 2, 2, 1, None], "b": list("uvuvuv")})
    Dataset(table, npartitions=2).to_parquet(tmp_path / "o", partition_on=["b", "a"])
    theirs = pads.dataset(
        tmp_path / "o", partitioning="hive", exclude_invalid_files=True
    ).to_table()
    assert sorted(theirs.to_pylist(), key=lambda r: r["x"]) == [
        {"x": x, "b": b, "a": a}
        for x, a, b in zip(*(table[c].to_pylist() for c in ("x", "a", "b")), strict=True)
    ]
    assert (tmp_path / "o" / "b=v" / "a=__HIVE_DEFAULT_PARTITION__").is_dir()


def test_one_file_a_key_as_long_as_memory_allows(tmp_path: Path) -> None:
    table = pa.table({"x": range(2000), "k": [i % 200 for i in range(2000)]})
    Dataset(table, npartitions=10).to_parquet(tmp_path, partition_on="k", output_files=1)
    assert len(list(tmp_path.rglob("*.parquet"))) == 200


def test_more_keys_than_files_may_be_open(tmp_path: Path) -> None:
    """300 keys, little memory, and an operating system that allows 100 files."""
    program = """
        import resource, sys
        import pyarrow as pa
        from tabfeed import Dataset
        resource.setrlimit(resource.RLIMIT_NOFILE, (100, 100))
        rows = 6_000
        table = pa.table({"x": range(rows), "k": [i * 7919 % 300 for i in range(rows)]})
        ds = Dataset(table, npartitions=6)
        out = ds.to_parquet(sys.argv[1], partition_on="k", output_files=1, memory_limit=1 << 16)
        print(out.num_rows)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program), str(tmp_path)],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == ["6000"]
    got = Dataset(tmp_path).to_arrow().sort_by("x")
    assert got["x"].to_pylist() == list(range(6_000))
    assert got["k"].to_pylist() == [i * 7919 % 300 for i in range(6_000)]


@pytest.mark.parametrize(
    ("column", "words"),
    [
        (pa.array([[1], [2]]), "'k' is list<item: int64>; folders are named by"),
        (pa.array([b"\xff", b"a"]), "'k' is binary"),
        (pa.array([1, 2], pa.time32("s")), r"'k' is time32\[s\]"),
        (pa.array([1, 2], pa.duration("s")), "'k' is duration"),
        (pa.nulls(2), "'k' is null"),
    ],
)
def test_columns_that_cannot_name_folders(tmp_path: Path, column: pa.Array, words: str) -> None:
    table = pa.table({"x": [1, 2], "k": column})
    with pytest.raises(ArgumentError, match=f"partition_on: column {words}"):
        Dataset(table).to_parquet(tmp_path / "o", partition_on="k")
    assert not (tmp_path / "o").exists()


def test_values_that_cannot_name_folders(tmp_path: Path) -> None:
    far = pa.array([400_000_000_000], pa.timestamp("s"))  # the year 14645
    table = pa.table({"x": [1], "k": far})
    with pytest.raises(SchemaError, match="values of 'k' cannot be names of folders"):
        Dataset(table).to_parquet(tmp_path / "o", partition_on="k")
    assert not (tmp_path / "o").exists()
