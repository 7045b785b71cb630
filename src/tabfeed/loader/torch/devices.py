"""Which device is meant, whether it is there, and how much of its memory is free."""

from __future__ import annotations

from typing import Any

import torch

from tabfeed.errors import ArgumentError, LoaderError

__all__ = ["check_device", "choose_device", "free_bytes"]


def choose_device(device: Any) -> torch.device:
    """What a user calls a device: a GPU by its number; by default the GPU, if there is one.

    Examples
    --------
    >>> choose_device("cpu"), choose_device(1)
    (device(type='cpu'), device(type='cuda', index=1))
    >>> choose_device("duck")
    Traceback (most recent call last):
        ...
    tabfeed.errors.ArgumentError: device is 'duck'; give "cpu", "cuda", "cuda:1" or a GPU's number
    """
    if device is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        return torch.device("cuda", device) if isinstance(device, int) else torch.device(device)
    except (RuntimeError, TypeError) as e:
        raise ArgumentError(
            f'device is {device!r}; give "cpu", "cuda", "cuda:1" or a GPU\'s number'
        ) from e


def check_device(device: torch.device) -> None:
    """Refuse a GPU that is not there."""
    if not torch.cuda.is_available():
        raise LoaderError(f"device is {str(device)!r}, but torch finds no GPU here")
    count = torch.cuda.device_count()
    if device.index is not None and device.index >= count:
        raise LoaderError(f"device is {str(device)!r}, but there are {count} GPUs, from 0 on")


def free_bytes(device: torch.device) -> int:
    """Bytes of a GPU that this process could have: what is free, and what torch keeps unused."""
    free, _ = torch.cuda.mem_get_info(device)
    kept = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return int(free + kept)
