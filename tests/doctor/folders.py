"""Folders of Parquet files that each have one thing wrong, or nothing."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

ROWS = 20_000


def numbers(rows: int = ROWS) -> pa.Table:
    """Three columns without nulls, declared so."""
    random = np.random.default_rng(0)
    fields = [
        pa.field("c", pa.int32(), nullable=False),
        pa.field("x", pa.float32(), nullable=False),
        pa.field("label", pa.int8(), nullable=False),
    ]
    columns = [
        pa.array(random.integers(0, 1000, rows), pa.int32()),
        pa.array(random.random(rows), pa.float32()),
        pa.array(random.integers(0, 2, rows), pa.int8()),
    ]
    return pa.Table.from_arrays(columns, schema=pa.schema(fields))


def plain(table: pa.Table, path: Path, **options: Any) -> None:
    """Written so that nothing is slow, unless an option says otherwise."""
    options = {
        "compression": "none",
        "use_dictionary": False,
        "max_rows_per_page": 2**31 - 1,
        **options,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, path, **options)


def with_column(name: str, values: Any, dtype: pa.DataType | None = None) -> pa.Table:
    return numbers().append_column(name, pa.array(values, dtype))


def small_files(folder: Path) -> None:
    for i in range(20):
        plain(numbers().slice(i * 1000, 1000), folder / f"{i:02}.parquet")


def sorted_by_label(folder: Path) -> None:
    table = numbers().sort_by("label")
    plain(table, folder / "a.parquet", row_group_size=1000)


def nullable(folder: Path) -> None:
    table = numbers()
    fields = [f.with_nullable(True) for f in table.schema]
    plain(pa.Table.from_arrays(table.columns, schema=pa.schema(fields)), folder / "a.parquet")


def single(table: Callable[[], pa.Table], **options: Any) -> Callable[[Path], None]:
    return lambda folder: plain(table(), folder / "a.parquet", **options)


# Each folder, and the finding that belongs to it.
CASES: dict[str, Callable[[Path], None]] = {
    "small_files": small_files,
    "small_groups": single(numbers, row_group_size=500),
    "codec": single(numbers, compression="zstd"),
    "encodings": single(numbers, use_dictionary=["c"]),
    "pages": single(numbers, data_page_size=1024, write_batch_size=64),
    "checksums": single(numbers, write_page_checksum=True),
    "nullable": nullable,
    "nulls": single(lambda: with_column("age", [None, 1] * (ROWS // 2))),
    "text": single(lambda: with_column("city", ["Basel", "Oslo"] * (ROWS // 2))),
    "lists": single(lambda: with_column("tags", [[1, 2], []] * (ROWS // 2))),
    "sorted": sorted_by_label,
    "skew": single(numbers),
}
