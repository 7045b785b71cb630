"""Batches that are made in the computer's memory, and copied to a GPU beside the model.

What is left where the GPU cannot make them, or may no longer.
"""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any, TypeVar

import torch

from tabfeed.loader.gpu.delivery import StreamStages, for_host
from tabfeed.loader.gpu.fallback_sizes import within
from tabfeed.loader.pipeline import Pipeline, Stages

__all__ = ["fallback_pipeline"]

B = TypeVar("B")


def fallback_pipeline(
    pipeline: Pipeline[B], device: torch.device, memory: int, row_bytes: int
) -> Pipeline[B]:
    """The same batches, copied on a stream of their own.

    Parameters
    ----------
    feed
        Makes them, and copies them to the GPU on whichever stream is current.
    device
        The GPU.
    memory, row_bytes
        As for `within`.
    """
    stages, small = pipeline.stages, within(pipeline, memory, row_bytes)
    parts: dict[str, Any] = {field.name: getattr(stages, field.name) for field in fields(Stages)}
    host = replace(stages, finish=for_host(stages.finish))
    stream: Any = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    made: Stages[B] = StreamStages(**parts, stream=stream, device=device, host=host)
    return replace(small, stages=made)
