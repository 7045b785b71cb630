import gzip
from datetime import date
from pathlib import Path

import pyarrow as pa
import pytest

from tabfeed import Dataset
from tabfeed.errors import (
    ArgumentError,
    BadFileError,
    DuplicateColumnError,
    SchemaError,
)
from tabfeed.io import Partition
from tests.io.datasets import opened, rows_in, types_of, written

# -- what a plain file looks like ---------------------------------------------------------


def test_types_nulls_and_order(tmp_path: Path) -> None:
    text = b"i,f,s,d,b\n1,0.5,x,2024-02-29,true\n,,,,\n-3,2,y z,1999-12-31,false\n"
    file = opened(tmp_path / "a.csv", text)
    assert types_of(file) == pa.schema(
        {
            "i": pa.int64(),
            "f": pa.float64(),
            "s": pa.string(),
            "d": pa.date32(),
            "b": pa.bool_(),
        }
    )
    assert rows_in(file, ["d", "s", "i"]) == [
        {"d": date(2024, 2, 29), "s": "x", "i": 1},
        {"d": None, "s": None, "i": None},
        {"d": date(1999, 12, 31), "s": "y z", "i": -3},
    ]
    assert file.num_rows == 3


def test_numbers_that_inference_would_damage(tmp_path: Path) -> None:
    text = b"zip,hash,huge,f,z\n00501,18446744073709551615,123456789012345678901234,1.5,0\n"
    text += b"90210,7,5,100000000000000000000,0\n"
    file = opened(tmp_path / "a.csv", text)
    types = [pa.string(), pa.uint64(), pa.string(), pa.float64(), pa.int64()]
    assert types_of(file).types == types
    assert rows_in(file, ["zip", "hash", "huge"]) == [
        {"zip": "00501", "hash": 2**64 - 1, "huge": "123456789012345678901234"},
        {"zip": "90210", "hash": 7, "huge": "5"},
    ]


@pytest.mark.parametrize(
    ("cells", "values"),
    [
        (["1", "007"], ["1", "007"]),
        (["1", "0x10"], ["1", "0x10"]),
        (["+491701234567", "+491701234568"], ["+491701234567", "+491701234568"]),
        (["0.5", "12345678901234567890"], ["0.5", "12345678901234567890"]),
        (["-1", "9223372036854775808"], ["-1", "9223372036854775808"]),
        (["1", "1e400"], ["1", "1e400"]),
        ([" 1", "-0", "5 "], [1, 0, 5]),
        (["1", "+2.5", "100000000000000000000", "inf", "007.5"], [1, 2.5, 1e20, float("inf"), 7.5]),
        (["123456789012345680000", "0.5"], [123456789012345680000.0, 0.5]),
    ],
)
def test_types_are_inferred_so_that_no_value_changes(
    tmp_path: Path, cells: list[str], values: list[object]
) -> None:
    text = "id,c\n" + "".join(f"{cell},1\n" for cell in cells)
    file = opened(tmp_path / "a.csv", text.encode())
    assert [r["id"] for r in rows_in(file)] == values


def test_a_type_asked_for_is_read_as_such(tmp_path: Path) -> None:
    location = written(tmp_path / "a.csv", b"a,b\n007,9007199254740993\n0x10,1\n")
    types = {"a": pa.int64(), "b": pa.float64()}
    assert rows_in(Dataset(location, dtypes=types)) == [
        {"a": 7, "b": 9007199254740992.0},
        {"a": 16, "b": 1.0},
    ]


def test_dtypes_are_obeyed(tmp_path: Path) -> None:
    types = {"a": pa.int8(), "b": pa.dictionary(pa.int32(), pa.string())}
    location = written(tmp_path / "a.csv", b"a,b\n1,x\n2,y\n")
    file = Dataset(location, dtypes=types)
    assert types_of(file).types == [types["a"], types["b"]]
    assert rows_in(file) == [{"a": 1, "b": "x"}, {"a": 2, "b": "y"}]


def test_dtype_text_cannot_have(tmp_path: Path) -> None:
    location = written(tmp_path / "a.csv", b"a,b\n1,x\n")
    with pytest.raises(SchemaError, match=r"a\.csv: column b: .*list<item: int64>"):
        Dataset(location, dtypes={"b": pa.list_(pa.int64())})


def test_dtype_that_does_not_fit(tmp_path: Path) -> None:
    location = written(tmp_path / "a.csv", b"a\n300\n")
    with pytest.raises(BadFileError, match=r"column 'a' that is not int8, as dtypes= asks.*'300'"):
        Dataset(location, dtypes={"a": pa.int8()})


# -- the shapes text comes in -------------------------------------------------------------


def test_quoted_separators_and_quotes(tmp_path: Path) -> None:
    text = b'a,b\n1,"x,y"\n2,"say ""hi"""\n3,5" disk\n4,\n5,""\n'
    file = opened(tmp_path / "a.csv", text)
    assert [r["b"] for r in rows_in(file)] == ["x,y", 'say "hi"', '5" disk', None, None]


