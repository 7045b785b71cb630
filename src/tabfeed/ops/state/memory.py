"""How much a fit may hold in memory, and where the rest goes.

All summaries of a fit share one `MemoryManager`. Each reports its size; when the sum passes the
limit, the largest writes itself to disk. The folder is unique to the fit and is removed
with it, also when the fit fails; after a hard kill the next run removes it
(`tabfeed.io.storage.local`).

A learned table that is needed only now and then (the counts that an update adds to, the groups
of a join) is a `SpilledTable`: in memory while small, else in a Parquet file, which is read
whole, column by column or piece by piece. A file of a saved workflow is held open rather than
read, so that it stays readable when its folder is replaced or removed meanwhile.

Counts that lie on disk are grouped and sorted by DuckDB, which keeps to a memory limit.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.parquet as pq

from tabfeed.budget import free_memory
from tabfeed.errors import ArtefactError, OperatorError
from tabfeed.io.storage.local import TemporaryFolder

_LEAST_KEPT, _MOST_KEPT = 1 << 20, 64 << 20
_PIECE = 250_000
_BLOCK = 1 << 20
COUNT = "__count__"
_PARTITIONS = (1, 8, 64)  # of the values, grouped one after the other
_LEAST_DATABASE = 64 * 2**20  # with less DuckDB does not sort a few million values


class Spills(Protocol):
    """What a `MemoryManager` can limit the memory of."""

    def nbytes(self) -> int:
        """Bytes held in memory; 0 once spilled."""
        ...

    def spill(self) -> None:
        """Move what is held to disk."""
        ...


class MemoryManager:
    """A limit in bytes, shared by everything that a fit holds.

    Examples
    --------
    >>> memory = MemoryManager(1_000_000)
    >>> memory.limit
    1000000
    >>> memory.close()
    """

    def __init__(self, limit: int | None = None, *, folder: str | None = None) -> None:
        self.limit = limit
        self._parent = folder
        self._spilled: TemporaryFolder | None = None
        self._held: weakref.WeakSet[Spills] = weakref.WeakSet()
        self._lock = threading.RLock()
        self._files = 0

    def hold(self, what: Spills) -> None:
        """Count `what` against the limit from now on; no other thread may be changing it."""
        with self._lock:
            self._held.add(what)

    def settle(self) -> None:
        """Spill the largest holders until what is left fits into a quarter of the limit.

        The rest is for the work itself: the partitions being read, a merge's copies.
        """
        if self.limit is None:
            return
        with self._lock:
            sizes = {h: h.nbytes() for h in self._held}
            while sum(sizes.values()) > self.limit // 4 and any(sizes.values()):
                largest = max(sizes, key=lambda h: sizes[h])
                largest.spill()
                sizes[largest] = 0

    def allows_grouping(self, nbytes: int) -> bool:
        """Whether tables of so many bytes may be grouped in memory, which takes many times that."""
        return self.limit is None or nbytes <= self.limit // 16

    def may_keep(self, nbytes: int) -> bool:
        """Whether a finished table of so many bytes may stay in memory after the fit.

        An eighth of the limit, and 64 MiB at most: there may be many such tables.
        """
        room = _MOST_KEPT if self.limit is None else min(self.limit // 8, _MOST_KEPT)
        return nbytes <= max(room, _LEAST_KEPT)

    def new_file(self, suffix: str = ".parquet") -> Path:
        """A new path in the spill folder."""
        with self._lock:
            if self._spilled is None:
                self._spilled = TemporaryFolder(self._parent)
            self._files += 1
            return self._spilled.path / f"{self._files:06d}{suffix}"

    def close(self) -> None:
        """Remove the spill folder."""
        with self._lock:
            if self._spilled is not None:
                self._spilled.remove()
                self._spilled = None

    def __reduce__(self) -> tuple[type[MemoryManager], tuple[int | None]]:
        return MemoryManager, (self.limit,)


class TableFile:
    """A Parquet file of the spill folder that tables of one schema are put behind each other in.

    `distinct` says that few values repeat: then dictionaries would only take time.
    """

    def __init__(self, memory: MemoryManager, *, distinct: bool) -> None:
        self.path, self.rows, self._distinct = memory.new_file(), 0, distinct
        self._writer: pq.ParquetWriter | None = None

    def append(self, table: pa.Table) -> None:
        """Add rows; the first table gives the schema even if it has none."""
        self._writer = self._writer or pq.ParquetWriter(
            self.path, table.schema, compression="lz4", use_dictionary=not self._distinct
        )
        if table.num_rows:
            self._writer.write_table(table, row_group_size=_PIECE)
        self.rows += table.num_rows

    def __enter__(self) -> TableFile:
        return self

    def __exit__(self, *_: object) -> None:
        if self._writer is not None:
            self._writer.close()


class SpilledTable:
    """A table that may lie on disk.

    Parameters
    ----------
    source
        The table, or its Parquet file.
    owner
        What must live as long as the file: the `MemoryManager` whose folder it is in.

    Examples
    --------
    >>> stored = SpilledTable(pa.table({"v0": ["b", "a"], "count": [2, 1]}))
    >>> stored.num_rows, stored.read(["count"]).to_pydict()
    (2, {'count': [2, 1]})
    """

    def __init__(self, source: pa.Table | Path, owner: MemoryManager | None = None) -> None:
        self._owner = owner
        self._table = source if isinstance(source, pa.Table) else None
        self._file = None if isinstance(source, pa.Table) else pa.OSFile(str(source), "rb")
        self._check = False

    @classmethod
    def untrusted(cls, path: Path) -> SpilledTable:
        """A file that may come from anywhere: all that is read is checked, down to its text."""
        stored = cls(path)
        stored._check = True
        return stored

    @classmethod
    def within(cls, table: pa.Table, memory: MemoryManager) -> SpilledTable:
        """In memory if the limit leaves room to keep it there, else on disk."""
        return cls(table) if memory.may_keep(table.nbytes) else cls.write([table], memory)

    @classmethod
    def write(
        cls, tables: Iterable[pa.Table], memory: MemoryManager, *, distinct: bool = False
    ) -> SpilledTable:
        """Tables of one schema, at least one, as a file of the spill folder (`TableFile`)."""
        with TableFile(memory, distinct=distinct) as file:
            for table in tables:
                file.append(table)
        return cls.settled(file.path, memory)

    @classmethod
    def settled(cls, path: Path, memory: MemoryManager) -> SpilledTable:
        """The file `path`; read into memory, and gone, if it is small enough to be kept there."""
        stored = cls(path, memory)
        if not memory.may_keep(stored.nbytes):
            return stored
        table = stored.read()
        stored.close()
        path.unlink()
        return cls(table)

    @property
    def on_disk(self) -> bool:
        """Whether it must be read to be used."""
        return self._table is None

    def _open(self) -> pq.ParquetFile:
        assert self._file is not None
        return pq.ParquetFile(self._file, pre_buffer=False)  # reads by position: threads may share

    @property
    def num_rows(self) -> int:
        """How many rows it has."""
        return int(self._open().metadata.num_rows if self._table is None else self._table.num_rows)

    @property
    def schema(self) -> pa.Schema:
        """Its columns."""
        return self._open().schema_arrow if self._table is None else self._table.schema

    @property
    def nbytes(self) -> int:
        """Bytes it takes in memory; an estimate while it is on disk."""
        if self._table is not None:
            return int(self._table.nbytes)
        metadata = self._open().metadata
        groups = (metadata.row_group(i) for i in range(metadata.num_row_groups))
        plain = sum(g.total_byte_size for g in groups)
        return int(max(plain, metadata.num_rows * 8 * metadata.num_columns))

    def read(self, columns: Sequence[str] | None = None) -> pa.Table:
        """All rows."""
        if self._table is not None:
            return self._table if columns is None else self._table.select(list(columns))
        names = None if columns is None else list(columns)
        with self._reading():
            return self._checked(self._open().read(columns=names))

    def pieces(self, columns: Sequence[str] | None = None) -> Iterator[pa.Table]:
        """All rows, some at a time."""
        if self._table is not None:
            whole = self.read(columns)
            yield from (whole.slice(i, _PIECE) for i in range(0, max(1, len(whole)), _PIECE))
            return
        names = None if columns is None else list(columns)
        with self._reading():
            for batch in self._open().iter_batches(_PIECE, columns=names):
                yield self._checked(pa.Table.from_batches([batch]))

    def _checked(self, table: pa.Table) -> pa.Table:
        if self._check:
            table.validate(full=True)
        return table.replace_schema_metadata(None)

    @contextmanager
    def _reading(self) -> Iterator[None]:
        """A damaged file of a saved workflow is an error of ours."""
        try:
            yield
        except (pa.ArrowException, OSError) as e:
            if not self._check:
                raise
            raise ArtefactError(f"a table of the saved workflow cannot be read: {e}") from e

    def copy_to(self, path: Path) -> None:
        """Write it to a Parquet file."""
        if self._table is not None:
            pq.write_table(self._table, path, compression="zstd")
            return
        assert self._file is not None
        with path.open("wb") as out:
            for start in range(0, self._file.size(), _BLOCK):
                out.write(self._file.read_at(min(_BLOCK, self._file.size() - start), start))

    def close(self) -> None:
        """Let go of the file."""
        if self._file is not None:
            self._file.close()

    def __reduce__(self) -> tuple[type[SpilledTable], tuple[pa.Table]]:
        return SpilledTable, (self.read(),)


def require_room(nbytes: int, memory: MemoryManager, what: str) -> None:
    """Refuse to bring a learned table into memory where it does not fit.

    Parameters
    ----------
    nbytes
        About what it takes.
    memory
        The limit of the fit that is going on; without one, what is free counts.
    what
        The table, for the message.
    """
    if memory.limit is not None and nbytes > memory.limit:
        raise OperatorError(
            f"{what} takes about {nbytes / 1e9:.2g} GB in memory to look values up, and a later "
            f"step of this fit needs that; memory_limit is {memory.limit / 1e9:.2g} GB. Raise it, "
            "make the table smaller (max_size, freq_threshold), or fit the steps one after "
            "the other"
        )
    free = free_memory()
    if nbytes > free:
        raise OperatorError(
            f"{what} takes about {nbytes / 1e9:.2g} GB in memory to look values up; only "
            f"{free / 1e9:.2g} GB are free. Free some, or make the table smaller (max_size, "
            "freq_threshold)"
        )


def _quoted(path: Path) -> str:
    """A path as SQL text."""
    return "'" + str(path).replace("'", "''") + "'"


def parquet_files(paths: list[Path]) -> str:
    """The rows of Parquet files, in SQL."""
    return f"read_parquet([{', '.join(_quoted(p) for p in paths)}])"


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
    room = max(_LEAST_DATABASE, (memory.limit or 0) * 45 // 100)
    count = 1

    def copy(query: str, path: Path) -> None:
        with _database(memory, room) as connection:
            if count > 1:
                connection.execute("SET threads = 1")  # each takes memory of its own
            connection.execute(
                f"COPY ({query}) TO {_quoted(path)} (FORMAT parquet, COMPRESSION lz4)"
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
        f"found no room in the {room // 2**20} MiB it may take of it; give "
        f"memory_limit {2 * max(limit, _LEAST_DATABASE):,} bytes or more"
    ) from error


def _database(memory: MemoryManager, room: int) -> Any:
    """A DuckDB in memory, limited to what the fit has left, that spills beside the runs."""
    import duckdb

    config: dict[str, Any] = {"preserve_insertion_order": "false"}
    if memory.limit is not None:
        config["memory_limit"] = f"{room // 2**20}MiB"
    connection = duckdb.connect(config=config)
    connection.execute(f"SET temp_directory = {_quoted(memory.new_file('.duckdb'))}")
    return connection
