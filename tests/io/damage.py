"""Ways to spoil a file, for tests of what reading it then says."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq


def write_checked(path: Path, table: pa.Table, rows: int) -> str:
    """A Parquet file with page checksums, `rows` rows a row group."""
    pq.write_table(
        table,
        path,
        row_group_size=rows,
        write_page_checksum=True,
        use_dictionary=False,
        compression=None,
    )
    return str(path)


def flip_in_page(path: str | Path, row_group: int, column: str) -> None:
    """Turn one bit in the last value of a column of a row group, at the end of its page."""
    metadata = pq.read_metadata(path)
    leaves = [metadata.schema.column(i).path.split(".")[0] for i in range(metadata.num_columns)]
    chunk = metadata.row_group(row_group).column(leaves.index(column))
    data = bytearray(Path(path).read_bytes())
    data[chunk.data_page_offset + chunk.total_compressed_size - 1] ^= 1
    Path(path).write_bytes(data)