def test_long_fields(tmp_path: Path) -> None:
    long = "x" * 200_000
    text = f'{long},"{long}"\n1,2\n'.encode()
    file = opened(tmp_path / "a.csv", text, header=None)
    assert rows_in(file) == [{"f0": long, "f1": long}, {"f0": "1", "f1": "2"}]
    file = opened(tmp_path / "b.csv", f"{long},b\n1,2\n".encode())
    assert rows_in(file) == [{long: 1, "b": 2}]


def test_tab_separated_by_name(tmp_path: Path) -> None:
    file = opened(tmp_path / "a.TSV", b"a\tb\n1,5\t2\n")
    assert rows_in(file) == [{"a": "1,5", "b": 2}]
    file = opened(tmp_path / "a.tsv.gz", gzip.compress(b"a\tb\n1\t2\n"))
    assert rows_in(file) == [{"a": 1, "b": 2}]


def test_null_values(tmp_path: Path) -> None:
    location = written(tmp_path / "a.csv", b"a,b\n-,NA\n1,-\n")
    file = Dataset(location, null_values=("-",))
    assert types_of(file).types == [pa.int64(), pa.string()]
    assert rows_in(file) == [{"a": None, "b": "NA"}, {"a": 1, "b": None}]


def test_quoted_everything_with_empty_numbers(tmp_path: Path) -> None:
    file = opened(tmp_path / "a.csv", b'"a","b"\n"1","x"\n"","y"\n')
    assert rows_in(file) == [{"a": 1, "b": "x"}, {"a": None, "b": "y"}]


def test_header_variants(tmp_path: Path) -> None:
    location = written(tmp_path / "a.csv", b"a,b\n1,2\n")
    assert Dataset(location, header=None).column_names == ["f0", "f1"]
    assert rows_in(Dataset(location, header=0, names=("x", "y"))) == [{"x": 1, "y": 2}]
    assert rows_in(Dataset(location, names=("x", "y")))[0] == {"x": "a", "y": "b"}
    with pytest.raises(ArgumentError, match="header is 3"):
        Dataset(location, header=3)
    with pytest.raises(ArgumentError, match="sep is"):
        Dataset(location, sep="||")


def test_a_frame_written_with_its_index(tmp_path: Path) -> None:
    file = opened(tmp_path / "a.csv", b",a\n0,5\n1,6\n")
    assert rows_in(file) == [{"Unnamed: 0": 0, "a": 5}, {"Unnamed: 0": 1, "a": 6}]


@pytest.mark.parametrize("text", [b"a,b\n", b"a,b", b"a,b\r\n\r\n"])
def test_header_only(tmp_path: Path, text: bytes) -> None:
    for path, data in [("a.csv", text), ("a.csv.gz", gzip.compress(text))]:
        file = opened(tmp_path / path, data, dtypes={"b": pa.int8()})
        assert types_of(file) == pa.schema({"a": pa.string(), "b": pa.int8()})
        assert file.num_rows == sum(file.partition_lens) == 0
        assert rows_in(file) == []


def test_a_column_of_nulls_is_text(tmp_path: Path) -> None:
    file = opened(tmp_path / "a.csv", b"a,b\n,1\n,2\n")
    assert types_of(file).field("a").type == pa.string()


# -- bad files ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"", r"is empty \(0 bytes\)"),
        (b"\n\n", "only blank lines"),
        (bytes(range(256)) * 4, "is not text: it holds zero bytes"),
        ("a,b\n1,2\n".encode("utf-16"), "UTF-16; convert it to UTF-8"),
        (b"\xff\xff\xff,b\n1,2\n", "not text in UTF-8"),
        (b"a,b\n1,2\n1,2,3\n", "a line of 3 fields where 2 were expected: '1,2,3'"),
        (b"a,b\n1,2\n1\n", "a line of 1 fields where 2 were expected: '1'"),
        (b"a,b\r1,2\r3,4\r", "ends its first line with a carriage return alone"),
        (b'a,b\n1,"x\n2,y\n', "never closed.*newlines_in_values=True"),
    ],
)
def test_bad_files(tmp_path: Path, text: bytes, message: str) -> None:
    location = written(tmp_path / "bad.csv", text)
    with pytest.raises(BadFileError, match=rf"bad\.csv .*{message}") as caught:
        Dataset(location)
    assert caught.value.file == str(location)


def test_names_of_the_wrong_count(tmp_path: Path) -> None:
    location = written(tmp_path / "a.csv", b"1,2,3\n")
    with pytest.raises(SchemaError, match=r"names= has 2 names, but .*a\.csv has 3 fields"):
        Dataset(location, names=("x", "y"))


def test_duplicate_names(tmp_path: Path) -> None:
    location = written(tmp_path / "a.csv", b"a,b,a\n1,2,3\n")
    with pytest.raises(DuplicateColumnError, match="named 'a'"):
        Dataset(location)
    with pytest.raises(DuplicateColumnError, match="named 'x'"):
        Dataset(location, names=("x", "y", "x"))


