"""Sums without rounding: against fractions, in any order, cut anywhere."""

from __future__ import annotations

import functools
import math
from fractions import Fraction
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tabfeed.ops.keyed.group_stats import GroupStats
from tabfeed.ops.state.exact import Exact, group_squares, group_sums, spread_of, sum_and_squares
from tabfeed.ops.state.memory import MemoryManager

finite = st.floats(allow_nan=False, allow_infinity=False)


@given(st.lists(finite, max_size=40))
def test_sums_are_exact(values: list[float]) -> None:
    total, squares = sum_and_squares(np.array(values))
    assert total.value == sum(map(Fraction, values))
    assert squares.value == sum(Fraction(v) ** 2 for v in values)


@pytest.mark.parametrize("seed", range(3))
def test_order_and_cuts_do_not_matter(seed: int) -> None:
    rng = np.random.default_rng(seed)
    values = rng.normal(1e6, 1e-3, 40_000) * 10.0 ** rng.integers(-3, 4, 40_000)
    whole = sum_and_squares(values)
    assert sum_and_squares(rng.permutation(values)) == whole
    a, b = sum_and_squares(values[:12_345]), sum_and_squares(values[12_345:])
    assert (a[0] + b[0], a[1] + b[1]) == whole


def test_an_exact_number_is_written_one_way_only() -> None:
    assert Exact.of(12) == Exact(3, 2) and Exact.of(0, 7) == Exact(0, 0)
    assert Exact.of(5) + Exact.of(-5) == Exact(0, 0)


def test_groups_against_fsum() -> None:
    rng = np.random.default_rng(0)
    values, lengths = rng.exponential(1.0, 3_000) * 1e8, [1, 999, 1500, 500]
    starts = np.cumsum(lengths) - lengths
    high, low = group_sums([values], starts)
    squares = group_squares(values, starts)
    for i, (start, length) in enumerate(zip(starts, lengths, strict=True)):
        part = values[start : start + length]
        assert high[i] == math.fsum(part)
        assert Fraction(high[i]) + Fraction(low[i]) == sum(map(Fraction, part))
        m2 = spread_of(np.array([float(length)]), (high[[i]], low[[i]]), [s[[i]] for s in squares])
        exact = sum(Fraction(v) ** 2 for v in part) - sum(map(Fraction, part)) ** 2 / length
        assert m2[0] == pytest.approx(float(exact), rel=1e-12, abs=1e-30)


@pytest.mark.parametrize("centre", [0.0, 3.0, 1e6])
def test_squares_of_groups_are_the_same_bits_however_they_are_joined(centre: float) -> None:
    def joined(parts: list[Any]) -> Any:
        words = [np.concatenate(w) for w in zip(*parts, strict=True)]
        return group_sums(words, np.array([0]), words=3)

    for seed in range(40):
        values = np.random.default_rng(seed).normal(centre, 1.0, 1000)
        whole = group_squares(values, np.array([0]))
        parts = [group_squares(values[i : i + 50], np.array([0])) for i in range(0, 1000, 50)]
        assert joined(parts) == whole
        assert functools.reduce(lambda a, b: joined([a, b]), parts) == whole


def test_what_is_infinite_stays_in_its_group() -> None:
    values = np.array([1.0, math.inf, 2.0, math.inf, -math.inf])
    high, low = group_sums([values], np.array([0, 2, 3]))
    assert high[:2].tolist() == [math.inf, 2.0] and math.isnan(high[2])
    assert low[:2].tolist() == [0.0, 0.0]


@pytest.mark.parametrize("kind", ["floats", "ints", "large ints", "mixed"])
def test_statistics_of_groups_do_not_depend_on_the_cuts(kind: str) -> None:
    rng = np.random.default_rng(1)
    keys = pl.Series(rng.integers(0, 7, 900))
    values = {
        "floats": rng.normal(1e5, 1.0, 900),
        "ints": rng.integers(0, 9, 900),
        "large ints": rng.integers(2**50, 2**52, 900),
        "mixed": np.where(np.arange(900) < 450, 1.0, rng.normal(0.0, 1.0, 900)),
    }[kind]

    def learned(cuts: list[int]) -> bytes:
        stats = GroupStats(1, 1, MemoryManager())
        for low, high in zip([0, *cuts], [*cuts, 900], strict=True):
            more = GroupStats(1, 1, MemoryManager())
            more.add([keys[low:high]], [pl.Series(values[low:high])])
            stats = stats.join(more)
        return repr(stats.stored().read().to_pydict()).encode()

    assert learned([]) == learned([450]) == learned([1, 10, 100, 700, 899])
