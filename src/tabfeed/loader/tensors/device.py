"""The `device=` of a loader: which device is meant, and whether torch can use it here."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from tabfeed.errors import ArgumentError, LoaderError

__all__ = ["check_device", "choose_device", "finish_on_cpu"]


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
        _check_usable(found)
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


def _check_usable(device: torch.device) -> None:
    """Refuse a device of another kind on which no tensor can be made."""
    try:
        if device.type == "meta":
            raise LoaderError("tensors on it have no values")
        torch.zeros(1, device=device)
    except Exception as e:  # of any type: each kind of device has its own
        raise LoaderError(
            f"device is {str(device)!r}, which torch cannot use here; there is {_available()}"
        ) from e


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
