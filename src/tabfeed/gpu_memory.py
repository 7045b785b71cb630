"""How much memory GPUs have, asked of the driver's own library: no framework is started for it.

A share that a user gives for data on its way to a model (``part_mem_fraction=0.04``,
``buffer_size=0.06``) is one of the GPU's whole memory where there is a GPU: the same on every run
there, whatever else the GPU holds at the moment.
"""

from __future__ import annotations

import ctypes
import os
from typing import NamedTuple

from tabfeed.budget import free_memory

__all__ = ["GpuMemory", "device_memory", "gpu_memory"]


class GpuMemory(NamedTuple):
    """Bytes a GPU has in all, and free now."""

    total: int
    free: int


class _Memory(ctypes.Structure):
    _fields_ = (
        ("total", ctypes.c_ulonglong),
        ("free", ctypes.c_ulonglong),
        ("used", ctypes.c_ulonglong),
    )


def device_memory() -> int:
    """Bytes that a share is one of: the GPU's, or those free on the host where there is no GPU.

    Examples
    --------
    >>> device_memory() > 0
    True
    """
    gpu = gpu_memory()
    return free_memory() if gpu is None else gpu.total


def gpu_memory(number: int = 0) -> GpuMemory | None:
    """Memory of a GPU as this process counts them; None where there is no such GPU.

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
        return _ask(driver, name)
    finally:
        driver.nvmlShutdown()


def _ask(driver: ctypes.CDLL, name: str) -> GpuMemory | None:
    handle, memory = ctypes.c_void_p(), _Memory()
    if name.isdigit():
        found = driver.nvmlDeviceGetHandleByIndex_v2(ctypes.c_uint(int(name)), ctypes.byref(handle))
    else:
        found = driver.nvmlDeviceGetHandleByUUID(name.encode(), ctypes.byref(handle))
    if found != 0 or driver.nvmlDeviceGetMemoryInfo(handle, ctypes.byref(memory)) != 0:
        return None
    return GpuMemory(int(memory.total), int(memory.free))
