"""The `device=` of a loader: whether torch can use it here, and how buffers get there.

``tensor.to("cuda")`` of ordinary memory runs on the model's stream: it waits for every kernel
queued there, and later kernels wait for it. `TorchTransfer` first copies a buffer to page-locked
memory and then, on a stream of the thread's own, to the GPU; the thread waits for that without the
GIL. A tensor it returns is complete, so the training loop waits for no event.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import torch

from tabfeed.errors import ArgumentError, LoaderError
from tabfeed.trace import span

__all__ = ["TorchTransfer", "check_device", "choose_device", "finish_on_cpu"]


def choose_device(device: Any) -> torch.device:
    """The device that a user names: a GPU by its number; by default the GPU, if there is one.

    A GPU without a number is the current one of this thread: other threads have another.

    Examples
    --------
    >>> choose_device("cpu"), choose_device(1)
    (device(type='cpu'), device(type='cuda', index=1))
    >>> choose_device("duck")
    Traceback (most recent call last):
        ...
    tabfeed.errors.ArgumentError: device is 'duck'; give "cpu", "cuda", "cuda:1" or a GPU's number
    """
    available = torch.cuda.is_available()
    if device is None:
        device = "cuda" if available else "cpu"
    try:
        if isinstance(device, bool):
            raise TypeError("a bool is not a GPU's number")
        found = torch.device("cuda", device) if isinstance(device, int) else torch.device(device)
    except (RuntimeError, TypeError) as e:
        raise ArgumentError(
            f'device is {device!r}; give "cpu", "cuda", "cuda:1" or a GPU\'s number'
        ) from e
    if found.type == "cuda" and found.index is None and available:
        return torch.device("cuda", torch.cuda.current_device())
    if found.type not in ("cpu", "cuda"):  # `check_device` checks GPUs, and says more
        try:
            if found.type == "meta":
                raise LoaderError("tensors on it have no values")
            torch.zeros(1, device=found)
        except Exception as e:  # of any type: each kind of device has its own
            raise LoaderError(
                f"device is {str(found)!r}, which torch cannot use here; there is {_available()}"
            ) from e
    return found


def check_device(device: torch.device) -> None:
    """Refuse a GPU that torch does not find."""
    if not torch.cuda.is_available():
        raise LoaderError(
            f"device is {str(device)!r}, but torch finds no GPU here; there is {_available()}"
        )
    count = torch.cuda.device_count()
    if device.index is not None and not 0 <= device.index < count:
        raise LoaderError(f"device is {str(device)!r}, but there are {count} GPUs, from 0 on")


def _available() -> str:
    """The kinds of devices that torch can use here."""
    kinds = {
        "cpu": True,
        "cuda": torch.cuda.is_available(),
        "mps": torch.backends.mps.is_available(),
        "xpu": torch.xpu.is_available(),
    }
    return ", ".join(kind for kind, is_there in kinds.items() if is_there)


def finish_on_cpu(finish: Any) -> Any:
    """A copy of a `finish` function that leaves its batches in host memory.

    A `finish` without a `device` attribute is returned unchanged.
    """
    if not hasattr(finish, "device"):
        return finish
    is_torch = isinstance(finish.device, torch.device)
    return replace(finish, device=torch.device("cpu") if is_torch else "cpu")


Tensor = torch.Tensor


class TorchTransfer:
    """Copies arrays to a device; threads may share it.

    Parameters
    ----------
    device
        The destination. On the CPU a tensor shares the array's memory.

    Examples
    --------
    >>> import numpy as np
    >>> transfer = TorchTransfer("cpu")
    >>> first, second = transfer.columns([np.array([[1, 2, 3], [4, 5, 6]])], (0, 2, 3))
    >>> [column.tolist() for column in first], [column.tolist() for column in second]
    ([[[1], [2]], [[4], [5]]], [[[3]], [[6]]])
    """

    def __init__(self, device: str | torch.device) -> None:
        self.device = torch.device(device)
        self._streams = threading.local()

    def __call__(self, array: Any) -> Tensor:
        """An array as a tensor on the device; tensors are returned as they are."""
        if isinstance(array, Tensor):
            return array
        tensor = torch.from_numpy(array)
        if self.device.type == "cpu":
            return tensor
        with span("copy", rows=array.shape[-1]):
            if self.device.type != "cuda":
                return tensor.to(self.device)
            if not hasattr(self._streams, "own"):
                self._streams.own = torch.cuda.Stream(self.device)  # type: ignore[no-untyped-call]
            stream = self._streams.own  # of this thread
            with torch.cuda.stream(stream):
                moved = tensor.pin_memory().to(self.device, non_blocking=True)
            stream.synchronize()
            # Its memory, once freed, is not reused before the model's stream has read it.
            moved.record_stream(torch.cuda.default_stream(self.device))
            return moved

    def columns(self, matrices: Sequence[Any], bounds: Sequence[int]) -> list[list[Tensor]]:
        """For each batch of a chunk the columns of all its ``(columns, rows)`` buffers.

        They are views, ``(rows, 1)``.
        """
        sizes = [high - low for low, high in pairwise(bounds)]
        batches: list[list[Tensor]] = [[] for _ in sizes]
        for whole in [self(matrix).unsqueeze(2) for matrix in matrices]:
            for batch, part in zip(batches, torch.split(whole, sizes, dim=1), strict=True):
                batch.extend(part.unbind(0))
        return batches

    def __reduce__(self) -> tuple[type[TorchTransfer], tuple[str]]:
        return TorchTransfer, (str(self.device),)  # streams stay with their threads
