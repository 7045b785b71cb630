"""Amounts of memory, as users write them: ``"2GB"``, ``2_000_000_000``, ``0.1`` (a share).

A share is of what is free now, not of what is installed: on a machine with other
tenants the installed amount promises memory nobody has. Inside a container the
container's own limit counts.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from tabfeed.errors import ArgumentError

__all__ = ["cpu_count", "free_memory", "parse_bytes"]

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
_AMOUNT = re.compile(r"\s*([0-9][0-9_]*(?:\.[0-9]+)?)\s*([a-zA-Z]*)\s*")


def parse_bytes(value: int | float | str, *, name: str = "size", of: int | None = None) -> int:
    """Turn an amount of memory into bytes.

    Parameters
    ----------
    value
        Bytes (``"512MB"``, ``1_000_000``) or a share between 0 and 1 (``0.25``).
    name
        The option's name, for the error message.
    of
        What a share is a share of; the free memory of this machine when not given.

    Examples
    --------
    >>> parse_bytes("512MB"), parse_bytes("1 GiB"), parse_bytes(0.5, of=1000)
    (512000000, 1073741824, 500)
    >>> parse_bytes("fast", name="part_size")
    Traceback (most recent call last):
        ...
    tabfeed.errors.ArgumentError: part_size is 'fast'; write bytes (1_000_000), an amount ("512MB", "2GiB") or a share (0.25)
    """
    amount = _to_number(value)
    if amount is None or amount <= 0:
        raise ArgumentError(
            f"{name} is {value!r}; write bytes (1_000_000), an amount "
            '("512MB", "2GiB") or a share (0.25)'
        )
    if isinstance(value, float) and value <= 1:
        return max(1, int(value * (free_memory() if of is None else of)))
    return max(1, int(amount))


def _to_number(value: object) -> float | None:
    if isinstance(value, bool):
        return None
    if isinstance(value, int | float):
        return float(value) if value == value else None
    if not isinstance(value, str):
        return None
    match = _AMOUNT.fullmatch(value)
    if match is None or match[2].lower() not in _UNITS:
        return None
    return float(match[1].replace("_", "")) * _UNITS[match[2].lower()]


def free_memory() -> int:
    """Bytes this process may still take: the machine's, or its container's if that is less."""
    candidates = [_meminfo_available(), _cgroup_available()]
    known = [c for c in candidates if c is not None]
    return min(known) if known else 4 * 2**30


def _meminfo_available() -> int | None:
    try:
        text = Path("/proc/meminfo").read_text()
    except OSError:
        pages, size = "SC_PHYS_PAGES", "SC_PAGE_SIZE"
        if pages in os.sysconf_names and size in os.sysconf_names:
            return os.sysconf(pages) * os.sysconf(size) // 2
        return None
    match = re.search(r"MemAvailable:\s+(\d+) kB", text)
    return int(match[1]) * 1024 if match else None


def _cgroup_available() -> int | None:
    for limit, used in (
        ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
        (
            "/sys/fs/cgroup/memory/memory.limit_in_bytes",
            "/sys/fs/cgroup/memory/memory.usage_in_bytes",
        ),
    ):
        try:
            return max(0, int(Path(limit).read_text()) - int(Path(used).read_text()))
        except (OSError, ValueError):  # not in a container, or the limit is "max"
            continue
    return None


def cpu_count() -> int:
    """Cores this process may use; ``TABFEED_THREADS`` overrides."""
    override = os.environ.get("TABFEED_THREADS")
    if override:
        if not override.isdigit() or int(override) < 1:
            raise ArgumentError(
                f"TABFEED_THREADS is {override!r}; it must be a whole number from 1"
            )
        return int(override)
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
