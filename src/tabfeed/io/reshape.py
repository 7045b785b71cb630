"""Whole-dataset operations whose result is another dataset on disk: grouping by key, joins.

The result lies in a temporary folder that is removed when the last dataset that reads it is
gone. Write it with `Dataset.to_parquet` to keep it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from tabfeed.budget import free_memory, parse_bytes
from tabfeed.errors import ArgumentError, ColumnNotFoundError, SchemaError
from tabfeed.hashing import hash_columns
from tabfeed.io.frames import TemporaryFolder
from tabfeed.io.scatter import Ids, Room, scatter
from tabfeed.progress import progress
from tabfeed.schema import Schema

if TYPE_CHECKING:
    from tabfeed.io.dataset import Dataset

__all__ = ["JoinKeys", "merge", "shuffle_by_keys"]

_HOW = {
    "inner": "INNER",
    "left": "LEFT",
    "right": "RIGHT",
    "outer": "FULL",
    "semi": "SEMI",
    "anti": "ANTI",
}
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
    from tabfeed.io.writer import estimate

    names = _checked_keys(dataset, keys)
    limit = parse_bytes(memory_limit, name="memory_limit") if memory_limit else free_memory() // 4
    count = npartitions or max(
        dataset.npartitions, -(-estimate(dataset, dataset.partitions) // dataset._part_size)
    )
    if count < 1:
        raise ArgumentError(f"npartitions is {npartitions}; it must be 1 or more")

    def assign(table: pa.Table) -> Ids:
        bar.advance(table.num_rows)
        ids: Ids = (hash_columns(table, names) % np.uint64(count)).astype(np.int64)
        return ids

    folder = TemporaryFolder()
    pieces = dataset.repartition(partition_size=max(1, limit // 16))
    with progress("grouping", None) as bar:
        buckets = scatter(pieces.iter_tables(), assign, count, Room(limit, folder.path))
    written = [str(b.path) for b in buckets if b.rows] or [_empty_file(dataset, folder)]
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


def _empty_file(dataset: Dataset, folder: TemporaryFolder) -> str:
    path = str(folder.path / "empty.arrows")
    with pa.ipc.new_stream(path, dataset.schema.to_arrow()):
        pass
    return path


@dataclass(frozen=True)
class JoinKeys:
    """Which columns of the left must equal which of the right."""

    left: tuple[str, ...]
    right: tuple[str, ...]

    @classmethod
    def of(
        cls,
        on: Sequence[str] | str | None,
        left_on: Sequence[str] | str | None,
        right_on: Sequence[str] | str | None,
    ) -> JoinKeys:
        """From what a user wrote: `on`, or `left_on` and `right_on`."""
        both = on is not None and left_on is None and right_on is None
        each = on is None and left_on is not None and right_on is not None
        if not both and not each:
            raise ArgumentError("say which columns to join by: on=, or left_on= and right_on=")
        left, right = (_names(on), _names(on)) if both else (_names(left_on), _names(right_on))
        if len(left) != len(right) or not left:
            raise ArgumentError(f"the keys do not pair up: {list(left)} and {list(right)}")
        return cls(left, right)


def _names(keys: Sequence[str] | str | None) -> tuple[str, ...]:
    return (keys,) if isinstance(keys, str) else tuple(keys or ())


def merge(
    left: Dataset,
    right: Dataset,
    keys: JoinKeys,
    *,
    how: str,
    suffix: str,
    memory_limit: int | float | str | None,
) -> Dataset:
    """See `Dataset.merge`. DuckDB joins within the memory limit and spills beyond it."""
    from tabfeed.io.dataset import Dataset

    if how not in _HOW:
        raise ArgumentError(f"how is {how!r}; it must be one of {', '.join(_HOW)}")
    for dataset, names, side in ((left, keys.left, "left"), (right, keys.right, "right")):
        for name in names:
            if name not in dataset.schema:
                raise ColumnNotFoundError(name, dataset.column_names, where=f"the {side} dataset")
    select, schema = _output(left, right, keys, how, suffix)
    folder = TemporaryFolder()
    _run_join(left, right, keys, f"{_HOW[how]} JOIN", select, folder, memory_limit)
    joined = Dataset(str(folder.path / "joined.parquet"), part_size=left._part_size)
    known = Schema(schema[c.name].with_dtype(c.dtype) for c in joined.schema)
    return joined.with_schema(known)._derive(_folder=folder)


def _output(
    left: Dataset, right: Dataset, keys: JoinKeys, how: str, suffix: str
) -> tuple[str, Schema]:
    """The SELECT list and the remarks on the columns that come out."""
    columns, parts = [], []
    shared = dict(zip(keys.left, keys.right, strict=True))
    for column in left.schema:
        source = f"l.{_quote(column.name)}"
        if how in ("right", "outer") and shared.get(column.name) == column.name:
            source = f"coalesce({source}, r.{_quote(column.name)})"
        columns.append(column)
        parts.append(f"{source} AS {_quote(column.name)}")
    if how not in ("semi", "anti"):
        for column in right.schema:
            if column.name in keys.right and shared.get(column.name) == column.name:
                continue
            name = column.name + suffix if column.name in left.schema else column.name
            if any(c.name == name for c in columns):
                raise SchemaError(f"both sides have a column {name!r}; choose another suffix=")
            columns.append(column.with_name(name))
            parts.append(f"r.{_quote(column.name)} AS {_quote(name)}")
    return ", ".join(parts), Schema(columns)


def _quote(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _run_join(
    left: Dataset,
    right: Dataset,
    keys: JoinKeys,
    join: str,
    select: str,
    folder: TemporaryFolder,
    memory_limit: int | float | str | None,
) -> None:
    import duckdb

    limit = parse_bytes(memory_limit, name="memory_limit") if memory_limit else free_memory() // 4
    equal = " AND ".join(
        f"l.{_quote(a)} = r.{_quote(b)}" for a, b in zip(keys.left, keys.right, strict=True)
    )
    spill = folder.path / "spill"
    with duckdb.connect(config={"memory_limit": f"{limit}B", "temp_directory": str(spill)}) as db:
        db.register("l_rows", _reader(left))
        db.register("r_rows", _reader(right))
        db.execute(
            f"COPY (SELECT {select} FROM l_rows l {join} r_rows r ON {equal}) "
            f"TO '{_escape(folder.path / 'joined.parquet')}' (FORMAT parquet)"
        )


def _escape(path: Path) -> str:
    return str(path).replace("'", "''")


def _reader(dataset: Dataset) -> pa.RecordBatchReader:
    schema = dataset.schema.to_arrow()
    batches = (b for t in dataset.iter_tables() for b in t.to_batches())
    return pa.RecordBatchReader.from_batches(schema, batches)
