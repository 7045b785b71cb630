"""Statistics of groups: the same whether they fit into memory or not."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import polars as pl
import pyarrow as pa
import pytest

from tabfeed.ops.keyed import group_stats
from tabfeed.ops.keyed.group_stats import GroupStats
from tabfeed.ops.state.memory import MemoryManager


def _parts() -> list[pl.DataFrame]:
    """Keys that come again in other parts, null keys, and a part with nothing but those."""
    parts = [
        pl.DataFrame({"k": [f"a longer key {(i * j) % 97}" for i in range(200)], "x": range(200)})
        for j in range(1, 4)
    ]
    nothing = pl.DataFrame({"k": pl.Series([None, None], dtype=pl.Null), "x": [5, 7]})
    return [*parts, nothing]


def _gathered(memory: MemoryManager, *, spilling: bool) -> list[dict[str, Any]]:
    whole = GroupStats(1, 1, memory)
    for part in _parts():
        stats = GroupStats(1, 1, memory)
        stats.add([part["k"]], [part["x"]])
        if spilling:
            stats.spill()
        whole.join(stats)
    rows: list[dict[str, Any]] = whole.stored().read().to_pylist()
    return sorted(rows, key=lambda row: (row["k0"] is not None, row["k0"]))


def test_spilled_groups_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_stats, "_LEAST_ROOM", 0)  # one share at a time
    got = _gathered(MemoryManager(1000), spilling=True)
    assert got == _gathered(MemoryManager(), spilling=False)
    assert [(r["k0"], r["rows"], r["sum0"]) for r in got[:1]] == [(None, 2, 12.0)]
    assert len(got) == 98


def test_rows_that_differ_in_the_fold_alone_lie_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(group_stats, "_LEAST_ROOM", 0)  # one share at a time
    stats = GroupStats(2, 0, MemoryManager(1000), apart=1)
    for shift in (0, 1):
        keys = [f"key {i % 20}" if i % 20 else None for i in range(200)]
        stats.add([pl.Series(keys), pl.Series([(i + shift) // 20 % 3 for i in range(200)])], [])
        stats.spill()
    found = stats.stored().read().column("k0").to_pylist()
    assert len(found) == 60
    assert sum(a != b for a, b in pairwise(found)) == len({*found}) - 1 == 19


def test_no_groups() -> None:
    assert GroupStats(1, 1, MemoryManager()).stored().read().schema == pa.schema(
        [("k0", pa.null())]
    )


def test_sums_of_squares_of_floats_in_a_table_of_groups() -> None:
    stats = GroupStats(1, 2, MemoryManager())
    keys = pl.Series([2, 1, 2])
    stats.add([keys], [pl.Series([0.5, 1.5, 2.5]), pl.Series([0.25, None, 0.75])])
    rows = stats.stored().read().to_pylist()
    assert [(r["k0"], r["rows"], r["n0"], r["n1"]) for r in rows] == [(1, 1, 1, 0), (2, 2, 2, 2)]
    assert [(r["sum0"], r["squares0"]) for r in rows] == [(1.5, 2.25), (3.0, 6.5)]
    assert [(r["sum1"], r["squares1"]) for r in rows] == [(0.0, 0.0), (1.0, 0.625)]
    assert [(r["min0"], r["max0"]) for r in rows] == [(1.5, 1.5), (0.5, 2.5)]
