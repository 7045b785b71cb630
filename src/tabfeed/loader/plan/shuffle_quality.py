"""How well an order mixes, as a number a person can judge."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tabfeed.loader.plan.order import ChunkPlan, Epoch, Plan

__all__ = ["ShuffleQuality", "shuffle_quality"]

_SAMPLE = 64


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
