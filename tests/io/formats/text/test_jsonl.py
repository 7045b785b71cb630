import gzip
import json
from datetime import date, datetime
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tabfeed import Dataset
from tabfeed.errors import BadFileError, SchemaError
from tabfeed.io.formats.base import ReadOptions
from tabfeed.io.formats.text import stream
from tabfeed.io.formats.text.jsonl import open_jsonl
from tests.io.data_files import check_data_file, rows_of, write

PLAIN = ReadOptions()


def lines(*rows: object) -> bytes:
    return "".join(json.dumps(r) + "\n" for r in rows).encode()


def test_types_and_order(tmp_path: Path) -> None:
    text = lines(
        {"b": 1, "a": "x", "f": 0.5, "t": "2024-01-02T03:04:05", "l": [1, 2], "s": {"p": [None]}},
        {"a": None, "f": 2, "l": [], "s": {"p": ["q"]}, "b": 2},
    )
    file = open_jsonl(write(tmp_path / "a.jsonl", text), PLAIN)
    assert file.schema == pa.schema(
        {
            "b": pa.int64(),
            "a": pa.string(),
            "f": pa.float64(),
            "t": pa.timestamp("s"),
            "l": pa.list_(pa.int64()),
            "s": pa.struct({"p": pa.list_(pa.string())}),
        }
    )
    assert rows_of(file, ["s", "t", "b"]) == [
        {"s": {"p": [None]}, "t": datetime(2024, 1, 2, 3, 4, 5), "b": 1},
        {"s": {"p": ["q"]}, "t": None, "b": 2},
    ]
    assert rows_of(file, ["l"]) == [{"l": [1, 2]}, {"l": []}]


def test_dtypes(tmp_path: Path) -> None:
    types = {
        "later": pa.float32(),
        "v": pa.list_(pa.float32(), 2),
        "d": pa.date32(),
        "c": pa.dictionary(pa.int32(), pa.string()),
        "big": pa.large_string(),
    }
    text = lines({"v": [1, 2], "d": "2024-02-29", "c": "x", "big": "y", "n": 1})
    text += lines({"v": None, "d": None, "c": None, "later": 1.5, "big": "z", "n": 2})
    file = open_jsonl(write(tmp_path / "a.jsonl", text), ReadOptions(dtypes=types))
    assert file.schema.names == ["v", "d", "c", "big", "n", "later"]
    assert file.schema.types == [
        types["v"],
        types["d"],
        types["c"],
        pa.string(),
        pa.int64(),
        types["later"],
    ]
    assert rows_of(file) == [
        {"v": [1, 2], "d": date(2024, 2, 29), "c": "x", "big": "y", "n": 1, "later": None},
        {"v": None, "d": None, "c": None, "big": "z", "n": 2, "later": 1.5},
    ]


def test_dtype_json_cannot_have(tmp_path: Path) -> None:
    location = write(tmp_path / "a.jsonl", lines({"a": {"x": 1}}))
    with pytest.raises(SchemaError, match=r"a\.jsonl: .*map<string, int64>"):
        open_jsonl(location, ReadOptions(dtypes={"a": pa.map_(pa.string(), pa.int64())}))


def test_what_is_null_throughout_is_text(tmp_path: Path) -> None:
    file = open_jsonl(
        write(tmp_path / "a.jsonl", lines({"a": None, "b": [], "c": {"d": None}})), PLAIN
    )
    text = pa.string()
    assert file.schema.types == [text, pa.list_(text), pa.struct({"d": text})]


def test_large_integers_are_not_rounded(tmp_path: Path) -> None:
    text = lines({"h": 2**64 - 1, "f": 1.0}, {"h": 7, "f": 2.5})
    file = open_jsonl(write(tmp_path / "a.jsonl", text), PLAIN)
    assert file.schema.types == [pa.uint64(), pa.float64()]
    assert rows_of(file, ["h"]) == [{"h": 2**64 - 1}, {"h": 7}]