def criteo_line(i: int) -> bytes:
    ints = [str(i % 7) if (i + c) % 3 else "" for c in range(13)]
    # Every fourth row's ids are digits only, and the first 100 rows' as well.
    hexes = [
        f"{(i * 26 + c) % 10**8:08d}" if i % 4 == 0 or i < 100 else f"{i:07x}f" for c in range(26)
    ]
    return "\t".join([str(i % 2), *ints, *hexes]).encode() + b"\n"


CRITEO = ["label", *(f"I{i}" for i in range(1, 14)), *(f"C{i}" for i in range(1, 27))]


def test_criteo_day_file_has_one_type_a_column(tmp_path: Path) -> None:
    text = b"".join(map(criteo_line, range(2000)))
    options = {"sep": "\t", "names": CRITEO, "header": None, "part_size": "64KiB"}
    file = opened(tmp_path / "day_0", text, **options)
    types = types_of(file).types
    assert set(types[14:]) == {pa.string()}
    assert set(types[:14]) == {pa.int64()}
    assert file.npartitions > 5
    table = file.select(["label", "I1", "C1", "C26"]).to_arrow()
    assert table.num_rows == 2000
    assert table.slice(100, 2).to_pylist() == [
        {"label": 0, "I1": 2, "C1": "00002600", "C26": "00002625"},
        {"label": 1, "I1": 3, "C1": "0000065f", "C26": "0000065f"},
    ]


# -- far from the start -------------------------------------------------------------------

FIRST_ROWS = 300_000  # more than types are inferred from


def far(row: bytes, other: bytes) -> bytes:
    assert len(row) * FIRST_ROWS > 2**20
    return row * FIRST_ROWS + other


def test_value_that_does_not_fit_the_first_rows(tmp_path: Path) -> None:
    row = b"12345678,1\n"
    text = b"id,c\n" + far(row, b"68fd1e64,1\n") + row * 50
    file = opened(tmp_path / "a.csv", text, part_size="1MiB")
    assert file.read(0)["id"][0].as_py() == 12345678
    with pytest.raises(BadFileError, match=r"a\.csv has a value in column 'id'") as caught:
        rows_in(file)
    assert "'68fd1e64'" in str(caught.value)
    assert 'dtypes={"id": "string"}' in str(caught.value)
    assert caught.value.column == "id"
    others = file.select(["c"]).to_arrow()  # the other column is not in doubt
    assert others.num_rows == FIRST_ROWS + 51
    assert others["c"].unique().to_pylist() == [1]
    mended = Dataset(tmp_path / "a.csv", part_size="1MiB", dtypes={"id": "string"})
    assert mended.to_arrow()["id"][FIRST_ROWS].as_py() == "68fd1e64"


def test_text_that_is_not_utf8_after_the_first_rows(tmp_path: Path) -> None:
    text = b"s,c\n" + far(b"abc,1\n", b"\xff\xfe,1\n")
    with pytest.raises(BadFileError, match=r'column \'s\'.*dtypes=\{"s": "binary"\}'):
        rows_in(opened(tmp_path / "a.csv", text, part_size="1MiB"))
    file = Dataset(tmp_path / "a.csv", part_size="1MiB", dtypes={"s": pa.binary()})
    assert file.to_arrow().slice(FIRST_ROWS).to_pylist() == [{"s": b"\xff\xfe", "c": 1}]


def test_ragged_line_far_from_the_start(tmp_path: Path) -> None:
    text = b"a,b\n" + far(b"1,2\n", b"oh,dear,me\n")
    file = opened(tmp_path / "a.csv", text, part_size="1MiB")
    with pytest.raises(BadFileError, match="'oh,dear,me'"):
        rows_in(file)
    with pytest.raises(BadFileError, match="'oh,dear,me'"):
        _ = file.num_rows


def test_gzip_cut_short(tmp_path: Path) -> None:
    text = b"a\n" + b"".join(b"%d\n" % (i * 7919) for i in range(500_000))
    whole = gzip.compress(text, 1)
    with pytest.raises(BadFileError, match=r"a\.csv\.gz is cut short or damaged"):
        _ = opened(tmp_path / "a.csv.gz", whole[: len(whole) // 2]).num_rows


def test_smaller_units_hold_the_same_rows(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("a,b\n" + "".join(f"{i},{'x' * (i % 90)}\n" for i in range(30_000)))
    dataset = Dataset(path)
    files, divided = dataset.fileset.in_smaller_units(2**18)
    units = [new for piece in dataset.fileset.units() for new in divided(piece)]
    assert len(dataset.fileset.units()) == 1
    assert len(units) > 4
    read = [files.read(Partition((unit,)), ["a", "b"]) for unit in units]
    assert pa.concat_tables(read).equals(dataset.to_arrow())
    small = dataset.table.in_smaller_partitions(2**18)
    assert small.npartitions == len(units)
    assert sum(small.partition_lens) == 30_000
