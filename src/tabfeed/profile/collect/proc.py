"""CPU time of threads and child processes, from Linux's ``/proc``.

``schedstat`` has nanoseconds on a CPU and nanoseconds waiting for one; if it is missing, ``stat``
has the first in hundredths of a second. Without ``/proc`` there are no values.

Files are read without releasing the GIL, unlike `open`: these reads never block, and getting the
GIL back from a busy loop takes milliseconds and disturbs the loop each time.
"""

from __future__ import annotations

import ctypes
import os
import sys
import threading
from pathlib import Path
from typing import NamedTuple

__all__ = ["CpuTime", "RunDelay", "ThreadTimes", "child_times", "thread_times"]

_PROC = Path("/proc")
_TICK = 1_000_000_000 // (os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100)


if sys.platform == "linux":
    _system = ctypes.PyDLL(None)  # unlike CDLL, its calls keep the GIL
    _open, _close, _pread = _system.open, _system.close, _system.pread
    _pread.argtypes = (ctypes.c_int, ctypes.c_char_p, ctypes.c_size_t, ctypes.c_long)
    _pread.restype = ctypes.c_ssize_t
else:

    def _open(path: bytes, how: int) -> int:
        return -1

    def _close(file: int) -> int:
        return 0

    def _pread(file: int, text: object, most: int, start: int) -> int:
        return 0


_PAGE = 4096


def _read(path: str) -> bytes:
    """The start of a small file; empty if it can't be read."""
    file = _open(path.encode(), os.O_RDONLY | os.O_CLOEXEC)
    if file < 0:
        return b""
    text = ctypes.create_string_buffer(_PAGE)
    length = _pread(file, text, _PAGE, 0)
    _close(file)
    return text.raw[: max(0, length)]


class CpuTime(NamedTuple):
    """Nanoseconds on a CPU, and waiting for one."""

    cpu: int
    delay: int


ThreadTimes = dict[int, CpuTime]


def thread_times(proc: Path = _PROC) -> ThreadTimes:
    """CPU time of every thread of this process so far, by the system's thread number."""
    out: ThreadTimes = {}
    tasks = proc / "self" / "task"
    try:
        numbers = os.listdir(tasks)
    except OSError:
        return out
    for number in numbers:
        found = _read_task(f"{tasks}/{number}")
        if found is not None:
            out[int(number)] = found
    return out


def _read_task(folder: str) -> CpuTime | None:
    fields = _read(f"{folder}/schedstat").split()
    if len(fields) > 1:
        return CpuTime(int(fields[0]), int(fields[1]))
    ticks = _stat_ticks(f"{folder}/stat")
    return None if ticks is None else CpuTime(ticks * _TICK, 0)


def _stat_ticks(path: str) -> int | None:
    """User and system time in clock ticks; None for a thread that has just ended."""
    fields = _read(path).rpartition(b")")[2].split()
    return int(fields[11]) + int(fields[12]) if len(fields) > 12 else None


def thread_names() -> dict[int, str]:
    """Python's thread names, by the system's thread number."""
    threads = threading.enumerate()
    return {t.native_id: t.name for t in threads if t.native_id is not None}


def system_name(number: int, proc: Path = _PROC) -> str:
    """The system's name of a thread Python does not know.

    Threads of libraries usually have the name of the process, which says nothing about them.
    """
    comm = _read(f"{proc}/self/task/{number}/comm").decode(errors="replace").strip()
    own = _read(f"{proc}/self/comm").decode(errors="replace").strip()
    return "threads of libraries" if comm == own else comm or "thread"


def child_times(proc: Path = _PROC) -> ThreadTimes:
    """CPU time of each child process (a DataLoader's workers, say), by process number."""
    out: ThreadTimes = {}
    # Children of the main thread; reading those of every thread would cost too much.
    for pid in _read(f"{proc}/self/task/{os.getpid()}/children").decode().split():
        ticks = _stat_ticks(f"{proc}/{pid}/stat")
        if ticks is not None:
            out[int(pid)] = CpuTime(ticks * _TICK, 0)
    return out


class RunDelay:
    """How long the creating thread has waited for a core."""

    def __init__(self) -> None:
        self._text = ctypes.create_string_buffer(64)
        path = f"/proc/self/task/{threading.get_native_id()}/schedstat"
        try:
            self._file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            self._file = -1

    def __call__(self) -> int:
        """Nanoseconds so far; 0 if the system does not say."""
        if self._file < 0:
            return 0
        length = _pread(self._file, self._text, 63, 0)
        fields = self._text.raw[: max(0, length)].split()
        return int(fields[1]) if len(fields) > 1 else 0

    def close(self) -> None:
        """Close the file."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    __del__ = close