@pytest.mark.parametrize(
    "text",
    [
        b'{"a":1}\n{"a":2}\n',
        b'{"a":1}\n{"a":2}',
        b'{"a":1}\r\n{"a":2}\r\n',
        b'\n{"a":1}\n\n\n{"a":2}\n\n',
        b'\xef\xbb\xbf{"a":1}\n{"a":2}\n',
    ],
)
@pytest.mark.parametrize("size", [1, 9, 1000])
def test_line_ends_marks_and_blanks(tmp_path: Path, text: bytes, size: int) -> None:
    table = pa.table({"a": [1, 2]})
    options = ReadOptions(block_size=size)
    check_data_file(open_jsonl(write(tmp_path / "a.json", text), options), table)
    zipped = write(tmp_path / "a.ndjson.gz", gzip.compress(text))
    check_data_file(open_jsonl(zipped, options), table)


def test_rows_without_members_count(tmp_path: Path) -> None:
    file = open_jsonl(write(tmp_path / "a.jsonl", b'{"a":1}\n{}\n{}\n'), PLAIN)
    assert file.count(0) == 3
    assert rows_of(file) == [{"a": 1}, {"a": None}, {"a": None}]


# -- values that do not fit ---------------------------------------------------------------


@pytest.fixture
def short_head(monkeypatch) -> None:
    monkeypatch.setattr(stream, "INFER_BYTES", 64)


def later(tmp_path: Path, first: object, then: object, **options: object):
    text = lines(*[first] * 50, then, *[first] * 50)
    given = ReadOptions(block_size=200, **options)  # type: ignore[arg-type]
    return open_jsonl(write(tmp_path / "a.jsonl", text), given)


def test_a_number_of_another_kind(tmp_path: Path, short_head) -> None:
    file = later(tmp_path, {"a": 1, "b": 1}, {"a": 1, "b": 1.5})
    with pytest.raises(
        BadFileError, match=r"'b' that is not int64.*'1\.5' came.*dtypes=\{\"b\""
    ) as e:
        rows_of(file)
    assert e.value.column == "b"
    assert len(rows_of(file, ["a"])) == 101
    mended = later(tmp_path, {"a": 1, "b": 1}, {"a": 1, "b": 1.5}, dtypes={"b": pa.float64()})
    assert rows_of(mended)[50] == {"a": 1, "b": 1.5}


def test_a_value_of_another_kind(tmp_path: Path, short_head) -> None:
    with pytest.raises(BadFileError, match=r"'a' that is not number.*a string came"):
        rows_of(later(tmp_path, {"a": 1}, {"a": "x"}))
    with pytest.raises(BadFileError, match="'a' that is not number"):
        rows_of(later(tmp_path, {"a": [1]}, {"a": ["x"]}))


def test_a_member_that_comes_late(tmp_path: Path, short_head) -> None:
    file = later(tmp_path, {"a": 1}, {"a": 2, "new": [1]})
    with pytest.raises(
        BadFileError, match=r"'new' that its first rows lack.*\"new\": \"list<int64>\""
    ):
        rows_of(file)
    mended = later(tmp_path, {"a": 1}, {"a": 2, "new": [1]}, dtypes={"new": pa.list_(pa.int64())})
    assert rows_of(mended)[50] == {"a": 2, "new": [1]}
    assert rows_of(mended)[0] == {"a": 1, "new": None}


def test_a_nested_member_that_comes_late(tmp_path: Path, short_head) -> None:
    file = later(tmp_path, {"a": {"x": 1}, "b": 1}, {"a": {"x": 1, "y": 2}, "b": 1})
    for columns in (["a", "b"], ["a"]):
        with pytest.raises(BadFileError, match="nested member"):
            rows_of(file, columns)
    assert len(rows_of(file, ["b"])) == 101


