"""How well an order mixes, and whether the files need that: their footers alone tell.

Shuffling mixes what is read at once. If a file holds all its zeros first and its ones last, what
is read at once may be all zeros. Parquet footers give the smallest and largest value of each
row group, so the question costs nothing.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from tabfeed.errors import TabfeedWarning
from tabfeed.io.dataset import Dataset
from tabfeed.io.formats.base import DataFile
from tabfeed.loader.plan import ChunkPlan, Epoch, Plan

_SAMPLE = 64  # batches that are judged
_FEWEST_GROUPS = 4
_SORTED_SHARE = 0.9
_GOOD_ENOUGH = 0.95


@dataclass(frozen=True)
class ShuffleQuality:
    """How far batches are from samples of the whole data.

    Attributes
    ----------
    score
        1 for a uniform permutation, 0 for the files' own order.
    distance
        Mean distance (Kolmogorov-Smirnov, 0 to 1) between where a batch's rows lie in the data
        and an even spread over it.
    uniform
        The same for a uniform permutation: what chance alone gives.
    file_order
        The same for the files' own order.
    """

    score: float
    distance: float
    uniform: float
    file_order: float

    def __str__(self) -> str:
        return (
            f"shuffle quality {self.score:.2f} (1: uniform, 0: the files' order); distance "
            f"{self.distance:.3f}, uniform {self.uniform:.3f}, file order {self.file_order:.3f}"
        )


def shuffle_quality(plan: Plan, epoch: int = 0) -> ShuffleQuality:
    """Judge an order from its plan alone; reads no data.

    Examples
    --------
    >>> good = shuffle_quality(Plan((100,) * 8, batch=40, streams=8, chunk=20))
    >>> poor = shuffle_quality(Plan((100,) * 8, batch=40, streams=1, chunk=1))
    >>> good.score > 0.9 > 0.5 > poor.score
    True
    """
    starts = np.concatenate([[0], np.cumsum(plan.sizes)])
    chunks = np.unique(np.linspace(0, plan.chunks - 1, min(_SAMPLE, plan.chunks)).astype(int))
    random = np.random.default_rng(0)
    here, chance, ordered = [], [], []
    order, uniform = plan.epoch(epoch), plan.whole and plan.shuffle
    for number in chunks.tolist():
        chunk = order.chunk(number)
        rows = np.empty(0, np.int64) if uniform else _rows(order, chunk, starts)
        for step in random.integers(chunk.steps, size=-(-_SAMPLE // len(chunks))).tolist():
            batch = rows[chunk.bounds[step] : chunk.bounds[step + 1]]
            count, total = int(chunk.bounds[step + 1] - chunk.bounds[step]), plan.rows
            drawn = random.choice(total, count, replace=count > total)
            chance.append(_distance(drawn, total))
            here.append(chance[-1] if uniform else _distance(batch, total))
            first = int(random.integers(max(1, total - count + 1)))
            ordered.append(_distance(np.arange(first, first + count), total))
    got, best, worst = float(np.mean(here)), float(np.mean(chance)), float(np.mean(ordered))
    score = 1.0 if worst <= best else float(np.clip((worst - got) / (worst - best), 0, 1))
    return ShuffleQuality(score, got, best, worst)


def _rows(epoch: Epoch, chunk: ChunkPlan, starts: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Where the chunk's rows lie in the data, in the order of delivery."""
    rows = np.empty(chunk.rows, np.int64)
    blocks = {
        number: _block_rows(epoch, number, starts) for number in {s.block for s in chunk.copy_runs}
    }
    for copy_run in chunk.copy_runs:
        for step in range(copy_run.steps):
            position, start = (
                copy_run.position + step * copy_run.dst_stride,
                copy_run.start + step * copy_run.src_stride,
            )
            rows[position : position + copy_run.width] = blocks[copy_run.block][
                start : start + copy_run.width
            ]
    return rows


def _block_rows(epoch: Epoch, block: int, starts: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    laid = [starts[p] + np.arange(epoch.plan.sizes[p]) for p in epoch.partitions(block)]
    rows, index = np.concatenate(laid), epoch.permutation(block)
    return rows if index is None else rows[index]


def _distance(rows: npt.NDArray[np.int64], total: int) -> float:
    """Largest gap between the share of rows seen up to a position and the position itself."""
    positions = (np.sort(rows) + 0.5) / total
    count = len(positions)
    if count == 0:
        return 0.0
    above = np.arange(1, count + 1) / count - positions
    below = positions - np.arange(count) / count
    return float(max(above.max(), below.max()))


def sorted_columns(dataset: Dataset, columns: Sequence[str]) -> list[str]:
    """The columns whose values rise (or fall) from row group to row group, through all files."""
    files = dataset.fileset.files
    return [c for c in columns if _is_sorted(_ranges(files, c))]


def _ranges(files: Sequence[DataFile], column: str) -> list[tuple[Any, Any]]:
    """Smallest and largest value of each row group; empty if some footer does not tell."""
    out = []
    for file in files:
        for bounds in file.bounds(column):
            if bounds is None:
                return []
            out.append(bounds)
    return out


def _is_sorted(ranges: list[tuple[Any, Any]]) -> bool:
    """Whether hardly any range overlaps the next one.

    Examples
    --------
    >>> _is_sorted([(0, 0), (0, 0), (0, 1), (1, 1)])
    True
    >>> _is_sorted([(0, 1), (0, 1), (0, 1), (0, 1)]), _is_sorted([(0, 0)] * 9)
    (False, False)
    """
    if len(ranges) < _FEWEST_GROUPS or len(set(ranges)) == 1:
        return False
    pairs = list(pairwise(ranges))
    rising = sum(a[1] <= b[0] for a, b in pairs)
    falling = sum(a[0] >= b[1] for a, b in pairs)
    return bool(max(rising, falling) >= _SORTED_SHARE * len(pairs))


def warn_if_sorted(dataset: Dataset, targets: Sequence[str], plan: Plan) -> None:
    """Warn if shuffling will not make up for the order the files have."""
    if not plan.shuffle or dataset.mapped:
        return
    names = dataset.column_names
    found = sorted_columns(dataset, [t for t in targets if t in names])
    if not found:
        return
    quality = shuffle_quality(plan)
    if quality.score < _GOOD_ENOUGH:
        warnings.warn(
            f"the files are sorted by {found[0]!r}, which is to be learned, and {quality}: "
            "batches will not be alike. Write the data once with "
            'Dataset.to_parquet(path, shuffle="full") and load that, or raise parts_per_chunk and '
            "host_memory",
            TabfeedWarning,
            stacklevel=4,
        )
