import json
from datetime import date, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tabfeed import Dataset
from tabfeed.errors import BadFileError, SchemaError
from tests.io.datasets import opened, rows_in, types_of, written


def lines(*rows: object) -> bytes:
    return "".join(json.dumps(r) + "\n" for r in rows).encode()


def test_types_and_order(tmp_path: Path) -> None:
    text = lines(
        {"b": 1, "a": "x", "f": 0.5, "t": "2024-01-02T03:04:05", "l": [1, 2], "s": {"p": [None]}},
        {"a": None, "f": 2, "l": [], "s": {"p": ["q"]}, "b": 2},
    )
    file = opened(tmp_path / "a.jsonl", text)
    assert types_of(file) == pa.schema(
        {
            "b": pa.int64(),
            "a": pa.string(),
            "f": pa.float64(),
            "t": pa.timestamp("s"),
            "l": pa.list_(pa.int64()),
            "s": pa.struct({"p": pa.list_(pa.string())}),
        }
    )
    assert rows_in(file, ["s", "t", "b"]) == [
        {"s": {"p": [None]}, "t": datetime(2024, 1, 2, 3, 4, 5), "b": 1},
        {"s": {"p": ["q"]}, "t": None, "b": 2},
    ]
    assert rows_in(file, ["l"]) == [{"l": [1, 2]}, {"l": []}]


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
    file = opened(tmp_path / "a.jsonl", text, dtypes=types)
    assert file.column_names == ["v", "d", "c", "big", "n", "later"]
    assert types_of(file).types == [
        types["v"],
        types["d"],
        types["c"],
        pa.string(),
        pa.int64(),
        types["later"],
    ]
    assert rows_in(file) == [
        {"v": [1, 2], "d": date(2024, 2, 29), "c": "x", "big": "y", "n": 1, "later": None},
        {"v": None, "d": None, "c": None, "big": "z", "n": 2, "later": 1.5},
    ]


def test_dtype_json_cannot_have(tmp_path: Path) -> None:
    location = written(tmp_path / "a.jsonl", lines({"a": {"x": 1}}))
    with pytest.raises(SchemaError, match=r"a\.jsonl: .*map<string, int64>"):
        Dataset(location, dtypes={"a": pa.map_(pa.string(), pa.int64())})


def test_what_is_null_throughout_is_text(tmp_path: Path) -> None:
    file = opened(tmp_path / "a.jsonl", lines({"a": None, "b": [], "c": {"d": None}}))
    text = pa.string()
    assert types_of(file).types == [text, pa.list_(text), pa.struct({"d": text})]


def test_large_integers_are_not_rounded(tmp_path: Path) -> None:
    text = lines({"h": 2**64 - 1, "f": 1.0}, {"h": 7, "f": 2.5})
    file = opened(tmp_path / "a.jsonl", text)
    assert types_of(file).types == [pa.uint64(), pa.float64()]
    assert rows_in(file, ["h"]) == [{"h": 2**64 - 1}, {"h": 7}]


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
    location = written(tmp_path / "bad.jsonl", text)
    with pytest.raises(BadFileError, match=rf"bad\.jsonl .*{message}"):
        Dataset(location)


def test_a_member_without_a_name(tmp_path: Path) -> None:
    location = written(tmp_path / "bad.jsonl", b'{"a":1}\n{"":2}\n')
    with pytest.raises(SchemaError, match=r"bad\.jsonl has a column without a name, as column 1"):
        Dataset(location)


def test_text_that_is_not_utf8(tmp_path: Path) -> None:
    for text in (b'{"a":"\xff\xfe"}\n', b'{"\xff\xfe":1}\n', b'{"a":[{"b":"\xff"}]}\n'):
        location = written(tmp_path / "bad.jsonl", text)
        with pytest.raises(BadFileError, match=r"bad\.jsonl has .* not (text in )?UTF-8"):
            Dataset(location)


@pytest.mark.parametrize("levels", [63, 64, 66])
@pytest.mark.parametrize("width", [0, 1000])
def test_the_deepest_that_is_read(tmp_path: Path, levels: int, width: int) -> None:
    inner = levels - 1  # the object of the line is a level too
    deep = b'{"a":' + b"[" * inner + b"1" + b"]" * inner + b"}\n"
    flat = b'{"a":' + b" " * width + b"null}\n"
    location = written(tmp_path / "a.jsonl", flat * 100 + deep + flat * 100)
    if levels <= 64:
        assert sum(1 for row in rows_in(Dataset(location)) if row["a"]) == 1
    else:
        with pytest.raises(BadFileError, match="nested more than 64 levels"):
            Dataset(location)


