"""Statistics of groups: how many rows, and of each value column count, sum, mean, spread, range.

Joined across partitions like everything that is learned: exactly, in any order. A null key
is a key like any other. Past the memory limit, tables of groups go to disk; the runs are
joined a share of the keys at a time.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa

from tabfeed.hashing import hash_columns
from tabfeed.ops.keys import base_type
from tabfeed.ops.memory import Memory

__all__ = ["ROWS", "GroupStats", "key_names"]

ROWS = "rows"


def key_names(group: Sequence[str]) -> list[str]:
    """Names of the key columns inside a table of groups."""
    return [f"k{i}" for i in range(len(group))]


class GroupStats:
    """A growing table: keys, ``rows``, and for value column ``i``: n, sum, mean, m2, min, max.

    Parameters
    ----------
    keys
        How many key columns.
    values
        How many value columns.
    memory
        The limit it shares with others.
    """

    def __init__(self, keys: int, values: int, memory: Memory) -> None:
        self.keys = [f"k{i}" for i in range(keys)]
        self.values = values
        self.memory = memory
        self._parts: list[pl.DataFrame] = []
        self._grouped = 0
        self._runs: list[Path] = []
        memory.hold(self)

    def add(self, keys: Sequence[pl.Series], values: Sequence[pl.Series]) -> None:
        """Add the rows of a partition."""
        columns = {k: clean_key(s) for k, s in zip(self.keys, keys, strict=True)}
        columns |= {f"v{i}": s for i, s in enumerate(values)}
        aggregates: list[pl.Expr] = [pl.len().cast(pl.Int64).alias(ROWS)]
        for i in range(self.values):
            aggregates += _summaries(i)
        self._append(pl.DataFrame(columns).group_by(self.keys).agg(aggregates))

    def _append(self, frame: pl.DataFrame) -> None:
        self._parts.append(frame)
        if sum(len(p) for p in self._parts) > 2 * max(self._grouped, 200_000):
            if self.memory.allows_grouping(self.nbytes()):
                self._group()
            else:
                self.spill()

    def _group(self) -> None:
        if len(self._parts) > 1:
            self._parts = [self._joined(self._parts)]
        self._grouped = sum(len(p) for p in self._parts)

    def _joined(self, parts: list[pl.DataFrame]) -> pl.DataFrame:
        merges: list[pl.Expr] = [pl.col(ROWS).sum()]
        for i in range(self.values):
            merges += _merges(i)
        return pl.concat(parts, how="vertical_relaxed").group_by(self.keys).agg(merges)

    def join(self, other: GroupStats) -> GroupStats:
        """Take over what another holds."""
        self._runs += other._runs
        for part in other._parts:
            self._append(part)
        self.memory.settle()
        return self

    def nbytes(self) -> int:
        """Bytes held in memory."""
        return int(sum(p.estimated_size() for p in self._parts))

    def spill(self) -> None:
        """Write what is held to a run on disk."""
        while self._parts:
            path = self.memory.new_file()
            self._parts.pop(0).write_parquet(path, compression="lz4")
            self._runs.append(path)
        self._grouped = 0

    def table(self) -> pa.Table:
        """All groups, sorted by key."""
        if self._runs:
            self._join_runs()
        self._group()
        if not self._parts:
            return pa.table({k: pa.nulls(0) for k in self.keys})
        frame = self._parts[0].sort(self.keys, nulls_last=False)
        table = frame.to_arrow(compat_level=pl.CompatLevel.oldest())
        types = [pa.field(f.name, base_type(f.type)) for f in table.schema]
        return table.cast(pa.schema(types)).combine_chunks()

    def _join_runs(self) -> None:
        """Join runs a share of the keys at a time, so that only the result is held whole."""
        self.spill()
        held = sum(run.stat().st_size for run in self._runs)
        shares = 1 + 4 * held // max(1, (self.memory.limit or held) // 4)
        joined = []
        for share in range(shares):
            joined.append(
                self._joined([_share(run, self.keys, share, shares) for run in self._runs])
            )
        self._parts, self._runs = [pl.concat(joined)], []

    @classmethod
    def from_table(cls, table: pa.Table, keys: int, values: int, memory: Memory) -> GroupStats:
        """Groups that were saved."""
        stats = cls(keys, values, memory)
        if table.num_rows:
            frame = pl.from_arrow(table)
            assert isinstance(frame, pl.DataFrame)
            stats._append(frame)
        return stats

    def __getstate__(self) -> dict[str, Any]:
        return {"table": self.table(), "keys": len(self.keys), "values": self.values}

    def __setstate__(self, state: dict[str, Any]) -> None:
        new = GroupStats.from_table(state["table"], state["keys"], state["values"], Memory())
        vars(self).update(vars(new))
        self.memory.hold(self)


def clean_key(series: pl.Series) -> pl.Series:
    """NaN as null, categories as text: keys that compare alike everywhere."""
    if series.dtype in (pl.Float32, pl.Float64):
        return series.cast(pl.Float64).fill_nan(None)
    if series.dtype in (pl.Categorical, pl.Enum):
        return series.cast(pl.String)
    if series.dtype.is_integer() and series.dtype != pl.UInt64:
        return series.cast(pl.Int64)
    return series


def _share(run: Path, keys: list[str], share: int, shares: int) -> pl.DataFrame:
    frame = pl.read_parquet(run)
    hashes = hash_columns(frame.select(keys).to_arrow(), keys)
    return frame.filter(pl.Series(hashes % np.uint64(shares) == share))


def _summaries(i: int) -> list[pl.Expr]:
    raw = pl.col(f"v{i}")
    x = raw.cast(pl.Float64).fill_nan(None)
    return [
        x.count().cast(pl.Int64).alias(f"n{i}"), x.sum().alias(f"sum{i}"),
        x.mean().fill_null(0.0).alias(f"mean{i}"),
        (x.var(ddof=0).fill_null(0.0) * x.count()).alias(f"m2{i}"),
        raw.min().alias(f"min{i}"), raw.max().alias(f"max{i}"),
    ]  # fmt: skip


def _merges(i: int) -> list[pl.Expr]:
    n, mean = pl.col(f"n{i}"), pl.col(f"mean{i}")
    total = n.sum().clip(lower_bound=1)
    first = mean.first()
    middle = first + ((mean - first) * n).sum() / total
    return [
        n.sum().alias(f"n{i}"), pl.col(f"sum{i}").sum(), middle.alias(f"mean{i}"),
        (pl.col(f"m2{i}").sum() + (n * (mean - middle) ** 2).sum()).alias(f"m2{i}"),
        pl.col(f"min{i}").min(), pl.col(f"max{i}").max(),
    ]  # fmt: skip
