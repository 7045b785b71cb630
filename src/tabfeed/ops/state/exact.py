"""Moments and sums of floats without rounding: the same bits in whatever order they are added.

The sum of a million floats depends, in its last bits, on where the partitions were cut and who
merged what first. Here it does not: a sum is a whole number times a power of two, and is rounded
once, when it is read.

Whole blocks are added at a time. Adding and subtracting a large constant cuts from each value of a
block its leading bits, on a grid so coarse that their sum is exact in a float; what is left of the
values is cut again on a finer grid, until nothing is left: two or three rounds for most data. A
square of a float is two floats (Dekker 1971), each added that way. It costs some 11 ns a value
where a plain sum costs 1, and is still a small part of decoding and counting.

The moments of a column are the count, the sum, the sum of squares, and the range. So large values
do not drown small differences.

The sum of a group is kept as two floats, the sum rounded and what the rounding took away: 106 bits,
which hold the sums of real data without any rounding. Squares reach twice as far down, so their
sums are three floats. The pieces on each grid are added group by group, which is exact.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa

from tabfeed.errors import OperatorError
from tabfeed.ops.frames import missing_to_null
from tabfeed.schema import ColumnSchema

Floats = npt.NDArray[np.float64]
_BLOCK_BITS = 14
_FINEST = -1074  # every float is a multiple of 2 to this power
_SPLITTER = float(2**27 + 1)
_LARGE, _SMALL = 2.0**450, 2.0**-450  # outside, a square over- or underflows
Places = npt.NDArray[np.int64]
Words = tuple[Floats, ...]  # which add up to a number, the first of them the number rounded
_FOLLOWING = 1.5 * 2**16  # times the last bit of a float: what rounds to 36 bits behind it
_LARGEST = 2.0**960  # beyond, a grid would overflow
Moments = dict[str, Any]


class Exact(NamedTuple):
    """``number * 2 ** power``, the number odd or zero.

    Examples
    --------
    >>> third = Exact.of(6) + Exact.of(Fraction(1, 4))
    >>> third, float(third.value)
    (Exact(number=25, power=-2), 6.25)
    """

    number: int
    power: int

    @classmethod
    def of(cls, value: int | Fraction, power: int = 0) -> Exact:
        """A whole number, or a fraction whose denominator is a power of two."""
        fraction = Fraction(value)
        number = fraction.numerator
        power -= fraction.denominator.bit_length() - 1
        zeros = (number & -number).bit_length() - 1 if number else 0
        return cls(number >> zeros, power + zeros if number else 0)

    @property
    def value(self) -> Fraction:
        """As a fraction."""
        return self.number * Fraction(2) ** self.power

    def __add__(self, other: tuple[object, ...]) -> Exact:
        assert isinstance(other, Exact)
        power = min(self.power, other.power)
        number = (self.number << self.power - power) + (other.number << other.power - power)
        return Exact.of(number, power)


def sum_and_squares(values: npt.NDArray[Any]) -> tuple[Exact, Exact]:
    """The sum of finite values, and the sum of their squares.

    Of floats of 32 bits it takes half the time: a square of theirs is one float of 64.

    Examples
    --------
    >>> total, squares = sum_and_squares(np.array([1e16, 1.0, -1e16]))
    >>> float(total.value), squares.value == 2 * 10**32 + 1
    (1.0, True)
    """
    sums, squares = 0, 0
    narrow = values.dtype == np.float32
    for start in range(0, len(values), 1 << _BLOCK_BITS):
        block = np.ascontiguousarray(values[start : start + (1 << _BLOCK_BITS)], np.float64)
        size = np.abs(block)
        largest = float(size.max())
        if largest > _LARGE or np.count_nonzero(size >= _SMALL) < np.count_nonzero(block):
            whole = [_as_integer(float(v)) for v in block]
            sums += sum(whole) << -_FINEST
            squares += sum(v * v for v in whole)
            continue
        for part in [block * block] if narrow else squared(block):
            squares += _sum(part, largest * largest) << -_FINEST
        sums += _sum(block, largest) << -_FINEST
    return Exact.of(sums, 2 * _FINEST), Exact.of(squares, 2 * _FINEST)


def _as_integer(value: float) -> int:
    """A float in units of the finest."""
    number, denominator = value.as_integer_ratio()
    return number * (1 << -_FINEST) // denominator


def _sum(values: Floats, largest: float) -> int:
    """The sum of one block, in units of the finest float; no value is beyond `largest`."""
    total, rest = 0, values
    power = math.frexp(largest)[1] + _BLOCK_BITS
    coarse, left = np.empty_like(values), np.empty_like(values)
    while True:
        unit = power - 52
        if unit <= _FINEST:  # so small that any sum of them is exact
            return total + _as_integer(float(rest.sum()))
        grid = math.ldexp(1.5, power)
        np.add(rest, grid, out=coarse)
        np.subtract(coarse, grid, out=coarse)
        total += int(math.ldexp(float(coarse.sum()), -unit)) << unit - _FINEST
        rest = np.subtract(rest, coarse, out=left)
        if not rest.any():
            return total
        power = unit + _BLOCK_BITS  # what is left of a value is half a unit at most


def squared(values: Floats) -> list[Floats]:
    """Each value's square, rounded, and what the rounding took away."""
    scaled = values * _SPLITTER
    high = scaled - (scaled - values)
    low = values - high
    square = values * values
    if not low.any():
        return [square]
    return [square, ((high * high - square) + 2.0 * high * low) + low * low]


