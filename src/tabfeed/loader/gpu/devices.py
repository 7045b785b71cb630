"""Which device is meant, whether it is there, how much of its memory is free, and its driver."""

from __future__ import annotations

import ctypes
from contextlib import AbstractContextManager, nullcontext
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from tabfeed.errors import ArgumentError, LoaderError

__all__ = [
    "check_device",
    "choose_device",
    "free_bytes",
    "on_device",
    "why_not_driver",
]


def choose_device(device: Any) -> torch.device:
    """What a user calls a device: a GPU by its number; by default the GPU, if there is one.

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
    there = torch.cuda.is_available()
    if device is None:
        device = "cuda" if there else "cpu"
    try:
        if isinstance(device, bool):
            raise TypeError("a truth value is no number")
        found = torch.device("cuda", device) if isinstance(device, int) else torch.device(device)
    except (RuntimeError, TypeError) as e:
        raise ArgumentError(
            f'device is {device!r}; give "cpu", "cuda", "cuda:1" or a GPU\'s number'
        ) from e
    if found.type == "cuda" and found.index is None and there:
        return torch.device("cuda", torch.cuda.current_device())
    if found.type not in ("cpu", "cuda"):  # of a GPU `check_device` says more
        _check_usable(found)
    return found


def _check_usable(device: torch.device) -> None:
    """Refuse a device of another kind on which no tensor can be made."""
    try:
        if device.type == "meta":
            raise LoaderError("what lies on it has no values")
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


def check_device(device: torch.device) -> None:
    """Refuse a GPU that is not there."""
    if not torch.cuda.is_available():
        raise LoaderError(
            f"device is {str(device)!r}, but torch finds no GPU here; there is {_available()}"
        )
    count = torch.cuda.device_count()
    if device.index is not None and not 0 <= device.index < count:
        raise LoaderError(f"device is {str(device)!r}, but there are {count} GPUs, from 0 on")


def free_bytes(device: torch.device) -> int:
    """Bytes of a GPU that this process could have: what is free, and what torch keeps unused."""
    free, _ = torch.cuda.mem_get_info(device)
    kept = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return int(free + kept)


# -- the current device of a thread -----------------------------------------------------------


def on_device(device: torch.device) -> AbstractContextManager[Any]:
    """Have a GPU be the current one of this thread, inside a ``with``.

    A new thread begins with the first GPU. What it calls there would take half a gigabyte of that
    GPU's memory, and do so in each of the processes that have another GPU each.
    """
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


# -- the driver -------------------------------------------------------------------------------


def why_not_driver(package: str) -> str | None:
    """Why the driver cannot run a package that has CUDA in it; None if it can, as far as is known.

    Parameters
    ----------
    package
        The name it is imported by. Which CUDA it needs is in the name it was installed under, such
        as ``pylibcudf-cu13``.
    """
    needed, driver = _cuda_of(package), _driver()
    if needed is None or driver is None or driver[0] >= needed:
        return None
    return f"the driver is for CUDA {driver[0]}.{driver[1]}, and {package} needs {needed}"


def _cuda_of(package: str) -> int | None:
    """The CUDA that an installed package needs; None if its name does not say."""
    try:
        spec = find_spec(package)
    except (ImportError, ValueError):
        return None
    for place in (spec.submodule_search_locations or []) if spec is not None else []:
        for found in Path(place).parent.glob(f"{package}_cu*.dist-info"):
            number = found.name.removeprefix(f"{package}_cu").partition("-")[0]
            if number.isdigit():
                return int(number)
    return None


def _driver() -> tuple[int, int] | None:
    """The newest CUDA that the driver knows; None if there is no driver."""
    version = ctypes.c_int()
    try:
        failed = ctypes.CDLL("libcuda.so.1").cuDriverGetVersion(ctypes.byref(version))
    except (OSError, AttributeError):
        return None
    return None if failed else (version.value // 1000, version.value % 1000 // 10)
