"""Processor seconds and memory of a process and all it started."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import psutil

__all__ = ["peak_memory", "processor_seconds", "spent", "tree", "tree_memory"]


def tree(pid: int) -> list[psutil.Process]:
    """A process and its descendants that are alive."""
    with suppress(psutil.NoSuchProcess):
        root = psutil.Process(pid)
        return [root, *root.children(recursive=True)]
    return []


def processor_seconds(pid: int) -> dict[int, float]:
    """User and system time by process; a child that ended counts in the one that waited for it."""
    found = {}
    for process in tree(pid):
        with suppress(psutil.Error):
            times = process.cpu_times()
            more = getattr(times, "children_user", 0.0) + getattr(times, "children_system", 0.0)
            found[process.pid] = times.user + times.system + more
    return found


def spent(before: dict[int, float], after: dict[int, float]) -> float:
    """Between two looks; who is gone without a trace counts nothing.

    Examples
    --------
    >>> spent({1: 2.0, 2: 5.0}, {1: 2.5, 3: 0.25})
    0.75
    """
    return sum(seconds - before.get(pid, 0.0) for pid, seconds in after.items())


def peak_memory(pid: int) -> int:
    """The most the process itself ever had resident, in bytes; 0 where that is not known."""
    with suppress(OSError, IndexError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    return 0


def tree_memory(pid: int) -> int:
    """What all of them have now, in bytes; memory they share counts once."""
    total = 0
    processes = tree(pid)
    for process in processes:
        with suppress(psutil.Error):
            alone = len(processes) == 1
            total += process.memory_info().rss if alone else _proportional(process)
    return total


def _proportional(process: psutil.Process) -> int:
    with suppress(OSError, IndexError):
        for line in Path(f"/proc/{process.pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    return int(process.memory_info().rss)