@pytest.mark.parametrize("value", [2**53 + 1, 10**22 + 1, -(10**400)])
def test_an_integer_that_doubles_would_round(tmp_path: Path, short_head, value: int) -> None:
    for first, then in [
        ({"a": 0.5, "t": "x"}, {"a": value, "t": "1234567890123456789,"}),
        ({"a": [0.5]}, {"a": [1, value]}),
        ({"a": {"b": 0.5}}, {"a": {"b": value}}),
    ]:
        file = later(tmp_path, first, then)
        with pytest.raises(BadFileError, match=r"'a' that doubles.* would round.*\(line 51\)$"):
            rows_of(file)
    wide = later(tmp_path, {"a": 0.5}, {"a": 2**53 + 1}, dtypes={"a": pa.decimal128(38, 1)})
    assert rows_of(wide)[50] == {"a": 2**53 + 1}


def test_doubles_that_are_written_as_integers(tmp_path: Path, short_head) -> None:
    file = later(tmp_path, {"a": 0.5, "i": 2**62 + 1}, {"a": 123456789012345680000, "i": 2**62 + 3})
    assert rows_of(file)[50] == {"a": 123456789012345680000.0, "i": 2**62 + 3}


# -- bad files ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"", r"is empty \(0 bytes\)"),
        (b"\n\n", "no object with a member"),
        (b"{}\n", "no object with a member"),
        (b'[{"a":1},{"a":2}]', "JSON array, not JSON lines"),
        (b'[\n{"a":1}\n]\n', "JSON array, not JSON lines"),
        (b"hello\n", "is not JSON lines: .*hello"),
        (b"1\n2\n", "each line must be an object"),
        (b'null\n{"a":1}\n', "each line must be an object.*'null'.*line 1"),
        (b'{"a":1}\n null\n', "each line must be an object.*line 2"),
        (b'{"a":1}\n[1]\n', "each line must be an object.*line 2"),
        (b'{"a":1}{"a":2}\n', "a line holds more than one object"),
        (b'{"a":\n1}\n', "each line must be an object"),
        (b'{"a":' + b"[" * 20_000 + b"]" * 20_000 + b"}\n", "nested more than 64 levels"),
        (b'{"a":1}\n' + b'{"a":' * 20_000 + b"1" + b"}" * 20_000, "nested more than 64.*line 2"),
        (b'{"a":' + b"[" * 200_000 + b"}\n", "its brackets do not match"),
        (b'{"a":1e400}\n', "Number too big"),
        (b'{"a":"\\ud800"}\n', "surrogate pair"),
        (b'{"a":123456789012345678901}\n', "doubles.*would round.*decimal128"),
        (b'{"a":1}\n{"a":\n', "is not JSON lines"),
        (b'{"a":1,"a":2}\n', "specified twice"),
        (b"\0\1\2\3", "is not text"),
    ],
)
def test_bad_files(tmp_path: Path, text: bytes, message: str) -> None:
    location = write(tmp_path / "bad.jsonl", text)
    with pytest.raises(BadFileError, match=rf"bad\.jsonl .*{message}"):
        open_jsonl(location, PLAIN)


def test_a_member_without_a_name(tmp_path: Path) -> None:
    location = write(tmp_path / "bad.jsonl", b'{"a":1}\n{"":2}\n')
    with pytest.raises(SchemaError, match=r"bad\.jsonl has a column without a name, as column 1"):
        open_jsonl(location, PLAIN)


def test_text_that_is_not_utf8(tmp_path: Path) -> None:
    for text in (b'{"a":"\xff\xfe"}\n', b'{"\xff\xfe":1}\n', b'{"a":[{"b":"\xff"}]}\n'):
        location = write(tmp_path / "bad.jsonl", text)
        with pytest.raises(BadFileError, match=r"bad\.jsonl has .* not (text in )?UTF-8"):
            open_jsonl(location, PLAIN)


