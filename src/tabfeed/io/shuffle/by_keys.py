"""Bring rows with equal keys into one partition (`shuffle_by_keys`) or into one row (`merge`).

The result is in a temporary folder that is removed with the last dataset that reads it. Write it
with `Dataset.to_parquet` to keep it.

DuckDB joins two tables that may be larger than memory: it obeys a memory limit and spills beyond
it. It gets columns named by number, since it takes ``a`` and ``A`` for the same name, and columns
of types that it lacks or damages as other types that hold the same values.

As in SQL, null equals nothing: a row whose key is null has no partner. The order of the result of a
join is not specified.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from tabfeed.budget import working_memory
from tabfeed.display import Bar, progress
from tabfeed.errors import (
    ArgumentError,
    ColumnNotFoundError,
    DatasetError,
    SchemaError,
    WriteError,
)
from tabfeed.execute import Executor
from tabfeed.io.align import cast_table, common_type
from tabfeed.io.memory_needs import few_readers, refuse_large_rows, refuse_large_units
from tabfeed.io.open_table import open_table
from tabfeed.io.shuffle.distributed import (
    ByHash,
    JoinBucket,
    is_remote,
    require_files,
    write_buckets,
)
from tabfeed.io.shuffle.local import SpillBudget, split_into_buckets
from tabfeed.io.storage.files import path_of
from tabfeed.io.storage.local import TemporaryFolder
from tabfeed.io.storage.retry import reason, remedy, system_error
from tabfeed.io.table import NO_LIMIT, PartitionedTable, TableMap
from tabfeed.schema import ColumnSchema, Schema
from tabfeed.schema.dtypes import format_type

__all__ = ["JoinKeys", "merge", "shuffle_by_keys"]


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
                executor = few_readers(
                    table.files, table.partitioning.pieces, table.source_columns, limit, executor
                )
            pieces = table.in_smaller_partitions(max(1, limit // 16))
            tables = _passing(pieces.iter_tables(executor=executor), schema, bar)
            buckets = split_into_buckets(
                tables, rule.assign, rule.count, SpillBudget(limit, folder.path)
            )
            written = [str(b.path) for b in buckets if b.rows]
    grouped = open_table(
        written or [_empty_file(schema, folder)],
        engine="ipc",
        part_size=NO_LIMIT,
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


# -- joins ------------------------------------------------------------------------------

_HOW = {
    "inner": "INNER",
    "left": "LEFT",
    "right": "RIGHT",
    "outer": "FULL",
    "semi": "SEMI",
    "anti": "ANTI",
}
_LEAST_MEMORY = 128 * 2**20  # DuckDB's own buffers
_LEAST_GROUP = 2**20


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
        """From the arguments of `Dataset.merge`: `on`, or `left_on` and `right_on`."""
        both = on is not None and left_on is None and right_on is None
        each = on is None and left_on is not None and right_on is not None
        if not both and not each:
            raise ArgumentError("say which columns to join by: on=, or left_on= and right_on=")
        left, right = (_names(on), _names(on)) if both else (_names(left_on), _names(right_on))
        if len(left) != len(right) or not left:
            raise ArgumentError(f"the keys do not pair up: {list(left)} and {list(right)}")
        return cls(left, right)

    @property
    def shared(self) -> set[str]:
        """Keys of the same name on both sides: they come out once."""
        return {a for a, b in zip(self.left, self.right, strict=True) if a == b}


def _names(keys: Sequence[str] | str | None) -> tuple[str, ...]:
    return (keys,) if isinstance(keys, str) else tuple(keys or ())


def merge(
    left: PartitionedTable,
    right: PartitionedTable,
    keys: JoinKeys,
    *,
    how: str,
    suffix: str,
    memory_limit: int | float | str | None,
) -> PartitionedTable:
    """See `Dataset.merge`."""
    if how not in _HOW:
        raise ArgumentError(f"how is {how!r}; it must be one of {', '.join(_HOW)}")
    _check_keys(left, right, keys)
    columns = _output_columns(left, right, keys, how, suffix)
    limit = working_memory(memory_limit)
    for side in (left, right) if memory_limit is not None else ():
        pieces, read, most = side.partitioning.pieces, side.source_columns, limit // 2
        refuse_large_units(side.files, pieces, read, limit, most=most, option="memory_limit")
        refuse_large_rows(side.files, pieces, read, limit)
    folder = TemporaryFolder()
    _join(_Query(left, right, keys, how, tuple(s for s, _ in columns)), folder, limit)
    path = str(folder.path / "joined.parquet")
    joined = open_table(path, part_size=left.partitioning.part_size)
    schema = Schema(c for _, c in columns)
    names = tuple(joined.schema.column_names)
    rename = TableMap(_Rename(schema.to_arrow()), names, keeps_rows=True)
    return replace(joined, schema=schema, maps=(rename,), folder=folder)


def _check_keys(left: PartitionedTable, right: PartitionedTable, keys: JoinKeys) -> None:
    for dataset, names, side in ((left, keys.left, "left"), (right, keys.right, "right")):
        for name in names:
            if name not in dataset.schema:
                raise ColumnNotFoundError(
                    name, dataset.schema.column_names, where=f"the {side} dataset"
                )
    for a, b in zip(keys.left, keys.right, strict=True):
        kinds = left.schema[a].dtype, right.schema[b].dtype
        if common_type(*kinds) is None:
            first, second = (format_type(k) for k in kinds)
            raise SchemaError(
                f"{a!r} is {first} on the left and {b!r} is {second} on the right, so they cannot "
                "be compared; open one of them with dtypes= to make them alike"
            )


def _output_columns(
    left: PartitionedTable, right: PartitionedTable, keys: JoinKeys, how: str, suffix: str
) -> list[tuple[str, ColumnSchema]]:
    """The columns of the result, each with the SQL expression that gives it."""
    out: list[tuple[str, ColumnSchema]] = []
    # A row without a partner has nulls in the columns of the other side.
    loose = {"left": ("right", "outer"), "right": ("left", "outer")}
    for i, column in enumerate(left.schema):
        source = f"l.c{i}"
        if column.name in keys.shared:
            j = right.schema.column_names.index(column.name)
            merged = common_type(column.dtype, right.schema[column.name].dtype)
            column = column.with_dtype(merged)
            source = f"coalesce(l.c{i}, r.c{j})" if how in loose["left"] else source
        elif how in loose["left"]:
            column = _nullable(column)
        out.append((source, column))
    if how in ("semi", "anti"):
        return out
    for j, column in enumerate(right.schema):
        if column.name in keys.shared:
            continue
        name = column.name + suffix if column.name in left.schema else column.name
        if any(c.name == name for _, c in out):
            raise SchemaError(f"both sides have a column {name!r}; choose another suffix=")
        column = _nullable(column) if how in loose["right"] else column
        out.append((f"r.c{j}", column.with_name(name)))
    return out


def _nullable(column: ColumnSchema) -> ColumnSchema:
    return ColumnSchema.from_dict({**column.to_dict(), "nullable": True})


@dataclass(frozen=True)
class _Rename:
    """Gives the columns of the joined file their names and types."""

    schema: pa.Schema

    def __call__(self, table: pa.Table) -> pa.Table:
        named = table.rename_columns(self.schema.names)
        return cast_table(named, self.schema, where="the joined data")


# -- DuckDB -----------------------------------------------------------------------------


@dataclass(frozen=True)
class _Query:
    left: PartitionedTable
    right: PartitionedTable
    keys: JoinKeys
    how: str
    sources: tuple[str, ...]

    @property
    def sql(self) -> str:
        selected = ", ".join(f"{s} AS o{i}" for i, s in enumerate(self.sources))
        lefts = [self.left.schema.column_names.index(k) for k in self.keys.left]
        rights = [self.right.schema.column_names.index(k) for k in self.keys.right]
        equal = " AND ".join(f"l.c{i} = r.c{j}" for i, j in zip(lefts, rights, strict=True))
        return f"SELECT {selected} FROM l_rows l {_HOW[self.how]} JOIN r_rows r ON {equal}"


def _join(query: _Query, folder: TemporaryFolder, limit: int) -> None:
    import duckdb

    left, right = (_DuckDBInput(_in_small_parts(d, limit // 16)) for d in (query.left, query.right))
    target = str(folder.path / "joined.parquet").replace("'", "''")
    settings: dict[str, str | bool | int | float | list[str]] = {
        "memory_limit": f"{max(limit // 2, _LEAST_MEMORY)}B",  # the rest: partitions, and files
        "temp_directory": str(folder.path / "spill"),
        "preserve_insertion_order": False,
    }
    try:
        with duckdb.connect(config=settings) as db:
            db.execute("SET enable_progress_bar = false")  # it would print
            db.register("l_rows", left.reader())
            db.register("r_rows", right.reader())
            group = max(_LEAST_GROUP, limit // 32)  # each thread holds back one
            form = f"FORMAT parquet, ROW_GROUP_SIZE_BYTES {group}"
            db.execute(f"COPY ({query.sql}) TO '{target}' ({form})")
    except duckdb.OutOfMemoryException as e:
        raise DatasetError(
            f"the join needs more than memory_limit ({limit:,} bytes) allows; give it more, or "
            "join fewer columns"
        ) from e
    except duckdb.Error as e:
        for side in (left, right):
            if side.error is not None:
                raise side.error from None
        if (full := system_error(e)) is not None:
            raise WriteError(
                f"could not write the joined rows to {folder.path}, which TMPDIR chooses: "
                f"{reason(full)}. {remedy(full, writing=True)}, then run it again"
            ) from e
        raise DatasetError(f"the datasets cannot be joined: {e}") from e


def _in_small_parts(table: PartitionedTable, size: int) -> PartitionedTable:
    """The same rows in partitions that leave the memory to DuckDB."""
    size = max(_LEAST_GROUP, size)
    large = table.bytes_to_read(size) < table.partitioning.part_size
    return table.in_smaller_partitions(size) if large else table


class _DuckDBInput:
    """Streams a table to DuckDB, and keeps the error that DuckDB would turn into text."""

    def __init__(self, table: PartitionedTable) -> None:
        self.error: Exception | None = None
        self._table = table
        fields = enumerate(table.schema.to_arrow())
        self._schema = pa.schema([pa.field(f"c{i}", _duckdb_type(f.type)) for i, f in fields])

    def reader(self) -> pa.RecordBatchReader:
        """All rows, once."""
        return pa.RecordBatchReader.from_batches(self._schema, self._batches())

    def _batches(self) -> Iterator[pa.RecordBatch]:
        try:
            for table in self._table.iter_tables():
                named = table.rename_columns(self._schema.names)
                yield from cast_table(named, self._schema).to_batches()
                pa.default_memory_pool().release_unused()  # it would count beside DuckDB's
        except Exception as e:
            self.error = e
            raise


def _duckdb_type(dtype: pa.DataType) -> pa.DataType:
    """A type that holds the same values in DuckDB and Parquet, and can be cast back."""
    if pa.types.is_dictionary(dtype):
        return _duckdb_type(dtype.value_type)
    if pa.types.is_duration(dtype):
        return pa.int64()
    if pa.types.is_float16(dtype):
        return pa.float32()
    if pa.types.is_decimal256(dtype):
        return pa.string()
    if pa.types.is_list(dtype) or pa.types.is_fixed_size_list(dtype):
        return pa.list_(_duckdb_type(dtype.value_type))
    if pa.types.is_struct(dtype):
        fields = [dtype.field(i) for i in range(dtype.num_fields)]
        return pa.struct([f.with_type(_duckdb_type(f.type)) for f in fields])
    return dtype
