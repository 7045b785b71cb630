"""Bytes of partitions whose rows differ in size: how much some rows can take at most.

Text and lists make a row small or large. A plan is made of rows, so it asks here what the rows of
a batch, or of a chunk, take where they are largest.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

__all__ = ["RowWeights"]

Line = npt.NDArray[np.float64]


@dataclass(frozen=True)
class RowWeights:
    """The rows and bytes of each partition.

    Parameters
    ----------
    rows, nbytes
        Of each partition, in the order of the plan's sizes.
    """

    rows: tuple[int, ...]
    nbytes: tuple[int, ...]

    @cached_property
    def largest(self) -> int:
        """Bytes of the largest partition."""
        return max(self.nbytes, default=0)

    @cached_property
    def mean(self) -> float:
        """Bytes of a row."""
        return sum(self.nbytes) / max(1, sum(self.rows))

    def most(self, rows: int, order: Sequence[int] | npt.NDArray[np.int64], streams: int) -> int:
        """Bytes that `rows` rows take at most, as many of each of some streams.

        Parameters
        ----------
        rows
            How many.
        order
            Partitions, as they lie end to end.
        streams
            So many runs of them are read side by side: in one the rows are the largest there are.

        Examples
        --------
        >>> weights = RowWeights((10, 2, 10), (10, 200, 10))
        >>> weights.most(2, [0, 1, 2], 1), weights.most(4, [0, 1, 2], 1)
        (200, 202)
        """
        share = max(1, rows // max(1, streams))
        numbers = np.asarray(order, np.int64)
        ends = np.concatenate([[0], np.cumsum(np.asarray(self.rows, np.float64)[numbers])])
        size = np.concatenate([[0], np.cumsum(np.asarray(self.nbytes, np.float64)[numbers])])
        ahead = np.interp(ends + share, ends, size) - size
        behind = size - np.interp(ends - share, ends, size)
        largest = max(float(ahead.max()), float(behind.max()))
        return int(largest + (rows - share) * self.mean)

    def densest(self, below: int) -> float:
        """Bytes of a row where they are largest, in partitions of fewer than `below` rows."""
        found = (n / r for r, n in zip(self.rows, self.nbytes, strict=True) if 0 < r < below)
        return max(found, default=0.0)
