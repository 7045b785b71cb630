"""Shuffle or group rows on a cluster, in two rounds of tasks.

In the first round each partition is read once and its rows are split into buckets, all in one file:
an Arrow file with a record batch for each bucket. In the second, the task that makes bucket *b*
reads batch *b* of every file. The files are in a folder that all workers share, so nothing finished
is lost with a worker, and there are as many tasks as partitions and buckets together, not their
product. The price: rows are written to the shared filesystem once more. Sending them from worker to
worker would avoid that, but then all partitions of a lost worker had to be split again.

Buckets by ranges of random keys make a full shuffle, the same one that `tabfeed.io.shuffle.local`
makes on one machine; buckets by hash of key columns make a grouping.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import accumulate, chain
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, TypeGuard

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tabfeed.display import Bar
from tabfeed.errors import WriteError
from tabfeed.execute import Executor
from tabfeed.hashing import hash_columns
from tabfeed.io.align import cast_table
from tabfeed.io.shuffle.local import (
    Ids,
    SpillBudget,
    decoded,
    key_range,
    sorted_bucket,
    take_rows,
    with_keys,
)
from tabfeed.io.storage.files import RemotePath
from tabfeed.io.storage.retry import reason, remedy

if TYPE_CHECKING:
    from tabfeed.io.fileset import FileSet
    from tabfeed.io.table import PartitionedTable

__all__ = [
    "BucketFiles",
    "BucketSlice",
    "ByHash",
    "ByRandomKey",
    "JoinBucket",
    "choose_buckets",
    "is_remote",
    "require_files",
    "slice_buckets",
    "sorted_slice",
    "task_memory",
    "write_buckets",
]


def is_remote(executor: Executor) -> TypeGuard[Any]:
    """Whether tasks run in processes that may not see local files."""
    return bool(getattr(executor, "remote", False))


def task_memory(executor: Executor) -> int | None:
    """Bytes that one task may use on a cluster; None for an executor of this machine."""
    memory: int | None = executor.task_memory if is_remote(executor) else None
    return memory


def require_files(executor: Executor, files: FileSet) -> None:
    """Refuse to start if the workers cannot see the files."""
    if is_remote(executor):
        found = (file.ref for file in files.files)
        executor.require_files([ref for ref in found if ref is not None])


_MOST_BUCKETS = 4096
_KEYS = 1 << 64


class BucketRule(Protocol):
    """Decides which bucket each row goes to."""

    @property
    def count(self) -> int:
        """How many buckets."""
        ...

    @property
    def numbered(self) -> bool:
        """Whether the rule needs the number of a row in the data."""
        ...

    def prepare(self, table: pa.Table, start: int) -> pa.Table:
        """The rows as they are to be stored; `start` is the number of the first."""
        ...

    def assign(self, table: pa.Table) -> Ids:
        """The bucket of each row of a prepared table."""
        ...


@dataclass(frozen=True)
class ByRandomKey:
    """Buckets of equal ranges of each row's random key."""

    seed: int
    stream: int
    count: int
    numbered: ClassVar[bool] = True

    @property
    def width(self) -> int:
        """Keys that a bucket covers."""
        return -(-_KEYS // self.count)

    def keys(self, bucket: int) -> range:
        """The keys of a bucket."""
        return range(bucket * self.width, min(_KEYS, (bucket + 1) * self.width))

    def prepare(self, table: pa.Table, start: int) -> pa.Table:
        """Each row with its key."""
        return with_keys(table, self.seed, self.stream, start)

    def assign(self, table: pa.Table) -> Ids:
        """The range a key falls into."""
        return key_range(0, self.width)(table)


@dataclass(frozen=True)
class ByHash:
    """Buckets by hash of key columns."""

    names: tuple[str, ...]
    count: int
    numbered: ClassVar[bool] = False

    def prepare(self, table: pa.Table, start: int) -> pa.Table:
        """The rows as they are."""
        return table

    def assign(self, table: pa.Table) -> Ids:
        """The hash modulo the number of buckets."""
        ids: Ids = (hash_columns(table, self.names) % np.uint64(self.count)).astype(np.int64)
        return ids


@dataclass(frozen=True)
class BucketFiles:
    """The files of the first round, in the order of the data, and rows and bytes of each bucket."""

    folder: RemotePath
    rule: BucketRule
    names: tuple[str, ...]
    rows: npt.NDArray[np.int64]
    nbytes: npt.NDArray[np.int64]

    def read(self, bucket: int) -> Iterator[pa.Table]:
        """The rows of one bucket, in the order of the data."""
        for name in self.names:
            path = self.folder.child(name)
            with (
                path.filesystem.open_input_file(path.path) as source,
                pa.ipc.open_file(source) as reader,
            ):
                batch = reader.get_batch(bucket)
            if batch.num_rows:
                yield pa.Table.from_batches([batch])

    def delete(self) -> None:
        """Delete the files."""
        for name in self.names:
            path = self.folder.child(name)
            path.filesystem.delete_file(path.path)


# -- the first round --------------------------------------------------------------------


def choose_buckets(nbytes: int, budget: SpillBudget, *, at_least: int = 1) -> int:
    """How many buckets to make, so that each fits into memory twice over."""
    return min(_MOST_BUCKETS, max(1, at_least, -(-nbytes * 2 // budget.sortable)))


def write_buckets(
    source: PartitionedTable, rule: BucketRule, folder: RemotePath, executor: Executor, bar: Bar
) -> BucketFiles:
    """Read every partition once, and split its rows into buckets."""
    lens = source.partition_lens if rule.numbered else [0] * source.npartitions
    work = _WriteBuckets(source, rule, folder, list(accumulate(lens, initial=0)))
    names: list[str] = []
    rows, nbytes = (np.zeros(rule.count, np.int64) for _ in range(2))
    for name, more_rows, more_bytes in executor.map(range(source.npartitions), work):
        names.append(name)
        rows += more_rows
        nbytes += more_bytes
        bar.advance(int(more_rows.sum()))
    return BucketFiles(folder, rule, tuple(names), rows, nbytes)


@dataclass(frozen=True)
class _WriteBuckets:
    """Splits one partition into buckets, in one file."""

    source: PartitionedTable
    rule: BucketRule
    folder: RemotePath
    starts: list[int]

    def __call__(self, index: int) -> tuple[str, npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """The file's name, and rows and bytes of each bucket."""
        table = cast_table(self.source.read(index), self.source.schema.to_arrow())
        table = self.rule.prepare(decoded(table), self.starts[index]).combine_chunks()
        ids = self.rule.assign(table)
        table = take_rows(table, np.argsort(ids, kind="stable")).unify_dictionaries()
        rows = np.bincount(ids, minlength=self.rule.count).astype(np.int64)
        name = f"{uuid.uuid4().hex}.arrow"
        sizes = _write_batches(self.folder.child(name), table, rows)
        return name, rows, sizes

    def task_name(self, index: int) -> str:
        """The name on the Dask dashboard."""
        return f"shuffle/part_{index}"


def _write_batches(
    path: RemotePath, table: pa.Table, rows: npt.NDArray[np.int64]
) -> npt.NDArray[np.int64]:
    """A record batch for each bucket; their sizes."""
    sizes, start = [], 0
    options = pa.ipc.IpcWriteOptions(compression="lz4")
    with (
        _naming(path),
        path.filesystem.open_output_stream(path.path, compression=None) as sink,
        pa.ipc.new_file(sink, table.schema, options=options) as writer,
    ):
        for count in rows.tolist():
            batch = _as_batch(table.slice(start, count))
            writer.write_batch(batch)
            sizes.append(batch.nbytes)
            start += count
    return np.array(sizes, np.int64)


def _as_batch(table: pa.Table) -> pa.RecordBatch:
    batches = table.combine_chunks().to_batches()
    if len(batches) == 1:
        return batches[0]
    return pa.RecordBatch.from_pylist([], schema=table.schema)


# -- the second round -------------------------------------------------------------------


@dataclass(frozen=True)
class BucketSlice:
    """Rows of a sorted bucket that go into one file: `rows` of them after the first `skip`."""

    bucket: int
    skip: int
    rows: int


def slice_buckets(
    names: Sequence[str], rows: npt.NDArray[np.int64]
) -> list[tuple[str, tuple[BucketSlice, ...]]]:
    """Which rows of which buckets make each of the files, all of nearly equal length.

    Examples
    --------
    >>> for name, slices in slice_buckets(["a", "b"], np.array([3, 0, 4])):
    ...     print(name, *[(s.bucket, s.skip, s.rows) for s in slices])
    a (0, 0, 3)
    b (2, 0, 4)
    """
    ends = np.cumsum(rows)
    total = int(ends[-1]) if len(ends) else 0
    out = []
    for i, name in enumerate(names):
        low, high = (total * n // len(names) for n in (i, i + 1))
        first, last = np.searchsorted(ends, [low, high - 1], side="right")
        slices = []
        for bucket in range(int(first), int(last) + 1) if high > low else ():
            start = int(ends[bucket] - rows[bucket])
            a, b = max(low, start), min(high, int(ends[bucket]))
            slices += [BucketSlice(bucket, a - start, b - a)] if b > a else []
        out.append((name, tuple(slices)))
    return out


def sorted_slice(
    buckets: BucketFiles, part: BucketSlice, budget: SpillBudget
) -> Iterator[pa.Table]:
    """The rows of a slice of a bucket, in the order of their random keys."""
    assert isinstance(buckets.rule, ByRandomKey)
    keys, nbytes = buckets.rule.keys(part.bucket), int(buckets.nbytes[part.bucket])
    skip, left = part.skip, part.rows
    for table in sorted_bucket(buckets.read(part.bucket), keys, nbytes, budget):
        rows = table.slice(skip, left) if skip < table.num_rows else table.slice(0, 0)
        skip = max(0, skip - table.num_rows)
        left -= rows.num_rows
        if rows.num_rows:
            yield rows
        if left == 0:
            return


@dataclass(frozen=True)
class JoinBucket:
    """Makes one file of a bucket, as an Arrow stream."""

    buckets: BucketFiles

    def __call__(self, bucket: int) -> str | None:
        """The file's path; None if the bucket is empty."""
        if not self.buckets.rows[bucket]:
            return None
        path = self.buckets.folder.child(f"bucket_{bucket}_{uuid.uuid4().hex}.arrows")
        tables = self.buckets.read(bucket)
        first = next(tables)
        with (
            _naming(path),
            path.filesystem.open_output_stream(path.path, compression=None) as sink,
            pa.ipc.new_stream(sink, first.schema) as writer,
        ):
            for table in chain([first], tables):
                writer.write_table(table)
        return path.path

    def task_name(self, bucket: int) -> str:
        """The name on the Dask dashboard."""
        return f"shuffle/bucket_{bucket}"


@contextmanager
def _naming(path: RemotePath) -> Iterator[None]:
    """Say which temporary file could not be written."""
    try:
        yield
    except OSError as e:
        raise WriteError(
            f"could not write the temporary file {path.name}: {reason(e)}. "
            f"{remedy(e, writing=True)}, then run it again"
        ) from e
