"""Bring rows that belong together next to each other, on disk, within a memory limit.

Rows are dealt into buckets, each bucket a file, and the buckets are read back one by one. With a
random bucket and a random order inside, this is a shuffle; with a hash of keys, a grouping.

The shuffle is exact. Row number *i* of the data draws a 64-bit key from a counter-based
generator at position *i*, and the result is the data sorted by these keys. So the
permutation is uniform, and it depends on the seed and the rows alone: not on the memory
limit, the partitions or the number of threads, which only decide how the sorting is done.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tabfeed.trace import span

__all__ = ["draw_keys", "read_bucket", "scatter", "shuffled", "sort_rows"]

_KEY = "__tabfeed_key__"
_MOST_BUCKETS = 512

Ids = npt.NDArray[np.integer]


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
    return table.combine_chunks().take(pa.array(np.argsort(keys, kind="stable")))


def shuffled(
    tables: Iterable[pa.Table],
    *,
    seed: int,
    stream: int,
    nbytes: int,
    memory_limit: int,
    folder: Path,
) -> Iterator[pa.Table]:
    """A uniform random permutation of all rows of `tables`, as tables of bounded size.

    Parameters
    ----------
    tables
        The rows, each table well below the memory limit.
    seed, stream
        Which permutation; streams of one seed are independent of each other.
    nbytes
        About how large all of it is in memory.
    memory_limit
        What may be held in memory.
    folder
        Where buckets may be put; emptied again.
    """
    buckets = min(_MOST_BUCKETS, -(-nbytes * 6 // memory_limit))
    keyed = _with_keys(tables, seed, stream)
    if nbytes * 3 <= memory_limit:
        held = list(keyed)
        if held:
            yield _unkeyed(pa.concat_tables(held))
        return
    files = scatter(keyed, _by_key(buckets), buckets, folder)
    for file in files:
        table = read_bucket(file)
        if table is not None:
            yield _unkeyed(table)
            del table
            file.unlink()


def _with_keys(tables: Iterable[pa.Table], seed: int, stream: int) -> Iterator[pa.Table]:
    start = 0
    for table in tables:
        keys = draw_keys(seed, stream, start, table.num_rows)
        start += table.num_rows
        yield table.append_column(_KEY, pa.array(keys))


def _by_key(buckets: int) -> Callable[[pa.Table], Ids]:
    """Which of `buckets` equal ranges of the key space a key falls into."""
    width = (1 << 64) // buckets + 1

    def assign(table: pa.Table) -> Ids:
        keys = table.column(_KEY).to_numpy()
        ids: Ids = keys // np.uint64(width)
        return ids

    return assign


def _unkeyed(table: pa.Table) -> pa.Table:
    keys = table.column(_KEY).to_numpy()
    with span("shuffle", rows=table.num_rows):
        return sort_rows(table.drop_columns([_KEY]), keys)


def scatter(
    tables: Iterable[pa.Table],
    assign: Callable[[pa.Table], Ids],
    buckets: int,
    folder: Path,
) -> list[Path]:
    """Deal rows into `buckets` files; rows of a bucket keep their order.

    Returns
    -------
    The files, a bucket each; a bucket that got no row has no file.
    """
    files = [folder / f"bucket_{i}.arrows" for i in range(buckets)]
    writers: dict[int, pa.ipc.RecordBatchStreamWriter] = {}
    with ExitStack() as stack:
        for table in tables:
            ids = assign(table)
            with span("scatter", rows=table.num_rows):
                order = np.argsort(ids, kind="stable")
                ends = np.cumsum(np.bincount(ids.astype(np.int64), minlength=buckets))
                dealt = table.combine_chunks().take(pa.array(order))
            for bucket in np.unique(ids):
                if bucket not in writers:
                    writers[bucket] = stack.enter_context(
                        pa.ipc.new_stream(str(files[bucket]), table.schema)
                    )
                start = int(ends[bucket - 1]) if bucket > 0 else 0
                writers[bucket].write_table(dealt.slice(start, int(ends[bucket]) - start))
    return files


def read_bucket(file: Path) -> pa.Table | None:
    """All rows of a bucket; None if it got none."""
    if not file.exists():
        return None
    with pa.OSFile(str(file)) as source, pa.ipc.open_stream(source) as reader:
        return reader.read_all()
