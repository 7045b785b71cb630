"""Which row groups a GPU may unpack, where their bytes lie, and which pages are found there."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tabfeed import Dataset
from tabfeed.io.formats.parquet.pages import DATA, DICTIONARY
from tabfeed.loader.gpu.parquet.encoded_pages import (
    NO_KIND,
    ROWS,
    Extent,
    Kind,
    UnsupportedError,
    Wanted,
    _Chunk,
    extent_of,
    find_pages,
)

TABLE = pa.table(
    {
        "a": pa.array(np.arange(1000) % 50, pa.int32()),
        "b": pa.array(np.arange(1000), pa.int64()),
        "c": pa.array(np.arange(1000) / 7, pa.float32()),
        "d": pa.array(np.arange(1000) % 100, pa.int8()),
    }
)
FOUR, EIGHT, ONE = Kind(4, 4), Kind(8, 8), Kind(4, 1)
A, B, C = Wanted("a", FOUR, 1), Wanted("b", EIGHT, 0), Wanted("c", FOUR, 1)
D = Wanted("d", ONE, 2)
HEADER = 4  # a file begins with so many bytes that are of no column


def row(name):
    return ROWS.index(name)


class File:
    """A file, as it is looked at and as bytes."""

    def __init__(self, path, table=TABLE, **options):
        options = {
            "compression": "snappy",
            "max_rows_per_page": 300,
            "write_batch_size": 100,
        } | options
        pq.write_table(table, path, **options)
        self.file = Dataset(str(path)).fileset.files[0]
        self.bytes = path.read_bytes()

    def extent(self, *columns, unit=0):
        return extent_of(self.file, unit, columns)

    def read(self, extent):
        return memoryview(b"".join(self.bytes[run.start : run.stop] for run in extent.runs))


@pytest.fixture
def written(tmp_path):
    def write(table=TABLE, **options):
        return File(tmp_path / f"{len(list(tmp_path.iterdir()))}.parquet", table, **options)

    return write


# -- which bytes ----------------------------------------------------------------------------


def test_all_columns_are_one_run_in_whatever_order(written):
    file = written()
    group = pq.ParquetFile(pa.BufferReader(file.bytes)).metadata.row_group(0)
    sizes = [group.column(i).total_compressed_size for i in range(4)]
    extent = file.extent(D, B, A, C)
    assert [tuple(run) for run in extent.runs] == [(HEADER, HEADER + sum(sizes))]
    assert [chunk.start for chunk in extent.chunks] == [
        sum(sizes[:3]), sizes[0], 0, sum(sizes[:2])
    ]  # fmt: skip
    assert [chunk.end - chunk.start for chunk in extent.chunks] == [
        sizes[3], sizes[1], sizes[0], sizes[2]
    ]  # fmt: skip
    assert [(c.stored, c.width, c.kind) for c in extent.chunks] == [
        (4, 1, 2), (8, 8, 0), (4, 4, 1), (4, 4, 1)
    ]  # fmt: skip
    assert extent.encoded == sum(sizes) and extent.compressed


def test_columns_apart_are_several_runs(written):
    file = written()
    extent = file.extent(D, A)
    assert len(extent.runs) == 2
    assert extent.encoded == sum(run.size for run in extent.runs)
    assert extent.chunks[1].start == 0 and extent.chunks[0].start == extent.runs[0].size


def test_a_later_row_group(written):
    file = written(row_group_size=400)
    extents = [file.extent(A, unit=unit) for unit in range(3)]
    assert [len(find_pages(file.read(s), s, rows).column) for s, rows in zip(
        extents, (400, 400, 200), strict=True
    )] == [3, 3, 2]  # fmt: skip
    assert extents[0].runs[0].stop < extents[1].runs[0].start


def test_what_is_not_compressed_needs_no_room(written):
    extent = written(compression="none").extent(A, B)
    assert not extent.compressed and extent.decompressed == 0


def test_room_is_judged_by_what_the_footer_says(written):
    file = written()
    group = pq.ParquetFile(pa.BufferReader(file.bytes)).metadata.row_group(0)
    assert file.extent(B).decompressed == group.column(1).total_uncompressed_size


def test_columns_that_cannot_be_null_have_no_levels(written):
    fields = [pa.field("a", pa.int32(), nullable=False), pa.field("b", pa.int64())]
    table = TABLE.select(["a", "b"]).cast(pa.schema(fields))
    assert [chunk.levels for chunk in written(table).extent(A, B).chunks] == [False, True]


# -- what is not fit ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "columns", "why"),
    [
        ({"compression": "zstd"}, [A], "pages are compressed with ZSTD"),
        ({"compression": "gzip"}, [A, B], "pages are compressed with GZIP"),
        (
            {"compression": {"a": "snappy", "b": "zstd", "c": "none", "d": "snappy"}},
            [A, B],
            "pages are compressed with SNAPPY, ZSTD",
        ),
        (
            {"compression": {"a": "snappy", "b": "snappy", "c": "none", "d": "snappy"}},
            [A, C],
            "pages are compressed with SNAPPY, UNCOMPRESSED",
        ),
        ({"write_statistics": False}, [A], "the footer does not rule them out"),
        (
            {"use_dictionary": False, "column_encoding": {"b": "DELTA_BINARY_PACKED"}},
            [A, B],
            "column 'b' is encoded as .*DELTA_BINARY_PACKED",
        ),
        (
            {"use_dictionary": False, "column_encoding": {"c": "BYTE_STREAM_SPLIT"}},
            [A, C],
            "column 'c' is encoded as .*BYTE_STREAM_SPLIT",
        ),
        ({}, [Wanted("a", EIGHT, 0)], "column 'a' is stored as INT32"),
        ({}, [Wanted("b", FOUR, 0)], "column 'b' is stored as INT64"),
    ],
)
def test_what_is_not_fit(written, options, columns, why):
    file = written(**options)
    with pytest.raises(UnsupportedError, match=why):
        file.extent(*columns)


def test_columns_that_are_not_asked_for_do_not_matter(written):
    file = written(compression={"a": "snappy", "b": "zstd", "c": "none", "d": "zstd"})
    assert file.extent(A).compressed and not file.extent(C).compressed


def test_a_required_column_needs_no_statistics(written):
    table = TABLE.select(["a"]).cast(pa.schema([pa.field("a", pa.int32(), nullable=False)]))
    assert written(table, write_statistics=False).extent(A).encoded


@pytest.mark.parametrize(
    ("column", "width", "options", "why"),
    [
        (pa.array([1, None, 3], pa.int32()), 4, {}, "there are nulls"),
        (pa.array([1, 2], pa.uint32()), 4, {"version": "1.0"}, "'x' is stored as INT64"),
        (pa.array([True, False]), 1, {}, "'x' is stored as BOOLEAN"),
        (pa.array(["a", "b"]), 4, {}, "'x' is stored as BYTE_ARRAY"),
        (pa.array([1, 2], pa.float16()), 2, {}, "'x' is stored as FIXED_LEN_BYTE_ARRAY"),
    ],
)
def test_columns_that_are_not_fit(written, column, width, options, why):
    file = written(pa.table({"x": column}), **options)
    with pytest.raises(UnsupportedError, match=why):
        file.extent(Wanted("x", Kind(max(4, width), width), 0))


# -- which pages ----------------------------------------------------------------------------


def found(file, *columns, rows=1000, extent=None, data=None):
    extent = file.extent(*columns) if extent is None else extent
    return find_pages(file.read(extent) if data is None else data, extent, rows)


def test_pages_of_a_file(written):
    file = written()
    table, column, coded, room = found(file, B, A)
    assert table.dtype == np.int32 and table.flags.c_contiguous and len(table) == len(ROWS)
    # Each column has its dictionary, and 300, 300, 300 and 100 values.
    assert column.tolist() == [0] * 5 + [1] * 5
    assert coded.tolist() == [0, 1, 1, 1, 1] * 2
    assert table[row("values")].tolist() == [1000, 300, 300, 300, 100, 50, 300, 300, 300, 100]
    assert table[row("kind")].tolist() == [NO_KIND, 0, 0, 0, 0, NO_KIND, 1, 1, 1, 1]
    assert table[row("levels")].tolist() == [0, 1, 1, 1, 1] * 2
    assert table[row("first")].tolist() == [0, 0, 2400, 4800, 7200, 0, 0, 1200, 2400, 3600]
    assert table[row("entries")].tolist() == [0, *[1000] * 4, 0, *[50] * 4]
    to, size = table[row("to")], table[row("bytes")]
    assert table[row("words")].tolist() == [0, *[to[0]] * 4, 0, *[to[5]] * 4]
    assert size[[0, 5]].tolist() == [8000, 200]
    # One behind the other, each at a place that is a multiple of 16.
    assert (to % 16 == 0).all() and to[0] == 0 and (to[1:] - to[:-1] >= size[:-1]).all()
    assert room >= to[-1] + size[-1] and room % 16 == 0
    assert not table[row("became")].any() and not table[row("wrong")].any()


def test_places_are_those_of_what_was_read(written):
    file = written()
    extent = file.extent(D, A)
    data = file.read(extent)
    table, column, _, _ = found(file, extent=extent)
    at, stored, size = (table[row(name)].tolist() for name in ("at", "stored", "bytes"))
    codec = pa.Codec("snappy")
    pages = [
        codec.decompress(data[a : a + n], m).to_pybytes()
        for a, n, m in zip(at, stored, size, strict=True)
    ]
    first = column.tolist().index(1)
    assert np.frombuffer(pages[0], "i4").tolist() == list(range(100))
    assert np.frombuffer(pages[first], "i4").tolist() == list(range(50))


def test_plain_pages_that_are_not_compressed_stay_where_they_are(written):
    table, _, coded, room = found(written(compression="none", use_dictionary=False), B, C)
    assert room == 0 and not coded.any()
    assert table[row("to")].tolist() == table[row("at")].tolist()
    assert table[row("bytes")].tolist() == table[row("stored")].tolist()
    assert not table[row("entries")].any()


def test_a_column_that_outgrows_its_dictionary(written):
    file = written(dictionary_pagesize_limit=1000)
    table, _, coded, _ = found(file, B)
    assert 0 < coded.sum() < len(coded) - 1
    assert (table[row("entries")] > 0).tolist() == (coded == 1).tolist()


@pytest.mark.parametrize("rows", [0, 999, 1001])
def test_rows_that_do_not_add_up(written, rows):
    with pytest.raises(
        UnsupportedError, match=f"a column has 1000 values where {rows} were expected"
    ):
        found(written(), A, rows=rows)


def test_pages_of_version_2_are_not_fit(written):
    with pytest.raises(UnsupportedError, match="a page of kind 3"):
        found(written(data_page_version="2.0"), A)


def test_bytes_that_are_no_pages(written):
    file = written()
    extent = file.extent(A)
    with pytest.raises(UnsupportedError, match="no page header"):
        found(file, extent=extent, data=memoryview(bytes(extent.encoded)))


def test_a_column_cut_short(written):
    file = written()
    extent = file.extent(A)
    (chunk,) = extent.chunks
    cut = replace(extent, chunks=(chunk._replace(end=chunk.end - 5),))
    with pytest.raises(UnsupportedError, match="a page is longer than its column"):
        found(file, extent=cut)


def test_codes_without_a_dictionary(written):
    file = written()
    extent = file.extent(A)
    (chunk,) = extent.chunks
    pages = found(file, extent=extent)
    behind = int(pages.table[row("at"), 0] + pages.table[row("stored"), 0])
    with pytest.raises(UnsupportedError, match="a page has no dictionary"):
        found(file, extent=replace(extent, chunks=(chunk._replace(start=behind),)))


# -- headers that promise what is not true --------------------------------------------------


def varint(number):
    raw, out = number << 1, bytearray()
    while raw > 127:
        out.append(raw & 127 | 128)
        raw >>= 7
    return bytes([*out, raw])


def page(kind=DATA, *, size=16, stored=16, values=4, encoding=0):
    """A page of zeros."""
    fields = b"".join(b"\x15" + varint(n) for n in (kind, size, stored))
    inner = b"".join(b"\x15" + varint(n) for n in (values, encoding))
    place = {DATA: b"\x2c", DICTIONARY: b"\x4c"}[kind]
    return fields + place + inner + b"\x00\x00" + bytes(stored)


def by_hand(*pages, compressed, rows=4):
    data = b"".join(pages)
    extent = Extent((), (_Chunk(0, len(data), False, 4, 4, 0),), compressed, len(data), 0)
    return find_pages(memoryview(data), extent, rows)


@pytest.mark.parametrize("compressed", [False, True])
def test_pages_by_hand(compressed):
    pages = by_hand(page(values=1), page(values=3), compressed=compressed)
    assert pages.table[row("values")].tolist() == [1, 3]


def test_a_dictionary_that_is_too_short():
    with pytest.raises(UnsupportedError, match="a dictionary is too short"):
        by_hand(page(DICTIONARY, values=5), page(), compressed=True)


def test_an_empty_dictionary_has_no_codes():
    with pytest.raises(UnsupportedError, match="a page has no dictionary"):
        by_hand(page(DICTIONARY, values=0), page(encoding=8), compressed=True)


@pytest.mark.parametrize("size", [15, 17, 2**30, 2**70])
def test_a_page_that_claims_another_size_than_it_has(size):
    """Where pages are not compressed, a kernel would read behind the page."""
    with pytest.raises(UnsupportedError):
        by_hand(page(size=size), compressed=False)


@pytest.mark.parametrize("size", [2**31 - 1, 2**40, 2**62, 2**66])
def test_pages_that_claim_more_than_can_be_numbered(size):
    """Places have 32 bits: what does not fit must not be taken for another place."""
    with pytest.raises(UnsupportedError):
        by_hand(page(DICTIONARY, size=size), page(size=size), compressed=True)


def test_a_page_of_more_values_than_there_are_rows():
    with pytest.raises(UnsupportedError):
        by_hand(page(values=2**66), compressed=True)


def test_no_rows():
    with pytest.raises(UnsupportedError):
        by_hand(compressed=True, rows=0)