def test_what_only_looks_deep(tmp_path: Path) -> None:
    rows = [
        {"a": [{"b": [i]} for i in range(150)], "s": '\\"' + "[{" * 150},
        {"a": [], "s": "}" * 150 + '"'},
    ]
    file = opened(tmp_path / "a.jsonl", lines(*rows))
    assert rows_in(file) == rows
    nested: object = 1
    for _ in range(62):
        nested = [nested]
    assert rows_in(opened(tmp_path / "b.jsonl", lines({"a": nested})))


def test_a_member_without_a_name_is_refused_with_the_file(tmp_path: Path) -> None:
    with pytest.raises(SchemaError, match=r"a\.jsonl has a column without a name"):
        opened(tmp_path / "a.jsonl", b'{"": 1, "a": 2}\n')


def test_rows_without_members_count(tmp_path: Path) -> None:
    file = opened(tmp_path / "a.jsonl", b'{"a":1}\n{}\n{}\n')
    assert file.num_rows == 3
    assert rows_in(file) == [{"a": 1}, {"a": None}, {"a": None}]


# -- values that do not fit ---------------------------------------------------------------

FIRST_ROWS = 120_000  # more than types are inferred from


def later(tmp_path: Path, first: object, then: object, **options: Any) -> Dataset:
    """A file with another row far from its start, opened in small units."""
    text = lines(first) * FIRST_ROWS + lines(then) + lines(first) * FIRST_ROWS
    assert text.index(lines(then)) > 2**20
    return opened(tmp_path / "a.jsonl", text, part_size="1MiB", **options)


def test_a_number_of_another_kind(tmp_path: Path) -> None:
    file = later(tmp_path, {"a": 1, "b": 1}, {"a": 1, "b": 1.5})
    with pytest.raises(
        BadFileError, match=r"'b' that is not int64.*'1\.5' came.*dtypes=\{\"b\""
    ) as e:
        rows_in(file)
    assert e.value.column == "b"
    assert len(rows_in(file, ["a"])) == 2 * FIRST_ROWS + 1
    mended = later(tmp_path, {"a": 1, "b": 1}, {"a": 1, "b": 1.5}, dtypes={"b": pa.float64()})
    assert rows_in(mended)[FIRST_ROWS] == {"a": 1, "b": 1.5}


def test_a_value_of_another_kind(tmp_path: Path) -> None:
    with pytest.raises(BadFileError, match=r"'a' that is not number.*a string came"):
        rows_in(later(tmp_path, {"a": 1}, {"a": "x"}))
    with pytest.raises(BadFileError, match="'a' that is not number"):
        rows_in(later(tmp_path, {"a": [1]}, {"a": ["x"]}))


def test_a_member_that_comes_late(tmp_path: Path) -> None:
    file = later(tmp_path, {"a": 1}, {"a": 2, "new": [1]})
    with pytest.raises(
        BadFileError, match=r"'new' that its first rows lack.*\"new\": \"list<int64>\""
    ):
        rows_in(file)
    mended = later(tmp_path, {"a": 1}, {"a": 2, "new": [1]}, dtypes={"new": pa.list_(pa.int64())})
    assert rows_in(mended)[FIRST_ROWS] == {"a": 2, "new": [1]}
    assert rows_in(mended)[0] == {"a": 1, "new": None}


def test_a_nested_member_that_comes_late(tmp_path: Path) -> None:
    file = later(tmp_path, {"a": {"x": 1}, "b": 1}, {"a": {"x": 1, "y": 2}, "b": 1})
    for columns in (["a", "b"], ["a"]):
        with pytest.raises(BadFileError, match="nested member"):
            rows_in(file, columns)
    assert len(rows_in(file, ["b"])) == 2 * FIRST_ROWS + 1


@pytest.mark.parametrize("value", [2**53 + 1, 10**22 + 1, -(10**400)])
def test_an_integer_that_doubles_would_round(tmp_path: Path, value: int) -> None:
    for first, then in [
        ({"a": 0.5, "t": "x"}, {"a": value, "t": "1234567890123456789,"}),
        ({"a": [0.5]}, {"a": [1, value]}),
        ({"a": {"b": 0.5}}, {"a": {"b": value}}),
    ]:
        file = later(tmp_path, first, then)
        with pytest.raises(
            BadFileError, match=r"'a' that doubles.* would round.*\(line 120,001\)$"
        ):
            rows_in(file)
    wide = later(tmp_path, {"a": 0.5}, {"a": 2**53 + 1}, dtypes={"a": pa.decimal128(38, 1)})
    assert rows_in(wide)[FIRST_ROWS] == {"a": 2**53 + 1}


def test_doubles_that_are_written_as_integers(tmp_path: Path) -> None:
    file = later(tmp_path, {"a": 0.5, "i": 2**62 + 1}, {"a": 123456789012345680000, "i": 2**62 + 3})
    assert rows_in(file)[FIRST_ROWS] == {"a": 123456789012345680000.0, "i": 2**62 + 3}
