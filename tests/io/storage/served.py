"""Three Parquet files on a server that can fail, and datasets of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tabfeed import Dataset
from tests.faulty_server import FaultyServer

TABLE = pa.table({"a": list(range(4000)), "b": [i * 0.5 for i in range(4000)]})


def write(root: Path, number: int, table: pa.Table = TABLE) -> None:
    part = table.slice(number * 1000, 1000)
    options: dict[str, Any] = {"compression": "none", "use_dictionary": False}
    pq.write_table(part, root / f"bucket/part_{number}.parquet", row_group_size=250, **options)


def options_of(kind: str, server: FaultyServer, deadline: float = 20.0) -> dict[str, Any]:
    if kind == "http":
        return {"deadline": deadline}
    s3 = {"key": "k", "secret": "s", "endpoint_url": server.url, "deadline": deadline}
    if kind == "s3fs":  # an option that Arrow lacks
        return {**s3, "client_kwargs": {"region_name": "us-east-1"}, "default_block_size": 2**23}
    return {**s3, "region_name": "us-east-1"}


def paths_of(kind: str, server: FaultyServer, count: int = 3) -> list[str]:
    start = "s3://bucket" if kind == "arrow" else f"{server.url}/bucket"
    return [f"{start}/part_{i}.parquet" for i in range(count)]


def opened(kind: str, server: FaultyServer, deadline: float = 20.0) -> Dataset:
    return Dataset(paths_of(kind, server), storage_options=options_of(kind, server, deadline))


KINDS = pytest.mark.parametrize("kind", ["arrow", "http"])
