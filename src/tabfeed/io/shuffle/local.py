"""Shuffle or group rows on one machine, within a memory limit.

Rows are split into buckets, each a file, and the buckets are read back one by one. With random
buckets and a random order inside each, this is a shuffle; with a hash of keys, a grouping.

The shuffle is exact. Row number *i* of the data draws a 64-bit key from a counter-based generator
at position *i*, and the result is the data sorted by these keys. So the permutation is uniform, and
depends on the seed and the rows alone: the memory limit, the partitions and the number of threads
only decide how the sorting is done.

Sizes are measured: rows are held in memory until they are too many, and a bucket that turns out too
large is split once more. An estimate of the whole only helps to choose the number of buckets.

Arrow's ``take`` joins the chunks of a column first, and fails where the result would not be a valid
array: more than 2 GB of text, which 32-bit offsets cannot address, or dictionaries that together
outgrow their index type. `take_rows` takes such columns in a wider type.
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
from tabfeed.io.align import cast_table
from tabfeed.io.formats.parquet.row_sizes import sizes_in_table
from tabfeed.io.partition import bounds_within
from tabfeed.io.storage.retry import reason, remedy
from tabfeed.trace import span

__all__ = [
    "Bucket",
    "Ids",
    "SpillBudget",
    "decoded",
    "draw_keys",
    "key_range",
    "prepare",
    "read_bucket",
    "shuffled",
    "sort_rows",
    "sorted_bucket",
    "split_into_buckets",
    "take_prepared",
    "take_rows",
    "with_keys",
]

_KEY = "__tabfeed_key__"
_FEWEST_BUCKETS, _MOST_BUCKETS = 16, 128
_MOST_AT_ONCE = 2**30  # a table of text larger than this nears the reach of 32-bit offsets
_LEAST_MEMORY = 2**20
_BLOCK = 64 * 2**20

_LARGE = {pa.string(): pa.large_string(), pa.binary(): pa.large_binary()}

Ids = npt.NDArray[np.integer]


def take_rows(table: pa.Table, order: Ids) -> pa.Table:
    """The rows with these numbers, in this order.

    Examples
    --------
    >>> take_rows(pa.table({"x": [5, 6, 7]}), np.array([2, 0]))["x"].to_pylist()
    [7, 5]
    """
    return take_prepared(prepare(table), order, table.schema)


def prepare(table: pa.Table) -> pa.Table:
    """The same rows, each column in one chunk, in a wider type where it does not fit into one."""
    for i, field in enumerate(table.schema):
        if table.column(i).num_chunks > 1:
            array = _join(table.column(i))
            table = table.set_column(i, field.with_type(array.type), array)
    return table


def take_prepared(table: pa.Table, order: Ids, schema: pa.Schema) -> pa.Table:
    """Rows of a prepared table, with the types of `schema` again."""
    return cast_table(table.take(pa.array(order)), schema)


def _join(column: pa.ChunkedArray) -> pa.Array:
    try:
        joined = column.combine_chunks()
    except pa.ArrowInvalid:
        wide = _wider_type(column.type)
        if wide == column.type:
            raise
        joined = column.cast(wide).combine_chunks()
    if isinstance(joined, pa.ChunkedArray):  # still in chunks, since one would be too large
        return _join(joined.cast(_wider_type(column.type)))
    return joined


def _wider_type(dtype: pa.DataType) -> pa.DataType:
    """The type that holds the same values with 64-bit offsets and without dictionaries."""
    if pa.types.is_dictionary(dtype):
        return dtype.value_type
    if pa.types.is_list(dtype):
        return pa.large_list(dtype.value_field.with_type(_wider_type(dtype.value_type)))
    return _LARGE.get(dtype, dtype)


@dataclass(frozen=True)
class SpillBudget:
    """The memory, disk and open files that a shuffle may use.

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
    def sortable(self) -> int:
        """Bytes that can be sorted in memory: as they came, in one chunk, and the sorted block."""
        return min(self.memory // 5, _MOST_AT_ONCE)

    @property
    def slice(self) -> int:
        """Bytes that are split into buckets at a time."""
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
    tables: Iterable[pa.Table], *, seed: int, stream: int, nbytes: int, budget: SpillBudget
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
        About how large all of it is in memory; 0 if unknown.
    budget
        Memory and disk that may be used.
    """
    rows = _all_with_keys(tables, seed, stream)
    held: list[pa.Table] = []
    size = 0
    for table in rows:
        held.append(table)
        size += table.nbytes
        if size > budget.sortable:
            break
    else:
        yield from _sorted(held, budget)
        return
    count = min(budget.buckets, max(_FEWEST_BUCKETS, -(-nbytes * 8 // budget.memory)))
    drained = (held.pop(0) for _ in range(len(held)))  # not kept meanwhile
    yield from _sorted_on_disk(chain(drained, rows), range(1 << 64), count, budget)


def sorted_bucket(
    tables: Iterable[pa.Table], keys: range, nbytes: int, budget: SpillBudget
) -> Iterator[pa.Table]:
    """Rows with their keys, all within `keys`, sorted by key and without it."""
    if nbytes <= budget.sortable:
        yield from _sorted(list(tables), budget)
        return
    count = max(2, min(budget.buckets, -(-nbytes * 2 // budget.sortable)))
    yield from _sorted_on_disk(tables, keys, count, budget)


def with_keys(table: pa.Table, seed: int, stream: int, start: int) -> pa.Table:
    """The rows from number `start` on, each with its random key."""
    keys = draw_keys(seed, stream, start, table.num_rows)
    return table.append_column(_KEY, pa.array(keys))


def _all_with_keys(tables: Iterable[pa.Table], seed: int, stream: int) -> Iterator[pa.Table]:
    start = 0
    for table in tables:
        yield with_keys(table, seed, stream, start)
        start += table.num_rows


def _sorted(held: list[pa.Table], budget: SpillBudget) -> Iterator[pa.Table]:
    """Rows that fit into memory, in the order of their keys, block by block."""
    if not held:
        return
    table = pa.concat_tables(held)
    held.clear()
    with span("shuffle", rows=table.num_rows):
        order = np.argsort(table.column(_KEY).to_numpy(), kind="stable")
        table = table.drop_columns([_KEY])
        schema = table.schema
        bounds = _bounds(table, min(_BLOCK, budget.slice), order)
        table = prepare(table)
    for start, stop in pairwise(bounds):
        yield take_prepared(table, order[start:stop], schema)


def _sorted_on_disk(
    tables: Iterable[pa.Table], keys: range, count: int, budget: SpillBudget
) -> Iterator[pa.Table]:
    """Rows whose keys are in `keys`, sorted by key, using `count` buckets on disk."""
    width = -(-(keys.stop - keys.start) // count)  # ``len`` knows no range as large
    buckets = split_into_buckets(tables, key_range(keys.start, width), count, budget)
    for number, bucket in enumerate(buckets):
        if not bucket.rows:
            continue
        if bucket.nbytes > budget.sortable and bucket.rows > 1 and width > 1:
            low = keys.start + number * width
            inner = SpillBudget(budget.memory, budget.folder / bucket.path.stem, budget.buckets)
            inner.folder.mkdir()
            again = max(2, min(budget.buckets, -(-bucket.nbytes * 2 // budget.sortable)))
            part = range(low, min(low + width, keys.stop))
            yield from _sorted_on_disk(_stream_bucket(bucket), part, again, inner)
            inner.folder.rmdir()
        else:
            yield from _sorted([read_bucket(bucket)], budget)
            bucket.path.unlink()
            pa.default_memory_pool().release_unused()  # or allocators keep the last bucket's


def key_range(low: int, width: int) -> Callable[[pa.Table], Ids]:
    """Which range of `width` keys, counted from `low`, a key falls into."""

    def assign(table: pa.Table) -> Ids:
        keys = table.column(_KEY).to_numpy()
        ids: Ids = ((keys - np.uint64(low)) // np.uint64(width)).astype(np.int64)
        return ids

    return assign


# -- buckets ----------------------------------------------------------------------------


def split_into_buckets(
    tables: Iterable[pa.Table], assign: Callable[[pa.Table], Ids], count: int, budget: SpillBudget
) -> list[Bucket]:
    """Split rows into `count` buckets; rows of a bucket keep their order."""
    if count > budget.buckets:
        return _split_twice(tables, assign, count, budget)
    buckets = [Bucket(budget.folder / f"bucket_{i}.arrows") for i in range(count)]
    writers: dict[int, pa.ipc.RecordBatchStreamWriter] = {}
    with ExitStack() as files:
        for table in tables:
            for start, stop in pairwise(_bounds(table, budget.slice)):
                plain = decoded(table.slice(start, stop - start))
                for number, part in _rows_by_bucket(plain, assign(plain), count):
                    _append(files, writers, number, buckets[number], part)
        for number, writer in writers.items():
            with _named(buckets[number].path):
                writer.close()
    return buckets


def _split_twice(
    tables: Iterable[pa.Table], assign: Callable[[pa.Table], Ids], count: int, budget: SpillBudget
) -> list[Bucket]:
    """More buckets than files may be open: first a few large ones, then each is split again."""
    width = -(-count // budget.buckets)
    coarse = split_into_buckets(tables, lambda t: assign(t) // width, -(-count // width), budget)
    fine: list[Bucket] = []
    for number, bucket in enumerate(coarse):
        inner = SpillBudget(budget.memory, budget.folder / bucket.path.stem, budget.buckets)
        inner.folder.mkdir()
        rows = _stream_bucket(bucket) if bucket.rows else ()
        low, high = number * width, min(count, (number + 1) * width)

        def inside(table: pa.Table, low: int = low) -> Ids:
            return assign(table) - low

        fine += split_into_buckets(rows, inside, high - low, inner)
    return fine


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


def _rows_by_bucket(table: pa.Table, ids: Ids, count: int) -> Iterator[tuple[int, pa.Table]]:
    """The rows of each bucket that got some."""
    with span("scatter", rows=table.num_rows):
        part = take_rows(table, np.argsort(ids, kind="stable"))
    ends = np.cumsum(np.bincount(ids, minlength=count)).tolist()
    for number in np.unique(ids).tolist():
        start = ends[number - 1] if number else 0
        yield number, part.slice(start, ends[number] - start)


def decoded(table: pa.Table) -> pa.Table:
    """Dictionaries as plain values: each slice of each bucket would carry a dictionary whole.

    Ordered ones stay, since their order means something; they are small by nature.
    """
    for i, field in enumerate(table.schema):
        if pa.types.is_dictionary(field.type) and not field.type.ordered:
            plain = field.type.value_type
            table = table.set_column(i, field.with_type(plain), table.column(i).cast(plain))
    return table


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
