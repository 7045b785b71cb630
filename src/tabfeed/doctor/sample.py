"""A few stretches of a dataset, in place and as tables small enough to be written again often.

Stretches lie evenly over the data, each a run of neighbouring row groups, so that many small files
show up in the sample as many small files. Large row groups are few in it, one if need be, rather
than cut small: how large they are is part of how fast they are read. In place they are whole, as a
loader takes them; no more than their first rows are written again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tabfeed.doctor.facts import Facts
from tabfeed.doctor.reading import loader_of, parts_of, readable
from tabfeed.doctor.writing import NumberedTable
from tabfeed.io.dataset import Dataset
from tabfeed.io.partition import Partition, first_rows
from tabfeed.loader.plan.order import Plan

__all__ = ["Sample", "choose", "take_sample"]

SAMPLE_BYTES = 32 * 2**20
_STRETCHES = 8
_MOST_GROUPS = 128


@dataclass(frozen=True)
class Sample:
    """Some rows of a dataset.

    Attributes
    ----------
    dataset
        Whole row groups, or the slices of them that a loader reads, in place.
    pieces
        Of each, as many rows as are written again.
    plan
        The loader's order for all of the data.
    slices
        Whether row groups are so large that a loader cuts them.
    few
        Whether there are fewer of them than threads to read them; then the sample has them all.
    threads
        Those of the loader.
    """

    dataset: Dataset
    pieces: tuple[Partition, ...]
    plan: Plan
    slices: bool
    few: bool
    threads: int

    @property
    def rows(self) -> int:
        """Rows that are written again."""
        return sum(p.rows or 0 for p in self.pieces)

    def tables(self) -> Iterator[NumberedTable]:
        """The rows to write again, a table for each row group."""
        for piece in self.pieces:
            yield piece.files[0], self.dataset.read(piece)


def take_sample(dataset: Dataset, facts: Facts, *, nbytes: int = SAMPLE_BYTES) -> Sample:
    """Choose the stretches."""
    kinds = {c.name: c.kind for c in facts.columns}
    feed = loader_of(dataset, kinds)
    parts, lens = parts_of(feed)
    width = max(1, facts.memory // max(1, facts.rows))
    rows = max(1, nbytes // width)
    few = len(parts) < feed.options.workers
    numbers = range(len(parts)) if few else choose(lens, rows)
    chosen = [parts[i] for i in numbers if lens[i]]
    each = max(1, rows // len(chosen)) if len(chosen) <= _STRETCHES else rows
    return Sample(
        dataset=dataset.select(readable(dataset, kinds)).with_partitions(chosen),
        pieces=tuple(first_rows(p, each) for p in chosen),
        plan=feed.plan,
        slices=any(not piece.whole for part in parts for piece in part.pieces),
        few=few,
        threads=feed.options.workers,
    )


def choose(lens: Sequence[int], rows: int) -> list[int]:
    """The numbers of the partitions to look at: about so many rows, in stretches evenly spread.

    Examples
    --------
    >>> choose([10] * 4, 1000), choose([1000] * 99, 10)
    ([0, 1, 2, 3], [49])
    >>> choose([10] * 1600, 160)
    [99, 100, 299, 300, 499, 500, 699, 700, 899, 900, 1099, 1100, 1299, 1300, 1499, 1500]
    """
    count = len(lens)
    mean = max(1, sum(lens) // max(1, count))
    wanted = min(count, max(1, rows // mean), _MOST_GROUPS)
    stretches = min(_STRETCHES, wanted)
    each = wanted // stretches
    if each * stretches >= count:
        return list(range(count))
    middles = [int(count * (i + 0.5) / stretches) for i in range(stretches)]
    starts = [min(count - each, max(0, m - each // 2)) for m in middles]
    return sorted({n for s in starts for n in range(s, s + each)})
