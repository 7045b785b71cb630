"""Sums of floats without rounding, so that no order of adding them can be told from another.

The sum of a million floats depends, in its last bits, on where the partitions were cut and who
merged what first. Here it does not: a sum is a whole number times a power of two, and is rounded
once, when somebody asks for it.

Whole blocks are added at a time. Adding and subtracting a large constant cuts from each value of a
block its leading bits, on a grid so coarse that their sum is exact in a float; what is left of the
values is cut again on a finer grid, until nothing is left: two or three rounds for most data. A
square of a float is two floats (Dekker 1971), each added that way. It costs some 20 ns a value
where a plain sum costs 1, and is still a small part of decoding and counting.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

__all__ = ["Exact", "squared", "sum_and_squares"]

Floats = npt.NDArray[np.float64]

_BLOCK_BITS = 14
_FINEST = -1074  # every float is a multiple of 2 to this power
_SPLITTER = float(2**27 + 1)
_LARGE, _SMALL = 2.0**450, 2.0**-450  # outside, a square over- or underflows


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


def sum_and_squares(values: Floats) -> tuple[Exact, Exact]:
    """The sum of finite values, and the sum of their squares.

    Examples
    --------
    >>> total, squares = sum_and_squares(np.array([1e16, 1.0, -1e16]))
    >>> float(total.value), squares.value == 2 * 10**32 + 1
    (1.0, True)
    """
    sums, squares = 0, 0
    for start in range(0, len(values), 1 << _BLOCK_BITS):
        block = np.ascontiguousarray(values[start : start + (1 << _BLOCK_BITS)])
        size = np.abs(block)
        if size.max() > _LARGE or size.min(where=size > 0, initial=_LARGE) < _SMALL:
            whole = [_as_integer(float(v)) for v in block]
            sums += sum(whole) << -_FINEST
            squares += sum(v * v for v in whole)
            continue
        sums += _sum(block) << -_FINEST
        squares += sum(_sum(part) for part in squared(block)) << -_FINEST
    return Exact.of(sums, 2 * _FINEST), Exact.of(squares, 2 * _FINEST)


def _as_integer(value: float) -> int:
    """A float in units of the finest."""
    number, denominator = value.as_integer_ratio()
    return number * (1 << -_FINEST) // denominator


def _sum(rest: Floats) -> int:
    """The sum of one block, in units of the finest float."""
    total = 0
    while True:
        largest = float(np.abs(rest).max(initial=0.0))
        if largest == 0.0:
            return total
        power = math.frexp(largest)[1] + _BLOCK_BITS
        unit = power - 52
        if unit <= _FINEST:  # so small that any sum of them is exact
            return total + _as_integer(float(rest.sum()))
        grid = math.ldexp(1.5, power)
        coarse = (rest + grid) - grid
        total += int(math.ldexp(float(coarse.sum()), -unit)) << unit - _FINEST
        rest = rest - coarse


def squared(values: Floats) -> list[Floats]:
    """Each value's square, rounded, and what the rounding took away."""
    scaled = values * _SPLITTER
    high = scaled - (scaled - values)
    low = values - high
    square = values * values
    if not low.any():
        return [square]
    return [square, ((high * high - square) + 2.0 * high * low) + low * low]
