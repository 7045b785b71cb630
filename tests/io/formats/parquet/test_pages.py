import random
from collections.abc import Iterator
from itertools import pairwise

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tabfeed.io.formats.parquet.pages import (
    DATA,
    DICTIONARY,
    Header,
    Page,
    headers,
    pages_of,
)


def written(**options: object) -> pa.Buffer:
    sink = pa.BufferOutputStream()
    table = pa.table({"x": pa.array(range(1000), pa.int32())})
    pq.write_table(table, sink, write_batch_size=100, max_rows_per_page=300, **options)
    return sink.getvalue()


def pages(data: pa.Buffer) -> list[Page]:
    chunk = pq.ParquetFile(pa.BufferReader(data)).metadata.row_group(0).column(0)
    return pages_of(pa.BufferReader(data), chunk)


@pytest.mark.parametrize("version", [1, 2])
def test_plain_pages(version: int) -> None:
    found = pages(
        written(compression="none", use_dictionary=False, data_page_version=f"{version}.0")
    )
    assert [p.values for p in found] == [300, 300, 300, 100]
    assert {p.version for p in found} == {version}
    assert not any(p.checksum for p in found)
    assert all(4 * p.values <= p.bytes < 4 * p.values + 32 for p in found)


def test_a_dictionary_is_no_data_page() -> None:
    found = pages(written(compression="gzip", write_page_checksum=True))
    assert sum(p.values for p in found) == 1000
    assert all(p.checksum for p in found)


def test_damage_ends_the_walk() -> None:
    data = bytes(written(compression="none", use_dictionary=False))
    chunk = pq.ParquetFile(pa.BufferReader(data)).metadata.row_group(0).column(0)
    start = chunk.data_page_offset
    draw = random.Random(0)
    for _ in range(300):
        broken = bytearray(data)
        for _ in range(8):
            broken[start + draw.randrange(chunk.total_compressed_size)] = draw.randrange(256)
        assert len(pages_of(pa.BufferReader(bytes(broken)), chunk)) <= 2000
    assert pages_of(pa.BufferReader(bytes(start)), chunk) == []


# -- headers --------------------------------------------------------------------------------

PLAIN, RLE_DICTIONARY = 0, 8
DATA_V2 = 3


def bounds(data: bytes) -> tuple[int, int]:
    """Where the first column of the first row group lies."""
    chunk = pq.ParquetFile(pa.BufferReader(data)).metadata.row_group(0).column(0)
    start = chunk.dictionary_page_offset if chunk.has_dictionary_page else chunk.data_page_offset
    return start, start + chunk.total_compressed_size


def found_in(data: bytes) -> list[Header]:
    return list(headers(data, *bounds(data)))


def varint(number: int) -> bytes:
    """A whole number as Thrift writes it, of whichever sign and length."""
    raw, out = (number << 1) if number >= 0 else (-number << 1) - 1, bytearray()
    while raw > 127:
        out.append(raw & 127 | 128)
        raw >>= 7
    return bytes([*out, raw])


def header(
    kind: int = DATA, *, size: int = 8, stored: int = 8, values: int = 2, more: bytes = b""
) -> bytes:
    """The header of a page of plain values, and `more` fields of it."""
    fields = b"".join(b"\x15" + varint(n) for n in (kind, size, stored))
    inner = b"\x15" + varint(values) + b"\x15\x00" + b"\x15\x06" + b"\x15\x06" + b"\x00"
    return fields + b"\x2c" + inner + more + b"\x00"


def test_dictionary_and_data_pages_lie_end_to_end() -> None:
    data = bytes(written(compression="snappy"))
    start, end = bounds(data)
    found = found_in(data)
    assert [h.kind for h in found] == [DICTIONARY, DATA, DATA, DATA, DATA]
    assert [h.values for h in found] == [1000, 300, 300, 300, 100]
    assert [h.encoding for h in found] == [PLAIN] + [RLE_DICTIONARY] * 4
    assert found[0].bytes == 4000 and found[0].at > start
    assert found[-1].at + found[-1].stored == end
    assert all(one.at + one.stored < two.at for one, two in pairwise(found))
    assert all(h.checksum is None for h in found)
    entries = pa.Codec("snappy").decompress(data[found[0].at :][: found[0].stored], 4000)
    assert pa.Array.from_buffers(pa.int32(), 1000, [None, entries]).to_pylist() == [*range(1000)]


