"""Choose what makes chunks for a JAX device with memory of its own: torch there, or copies."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from typing import Any

import jax

from tabfeed.errors import TabfeedWarning
from tabfeed.loader.assemble.batch_ops import op_bytes
from tabfeed.loader.gpu.memory_plan import check_room, fit_copies
from tabfeed.loader.jax.transfer import JaxTransfer, in_whole_chunks
from tabfeed.loader.options import GpuOptions
from tabfeed.loader.pipeline import Pipeline
from tabfeed.loader.read.arrow_columns import Group

__all__ = ["NotOnDeviceError", "on_device"]

_UNKNOWN = 2**40  # bytes of a device that does not say how many it has


class NotOnDeviceError(Exception):
    """Chunks can't be made on the device; says why."""


def on_device(
    pipeline: Pipeline[Any],
    transfer: JaxTransfer,
    groups: Sequence[Group],
    options: GpuOptions,
    apart: str | None = None,
    sharding: Any = None,
) -> Pipeline[Any]:
    """The same batches, cut on the device from chunks that come there whole.

    Parameters
    ----------
    pipeline
        Makes them of chunks in host memory.
    transfer
        Takes arrays to the device.
    groups
        The columns that are cut there.
    options
        Reader and memory.
    apart
        Why columns are to come one by one instead, as `pipeline` gives them; None if they are not.
    sharding
        How they are sharded over several devices instead.
    """
    total, free, share = _device_share(transfer, sharding)
    stages: Any = pipeline.stages
    layout = stages.reader.layout
    row_bytes = layout.row_bytes + op_bytes(stages.ops, layout)
    if apart is None:
        row_bytes *= 2  # there are buffers, and the columns that are cut from them
    row_bytes = max(1, int(row_bytes * share))
    own, given = (
        options.memory(total=total, free=free, buffer_size=buffer_size)
        for buffer_size in (None, pipeline.options.buffer_size)
    )
    check_room(pipeline.plan, max(own, given), row_bytes)
    plain = pipeline if apart is not None else in_whole_chunks(pipeline)
    copied = partial(_copied, plain, given, row_bytes)
    reason = apart
    if apart is None and find_spec("torch") is None:
        reason = "PyTorch, which makes batches on a GPU, is not installed"
    elif apart is None:
        from tabfeed.loader.jax.torch_chunks import made_by_torch

        try:
            return made_by_torch(pipeline, transfer, tuple(groups), options, copied)
        except NotOnDeviceError as e:
            reason = str(e)
    choice = f"Arrow: batches are made in host memory and copied: {reason}"
    if options.reader == "cudf":
        warnings.warn(f"reading with Arrow: {reason}", TabfeedWarning, stacklevel=4)
    return replace(copied(), reader_choice=choice)


def _device_share(transfer: JaxTransfer, sharding: Any) -> tuple[int, int, float]:
    """Bytes of the device, those that JAX does not use yet, and the share of rows it gets.

    With a sharding, of the device that has least memory.
    """
    if sharding is None:
        return *_memory(transfer.there), 1.0
    devices = len(sharding.device_set)
    (rows,) = sharding.shard_shape((devices,))
    least = min(map(_memory, sharding.addressable_devices))
    return *least, rows * jax.process_count() / devices


def _memory(device: Any) -> tuple[int, int]:
    found = device.memory_stats() or {}
    total = int(found.get("bytes_limit", _UNKNOWN))
    return total, total - int(found.get("bytes_in_use", 0))


def _copied(pipeline: Pipeline[Any], memory: int, row_bytes: int, share: int = 1) -> Pipeline[Any]:
    """A pipeline of batches that are copied to the device, within a share of the memory there."""
    plan, options = fit_copies(pipeline.plan, pipeline.options, memory // share, row_bytes)
    return replace(pipeline, plan=plan, options=options)
