"""How wide numbers of JAX are: 32 bits, unless ``jax_enable_x64`` is on.

Files mostly have wider ones. Fractions are rounded, as JAX itself does it. Integers are looked at
first, and refused if one of them does not fit: JAX would cut it without a word.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
import numpy.typing as npt

from tabfeed.errors import LoaderError
from tabfeed.loader.read.arrow_columns import Group, fits

__all__ = ["Widths", "as_wide_as_jax"]

Array = npt.NDArray[Any]


def _has_64_bits() -> bool:
    config: Any = jax.config
    return bool(config.jax_enable_x64)


def as_wide_as_jax(matrix: Array, names: Sequence[str]) -> Array:
    """Columns, ``(columns, ...)``, in a dtype that JAX has.

    Examples
    --------
    >>> as_wide_as_jax(np.array([[1, 2]]), ["a"])
    array([[1, 2]], dtype=int32)
    >>> as_wide_as_jax(np.array([[1, 2], [3, 2**31]]), ["a", "b"])
    Traceback (most recent call last):
        ...
    tabfeed.errors.LoaderError: column 'b' goes from 3 to 2147483648, beyond the 32 bits JAX uses: \
jax.config.update("jax_enable_x64", True) allows 64
    """
    if _has_64_bits() or matrix.dtype.itemsize < 8:
        return matrix
    if not isinstance(matrix, np.ndarray):  # on a GPU, made as wide as JAX had them then
        raise LoaderError(
            "jax_enable_x64 was on when this batch was made, and is off now; switch it between "
            "two passes over the data"
        )
    if matrix.dtype.kind not in "iuf":
        return matrix
    narrow = np.dtype(f"{matrix.dtype.kind}4")
    if narrow.kind != "f" and not fits(matrix, narrow):
        lows, highs = ([int(f(row)) for row in matrix] for f in (np.min, np.max))
        _check(names, lows, highs, narrow)
    return matrix.astype(narrow)


def _check(
    names: Sequence[str], lows: Sequence[int], highs: Sequence[int], narrow: np.dtype[Any]
) -> None:
    """Refuse columns whose smallest or largest number does not fit."""
    limits = np.iinfo(narrow)
    for name, low, high in zip(names, lows, highs, strict=True):
        if low < limits.min or high > limits.max:
            raise LoaderError(
                f"column {name!r} goes from {low} to {high}, beyond the 32 bits JAX uses: "
                'jax.config.update("jax_enable_x64", True) allows 64'
            )


@dataclass(frozen=True)
class Widths:
    """The same for buffers that lie on a GPU, as whoever makes them there needs to know it.

    Attributes
    ----------
    groups
        The columns of each buffer.
    """

    groups: tuple[Group, ...]

    @property
    def wide(self) -> bool:
        """Whether JAX has numbers of 64 bits now."""
        return _has_64_bits()

    def check(self, group: str, lows: Sequence[int], highs: Sequence[int]) -> None:
        """Refuse the integers of a buffer if one of them does not fit into 32 bits.

        Parameters
        ----------
        group
            The name of the buffer.
        lows, highs
            The smallest and the largest number of each of its columns.

        Examples
        --------
        >>> ids = Group("ids", ("a", "b"), np.dtype(np.uint64))
        >>> Widths((ids,)).check("ids", [0, 5], [2**32 - 1, 7])
        """
        found = next(g for g in self.groups if g.name == group)
        _check(found.columns, lows, highs, np.dtype(f"{found.dtype.kind}4"))
