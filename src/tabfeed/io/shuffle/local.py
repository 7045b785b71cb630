"""Bring rows that belong together next to each other, on disk, within a memory limit.

Rows are dealt into buckets, each bucket a file, and the buckets are read back one by one. With a
random bucket and a random order inside, this is a shuffle; with a hash of keys, a grouping.

The shuffle is exact. Row number *i* of the data draws a 64-bit key from a counter-based
generator at position *i*, and the result is the data sorted by these keys. So the
permutation is uniform, and it depends on the seed and the rows alone: not on the memory
limit, the partitions or the number of threads, which only decide how the sorting is done.

Sizes are measured, not believed: rows are held in memory until they prove too many, and a
bucket that turns out too large is dealt once more into smaller ones. An estimate of the
whole only helps to choose the number of buckets.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import chain, pairwise
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tabfeed.errors import WriteError
from tabfeed.io.formats.parquet.row_sizes import sizes_in_table
from tabfeed.io.partition import bounds_within
from tabfeed.io.shuffle.rows import prepare, take_prepared, take_rows
from tabfeed.io.storage.retry import reason, remedy
from tabfeed.trace import span

__all__ = [
    "Bucket",
    "Ids",
    "SpillBudget",
    "by_key",
    "decoded",
    "draw_keys",
    "keyed",
    "read_bucket",
    "scatter",
    "shuffled",
    "sort_rows",
    "sorted_bucket",
]

_KEY = "__tabfeed_key__"
_FEWEST_BUCKETS, _MOST_BUCKETS = 16, 128
_MOST_AT_ONCE = 2**30  # a table of text larger than this nears the reach of 32-bit offsets
_LEAST_MEMORY = 2**20
_BLOCK = 64 * 2**20

Ids = npt.NDArray[np.integer]


@dataclass(frozen=True)
class SpillBudget:
    """What a shuffle may use.

    Parameters
    ----------
    memory
        Bytes it may hold; 1 MiB at least.
    folder
        Where it may put files; they are removed as they are read.
    buckets
        Most files it may have open at a time.
    """

    memory: int
    folder: Path
    buckets: int = _MOST_BUCKETS

    def __post_init__(self) -> None:
        object.__setattr__(self, "memory", max(self.memory, _LEAST_MEMORY))

    @property
    def whole(self) -> int:
        """Bytes that can be sorted in memory: as they came, in one piece, and the sorted block."""
        return min(self.memory // 5, _MOST_AT_ONCE)

    @property
    def slice(self) -> int:
        """Bytes that are dealt into buckets at a time."""
        return self.memory // 16


@dataclass
class Bucket:
    """A file of rows that belong together; no file if there are none."""

    path: Path
    rows: int = 0
    nbytes: int = 0


def draw_keys(seed: int, stream: int, start: int, rows: int) -> npt.NDArray[np.uint64]:
    """The random keys of rows ``start .. start + rows`` of stream `stream`.

    Examples
    --------
    >>> whole = draw_keys(7, 0, 0, 10)
    >>> bool((draw_keys(7, 0, 3, 4) == whole[3:7]).all())
    True
    """
    generator = np.random.Philox(np.random.SeedSequence([seed, stream]))
    generator.advance(start // 4)  # four 64-bit numbers a step
    skip = start % 4
    return np.asarray(generator.random_raw(rows + skip)[skip:], dtype=np.uint64)


def sort_rows(table: pa.Table, keys: npt.NDArray[np.uint64]) -> pa.Table:
    """The rows in the order of their keys."""
    return take_rows(table, np.argsort(keys, kind="stable"))


# -- the shuffle ------------------------------------------------------------------------


def shuffled(
    tables: Iterable[pa.Table], *, seed: int, stream: int, nbytes: int, room: SpillBudget
) -> Iterator[pa.Table]:
    """A uniform random permutation of all rows of `tables`, as tables of bounded size.

    Every row has been taken from `tables` before the first comes out.

    Parameters
    ----------
    tables
        The rows, each table well below the memory limit.
    seed, stream
        Which permutation; streams of one seed are independent of each other.
    nbytes
        About how large all of it is in memory; 0 if nobody knows.
    room
        Memory and disk that may be used.
    """
    rows = _with_keys(tables, seed, stream)
    held: list[pa.Table] = []
    size = 0
    for table in rows:
        held.append(table)
        size += table.nbytes
        if size > room.whole:
            break
    else:
        yield from _sorted(held, room)
        return
    count = min(room.buckets, max(_FEWEST_BUCKETS, -(-nbytes * 8 // room.memory)))
    yield from _sorted_on_disk(chain(_drain(held), rows), range(1 << 64), count, room)


def sorted_bucket(
    tables: Iterable[pa.Table], keys: range, nbytes: int, room: SpillBudget
) -> Iterator[pa.Table]:
    """Rows that carry their keys, all within `keys`, in the order of these and without them."""
    if nbytes <= room.whole:
        yield from _sorted(list(tables), room)
        return
    count = max(2, min(room.buckets, -(-nbytes * 2 // room.whole)))
    yield from _sorted_on_disk(tables, keys, count, room)


def keyed(table: pa.Table, seed: int, stream: int, start: int) -> pa.Table:
    """The rows from number `start` on, each with its random key."""
    keys = draw_keys(seed, stream, start, table.num_rows)
    return table.append_column(_KEY, pa.array(keys))


def _with_keys(tables: Iterable[pa.Table], seed: int, stream: int) -> Iterator[pa.Table]:
    start = 0
    for table in tables:
        yield keyed(table, seed, stream, start)
        start += table.num_rows


def _drain(held: list[pa.Table]) -> Iterator[pa.Table]:
    """Give tables out and forget them."""
    held.reverse()
    while held:
        yield held.pop()


def _sorted(held: list[pa.Table], room: SpillBudget) -> Iterator[pa.Table]:
    """Rows that fit into memory, in the order of their keys, block by block."""
    if not held:
        return
    table = pa.concat_tables(held)
    held.clear()
    with span("shuffle", rows=table.num_rows):
        order = np.argsort(table.column(_KEY).to_numpy(), kind="stable")
        table = table.drop_columns([_KEY])
        schema = table.schema
        bounds = _bounds(table, min(_BLOCK, room.slice), order)
        table = prepare(table)
    for start, stop in pairwise(bounds):
        yield take_prepared(table, order[start:stop], schema)


def _sorted_on_disk(
    tables: Iterable[pa.Table], keys: range, count: int, room: SpillBudget
) -> Iterator[pa.Table]:
    """Rows whose keys lie in `keys`, in their order, by way of `count` buckets."""
    width = -(-len_of(keys) // count)
    buckets = scatter(tables, by_key(keys.start, width), count, room)
    for number, bucket in enumerate(buckets):
        if not bucket.rows:
            continue
        if bucket.nbytes > room.whole and bucket.rows > 1 and width > 1:
            low = keys.start + number * width
            inner = SpillBudget(room.memory, room.folder / bucket.path.stem, room.buckets)
            inner.folder.mkdir()
            again = max(2, min(room.buckets, -(-bucket.nbytes * 2 // room.whole)))
            part = range(low, min(low + width, keys.stop))
            yield from _sorted_on_disk(_stream_bucket(bucket), part, again, inner)
            inner.folder.rmdir()
        else:
            yield from _sorted([read_bucket(bucket)], room)
            bucket.path.unlink()
            pa.default_memory_pool().release_unused()  # or allocators keep the last bucket's


def len_of(keys: range) -> int:
    """``len`` for ranges as large as the key space."""
    return keys.stop - keys.start


def by_key(low: int, width: int) -> Callable[[pa.Table], Ids]:
    """Which range of `width` keys, counted from `low`, a key falls into."""

    def assign(table: pa.Table) -> Ids:
        keys = table.column(_KEY).to_numpy()
        ids: Ids = ((keys - np.uint64(low)) // np.uint64(width)).astype(np.int64)
        return ids

    return assign


# -- buckets ----------------------------------------------------------------------------


def scatter(
    tables: Iterable[pa.Table], assign: Callable[[pa.Table], Ids], count: int, room: SpillBudget
) -> list[Bucket]:
    """Deal rows into `count` buckets; rows of a bucket keep their order."""
    if count > room.buckets:
        return _scatter_twice(tables, assign, count, room)
    buckets = [Bucket(room.folder / f"bucket_{i}.arrows") for i in range(count)]
    writers: dict[int, pa.ipc.RecordBatchStreamWriter] = {}
    with ExitStack() as files:
        for table in tables:
            for rows in _slices(table, room.slice):
                part = decoded(rows)
                for number, dealt in _deal(part, assign(part), count):
                    _append(files, writers, number, buckets[number], dealt)
        for number, writer in writers.items():
            with _named(buckets[number].path):
                writer.close()
    return buckets


def _scatter_twice(
    tables: Iterable[pa.Table], assign: Callable[[pa.Table], Ids], count: int, room: SpillBudget
) -> list[Bucket]:
    """More buckets than files may be open: first a few large ones, then each dealt again."""
    width = -(-count // room.buckets)
    coarse = scatter(tables, lambda t: assign(t) // width, -(-count // width), room)
    fine: list[Bucket] = []
    for number, bucket in enumerate(coarse):
        inner = SpillBudget(room.memory, room.folder / bucket.path.stem, room.buckets)
        inner.folder.mkdir()
        rows = _stream_bucket(bucket) if bucket.rows else ()
        low, high = number * width, min(count, (number + 1) * width)
        fine += scatter(rows, _from(assign, low), high - low, inner)
    return fine


def _from(assign: Callable[[pa.Table], Ids], low: int) -> Callable[[pa.Table], Ids]:
    return lambda table: assign(table) - low


def _append(
    files: ExitStack,
    writers: dict[int, pa.ipc.RecordBatchStreamWriter],
    number: int,
    bucket: Bucket,
    rows: pa.Table,
) -> None:
    with _named(bucket.path):
        if number not in writers:
            # Of our own: where the disk is full, a writer that opened it fails to close it.
            file = files.enter_context(pa.OSFile(str(bucket.path), "wb"))
            writers[number] = pa.ipc.new_stream(file, rows.schema)
        writers[number].write_table(rows)
    bucket.rows += rows.num_rows
    bucket.nbytes += rows.nbytes


def _deal(table: pa.Table, ids: Ids, count: int) -> Iterator[tuple[int, pa.Table]]:
    """The rows of each bucket that got some."""
    with span("scatter", rows=table.num_rows):
        dealt = take_rows(table, np.argsort(ids, kind="stable"))
    ends = np.cumsum(np.bincount(ids, minlength=count)).tolist()
    for number in np.unique(ids).tolist():
        start = ends[number - 1] if number else 0
        yield number, dealt.slice(start, ends[number] - start)


def decoded(table: pa.Table) -> pa.Table:
    """Dictionaries as plain values: each slice of each bucket would carry a dictionary whole.

    Ordered ones stay, since their order means something; they are small by nature.
    """
    for i, field in enumerate(table.schema):
        if pa.types.is_dictionary(field.type) and not field.type.ordered:
            plain = field.type.value_type
            table = table.set_column(i, field.with_type(plain), table.column(i).cast(plain))
    return table


def _slices(table: pa.Table, nbytes: int) -> Iterator[pa.Table]:
    """A table in slices of about `nbytes` once decoded; one if it is smaller, none if empty."""
    for start, stop in pairwise(_bounds(table, nbytes)):
        yield table.slice(start, stop - start)


def _bounds(table: pa.Table, nbytes: int, order: Ids | None = None) -> Sequence[int]:
    """Where to cut the rows of a table, taken in `order`, into slices of about `nbytes`."""
    sizes = sizes_in_table(table)
    if sizes is not None:
        return bounds_within(sizes if order is None else sizes[order], nbytes)
    rows = max(1, int(table.num_rows * min(1.0, nbytes / max(1, table.nbytes))))
    return [*range(0, table.num_rows, rows), table.num_rows]


def read_bucket(bucket: Bucket) -> pa.Table:
    """All rows of a bucket."""
    with pa.OSFile(str(bucket.path)) as source, pa.ipc.open_stream(source) as reader:
        return reader.read_all()


def _stream_bucket(bucket: Bucket) -> Iterator[pa.Table]:
    """A bucket's rows batch by batch; its file is removed after the last."""
    with pa.OSFile(str(bucket.path)) as source, pa.ipc.open_stream(source) as reader:
        for batch in reader:
            yield pa.Table.from_batches([batch])
    bucket.path.unlink()


@contextmanager
def _named(path: Path) -> Iterator[None]:
    """Say which temporary file could not be written."""
    try:
        yield
    except OSError as e:
        raise WriteError(
            f"could not write the temporary file {path}: {reason(e)}. "
            f"{remedy(e, writing=True)}, then run it again"
        ) from e