def test_without_compression_pages_are_stored_as_they_are() -> None:
    found = found_in(bytes(written(compression="none", use_dictionary=False)))
    assert [h.encoding for h in found] == [PLAIN] * 4
    assert all(h.stored == h.bytes for h in found)


def test_pages_of_version_2() -> None:
    data = bytes(written(compression="snappy", data_page_version="2.0"))
    found = found_in(data)
    assert [h.kind for h in found] == [DICTIONARY] + [DATA_V2] * 4
    assert [h.values for h in found[1:]] == [300, 300, 300, 100]
    assert [h.encoding for h in found[1:]] == [RLE_DICTIONARY] * 4


@pytest.mark.parametrize("version", ["1.0", "2.0"])
def test_a_checksum_is_seen(version: str) -> None:
    found = found_in(bytes(written(write_page_checksum=True, data_page_version=version)))
    assert len(found) == 5 and all(h.checksum is not None for h in found)


def test_a_view_of_memory_will_do() -> None:
    data = bytes(written())
    start, end = bounds(data)
    whole = list(headers(memoryview(data), start, end))
    part = list(headers(memoryview(data)[start:end], 0, end - start))
    assert whole == found_in(data)
    assert [h.at + start for h in part] == [h.at for h in whole]


def test_no_bytes_no_pages() -> None:
    assert list(headers(b"", 0, 0)) == []


def test_a_header_made_by_hand() -> None:
    more = b"\x18\x03abc"  # a field that nobody knows yet, of some bytes
    (found,) = headers(header(more=more) + bytes(8), 0, 10)
    assert found == Header(DATA, len(header(more=more)), 8, 8, 2, PLAIN, None)


def broken() -> Iterator[tuple[str, bytes]]:
    yield "nothing but zeros", bytes(20)
    yield "nothing but ones", b"\xff" * 40
    yield "cut in a field", header()[:3]
    yield "cut in the struct", header()[:9]
    yield "cut before its end", header()[:-1]
    yield "no size", b"\x15\x00\x00"
    yield "negative as it lies there", header(stored=-1)
    yield "negative once decompressed", header(size=-1000)
    yield "of negative values", header(values=-5)
    yield "a number without an end", b"\x15" + b"\x80" * 30
    yield "bytes without an end", header(more=b"\x18" + b"\xff" * 200)
    yield "a list", header(more=b"\x19\x15\x02")
    yield "a struct in a struct without an end", header(more=b"\x1c" * 60)


@pytest.mark.parametrize("what", [what for what, _ in broken()])
def test_damage_is_a_value_error(what: str) -> None:
    data = dict(broken())[what]
    with pytest.raises(ValueError, match=r"\w"):
        list(headers(data, 0, len(data)))


def test_whatever_is_damaged_it_ends_with_pages_or_a_value_error() -> None:
    data = bytes(written(compression="none"))
    start, end = bounds(data)
    draw = random.Random(1)
    fine = 0
    for _ in range(500):
        damaged = bytearray(data[start:end])
        for _ in range(5):
            damaged[draw.randrange(40)] = draw.randrange(256)
        try:
            found = list(headers(bytes(damaged), 0, len(damaged)))
        except ValueError:
            continue
        fine += 1
        assert all(h.stored >= 0 and h.bytes >= 0 and h.values >= 0 for h in found)
        assert len(found) <= len(damaged)
    assert fine < 400


@pytest.mark.timeout(10)
def test_a_length_that_does_not_end_is_no_length():
    """A text of statistics: field 5 a struct, in it field 5 another, in that field 1 a text."""
    endless = bytes([0x15, 0, 0x15, 2, 0x15, 2, 0x2C, 0x5C, 0x18]) + b"\xff" * 2_000_000
    with pytest.raises(ValueError, match="too long"):
        list(headers(endless, 0, len(endless)))
