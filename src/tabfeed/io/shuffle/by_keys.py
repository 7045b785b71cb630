"""Group rows by key: bring rows with equal keys into one partition, on disk.

The result is in a temporary folder that is removed with the last dataset that reads it. Write it
with `Dataset.to_parquet` to keep it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from tabfeed.budget import working_memory
from tabfeed.errors import ArgumentError, ColumnNotFoundError
from tabfeed.execute import Executor
from tabfeed.io.align import cast_table
from tabfeed.io.open.open_table import open_table
from tabfeed.io.shuffle.distributed import (
    ByHash,
    JoinBucket,
    is_remote,
    require_files,
    write_buckets,
)
from tabfeed.io.shuffle.local import SpillBudget, split_into_buckets
from tabfeed.io.storage.paths import path_of
from tabfeed.io.storage.temporary import TemporaryFolder
from tabfeed.io.whole_units import few_readers
from tabfeed.progress import Bar, progress

if TYPE_CHECKING:
    from tabfeed.io.table import PartitionedTable

__all__ = ["shuffle_by_keys"]

_NO_LIMIT = 1 << 62  # a group of equal keys is never cut


def shuffle_by_keys(
    table: PartitionedTable,
    keys: Sequence[str] | str,
    *,
    npartitions: int | None = None,
    memory_limit: int | float | str | None = None,
    executor: Executor,
) -> PartitionedTable:
    """See `Dataset.shuffle_by_keys`."""
    names = _checked_keys(table, keys)
    rule = ByHash(tuple(names), _choose_npartitions(table, npartitions))
    schema = table.schema.to_arrow()
    with progress("grouping", None) as bar:
        if is_remote(executor):
            folder = TemporaryFolder(executor.shared)
            written = _on_cluster(table, rule, folder, executor, bar)
        else:
            folder = TemporaryFolder()
            limit = working_memory(memory_limit)
            if memory_limit is not None:
                executor = few_readers(table.files, table.source_columns, limit, executor)
            pieces = table.in_smaller_partitions(max(1, limit // 16))
            tables = _passing(pieces.iter_tables(executor=executor), schema, bar)
            buckets = split_into_buckets(
                tables, rule.assign, rule.count, SpillBudget(limit, folder.path)
            )
            written = [str(b.path) for b in buckets if b.rows]
    grouped = open_table(
        written or [_empty_file(schema, folder)],
        engine="ipc",
        part_size=_NO_LIMIT,
        schema=table.schema,
    )
    return replace(grouped, folder=folder, executor=table.executor)


def _on_cluster(
    table: PartitionedTable, rule: ByHash, folder: TemporaryFolder, executor: Any, bar: Bar
) -> list[str]:
    """The files of the buckets, made on a cluster."""
    require_files(executor, table.files)
    shared = path_of(folder.path)
    executor.require_folder(shared)
    buckets = write_buckets(table, rule, shared, executor, bar)
    paths = [p for p in executor.map(range(rule.count), JoinBucket(buckets)) if p is not None]
    buckets.delete()
    return paths


def _checked_keys(table: PartitionedTable, keys: Sequence[str] | str) -> list[str]:
    names = [keys] if isinstance(keys, str) else list(keys)
    if not names:
        raise ArgumentError("shuffle_by_keys needs at least one key column")
    for name in names:
        if name not in table.schema:
            raise ColumnNotFoundError(name, table.schema.column_names)
    return names


def _choose_npartitions(table: PartitionedTable, npartitions: int | None) -> int:
    """The number given, else as many partitions as there are or as the data would fill."""
    if npartitions is None:
        size = table.estimated_bytes()
        return max(1, table.npartitions, -(-size // table.partitioning.part_size))
    if npartitions < 1:
        raise ArgumentError(f"npartitions is {npartitions}; it must be 1 or more")
    return npartitions


def _passing(tables: Iterable[pa.Table], schema: pa.Schema, bar: Bar) -> Iterator[pa.Table]:
    for table in tables:
        yield cast_table(table, schema)
        bar.advance(table.num_rows)


def _empty_file(schema: pa.Schema, folder: TemporaryFolder) -> str:
    path = str(folder.path / "empty.arrows")
    with pa.ipc.new_stream(path, schema):
        pass
    return path
