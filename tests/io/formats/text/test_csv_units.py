"""CSV files as data files: units, memory, every way to read; where rows end."""

import bz2
import gc
import gzip
import threading
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tabfeed.errors import (
    BadFileError,
    UnreadableFileError,
)
from tabfeed.io import ReadOptions
from tabfeed.io.formats.text import base, stream
from tabfeed.io.formats.text.csv import (
    CsvFormat,
    first_row_end,
    inside_quotes,
    last_row_end,
    open_csv,
)
from tabfeed.io.formats.text.jsonl import open_jsonl
from tests.io.data_files import check_data_file, rows_of, write
from tests.open_files import open_files

PLAIN = ReadOptions()


def small(size: int, **options: object) -> ReadOptions:
    return ReadOptions(block_size=size, **options)  # type: ignore[arg-type]


def test_rows_are_counted_when_first_asked_for(tmp_path: Path) -> None:
    options = ReadOptions(dtypes={"i": pa.int8(), "of another file": pa.int8()})
    file = open_csv(write(tmp_path / "a.csv", b"i,f,s\n1,0.5,x\n,,\n-3,2,y z\n"), options)
    assert file.schema.types == [pa.int8(), pa.float64(), pa.string()]
    assert list(file.unit_rows) == [None]
    assert file.count(0) == 3
    assert list(file.unit_rows) == [3]


LATER = [
    ("1", "007", "int64"),
    ("1", "-007", "int64"),
    ("-1", "-00", "int64"),
    ("1", "0x10", "int64"),
    ("1", " 0XFFFFFFFF", "int64"),
    ("1", "+5", "int64"),
    ("1", "9223372036854775808", "int64"),
    ("1", "1.0", "int64"),
    ("1", "1_000", "int64"),
    ("1", '"1,000"', "int64"),
    ("1", "true", "int64"),
    ("1", "2024-01-02", "int64"),
    ("18446744073709551615", "007", "uint64"),
    ("18446744073709551615", "-1", "uint64"),
    ("0.5", "9007199254740993", "double"),
    ("0.5", "-12345678901234567890", "double"),
    ("0.5", "007", "double"),
    ("0.5", "+491701234567", "double"),
    ("0.5", "1e400", "double"),
    ("0.5", "9" * 400, "double"),
    ("0.5", "0x10", "double"),
    ("0.5", "0x1.8p3", "double"),
]


@pytest.mark.parametrize(("first", "later", "dtype"), LATER)
def test_a_value_that_a_number_would_change(
    tmp_path: Path, monkeypatch, first: str, later: str, dtype: str
) -> None:
    monkeypatch.setattr(stream, "INFER_BYTES", 64)
    text = f"id,c\n{first},1\n" + "2,1\n" * 60 + f"\n{later},1\n" + "2,1\n" * 60
    location = write(tmp_path / "a.csv", text.encode())
    plain = later.strip('"')
    message = rf"a\.csv has a value in column 'id' that is not {dtype}, as its first rows suggest: "
    for block in (50, 10**6):
        with pytest.raises(BadFileError, match=message) as caught:
            rows_of(open_csv(location, small(block)))
        assert repr(plain)[1:-1].strip()[:150] in str(caught.value)
        assert str(caught.value).endswith("(line 64)")
        with pytest.raises(BadFileError, match=r"\(line 64\)$"):
            file = open_csv(location, small(block))
            _ = [list(file.batches(u, ["id"], 10)) for u in range(len(file.unit_rows))]
        mended = open_csv(location, small(block, dtypes={"id": pa.string()}))
        assert rows_of(mended)[61] == {"id": plain, "c": 1}


def test_padded_text_leaves_numbers_beside_it_alone(tmp_path: Path, monkeypatch) -> None:
    text = b"id,zip,n\n" + b"1,00501,2\n" * 50
    monkeypatch.setattr(
        "tabfeed.io.formats.text.csv.exact_numbers", None
    )  # no column of text is cast
    form = CsvFormat(
        write(tmp_path / "a.csv", text),
        pa.schema({"id": pa.int64(), "zip": pa.string(), "n": pa.float64()}),
        ",",
        PLAIN,
    )
    table = form.decode(text.partition(b"\n")[2], ["id", "zip", "n"])
    assert table.to_pylist() == [{"id": 1, "zip": "00501", "n": 2.0}] * 50


