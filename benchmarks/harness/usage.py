"""Processor seconds and memory of a process and all it started."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import psutil

__all__ = [
    "Watch",
    "own_memory",
    "peak_memory",
    "processor_seconds",
    "spent",
    "tree",
    "tree_memory",
]


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
    processes = tree(pid)
    if len(processes) > 1:
        return sum(_share(process, "Pss") for process in processes)
    return sum(_resident(process) for process in processes)


def own_memory(pid: int) -> int:
    """The same without what is in files, which the system can take back: libraries, data."""
    return sum(_share(process, "Pss_Anon", "Pss_Shmem") for process in tree(pid))


class Watch:
    """Looks at a process and all it started ten times a second.

    Parameters
    ----------
    pid
        The process.
    look
        `tree_memory` or `own_memory`.

    Attributes
    ----------
    most
        The most memory found, in bytes.

    Examples
    --------
    >>> import os
    >>> with Watch(os.getpid()) as watch:
    ...     held = bytes(10)
    >>> watch.most > 0
    True
    """

    def __init__(self, pid: int, look: Callable[[int], int] = tree_memory) -> None:
        self.most = 0
        self._pid, self._look_at = pid, look
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)

    def _look(self) -> None:
        ended = False
        while not ended:
            self.most = max(self.most, self._look_at(self._pid))
            ended = self._end.wait(0.1)

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._end.set()
        self._thread.join()


def _share(process: psutil.Process, *kinds: str) -> int:
    """A process's share of memory of these kinds; all it has, where the system does not say."""
    with suppress(OSError):
        _, *lines = Path(f"/proc/{process.pid}/smaps_rollup").read_text().splitlines()
        kilobytes = {name.rstrip(":"): int(size) for name, size, *_ in map(str.split, lines)}
        if kilobytes.keys() >= set(kinds):
            return sum(kilobytes[kind] for kind in kinds) * 1024
    return _resident(process)


def _resident(process: psutil.Process) -> int:
    with suppress(psutil.Error):
        return int(process.memory_info().rss)
    return 0
