"""Rows as samples, for formats made of samples: a row each, or a block of rows each.

A block is the form for tables: what such a format does for each sample in Python is then done for a
thousand rows at once. Whole blocks are shuffled, not rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from benchmarks.harness.contender import Case
from benchmarks.peers._common import matrices

__all__ = ["BLOCK", "in_a_batch", "join", "samples"]

BLOCK = 1_024


def samples(case: Case, block: int) -> Iterator[dict[str, Any]]:
    """Each sample: categories, numbers and label, as arrays."""
    parts = dict(zip(("cats", "conts", "label"), matrices(case), strict=True))
    for start in range(0, case.rows, block):
        at: Any = start if block == 1 else slice(start, start + block)
        yield {name: part[at] for name, part in parts.items()}


def in_a_batch(case: Case, block: int) -> int:
    """How many samples make a batch."""
    return max(1, case.batch // block)


def join(blocks: list[dict[str, Any]]) -> dict[str, Any]:
    """One batch of blocks."""
    import numpy as np
    import torch

    names = blocks[0]
    return {n: torch.from_numpy(np.concatenate([b[n] for b in blocks])) for n in names}
