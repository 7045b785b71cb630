"""Bring rows that belong together next to each other, on a cluster.

Two rounds. In the first, each partition is read once and its rows are dealt into buckets, all of
them in one file: an Arrow file with a record batch for each bucket. In the second, whoever makes
bucket *b* reads batch *b* of every file. The files lie in a folder that all workers share, so a
worker that dies takes nothing with it that was finished, and there are as many tasks as partitions
and buckets together, not their product. What was given up: rows go through the shared filesystem
once more, where sending them from worker to worker would not; but there, a lost worker would mean
dealing all its partitions again.

Buckets by ranges of random keys make a full shuffle, the very one that `tabfeed.io.shuffle.local`
makes on one machine; buckets by hash of key columns make a grouping.

What reading and writing must know of an executor whose work is done on other machines.
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

from tabfeed.errors import WriteError
from tabfeed.execute import Executor
from tabfeed.hashing import hash_columns
from tabfeed.io.align import conform
from tabfeed.io.shuffle.local import Ids, SpillBudget, by_key, decoded, keyed, sorted_bucket
from tabfeed.io.shuffle.rows import take_rows
from tabfeed.io.storage.paths import RemotePath
from tabfeed.io.storage.retry import reason, remedy
from tabfeed.progress import Bar

if TYPE_CHECKING:
    from tabfeed.io.fileset import FileSet
    from tabfeed.io.table import PartitionedTable

__all__ = [
    "BucketFiles",
    "BucketSlice",
    "ByHash",
    "ByRandomKey",
    "Gather",
    "buckets_for",
    "cut_files",
    "deal",
    "discard",
    "is_remote",
    "read_dealt",
    "require_files",
    "sorted_rows",
    "task_memory",
]


def is_remote(executor: Executor) -> TypeGuard[Any]:
    """Whether the work may be done where this process's files and memory are not."""
    return bool(getattr(executor, "remote", False))


def task_memory(executor: Executor) -> int | None:
    """Bytes one task may use there; None where this machine's memory counts."""
    memory: int | None = executor.task_memory if is_remote(executor) else None
    return memory


def require_files(executor: Executor, files: FileSet) -> None:
    """Refuse to start if the data lies where the workers do not see it."""
    if is_remote(executor):
        found = (getattr(file, "location", None) for file in files.files)
        executor.require_files([location for location in found if location is not None])


_MOST_BUCKETS = 4096
_KEYS = 1 << 64


class Dealing(Protocol):
    """Which bucket each row goes to."""

    @property
    def count(self) -> int:
        """How many buckets."""
        ...

    @property
    def numbered(self) -> bool:
        """Whether rows must know their number in the data."""
        ...

    def prepare(self, table: pa.Table, start: int) -> pa.Table:
        """The rows as they are to be kept; `start` is the number of the first."""
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
        return keyed(table, self.seed, self.stream, start)

    def assign(self, table: pa.Table) -> Ids:
        """The range a key falls into."""
        return by_key(0, self.width)(table)


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
    """The files of the first round, in the order of the data, and how full the buckets are."""

    place: RemotePath
    dealing: Dealing
    names: tuple[str, ...]
    rows: npt.NDArray[np.int64]
    nbytes: npt.NDArray[np.int64]


# -- the first round --------------------------------------------------------------------


