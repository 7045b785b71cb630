"""How large a partition may be, from the three ways a user can say it."""

from __future__ import annotations

import numpy as np

from tabfeed.budget import free_memory, parse_bytes
from tabfeed.errors import ArgumentError
from tabfeed.gpu_memory import device_memory
from tabfeed.io.source import ReadOptions

__all__ = ["DEFAULT_PART_SIZE", "block_size", "choose_part_size"]

DEFAULT_PART_SIZE = 128 * 2**20
_SMALLEST_BLOCK = 2**16


def choose_part_size(
    part_size: int | float | str | None, fraction: float | None, npartitions: int | None
) -> int:
    """Bytes, from a size, a share of the GPU's memory (the host's without one), or the default."""
    options = {"part_size": part_size, "part_mem_fraction": fraction, "npartitions": npartitions}
    given = [name for name, value in options.items() if value is not None]
    if len(given) > 1:
        raise ArgumentError(f"{' and '.join(given)} each say how to cut; give one of them")
    if npartitions is not None:
        _refuse_fraction(npartitions)
    if fraction is not None:
        if not isinstance(fraction, int | float) or not 0 < fraction <= 1:
            raise ArgumentError(f"part_mem_fraction is {fraction!r}; it must be between 0 and 1")
        # Whatever goes to a GPU is in host memory first.
        return max(1, min(int(device_memory() * fraction), free_memory()))
    return DEFAULT_PART_SIZE if part_size is None else parse_bytes(part_size, name="part_size")


def _refuse_fraction(npartitions: int) -> None:
    whole = isinstance(npartitions, int | np.integer) and not isinstance(npartitions, bool)
    if not whole or npartitions < 1:
        raise ArgumentError(f"npartitions is {npartitions!r}; it must be a number, 1 or more")


def block_size(part_size: int) -> int:
    """Bytes of text to read at once: a number takes up to four times its digits in memory."""
    return max(_SMALLEST_BLOCK, min(ReadOptions.block_size, part_size // 4))
