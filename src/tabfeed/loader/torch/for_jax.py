"""Chunks for JAX that torch makes on the GPU, where both are installed.

JAX can copy and compute, but it cannot do so beside the model: what it is given for a GPU runs in
one line. torch has streams. So where torch sees the same GPU, chunks are made as they are for it
(`tabfeed.loader.torch.gpu`), in the background, and JAX takes over the finished buffers where they
lie (DLPack), without a copy. Only the cut into columns is JAX's own: one compiled call a batch,
made by the training thread when it comes to the chunk.

What was given up: a choice of reader. Arrow decodes, since the time that a step waits, which the
choice goes by, is not to be had from JAX.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import torch

from tabfeed.loader.base import Feed
from tabfeed.loader.chunk import Chunk
from tabfeed.loader.torch.gpu import GpuOptions, on_gpu
from tabfeed.loader.torch.gpu_recipe import GpuRecipe
from tabfeed.trace import span

__all__ = ["made_by_torch"]


@dataclass(frozen=True)
class _JaxRecipe(GpuRecipe[Any]):
    """Chunks made by torch, and cut by JAX when they are there."""

    def cut(self, chunk: Chunk) -> list[Any]:
        """The chunk as it is."""
        return [chunk]

    def arrive(self, made: Any) -> list[Any]:
        """The batches of a chunk, which was queued when the one before it arrived.

        A cut that is queued before its data are there would hold up the model's steps.
        """
        made.event.synchronize()
        with span("queue"):
            return [batch for chunk in made.batches for batch in self.finish(chunk)]


def made_by_torch(feed: Feed[Any], number: int) -> Feed[Any] | None:
    """The same batches from chunks which torch makes; None if it cannot.

    Parameters
    ----------
    feed
        Makes them of chunks in the computer's memory.
    number
        Of the GPU.
    """
    if not torch.cuda.is_available() or number >= torch.cuda.device_count():
        return None
    made = on_gpu(feed, torch.device("cuda", number), GpuOptions(reader="arrow"))
    recipe: Any = made.recipe
    if not isinstance(recipe, GpuRecipe) or not recipe.here:
        return None
    parts = {field.name: getattr(recipe, field.name) for field in fields(recipe)}
    return Feed(_JaxRecipe(**parts), made.plan, made.options)
