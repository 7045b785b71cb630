"""How batches that are made in the computer's memory, and copied to a GPU, keep within its memory.

Chunks are smaller then, and fewer are ready. Knows no framework: each copies in a way of its own.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, TypeVar

from tabfeed.errors import LoaderError
from tabfeed.loader.pipeline import Pipeline

__all__ = ["ASIDE", "check_room", "within"]

B = TypeVar("B")
ASIDE = 8  # of a loader's memory so much is for batches that are copied beside others
_HELD = 2  # chunks beside those ahead: that of which the model has a batch, and the one before


def within(pipeline: Pipeline[B], memory: int, row_bytes: int) -> Pipeline[B]:
    """The same batches, of which no more are on a GPU than fit.

    Parameters
    ----------
    feed
        Makes them, and copies them.
    memory
        Bytes that they may take there.
    row_bytes
        About what a row takes there.
    """
    plan, options = pipeline.plan, pipeline.options
    batch = max(1, plan.batch // plan.ranks * row_bytes)
    steps = max(1, min(plan.chunk, memory // (2 * (_HELD + 1)) // batch))
    depth = max(1, min(options.ahead, memory // (steps * batch) - _HELD))
    return replace(pipeline, plan=replace(plan, chunk=steps), options=replace(options, depth=depth))


def check_room(pipeline: Pipeline[Any], memory: int, row_bytes: int) -> None:
    """Refuse a GPU on which not even some batches have room."""
    plan = pipeline.plan
    rows = plan.batch // plan.ranks
    needed = (_HELD + 1) * rows * row_bytes
    if needed > memory:
        raise LoaderError(
            f"{_HELD + 1} batches of {rows:,} rows take about {needed / 1e6:,.1f} MB on the GPU, "
            f"and the loader may have {memory / 1e6:,.1f} MB of it: take a smaller batch_size, or "
            "give device_memory, as far as the GPU has memory free"
        )
