import random

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tabfeed.doctor.page_headers import Page, pages_of


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
