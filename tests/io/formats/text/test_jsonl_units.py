"""JSON lines as data files: units, rows counted, every way to read; values far from the start."""

import gzip
import json
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tabfeed import Dataset
from tabfeed.errors import BadFileError
from tabfeed.io import ReadOptions
from tabfeed.io.formats.text import stream
from tabfeed.io.formats.text.jsonl import open_jsonl
from tests.io.data_files import check_data_file, write

PLAIN = ReadOptions()


def lines(*rows: object) -> bytes:
    return "".join(json.dumps(r) + "\n" for r in rows).encode()


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


# -- values that do not fit ---------------------------------------------------------------


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
