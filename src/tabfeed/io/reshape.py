"""Bring the rows of each key together: a dataset made from another one, on disk.

The result lies in a temporary folder that is removed when the last dataset that reads it is
gone. Write it with `Dataset.to_parquet` to keep it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from tabfeed.budget import working_memory
from tabfeed.errors import ArgumentError, ColumnNotFoundError
from tabfeed.hashing import hash_columns
from tabfeed.io.frames import TemporaryFolder
from tabfeed.io.scatter import Ids, Room, scatter
from tabfeed.io.unify import conform
from tabfeed.progress import Bar, progress

if TYPE_CHECKING:
    from tabfeed.io.dataset import Dataset

__all__ = ["shuffle_by_keys"]

_NO_LIMIT = 1 << 62  # a group of equal keys is never cut


def shuffle_by_keys(
    dataset: Dataset,
    keys: Sequence[str] | str,
    *,
    npartitions: int | None = None,
    memory_limit: int | float | str | None = None,
) -> Dataset:
    """See `Dataset.shuffle_by_keys`."""
    from tabfeed.io.dataset import Dataset

    names = _checked_keys(dataset, keys)
    count = _how_many(dataset, npartitions)
    limit = working_memory(memory_limit)

    def assign(table: pa.Table) -> Ids:
        ids: Ids = (hash_columns(table, names) % np.uint64(count)).astype(np.int64)
        return ids

    folder = TemporaryFolder()
    schema = dataset.schema.to_arrow()
    pieces = dataset.repartition(partition_size=max(1, limit // 16))
    with progress("grouping", None) as bar:
        tables = _passing(pieces.iter_tables(), schema, bar)
        buckets = scatter(tables, assign, count, Room(limit, folder.path))
    written = [str(b.path) for b in buckets if b.rows] or [_empty_file(schema, folder)]
    grouped = Dataset(written, engine="ipc", part_size=_NO_LIMIT, schema=dataset.schema)
    return grouped._derive(_folder=folder)


def _checked_keys(dataset: Dataset, keys: Sequence[str] | str) -> list[str]:
    names = [keys] if isinstance(keys, str) else list(keys)
    if not names:
        raise ArgumentError("shuffle_by_keys needs at least one key column")
    for name in names:
        if name not in dataset.schema:
            raise ColumnNotFoundError(name, dataset.column_names)
    return names


def _how_many(dataset: Dataset, npartitions: int | None) -> int:
    """As many partitions as asked for, else as many as there are or as the data would fill."""
    from tabfeed.io.writer import estimate

    if npartitions is None:
        size = estimate(dataset, dataset.partitions)
        return max(1, dataset.npartitions, -(-size // dataset._part_size))
    if npartitions < 1:
        raise ArgumentError(f"npartitions is {npartitions}; it must be 1 or more")
    return npartitions


def _passing(tables: Iterable[pa.Table], schema: pa.Schema, bar: Bar) -> Iterator[pa.Table]:
    for table in tables:
        yield conform(table, schema)
        bar.advance(table.num_rows)


def _empty_file(schema: pa.Schema, folder: TemporaryFolder) -> str:
    path = str(folder.path / "empty.arrows")
    with pa.ipc.new_stream(path, schema):
        pass
    return path