def group_sums(parts: list[Floats], starts: Places, *, words: int = 2) -> Words:
    """Sums of groups that lie one behind the other, from `starts` on, in each of the parts.

    What is infinite makes its group's sum infinite, or nothing.

    Examples
    --------
    >>> values = np.array([1e16, 1.0, 1.0, 5.0])
    >>> high, low = group_sums([values], np.array([0, 3]))
    >>> high.tolist(), low.tolist()
    ([1.0000000000000002e+16, 5.0], [0.0, 0.0])
    """
    total = [np.zeros(len(starts)) for _ in range(words + 1)]
    beyond = np.zeros(len(starts))
    for values in parts:
        inside = np.abs(values) <= _LARGEST
        if not inside.all():
            with np.errstate(invalid="ignore", over="ignore"):
                beyond += np.add.reduceat(np.where(inside, 0.0, values), starts)
            values = np.where(inside, values, 0.0)
        for piece in _pieces(values, starts):
            _add(total, piece)
    high, *lower = _settled(total)
    with np.errstate(invalid="ignore"):
        return high + beyond, *(np.where(beyond == 0, low, 0.0) for low in lower)


def group_squares(values: Floats, starts: Places) -> Words:
    """Sums of squares of the groups, in three words."""
    with np.errstate(over="ignore", invalid="ignore"):
        parts = squared(np.where(np.abs(values) < 2.0**480, values, np.inf))
    return group_sums([parts[0], *(_cut(parts[0], p) for p in parts[1:])], starts, words=3)


def halves(values: npt.NDArray[Any]) -> tuple[Floats, Floats]:
    """Integers of 64 bits as two floats each, which add up to them exactly.

    Examples
    --------
    >>> high, low = halves(np.array([-1, 2**62 + 1]))
    >>> high.tolist(), low.tolist()
    ([-4294967296.0, 4.611686018427388e+18], [4294967295.0, 1.0])
    """
    bits = values.dtype.type(32)
    low = values & values.dtype.type(2**32 - 1)
    return (values >> bits).astype(np.float64) * 2.0**32, low.astype(np.float64)


def group_squares_of_halves(high: Floats, low: Floats, starts: Places) -> Words:
    """Sums of squares of the groups of integers, exactly."""
    parts = [*_product(high, high), *_product(2.0 * high, low), *_product(low, low)]
    return group_sums(parts, starts, words=3)


def whole_sums(high: Floats, low: Floats) -> list[int]:
    """Sums of integers as such: two floats hold them exactly."""
    return [int(a) + int(b) for a, b in zip(high.tolist(), low.tolist(), strict=True)]


def _cut(square: Floats, rest: Floats) -> Floats:
    """The 36 bits that follow a square's own: no more fits when many are added.

    Counted from the square's last bit, not from the first one set in the rest: where that comes
    late, the bits would lie so low that a sum's do not reach them, and their order would matter.
    """
    with np.errstate(invalid="ignore"):
        grid = np.spacing(square) * _FOLLOWING
        return np.nan_to_num((rest + grid) - grid, nan=0.0)


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


def _two_sum(a: Floats, b: Floats) -> tuple[Floats, Floats]:
    """A sum, and what rounding it took away (Knuth)."""
    total = a + b
    part = total - a
    return total, (a - (total - part)) + (b - part)


def _add(total: list[Floats], more: Floats) -> None:
    for i in range(len(total)):
        total[i], more = _two_sum(total[i], more)


def _settled(total: list[Floats]) -> Words:
    """The same number in one word less, none of which overlap."""
    words = list(total)
    for _ in total:
        for i in reversed(range(len(words) - 1)):
            words[i], words[i + 1] = _two_sum(words[i], words[i + 1])
    return *words[:-2], words[-2] + words[-1]


