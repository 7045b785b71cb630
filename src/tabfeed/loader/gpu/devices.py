"""A GPU's free memory, the current GPU of a thread, and the CUDA that the driver runs."""

from __future__ import annotations

import ctypes
from contextlib import AbstractContextManager, nullcontext
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

__all__ = [
    "free_bytes",
    "on_device",
    "why_not_driver",
]


def free_bytes(device: torch.device) -> int:
    """Bytes of a GPU that this process could use: the free ones, and those torch keeps unused."""
    free, _ = torch.cuda.mem_get_info(device)
    kept = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return int(free + kept)


def on_device(device: torch.device) -> AbstractContextManager[Any]:
    """Make a GPU the current one of this thread, inside a ``with``.

    A new thread begins with the first GPU. Its calls would take half a gigabyte of that GPU's
    memory, in each of the processes that use the other GPUs.
    """
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


def why_not_driver(package: str) -> str | None:
    """Why the driver cannot run a package built for CUDA; None if it can, or if that is unknown.

    Parameters
    ----------
    package
        Its import name. The CUDA version it needs is in the name of its distribution, such as
        ``pylibcudf-cu13``.
    """
    needed, driver = _cuda_of(package), _driver()
    if needed is None or driver is None or driver[0] >= needed:
        return None
    return f"the driver is for CUDA {driver[0]}.{driver[1]}, and {package} needs {needed}"


def _cuda_of(package: str) -> int | None:
    """The CUDA version that an installed package needs; None if its name does not say."""
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
    """The newest CUDA version that the driver supports; None if there is no driver."""
    version = ctypes.c_int()
    try:
        failed = ctypes.CDLL("libcuda.so.1").cuDriverGetVersion(ctypes.byref(version))
    except (OSError, AttributeError):
        return None
    return None if failed else (version.value // 1000, version.value % 1000 // 10)
