"""Files as users open them: through `tabfeed.Dataset`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from tabfeed import Dataset


def written(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path


def opened(path: Path, data: bytes, **options: Any) -> Dataset:
    """A file of these bytes, opened."""
    return Dataset(written(path, data), **options)


def rows_in(dataset: Dataset, columns: Sequence[str] | None = None) -> list[dict[str, Any]]:
    chosen = dataset if columns is None else dataset.select(columns)
    rows: list[dict[str, Any]] = chosen.to_arrow().to_pylist()
    return rows


def types_of(dataset: Dataset) -> pa.Schema:
    """The columns and their types, before anything is read."""
    return pa.schema([(c.name, c.dtype) for c in dataset.schema])
