"""Grouping and sorting counts that lie on disk, with DuckDB, which keeps to a memory limit."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from tabfeed.errors import OperatorError
from tabfeed.ops.state.memory import MemoryManager

__all__ = ["COUNT", "group_on_disk", "parquet_files"]

COUNT = "__count__"


def quoted(path: Path) -> str:
    """A path as SQL text."""
    return "'" + str(path).replace("'", "''") + "'"


def parquet_files(paths: list[Path]) -> str:
    """The rows of Parquet files, in SQL."""
    return f"read_parquet([{', '.join(quoted(p) for p in paths)}])"


def group_on_disk(
    memory: MemoryManager,
    columns: Sequence[str],
    rows: str,
    order: str,
    *,
    first: str | None = None,
) -> Path:
    """Counts of equal values added up and sorted with DuckDB, into one Parquet file.

    DuckDB sorts in little memory, but its groups must fit. Where they do not, the values are
    grouped by hash partitions, each of which reads all of them.

    Parameters
    ----------
    memory
        The limit, and where the file goes.
    columns
        Names of the value columns that the rows have, beside their counts.
    rows
        The rows, in SQL.
    order
        What to sort by, in SQL; nothing if it is empty.
    first
        A column of which the order wants the least value of each group.
    """
    import duckdb

    pa.default_memory_pool().release_unused()
    out = memory.new_file()
    names = ", ".join(f'"{c}"' for c in columns)
    least = f", min({first}) AS {first}" if first else ""
    sums = f"SELECT {names}, sum({COUNT})::BIGINT AS {COUNT}{least} FROM {rows}"
    tail = f"ORDER BY {order}" if order else ""
    count = 1

    def copy(query: str, path: Path) -> None:
        with database(memory) as connection:
            if count > 1:
                connection.execute("SET threads = 1")  # each takes memory of its own
            connection.execute(
                f"COPY ({query}) TO {quoted(path)} (FORMAT parquet, COMPRESSION lz4)"
            )

    for count in _PARTITIONS:
        parts = [memory.new_file() for _ in range(count)] if count > 1 else []
        source = f"({sums} GROUP BY {names})"
        try:
            for i, part in enumerate(parts):
                copy(f"{sums} WHERE hash({names}) % {count} = {i} GROUP BY {names}", part)
            source = parquet_files(parts) if parts else source
            copy(f"SELECT {names}, {COUNT} FROM {source} {tail}", out)
            return out
        except duckdb.OutOfMemoryException as e:
            error = e
        finally:
            for part in parts:
                part.unlink(missing_ok=True)
    limit = memory.limit or 0
    raise OperatorError(
        f"values that were counted cannot be sorted within memory_limit ({limit:,} bytes): DuckDB "
        f"found no room in the {database_memory(memory) // 2**20} MiB it may take of it; give "
        f"memory_limit {2 * max(limit, _LEAST_DATABASE):,} bytes or more"
    ) from error


_PARTITIONS = (1, 8, 64)  # of the values, grouped one after the other
_LEAST_DATABASE = 64 * 2**20  # with less DuckDB does not sort a few million values


def database_memory(memory: MemoryManager) -> int:
    """Bytes that DuckDB may take of a limit."""
    return max(_LEAST_DATABASE, (memory.limit or 0) * 45 // 100)


def database(memory: MemoryManager) -> Any:
    """A DuckDB in memory, limited to what the fit has left, that spills beside the runs."""
    import duckdb

    config: dict[str, Any] = {"preserve_insertion_order": "false"}
    if memory.limit is not None:
        config["memory_limit"] = f"{database_memory(memory) // 2**20}MiB"
    connection = duckdb.connect(config=config)
    connection.execute(f"SET temp_directory = {quoted(memory.new_file('.duckdb'))}")
    return connection
