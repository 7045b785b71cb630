"""Amounts of memory, as users write them: ``"2GB"``, ``2_000_000_000``, ``0.1`` (a share).

A share is a share of the free memory, not of what is installed: on a machine with other tenants the
installed amount is not available. In a container or a batch job the limits of its control groups
apply, for memory and for cores. Cached file pages count as free there, as they do on the machine,
since the kernel drops them first.

A share given for data on its way to a model (``part_mem_fraction=0.04``, ``buffer_size=0.06``) is a
share of the GPU's total memory if there is a GPU, so it is the same in every run, whatever else the
GPU holds. That memory is read from the driver's library, without starting a framework.
"""

from __future__ import annotations

import ctypes
import math
import numbers
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tabfeed.errors import ArgumentError

_UNITS = {
    "": 1,
    "b": 1,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "tb": 10**12,
    "kib": 2**10,
    "mib": 2**20,
    "gib": 2**30,
    "tib": 2**40,
}
_AMOUNT = re.compile(r"\s*([0-9][0-9_]*(?:\.[0-9]+)?)\s*([a-zA-Z]*)\s*", re.ASCII)
_MEMINFO = Path("/proc/meminfo")
_OWN_GROUPS = Path("/proc/self/cgroup")
_GROUPS = Path("/sys/fs/cgroup")


def parse_bytes(value: int | float | str, *, name: str = "size", of: int | None = None) -> int:
    """Turn an amount of memory into bytes.

    Parameters
    ----------
    value
        Bytes (``"512MB"``, ``1_000_000``) or a share between 0 and 1 (``0.25``).
    name
        The name of the option, for the error message.
    of
        The amount a share refers to; by default the free memory of this machine.

    Examples
    --------
    >>> parse_bytes("512MB"), parse_bytes("1 GiB"), parse_bytes(0.5, of=1000)
    (512000000, 1073741824, 500)
    >>> parse_bytes("2 GB", name="part_size") == parse_bytes(2_000_000_000)
    True
    """
    amount = _to_number(value)
    if isinstance(amount, float) and 0 < amount <= 1:
        return max(1, int(amount * (free_memory() if of is None else of)))
    if amount is None or amount <= 0 or (isinstance(amount, float) and not amount.is_integer()):
        raise ArgumentError(
            f"{name} is {value!r}; write bytes (1_000_000), an amount "
            '("512MB", "2GiB") or a share (0.25)'
        )
    return int(amount)


def _to_number(value: object) -> int | float | None:
    """Bytes as int or whole float, a share as float; None if neither."""
    if isinstance(value, str):
        return _from_text(value)
    if isinstance(value, bool):
        return None
    if isinstance(value, numbers.Integral):
        return int(value)
    if isinstance(value, numbers.Real):
        return float(value) if math.isfinite(value) else None
    return None


def _from_text(text: str) -> int | float | None:
    match = _AMOUNT.fullmatch(text)
    if match is None or match[2].lower() not in _UNITS:
        return None
    digits, unit = match[1].replace("_", ""), match[2].lower()
    if "." not in digits:
        return int(digits) * _UNITS[unit]
    return float(digits) if unit == "" else int(float(digits) * _UNITS[unit])


def working_memory(limit: int | float | str | None) -> int:
    """Bytes a task may use: `limit`, or a quarter of the free memory.

    Examples
    --------
    >>> working_memory("1MB")
    1000000
    """
    return free_memory() // 4 if limit is None else parse_bytes(limit, name="memory_limit")


def free_memory() -> int:
    """Bytes this process may still take: the machine's, or its container's if that is less."""
    known = [n for n in (_machine_available(), *_groups_available()) if n is not None]
    return min(known) if known else 4 * 2**30


def _machine_available() -> int | None:
    try:
        text = _MEMINFO.read_text()
    except OSError:
        pages, size = "SC_PHYS_PAGES", "SC_PAGE_SIZE"
        if pages in os.sysconf_names and size in os.sysconf_names:
            return os.sysconf(pages) * os.sysconf(size) // 2
        return None
    match = re.search(r"MemAvailable:\s+(\d+) kB", text)
    return int(match[1]) * 1024 if match else None


def _groups_available() -> Iterator[int]:
    for folder in _own_groups("memory"):
        limit = _read_int(folder / "memory.max", folder / "memory.limit_in_bytes")
        used = _read_int(folder / "memory.current", folder / "memory.usage_in_bytes")
        if limit is not None and used is not None:
            yield max(0, limit - used + _cached(folder))


def _cached(folder: Path) -> int:
    """File pages the group holds in the page cache."""
    try:
        text = (folder / "memory.stat").read_text()
    except OSError:
        return 0
    return sum(int(n) for n in re.findall(r"^(?:in)?active_file (\d+)$", text, re.MULTILINE))


def _own_groups(controller: str) -> Iterator[Path]:
    """Folders of the control groups this process is in, innermost first (versions 2 and 1)."""
    try:
        lines = _OWN_GROUPS.read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        root = _GROUPS / controller if controllers else _GROUPS
        inner = root / path.lstrip("/")
        yield inner
        yield from (p for p in inner.parents if p == root or root in p.parents)


def _read_int(*files: Path) -> int | None:
    """The number in the first of `files` that holds one; "max" is none."""
    for file in files:
        try:
            return int(file.read_text())
        except (OSError, ValueError):
            continue
    return None


def cpu_count() -> int:
    """Cores this process may use; ``TABFEED_THREADS`` overrides."""
    override = os.environ.get("TABFEED_THREADS")
    if override:
        if not override.isdecimal() or int(override) < 1:
            raise ArgumentError(f"TABFEED_THREADS is {override!r}; it must be a positive integer")
        return int(override)
    affine = hasattr(os, "sched_getaffinity")
    cores = len(os.sched_getaffinity(0)) if affine else os.cpu_count() or 1
    return max(1, min([cores, *_group_cores()]))


def _group_cores() -> Iterator[int]:
    """Cores' worth of time the control groups allow, rounded up."""
    for folder in _own_groups("cpu"):
        try:
            quota, period = (folder / "cpu.max").read_text().split()
            yield math.ceil(int(quota) / int(period))
        except (OSError, ValueError, ZeroDivisionError):  # no limit, or version 1
            quota_us = _read_int(folder / "cpu.cfs_quota_us")
            period_us = _read_int(folder / "cpu.cfs_period_us")
            if quota_us and period_us and quota_us > 0:
                yield math.ceil(quota_us / period_us)


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