def spread_of(count: Floats, total: Words, squares: Words) -> Floats:
    """Sum of squared distances from the mean: ``squares - total ** 2 / count``, to 106 bits."""
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        high, low = _product(total[0], total[0])
        low = low + 2.0 * total[0] * total[1]
        part = high / count
        back, back_low = _product(part, count)
        part_low = ((high - back) - back_low + low) / count
        first, second = _two_sum(squares[0], -part)
        spread = np.maximum(0.0, first + (second + (squares[1] - part_low + squares[2])))
        return np.where(count == 1, 0.0, spread)


def spread_of_large(variance: Floats, count: Floats, total: Words, squares: Words) -> Floats:
    """The variances, those of integers whose squares take more than 106 bits computed anew."""
    for i in np.flatnonzero((squares[0] >= 2.0**106) & (count > 1)).tolist():
        n, whole = int(count[i]), sum(int(w[i]) for w in total)
        spread = n * sum(int(w[i]) for w in squares) - whole * whole
        variance[i] = spread / (n * (n - 1))
    return variance


def _product(a: Floats, b: Floats) -> tuple[Floats, Floats]:
    """A product, and what rounding it took away (Dekker)."""
    splitter = float(2**27 + 1)
    ha = a * splitter - (a * splitter - a)
    hb = b * splitter - (b * splitter - b)
    la, lb = a - ha, b - hb
    product = a * b
    return product, ((ha * hb - product) + ha * lb + la * hb) + la * lb


def collect_moments(frame: pl.LazyFrame, columns: Sequence[ColumnSchema]) -> dict[str, Moments]:
    """Moments of each column, nulls and NaN left out."""
    exprs = []
    for i, column in enumerate(columns):
        values = pl.col(column.name).explode() if column.is_list else pl.col(column.name)
        x = missing_to_null(values, column)
        if column.leaf_dtype != pa.float32():
            x = x.cast(pl.Float64)
        exprs.append(x.implode().alias(f"x{i}"))
    found = frame.select(exprs).collect()
    return {c.name: _moments(found[f"x{i}"].explode()) for i, c in enumerate(columns)}


def _moments(series: pl.Series) -> Moments:
    values = series.drop_nulls().to_numpy()
    if not len(values):
        nothing = [0, 0]
        return {"count": 0, "sum": nothing, "squares": nothing, "min": None, "max": None}
    low, high = float(values.min()), float(values.max())
    if not (math.isfinite(low) and math.isfinite(high)):
        return {"count": len(values), "sum": None, "squares": None, "min": low, "max": high}
    total, squares = sum_and_squares(values)
    return {
        "count": len(values), "sum": list(total), "squares": list(squares), "min": low, "max": high,
    }  # fmt: skip


def merge_moments(a: Moments, b: Moments) -> Moments:
    """Moments of both.

    Examples
    --------
    >>> one = {"count": 1, "sum": [1, 0], "squares": [1, 0], "min": 1.0, "max": 1.0}
    >>> two = {"count": 1, "sum": [3, 0], "squares": [9, 0], "min": 3.0, "max": 3.0}
    >>> merge_moments(one, two)
    {'count': 2, 'sum': [1, 2], 'squares': [5, 1], 'min': 1.0, 'max': 3.0}
    """
    if not a["count"] or not b["count"]:
        return a if a["count"] else b
    return {
        "count": a["count"] + b["count"],
        "sum": _plus(a["sum"], b["sum"]),
        "squares": _plus(a["squares"], b["squares"]),
        "min": min(a["min"], b["min"]),
        "max": max(a["max"], b["max"]),
    }


def _plus(a: list[int] | None, b: list[int] | None) -> list[int] | None:
    """The sum of two exact numbers; of what is infinite there is none."""
    return None if a is None or b is None else list(Exact(*a) + Exact(*b))


def spread(moments: Moments, name: str, operator: str) -> tuple[float, float]:
    """Mean and standard deviation (of a sample); 0 and 1 where there was no value."""
    if not moments["count"]:
        return 0.0, 1.0
    if moments["sum"] is None:
        raise OperatorError(
            f"{operator}: column {name!r} holds infinite values, so it has no mean; "
            "limit it first, for instance with Clip or FillMissing"
        )
    total, squares = (Exact(*moments[k]).value for k in ("sum", "squares"))
    count = moments["count"]
    variance = (squares - total * total / count) / max(1, count - 1)
    return float(total / count), _root(variance)


def _root(value: Fraction) -> float:
    """A square root, also of what is too large or too small for a float."""
    if not value:
        return 0.0
    shift = (value.numerator.bit_length() - value.denominator.bit_length()) // 2
    return math.ldexp(math.sqrt(value / Fraction(4) ** shift), shift)