def test_lines_are_counted_from_the_start_of_the_file(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(stream, "INFER_BYTES", 40)
    body = b"\n\na,b\n" + b'1,"x\ny"\n' * 20 + b"x,z\n" + b"1,z\n" * 5
    options = small(30, newlines_in_values=True)
    with pytest.raises(BadFileError, match=r"'x'.*\(line 44\)$"):
        rows_of(open_csv(write(tmp_path / "a.csv", body), options))
    with pytest.raises(BadFileError, match=r"'x'.*\(line 44\)$"):
        rows_of(open_csv(write(tmp_path / "a.csv.gz", gzip.compress(body)), options))


@pytest.mark.parametrize(
    "text",
    [
        b"a,b\n1,x\n2,y\n",
        b"a,b\r\n1,x\r\n2,y\r\n",
        b"a,b\n1,x\n2,y",
        b"a,b\r\n1,x\r\n2,y",
        b"\xef\xbb\xbfa,b\n1,x\n2,y\n",
        b"\n\na,b\n\n1,x\n\n\n2,y\n\n",
        b"\r\na,b\r\n1,x\r\n\r\n2,y\r\n\r\n",
        b'"a","b"\n"1","x"\n"2","y"\n',
    ],
)
@pytest.mark.parametrize("size", [1, 4, 1000])
def test_line_ends_marks_and_blanks(tmp_path: Path, text: bytes, size: int) -> None:
    table = pa.table({"a": [1, 2], "b": ["x", "y"]})
    check_data_file(open_csv(write(tmp_path / "a.csv", text), small(size)), table)
    (tmp_path / "a.csv.gz").write_bytes(gzip.compress(text))
    check_data_file(open_csv(write(tmp_path / "a.csv.gz", gzip.compress(text)), small(size)), table)


def test_blank_lines_are_nulls_in_a_single_column(tmp_path: Path) -> None:
    check_data_file(
        open_csv(write(tmp_path / "a.csv", b"a\n1\n\n3\n"), small(2)), pa.table({"a": [1, None, 3]})
    )
    names = small(2, names=("a",))
    file = open_csv(write(tmp_path / "b.csv", b"\n1\n"), names)
    assert rows_of(file) == [{"a": None}, {"a": 1}]


def test_file_that_vanishes_or_changes(tmp_path: Path) -> None:
    location = write(tmp_path / "a.csv", b"a\n" + b"1\n" * 100)
    file = open_csv(location, small(50))
    write(tmp_path / "a.csv", b"a\n" + b"1\n" * 101)
    with pytest.raises(BadFileError, match="changed its length"):
        rows_of(file)
    write(tmp_path / "a.csv", b"a\n" + b"1\n" * 10)
    with pytest.raises(BadFileError, match="changed its length"):
        list(file.batches(3, ["a"], 10))
    (tmp_path / "a.csv").unlink()
    with pytest.raises(UnreadableFileError, match="gone now"):
        rows_of(file)


def test_rows_longer_than_a_block_and_than_the_parser_likes(tmp_path: Path, monkeypatch) -> None:
    long = "x" * 3_000_000
    table = pa.table({"a": ["s", long, "t", "u"], "b": [1, 2, 3, 4]})
    text = f"a,b\ns,1\n{long},2\nt,3\nu,4\n".encode()
    for options in (small(1_000_000), small(2_000_000, newlines_in_values=True)):
        check_data_file(open_csv(write(tmp_path / "a.csv", text), options), table)
    monkeypatch.setattr(stream, "LONGEST_ROW", 1_000_000)
    monkeypatch.setattr(base, "LONGEST_ROW", 1_000_000)
    endless = write(tmp_path / "b.csv", b"x" * 10_000_000)
    with pytest.raises(BadFileError, match="no line end within 1,000,000 bytes"):
        open_csv(endless, PLAIN)


def _packed(kind: str, text: bytes) -> bytes:
    if kind == "zst":
        sink = pa.BufferOutputStream()
        with pa.CompressedOutputStream(sink, "zstd") as out:
            out.write(text)
        return sink.getvalue().to_pybytes()
    return {"gz": gzip.compress, "bz2": bz2.compress}[kind](text)


@pytest.mark.parametrize("kind", ["gz", "bz2", "zst"])
@pytest.mark.parametrize("name", ["a.csv", "a.jsonl"])
@pytest.mark.parametrize("first", [0, 1000], ids=["at once", "after some rows"])
def test_a_compressed_line_takes_twice_the_longest_row(
    tmp_path: Path, monkeypatch, kind: str, name: str, first: int
) -> None:
    most = 4 * 2**20
    for module in (stream, base):
        monkeypatch.setattr(module, "LONGEST_ROW", most)
    monkeypatch.setattr(stream, "INFER_BYTES", 2**12)
    row = b"a,b\n" if name == "a.csv" else b'{"a": 1}\n'
    bomb = _packed(kind, row * first + b"7" * (64 * 2**20))
    assert len(bomb) < 2**18
    location = write(tmp_path / f"{name}.{kind}", bomb)
    open_file = open_csv if name == "a.csv" else open_jsonl
    tracemalloc.start()
    try:
        with pytest.raises(BadFileError, match=f"no line end within {most:,} bytes"):
            rows_of(open_file(location, small(2**16)))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 2 * most + 2**20


MULTILINE = b'a,b\n1,"x\ny"\n2,"p ""q""\n\nr"\n3,5" disk\n4,z\n'


MULTILINE_TABLE = pa.table({"a": [1, 2, 3, 4], "b": ["x\ny", 'p "q"\n\nr', '5" disk', "z"]})


@pytest.mark.parametrize("size", [1, 7, 20, 1000])
def test_newlines_in_values(tmp_path: Path, size: int) -> None:
    options = small(size, newlines_in_values=True)
    file = open_csv(write(tmp_path / "a.csv", MULTILINE), options)
    check_data_file(file, MULTILINE_TABLE)
    zipped = write(tmp_path / "a.csv.gz", gzip.compress(MULTILINE))
    check_data_file(open_csv(zipped, options), MULTILINE_TABLE)


def test_a_quoted_line_end_is_never_cut_in_silence(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(stream, "INFER_BYTES", 40)
    # Cut between foo and bar, both halves look like a row of two texts.
    text = b"a,b\n" + b"p,q\n" * 20 + b'foo,"foo\nbar,bar"\n' + b"p,q\n" * 20
    for size in range(4, 60):
        file = open_csv(write(tmp_path / "a.csv", text), small(size))
        try:
            values = [r["b"] for r in rows_of(file)]
        except BadFileError as e:
            assert "newlines_in_values=True" in str(e)
        else:
            assert values == ["q"] * 20 + ["foo\nbar,bar"] + ["q"] * 20


def test_where_rows_end() -> None:
    text = b'"a\nb",1\n"c""\n",2\n"d'
    assert first_row_end(text, ",") == 8
    assert last_row_end(text, ",") == 17
    assert last_row_end(b'"a\n', ",") == 0
    assert last_row_end(b"a\nb", ",") == 2
    assert inside_quotes(text, ",")
    assert not inside_quotes(text + b'"', ",")
    assert last_row_end(b'a|"x\ny"\n', "|") == 8
    assert last_row_end(b'a|"x\ny"\n', ",") == 8  # not a field's start: a character
    assert last_row_end(b'a|"x\ny', ",") == 5


COMPRESSORS = {"gz": "gzip", "bz2": "bz2", "zst": "zstd", "lz4": "lz4"}


@pytest.mark.parametrize("suffix", list(COMPRESSORS))
def test_compressed(tmp_path: Path, suffix: str) -> None:
    table = pa.table({"a": list(range(3000)), "b": [f"v{i % 17}" for i in range(3000)]})
    text = "a,b\n" + "".join(f"{i},v{i % 17}\n" for i in range(3000))
    path = tmp_path / f"a.csv.{suffix}"
    with pa.output_stream(str(path), compression=COMPRESSORS[suffix]) as sink:
        sink.write(text.encode())
    file = open_csv(write(path, path.read_bytes()), small(4000))
    assert len(file.unit_rows) > 5
    assert None not in file.unit_rows
    check_data_file(file, table)


def test_gzip_of_several_members(tmp_path: Path) -> None:
    data = gzip.compress(b"a,b\n1,x\n") + gzip.compress(b"2,y\n3,z\n")
    table = pa.table({"a": [1, 2, 3], "b": ["x", "y", "z"]})
    check_data_file(open_csv(write(tmp_path / "a.csv.gz", data), small(4)), table)


def test_reading_in_order_decompresses_once(tmp_path: Path, monkeypatch) -> None:
    text = b"a\n" + b"".join(b"%d\n" % i for i in range(20_000))
    file = open_csv(write(tmp_path / "a.csv.gz", gzip.compress(text)), small(5000))
    units = len(file.unit_rows)
    assert units > 15
    read = []
    original = stream._Stream.read

    def counted(self, nbytes: int) -> bytes:
        data = original(self, nbytes)
        read.append(len(data))
        return data

    monkeypatch.setattr(stream._Stream, "read", counted)
    values = [v for u in range(units) for v in file.read([u], ["a"]).column(0).to_pylist()]
    assert values == list(range(20_000))
    assert sum(read) <= len(text) + units


def test_threads_each_decompress_once_at_most(tmp_path: Path, monkeypatch) -> None:
    text = b"a\n" + b"".join(b"%d\n" % i for i in range(20_000))
    file = open_csv(write(tmp_path / "a.csv.gz", gzip.compress(text)), small(5000))
    opened = []
    original = stream._Stream.__init__

    def counted(self, location) -> None:
        opened.append(threading.get_ident())
        original(self, location)

    monkeypatch.setattr(stream._Stream, "__init__", counted)
    with ThreadPoolExecutor(3) as pool:
        tables = list(pool.map(lambda u: file.read([u], ["a"]), range(len(file.unit_rows))))
    assert pa.concat_tables(tables).column(0).to_pylist() == list(range(20_000))
    assert len(opened) <= 2 * 3  # a stream overtaken by another thread's may be opened again


def test_abandoned_batches_leave_no_open_file(tmp_path: Path) -> None:
    text = b"a\n" + b"".join(b"%d\n" % i for i in range(50_000))
    file = open_csv(write(tmp_path / "a.csv.gz", gzip.compress(text)), small(10**9))
    for _ in range(20):
        batches = file.batches(0, ["a"], 10)
        assert next(batches).num_rows == 10
        del batches
    gc.collect()
    assert len(file._text._idle) <= 4
    assert len(open_files(tmp_path)) <= 5


def test_batches_hold_little(tmp_path: Path) -> None:
    text = b"a,b\n" + b"".join(b"%d,%d\n" % (i, -i) for i in range(200_000))
    file = open_csv(write(tmp_path / "a.csv", text), small(10**9))
    assert len(file.unit_rows) == 1
    decoded = []
    form = file._form

    class Spy:
        schema = form.schema
        last_row_end = staticmethod(form.last_row_end)

        @staticmethod
        def decode(data, columns):
            decoded.append(len(data))
            return form.decode(data, columns)

    file._form = Spy()
    batches = file.batches(0, ["b"], 1000)
    assert next(batches).column(0).to_pylist() == [-i for i in range(1000)]
    assert sum(decoded) < len(text) / 20
    assert sum(b.num_rows for b in batches) == 199_000


def test_rows_are_listed_in_constant_time(tmp_path: Path) -> None:
    file = open_csv(write(tmp_path / "a.csv", b"a\n" + b"1\n" * 50), small(10))
    assert file.unit_rows is file.unit_rows
    zipped = open_csv(write(tmp_path / "a.csv.gz", gzip.compress(b"a\n" + b"1\n" * 50)), small(10))
    assert zipped.unit_rows is zipped.unit_rows


def test_opening_reads_only_the_start(tmp_path: Path) -> None:
    location = write(tmp_path / "a.csv", b"a,b\n" + b"1,2\n" * 2_000_000)
    reads = []

    class Spy(type(location)):  # type: ignore[misc]
        def open(self):
            reads.append("open")
            return super().open()

    spied = Spy(location.name, location.path, location.filesystem, location.size)
    file = open_csv(spied, small(2**20))
    assert reads == ["open"]
    assert list(file.unit_rows) == [None] * 8
    assert file.nbytes(3, ["a", "b"]) == pytest.approx(4 * 2**20, rel=0.3)
    assert file.nbytes(3, ["a"]) == pytest.approx(2 * 2**20, rel=0.3)
    assert reads == ["open"]


TEXTS = st.text(st.characters(codec="utf-8", exclude_characters="\0\r\n"), min_size=1, max_size=6)


LINES = st.text(st.sampled_from('ab",\n'), min_size=1, max_size=6)


def quoted(value: object) -> str:
    return "" if value is None else '"' + str(value).replace('"', '""') + '"'


def tables(texts: st.SearchStrategy[str]) -> st.SearchStrategy[pa.Table]:
    fit = texts.map(lambda t: "v" + t)  # so that no text is a number, a date or null
    row = st.tuples(
        st.none() | st.integers(-(2**63), 2**63 - 1),
        st.none() | st.floats(allow_nan=False, allow_infinity=False),
        st.none() | fit,
    )
    first = st.tuples(st.just(1), st.just(0.5), fit)  # no column without a value
    rows = st.tuples(first, st.lists(row, max_size=30)).map(lambda p: [p[0], *p[1]])
    schema = pa.schema({"i": pa.int64(), "f": pa.float64(), "s": pa.string()})
    return rows.map(
        lambda r: pa.Table.from_pylist([dict(zip("ifs", x, strict=True)) for x in r], schema)
    )


def as_csv(table: pa.Table, end: str) -> bytes:
    lines = ["i,f,s"]
    for row in table.to_pylist():
        number = "" if row["i"] is None else str(row["i"])
        real = "" if row["f"] is None else repr(row["f"])
        lines.append(f"{number},{real},{quoted(row['s'])}")
    return end.join([*lines, ""]).encode()


SETTINGS = settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@SETTINGS
@given(tables(TEXTS), st.integers(1, 400), st.sampled_from(["\n", "\r\n"]), st.booleans())
def test_any_table(tmp_path: Path, table: pa.Table, size: int, end: str, zipped: bool) -> None:
    text = as_csv(table, end)
    path = tmp_path / ("a.csv.gz" if zipped else "a.csv")
    location = write(path, gzip.compress(text, 1) if zipped else text)
    check_data_file(open_csv(location, small(size)), table)


@SETTINGS
@given(tables(LINES), st.integers(1, 100))
def test_any_table_with_line_ends(tmp_path: Path, table: pa.Table, size: int) -> None:
    location = write(tmp_path / "a.csv", as_csv(table, "\n"))
    file = open_csv(location, replace(small(size), newlines_in_values=True))
    check_data_file(file, table)


@SETTINGS
@given(st.text(st.sampled_from('ab",\n'), max_size=40), st.integers(1, 20))
def test_cuts_agree_with_the_parser(tmp_path: Path, text: str, size: int) -> None:
    """Whatever the text, units give what the whole gives, or both refuse."""
    body = ("x,y\n" + text + "\n").encode()
    location = write(tmp_path / "a.csv", body)
    outcomes = []
    for block in (10**6, size):
        try:
            file = open_csv(location, small(block, newlines_in_values=True, names=("p", "q")))
            outcomes.append([rows_of(file, ["p", "q"]), None])
        except BadFileError:
            outcomes.append([None, "refused"])
    assert outcomes[0] == outcomes[1]


def test_header_with_a_line_end(tmp_path: Path) -> None:
    text = b'"first\nname",b\nx,1\n'
    file = open_csv(write(tmp_path / "a.csv", text), small(5, newlines_in_values=True))
    assert rows_of(file) == [{"first\nname": "x", "b": 1}]
