"""How much memory GPUs have, from the driver's library, without starting a framework.

A share given for data on its way to a model (``part_mem_fraction=0.04``, ``buffer_size=0.06``) is a
share of the GPU's total memory if there is a GPU, so it is the same in every run, whatever else the
GPU holds.
"""

from __future__ import annotations

import ctypes
import os
from typing import NamedTuple

from tabfeed.budget import free_memory

__all__ = ["GpuMemory", "device_memory", "gpu_memory"]


class GpuMemory(NamedTuple):
    """Total and free bytes of a GPU."""

    total: int
    free: int


class _NvmlMemory(ctypes.Structure):
    _fields_ = (
        ("total", ctypes.c_ulonglong),
        ("free", ctypes.c_ulonglong),
        ("used", ctypes.c_ulonglong),
    )


def device_memory() -> int:
    """The bytes a share refers to: the GPU's total memory, or the free host memory without a GPU.

    Examples
    --------
    >>> device_memory() > 0
    True
    """
    gpu = gpu_memory()
    return free_memory() if gpu is None else gpu.total


def gpu_memory(number: int = 0) -> GpuMemory | None:
    """Memory of a GPU by its number in this process; None if there is no such GPU.

    ``CUDA_VISIBLE_DEVICES`` may name GPUs by number or by UUID; both are followed.
    """
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    name = str(number)
    if visible is not None:
        names = [n.strip() for n in visible.split(",") if n.strip()]
        if number >= len(names):
            return None
        name = names[number]
    try:
        driver = ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return None
    if driver.nvmlInit_v2() != 0:
        return None
    try:
        return _read(driver, name)
    finally:
        driver.nvmlShutdown()


def _read(driver: ctypes.CDLL, name: str) -> GpuMemory | None:
    handle, memory = ctypes.c_void_p(), _NvmlMemory()
    if name.isdigit():
        found = driver.nvmlDeviceGetHandleByIndex_v2(ctypes.c_uint(int(name)), ctypes.byref(handle))
    else:
        found = driver.nvmlDeviceGetHandleByUUID(name.encode(), ctypes.byref(handle))
    if found != 0 or driver.nvmlDeviceGetMemoryInfo(handle, ctypes.byref(memory)) != 0:
        return None
    return GpuMemory(int(memory.total), int(memory.free))