def buckets_for(nbytes: int, room: SpillBudget, *, at_least: int = 1) -> int:
    """How many buckets make each fit into memory twice over."""
    return min(_MOST_BUCKETS, max(1, at_least, -(-nbytes * 2 // room.whole)))


def deal(
    source: PartitionedTable, dealing: Dealing, place: RemotePath, executor: Executor, bar: Bar
) -> BucketFiles:
    """Read every partition once, and put its rows into buckets."""
    lens = source.partition_lens if dealing.numbered else [0] * source.npartitions
    work = _Deal(source, dealing, place, list(accumulate(lens, initial=0)))
    names: list[str] = []
    rows, nbytes = (np.zeros(dealing.count, np.int64) for _ in range(2))
    for name, more_rows, more_bytes in executor.map(range(source.npartitions), work):
        names.append(name)
        rows += more_rows
        nbytes += more_bytes
        bar.advance(int(more_rows.sum()))
    return BucketFiles(place, dealing, tuple(names), rows, nbytes)


@dataclass(frozen=True)
class _Deal:
    """Deals one partition."""

    source: PartitionedTable
    dealing: Dealing
    place: RemotePath
    starts: list[int]

    def __call__(self, index: int) -> tuple[str, npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """The file's name, and rows and bytes of each bucket."""
        table = conform(self.source.read(index), self.source.schema.to_arrow())
        table = self.dealing.prepare(decoded(table), self.starts[index]).combine_chunks()
        ids = self.dealing.assign(table)
        table = take_rows(table, np.argsort(ids, kind="stable")).unify_dictionaries()
        rows = np.bincount(ids, minlength=self.dealing.count).astype(np.int64)
        name = f"{uuid.uuid4().hex}.arrow"
        sizes = _write_batches(self.place.child(name), table, rows)
        return name, rows, sizes

    def task_name(self, index: int) -> str:
        """What the dashboard shows."""
        return f"shuffle/part_{index}"


def _write_batches(
    place: RemotePath, table: pa.Table, rows: npt.NDArray[np.int64]
) -> npt.NDArray[np.int64]:
    """A record batch for each bucket; their sizes."""
    sizes, start = [], 0
    options = pa.ipc.IpcWriteOptions(compression="lz4")
    with (
        _naming(place),
        place.filesystem.open_output_stream(place.path, compression=None) as sink,
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


def read_dealt(dealt: BucketFiles, bucket: int) -> Iterator[pa.Table]:
    """The rows of one bucket, in the order of the data."""
    for name in dealt.names:
        place = dealt.place.child(name)
        with (
            place.filesystem.open_input_file(place.path) as source,
            pa.ipc.open_file(source) as reader,
        ):
            batch = reader.get_batch(bucket)
        if batch.num_rows:
            yield pa.Table.from_batches([batch])


@dataclass(frozen=True)
class BucketSlice:
    """Rows of a bucket, counted from its start once it is sorted, that go into one file."""

    bucket: int
    skip: int
    rows: int


def cut_files(
    names: Sequence[str], rows: npt.NDArray[np.int64]
) -> list[tuple[str, tuple[BucketSlice, ...]]]:
    """Which rows of which buckets make each of the files, all of nearly equal length.

    Examples
    --------
    >>> for name, cuts in cut_files(["a", "b"], np.array([3, 0, 4])):
    ...     print(name, *[(c.bucket, c.skip, c.rows) for c in cuts])
    a (0, 0, 3)
    b (2, 0, 4)
    """
    ends = np.cumsum(rows)
    total = int(ends[-1]) if len(ends) else 0
    out = []
    for i, name in enumerate(names):
        low, high = (total * n // len(names) for n in (i, i + 1))
        first, last = np.searchsorted(ends, [low, high - 1], side="right")
        cuts = []
        for bucket in range(int(first), int(last) + 1) if high > low else ():
            start = int(ends[bucket] - rows[bucket])
            a, b = max(low, start), min(high, int(ends[bucket]))
            cuts += [BucketSlice(bucket, a - start, b - a)] if b > a else []
        out.append((name, tuple(cuts)))
    return out


def sorted_rows(dealt: BucketFiles, cut: BucketSlice, room: SpillBudget) -> Iterator[pa.Table]:
    """The rows of a cut, in the order of their random keys."""
    assert isinstance(dealt.dealing, ByRandomKey)
    keys, nbytes = dealt.dealing.keys(cut.bucket), int(dealt.nbytes[cut.bucket])
    skip, left = cut.skip, cut.rows
    for table in sorted_bucket(read_dealt(dealt, cut.bucket), keys, nbytes, room):
        part = table.slice(skip, left) if skip < table.num_rows else table.slice(0, 0)
        skip = max(0, skip - table.num_rows)
        left -= part.num_rows
        if part.num_rows:
            yield part
        if left == 0:
            return


@dataclass(frozen=True)
class Gather:
    """Makes one file of a bucket, as an Arrow stream."""

    dealt: BucketFiles

    def __call__(self, bucket: int) -> str | None:
        """The file's path; None if the bucket is empty."""
        if not self.dealt.rows[bucket]:
            return None
        place = self.dealt.place.child(f"bucket_{bucket}_{uuid.uuid4().hex}.arrows")
        tables = read_dealt(self.dealt, bucket)
        first = next(tables)
        with (
            _naming(place),
            place.filesystem.open_output_stream(place.path, compression=None) as sink,
            pa.ipc.new_stream(sink, first.schema) as writer,
        ):
            for table in chain([first], tables):
                writer.write_table(table)
        return place.path

    def task_name(self, bucket: int) -> str:
        """What the dashboard shows."""
        return f"shuffle/bucket_{bucket}"


@contextmanager
def _naming(place: RemotePath) -> Iterator[None]:
    """Say which temporary file could not be written."""
    try:
        yield
    except OSError as e:
        raise WriteError(
            f"could not write the temporary file {place.name}: {reason(e)}. "
            f"{remedy(e, writing=True)}, then run it again"
        ) from e


def discard(dealt: BucketFiles) -> None:
    """Remove the files of the first round."""
    for name in dealt.names:
        place = dealt.place.child(name)
        place.filesystem.delete_file(place.path)
