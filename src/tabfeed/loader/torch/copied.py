"""Batches that are made in the computer's memory, and copied to a GPU beside the model.

What is left where the GPU cannot make them, or may no longer. It too keeps within `device_memory`:
chunks are smaller then, and fewer are ready.
"""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any, TypeVar

import torch

from tabfeed.errors import LoaderError
from tabfeed.loader.base import Feed
from tabfeed.loader.recipe import Recipe
from tabfeed.loader.torch.gpu_recipe import StreamRecipe, for_host

__all__ = ["check_room", "copied_feed"]

B = TypeVar("B")
_HELD = 2  # chunks beside those ahead: that of which the model has a batch, and the one before


def copied_feed(feed: Feed[B], device: torch.device, memory: int, row_bytes: int) -> Feed[B]:
    """The same batches, copied on a stream of their own.

    Parameters
    ----------
    feed
        Makes them, and copies them to the GPU on whichever stream is current.
    device
        The GPU.
    memory
        Bytes that they may take there.
    row_bytes
        About what a row takes in a batch.
    """
    plan, options = feed.plan, feed.options
    batch = max(1, plan.batch // plan.ranks * row_bytes)
    steps = max(1, min(plan.chunk, memory // (2 * (_HELD + 1)) // batch))
    depth = max(1, min(options.ahead, memory // (steps * batch) - _HELD))
    recipe = feed.recipe
    parts: dict[str, Any] = {field.name: getattr(recipe, field.name) for field in fields(Recipe)}
    host = replace(recipe, finish=for_host(recipe.finish))
    stream: Any = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    made: Recipe[B] = StreamRecipe(**parts, stream=stream, device=device, host=host)
    return Feed(made, replace(plan, chunk=steps), replace(options, depth=depth))


def check_room(feed: Feed[Any], memory: int, row_bytes: int) -> None:
    """Refuse a GPU on which not even some batches have room."""
    plan = feed.plan
    rows = plan.batch // plan.ranks
    needed = (_HELD + 1) * rows * row_bytes
    if needed > memory:
        raise LoaderError(
            f"{_HELD + 1} batches of {rows:,} rows take about {needed / 1e6:,.1f} MB on the GPU, "
            f"and the loader may have {memory / 1e6:,.1f} MB of it: take a smaller batch_size, or "
            "give device_memory, as far as the GPU has memory free"
        )
