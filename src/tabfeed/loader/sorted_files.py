"""Whether files are sorted by what is to be learned, told from their footers alone.

Shuffling mixes what is read at once. If a file holds all its zeros first and its ones last, what
is read at once may be all zeros. Parquet footers give the smallest and largest value of each
row group, so the question costs nothing.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from tabfeed.errors import TabfeedWarning
from tabfeed.io.dataset import Dataset
from tabfeed.io.formats.base import DataFile
from tabfeed.loader.plan.order import Plan
from tabfeed.loader.plan.shuffle_quality import shuffle_quality

__all__ = ["sorted_columns", "warn_if_sorted"]

_FEWEST_GROUPS = 4
_SORTED_SHARE = 0.9
_GOOD_ENOUGH = 0.95


def sorted_columns(dataset: Dataset, columns: Sequence[str]) -> list[str]:
    """The columns whose values rise (or fall) from row group to row group, through all files."""
    return [c for c in columns if _is_sorted(_ranges(dataset.fileset.files, c))]


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
    found = sorted_columns(dataset, [t for t in targets if t in dataset.schema])
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