def test_nested_names_that_are_not_utf8(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "bad.jsonl"
    for value in (b'{"\xff": 1}', b'[{"b": {"\xff": null}}]'):
        path.write_bytes(b'{"n": 1, "a": ' + value + b"}\n")
        for dtypes in (None, {"n": "int8"}):
            with pytest.raises(BadFileError, match=r"bad\.jsonl has a member whose name .* UTF-8"):
                Dataset(path, dtypes=dtypes)
        monkeypatch.setattr(stream, "INFER_BYTES", 40)
        path.write_bytes(b'{"n": 1}\n' * 9 + b'{"n": 1, "a": ' + value + b"}\n")
        with pytest.raises(BadFileError, match=r"has a member, .* rows lack.*line 10"):
            Dataset(path).to_arrow()
        monkeypatch.undo()


@pytest.mark.parametrize("levels", [63, 64, 66])
@pytest.mark.parametrize("width", [0, 1000])
def test_the_deepest_that_is_read(tmp_path: Path, levels: int, width: int) -> None:
    inner = levels - 1  # the object of the line is a level too
    deep = b'{"a":' + b"[" * inner + b"1" + b"]" * inner + b"}\n"
    flat = b'{"a":' + b" " * width + b"null}\n"
    location = write(tmp_path / "a.jsonl", flat * 100 + deep + flat * 100)
    if levels <= 64:
        assert sum(1 for row in rows_of(open_jsonl(location, PLAIN)) if row["a"]) == 1
    else:
        with pytest.raises(BadFileError, match="nested more than 64 levels"):
            open_jsonl(location, PLAIN)


def test_what_only_looks_deep(tmp_path: Path) -> None:
    rows = [
        {"a": [{"b": [i]} for i in range(150)], "s": '\\"' + "[{" * 150},
        {"a": [], "s": "}" * 150 + '"'},
    ]
    file = open_jsonl(write(tmp_path / "a.jsonl", lines(*rows)), PLAIN)
    assert rows_of(file) == rows
    nested: object = 1
    for _ in range(62):
        nested = [nested]
    assert rows_of(open_jsonl(write(tmp_path / "b.jsonl", lines({"a": nested})), PLAIN))


def test_long_rows(tmp_path: Path) -> None:
    table = pa.table({"a": ["x", "y" * 3_000_000, "z"]})
    text = lines(*table.to_pylist())
    file = open_jsonl(write(tmp_path / "a.jsonl", text), ReadOptions(block_size=1_000_000))
    check_data_file(file, table)


# -- properties ---------------------------------------------------------------------------

TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=6).map("v".__add__)
ROW = st.fixed_dictionaries(
    {
        "i": st.none() | st.integers(-(2**63), 2**63 - 1),
        "f": st.none() | st.floats(allow_nan=False, allow_infinity=False),
        "s": st.none() | TEXT,
        "b": st.none() | st.booleans(),
        "l": st.none() | st.lists(st.none() | st.integers(-9, 9), max_size=3),
        "t": st.none() | st.fixed_dictionaries({"x": st.none() | TEXT}),
    }
)
SCHEMA = pa.schema(
    {
        "i": pa.int64(),
        "f": pa.float64(),
        "s": pa.string(),
        "b": pa.bool_(),
        "l": pa.list_(pa.int64()),
        "t": pa.struct({"x": pa.string()}),
    }
)
FIRST = {"i": 1, "f": 0.5, "s": "v", "b": True, "l": [1], "t": {"x": "v"}}


@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.lists(ROW, max_size=20), st.integers(1, 500), st.booleans())
def test_any_table(tmp_path: Path, rows: list, size: int, zipped: bool) -> None:
    table = pa.Table.from_pylist([FIRST, *rows], SCHEMA)
    text = lines(FIRST, *rows)
    path = tmp_path / ("a.jsonl.gz" if zipped else "a.jsonl")
    location = write(path, gzip.compress(text, 1) if zipped else text)
    check_data_file(open_jsonl(location, ReadOptions(block_size=size)), table)


def test_a_member_without_a_name_is_refused_with_the_file(tmp_path: Path) -> None:
    with pytest.raises(SchemaError, match=r"a\.jsonl has a column without a name"):
        open_jsonl(write(tmp_path / "a.jsonl", b'{"": 1, "a": 2}\n'), PLAIN)
