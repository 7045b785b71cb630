"""Tells a user, once for each column, that nulls become NaN.

Footers of Parquet files say how many there are before anything is read. Where they do not, or where
functions or filters come in between, the first table with nulls does.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Mapping
from typing import Any

from tabfeed.errors import TabfeedWarning
from tabfeed.io.dataset import Dataset
from tabfeed.loader.read.arrow_columns import Layout

__all__ = ["NullWatch"]

_MOST_CHUNKS = 50_000  # of a footer: each takes 3 microseconds to look at


class NullWatch:
    """What one loader has said of nulls; threads may share it.

    Examples
    --------
    >>> watch = NullWatch()
    >>> with warnings.catch_warnings(record=True) as said:
    ...     warnings.simplefilter("always")
    ...     watch.tell({"price": 3}, "partition 0")
    ...     watch.tell({"price": 5}, "partition 1")
    >>> print(*(warning.message for warning in said))
    nulls become NaN: 3 in column 'price', in partition 0; fill them first (FillMissing), or leave \
out those rows (Dropna)
    """

    def __init__(self) -> None:
        self._told: set[str] = set()
        self._lock = threading.Lock()
        self._silent = False

    def tell(self, counts: Mapping[str, int], where: str, *, stacklevel: int = 2) -> None:
        """Warn of columns of which it has not warned yet.

        Parameters
        ----------
        counts
            The nulls of each column.
        where
            What has so many.
        stacklevel
            As for `warnings.warn`.
        """
        with self._lock:
            new = {n: c for n, c in counts.items() if c and n not in self._told}
            self._told.update(new)
        if new and not self._silent:
            found = ", ".join(f"{count:,} in column {name!r}" for name, count in new.items())
            warnings.warn(
                f"nulls become NaN: {found}, in {where}; fill them first (FillMissing), or leave "
                "out those rows (Dropna)",
                TabfeedWarning,
                stacklevel=stacklevel + 1,
            )

    def tell_from_footers(self, dataset: Dataset, layout: Layout, *, stacklevel: int = 2) -> None:
        """Warn of all columns whose nulls the footers of the files count, if that takes no time."""
        names = [c for g in layout.groups if g.dtype.kind == "f" for c in g.columns]
        files = dataset.fileset.files
        if dataset.mapped or dataset.condition is not None or not names:
            return
        units = {(piece.file, piece.unit) for part in dataset.partitions for piece in part.pieces}
        if len(units) * len(names) > _MOST_CHUNKS:
            return
        counts = dict.fromkeys(names, 0)
        for number, unit in units:
            file = files[number]
            there = [name for name in names if name in file.schema.names]
            for name, count in zip(there, file.null_counts(unit, there), strict=True):
                counts[name] += count or 0
        self.tell(counts, "the files", stacklevel=stacklevel + 1)

    def silence(self) -> None:
        """Say nothing from now on."""
        self._silent = True

    def __getstate__(self) -> dict[str, Any]:
        return {"_told": set(self._told), "_silent": self._silent}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__()  # type: ignore[misc]
        vars(self).update(state)
