"""Sums of groups of floats, the same bits in whatever order they are added.

A sum is kept as two floats, the sum rounded and what the rounding took away: 106 bits, which hold
the sums of real data without any rounding. Values are cut on grids as in `tabfeed.ops.exact`, and
the pieces on each grid are added group by group, which is exact.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from tabfeed.ops.exact import squared

__all__ = ["group_squares", "group_sums", "spread_of"]

Floats = npt.NDArray[np.float64]
Places = npt.NDArray[np.int64]
Pair = tuple[Floats, Floats]

_KEEP_24 = float(2**29 + 1)
_LARGE = 2.0**960  # beyond, a grid would overflow


def group_sums(parts: list[Floats], starts: Places) -> Pair:
    """Sums of groups that lie one behind the other, from `starts` on, in each of the parts.

    What is infinite makes its group's sum infinite, or nothing.

    Examples
    --------
    >>> values = np.array([1e16, 1.0, 1.0, 5.0])
    >>> high, low = group_sums([values], np.array([0, 3]))
    >>> high.tolist(), low.tolist()
    ([1.0000000000000002e+16, 5.0], [0.0, 0.0])
    """
    total = [np.zeros(len(starts)) for _ in range(3)]
    beyond = np.zeros(len(starts))
    for values in parts:
        inside = np.abs(values) <= _LARGE
        if not inside.all():
            with np.errstate(invalid="ignore", over="ignore"):
                beyond += np.add.reduceat(np.where(inside, 0.0, values), starts)
            values = np.where(inside, values, 0.0)
        for piece in _pieces(values, starts):
            _add(total, piece)
    high, low = _settled(total)
    with np.errstate(invalid="ignore"):
        return high + beyond, np.where(beyond == 0, low, 0.0)


def group_squares(values: Floats, starts: Places) -> Pair:
    """Sums of squares of the groups."""
    with np.errstate(over="ignore", invalid="ignore"):
        parts = squared(np.where(np.abs(values) < 2.0**480, values, np.inf))
    return group_sums([parts[0], *(_leading(np.nan_to_num(p, nan=0.0)) for p in parts[1:])], starts)


def _leading(values: Floats) -> Floats:
    """The first 24 bits: of a square's lower half no more fits when many are added."""
    scaled = values * _KEEP_24
    return scaled - (scaled - values)


def _pieces(rest: Floats, starts: Places) -> list[Floats]:
    """Sums of the groups on finer and finer grids."""
    bits = max(1, len(rest) - 1).bit_length()
    out: list[Floats] = []
    while (largest := float(np.abs(rest).max(initial=0.0))) > 0.0:
        power = math.frexp(largest)[1] + bits
        if power - 52 <= -1074:
            return [*out, np.add.reduceat(rest, starts)]
        grid = math.ldexp(1.5, power)
        coarse = (rest + grid) - grid
        out.append(np.add.reduceat(coarse, starts))
        rest = rest - coarse
    return out


def _two_sum(a: Floats, b: Floats) -> Pair:
    """A sum, and what rounding it took away (Knuth)."""
    total = a + b
    part = total - a
    return total, (a - (total - part)) + (b - part)


def _add(total: list[Floats], more: Floats) -> None:
    for i in range(len(total)):
        total[i], more = _two_sum(total[i], more)


def _settled(total: list[Floats]) -> Pair:
    """Three floats as two that do not overlap."""
    high, middle, low = total
    middle, low = _two_sum(middle, low)
    high, middle = _two_sum(high, middle)
    middle, low = _two_sum(middle, low)
    high, middle = _two_sum(high, middle)
    return high, middle + low


def spread_of(count: Floats, total: Pair, squares: Pair) -> Floats:
    """Sum of squared distances from the mean: ``squares - total ** 2 / count``, to 106 bits."""
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        high, low = _product(total[0], total[0])
        low = low + 2.0 * total[0] * total[1]
        share = high / count
        back, back_low = _product(share, count)
        share_low = ((high - back) - back_low + low) / count
        first, second = _two_sum(squares[0], -share)
        return np.maximum(0.0, first + (second + (squares[1] - share_low)))


def _product(a: Floats, b: Floats) -> Pair:
    """A product, and what rounding it took away (Dekker)."""
    splitter = float(2**27 + 1)
    ha = a * splitter - (a * splitter - a)
    hb = b * splitter - (b * splitter - b)
    la, lb = a - ha, b - hb
    product = a * b
    return product, ((ha * hb - product) + ha * lb + la * hb) + la * lb
