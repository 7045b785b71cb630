"""Who makes chunks for a device of JAX that has memory of its own."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from typing import Any, NamedTuple

import jax

from tabfeed.errors import TabfeedWarning
from tabfeed.loader.assemble.batch_ops import op_bytes
from tabfeed.loader.gpu.memory_plan import check_room, fit_copies
from tabfeed.loader.jax.transfer import Carrier, in_whole_chunks
from tabfeed.loader.jax.widths import Widths
from tabfeed.loader.options import GpuOptions
from tabfeed.loader.pipeline import Pipeline
from tabfeed.loader.read.arrow_columns import Group

__all__ = ["NotOnDeviceError", "on_device"]

_UNKNOWN = 2**40  # bytes of a device that does not say how many it has


class NotOnDeviceError(Exception):
    """Chunks can't be made on the device; says why."""


def on_device(
    pipeline: Pipeline[Any],
    carry: Carrier,
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
    carry
        Takes arrays to the device.
    groups
        The columns that are cut there.
    options
        Reader and memory.
    apart
        Why columns are to come one by one instead, as `pipeline` gives them; None if they are not.
    sharding
        How they lie over several devices instead.
    """
    copies = _Copies.of(pipeline, _DeviceShare.of(carry, sharding), options, apart)
    try:
        if apart is not None:
            raise NotOnDeviceError(apart)
        return _made_there(pipeline, carry, groups, options, copies)
    except NotOnDeviceError as e:
        reason = str(e)
    choice = f"Arrow: batches are made in host memory and copied: {reason}"
    plain = replace(copies(), reader_choice=choice)
    if options.reader == "cudf":
        warnings.warn(f"reading with Arrow: {reason}", TabfeedWarning, stacklevel=4)
    return plain


class _DeviceShare(NamedTuple):
    """Where batches lie.

    Attributes
    ----------
    total, free
        Bytes that JAX may have on a device, and those that it does not use yet.
    share
        How much of this process's rows one device has.
    """

    total: int
    free: int
    share: float = 1.0

    @classmethod
    def of(cls, carry: Carrier, sharding: Any) -> _DeviceShare:
        """A device, or that of several which has least memory."""
        if sharding is None:
            return cls(*_memory(carry.there))
        devices = len(sharding.device_set)
        (rows,) = sharding.shard_shape((devices,))
        least = min(map(_memory, sharding.addressable_devices))
        return cls(*least, rows * jax.process_count() / devices)


def _memory(device: Any) -> tuple[int, int]:
    found = device.memory_stats() or {}
    total = int(found.get("bytes_limit", _UNKNOWN))
    return total, total - int(found.get("bytes_in_use", 0))


@dataclass(frozen=True)
class _Asked(Widths):
    """What whoever makes chunks for JAX on a GPU has to ask of it."""

    carry: Carrier

    def forget(self) -> None:
        """Wait until JAX has come by all buffers that it was given, and keep none of them."""
        self.carry.forget()


@dataclass(frozen=True)
class _Copies:
    """Batches that are made in host memory and copied.

    Attributes
    ----------
    plain
        Makes them.
    memory
        Bytes that they may take on the device.
    row_bytes
        What a row takes there.
    """

    plain: Pipeline[Any]
    memory: int
    row_bytes: int

    @classmethod
    def of(
        cls, pipeline: Pipeline[Any], device: _DeviceShare, options: GpuOptions, apart: str | None
    ) -> _Copies:
        """Those of a pipeline; refused if not even a few fit."""
        stages: Any = pipeline.stages
        layout = stages.reader.layout
        row_bytes = layout.row_bytes + op_bytes(stages.ops, layout)
        if apart is None:
            row_bytes *= 2  # there are buffers, and the columns that are cut from them
        row_bytes = max(1, int(row_bytes * device.share))
        own, given = (
            options.memory(total=device.total, free=device.free, buffer_size=buffer_size)
            for buffer_size in (None, pipeline.options.buffer_size)
        )
        check_room(pipeline.plan, max(own, given), row_bytes)
        return cls(pipeline if apart is not None else in_whole_chunks(pipeline), given, row_bytes)

    def __call__(self, share: int = 1) -> Pipeline[Any]:
        """A pipeline of them that keeps within the memory, or an eighth of it."""
        plain, memory = self.plain, self.memory // share
        plan, options = fit_copies(plain.plan, plain.options, memory, self.row_bytes)
        return replace(plain, plan=plan, options=options)


def _made_there(
    pipeline: Pipeline[Any],
    carry: Carrier,
    groups: Sequence[Group],
    options: GpuOptions,
    copies: _Copies,
) -> Pipeline[Any]:
    """The same batches of chunks that are made on the device; `NotOnDeviceError` if they can't."""
    if find_spec("torch") is None:
        raise NotOnDeviceError("PyTorch, which makes batches on a GPU, is not installed")
    from tabfeed.loader.jax.torch_chunks import made_by_torch

    number = int(carry.there.local_hardware_id or 0)
    return made_by_torch(pipeline, number, options, copies, _Asked(tuple(groups), carry))
