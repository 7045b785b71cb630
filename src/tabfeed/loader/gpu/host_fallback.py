"""Batches that are made in the computer's memory, and copied to a GPU beside the model.

What is left where the GPU cannot make them, or may no longer.
"""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any, TypeVar

import torch

from tabfeed.loader.gpu.delivery import StreamStages
from tabfeed.loader.gpu.fallback_sizes import within
from tabfeed.loader.pipeline import Pipeline
from tabfeed.loader.stages import Stages
from tabfeed.loader.tensors.device import finish_on_cpu

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
    host = replace(stages, finish=finish_on_cpu(stages.finish))
    stream: Any = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    made: Stages[B] = StreamStages(**parts, stream=stream, device=device, host=host)
    return Pipeline(made, small.plan, small.options)
