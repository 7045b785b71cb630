"""Sums of floats without rounding, so that no order of adding them can be told from another.

The sum of a million floats depends, in its last bits, on where the partitions were cut and who
merged what first. Here it does not: a sum is a whole number times a power of two, and is rounded
once, when somebody asks for it.

Whole blocks are added at a time. Adding and subtracting a large constant cuts from each value of a
block its leading bits, on a grid so coarse that their sum is exact in a float; what is left of the
values is cut again on a finer grid, until nothing is left: two or three rounds for most data. A
square of a float is two floats (Dekker 1971), each added that way. It costs some 11 ns a value
where a plain sum costs 1, and is still a small part of decoding and counting.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any, NamedTuple

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
