"""What the processors say of themselves: CPU time of threads, GPU readings, CUDA events.

CPU time comes from Linux's ``/proc``: ``schedstat`` has nanoseconds on a CPU and nanoseconds
waiting for one; if it is missing, ``stat`` has the first in hundredths of a second. Without
``/proc`` there are no values. Files are read without releasing the GIL, unlike `open`: these reads
never block, and getting the GIL back from a busy loop takes milliseconds and disturbs the loop each
time.

NVML is read through ``nvidia-ml-py`` if that is installed and there is a driver; otherwise there
are no readings. CUDA events are used if this process has imported torch and started CUDA;
nothing here imports a framework or starts a GPU.

Between the request and the arrival of a batch the loop gives the GPU nothing to do. So the time the
GPU itself measures between these two events is time it was idle for lack of data. A host that waits
while the GPU still has queued work costs nothing.
"""

from __future__ import annotations

import ctypes
import importlib
import os
import sys
import threading
import time
from collections import deque
from pathlib import Path
from typing import Any, NamedTuple

_PROC = Path("/proc")
_TICK = 1_000_000_000 // (os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100)


if sys.platform == "linux":
    _system = ctypes.PyDLL(None)  # unlike CDLL, its calls keep the GIL
    _open, _close, _pread = _system.open, _system.close, _system.pread
    _pread.argtypes = (ctypes.c_int, ctypes.c_char_p, ctypes.c_size_t, ctypes.c_long)
    _pread.restype = ctypes.c_ssize_t
else:

    def _open(*_: object) -> int:
        return -1

    _close = _pread = _open

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


_HARVEST = 8
_FIRST = 16
_SHARE = 0.002
_MOST_SKIPPED = 2000
_clock = time.perf_counter_ns


class GpuReading(NamedTuple):
    """Busy share from 0 to 1 over the driver's last sample period, and bytes in use."""

    busy: float
    memory: int


class Nvml:
    """Readings of all GPUs this process can see, if any."""

    def __init__(self, library: Any = None) -> None:
        self._library: Any = _import_nvml() if library is None else library
        self._handles: list[Any] = []
        self.names: list[str] = []
        if self._library is not None:
            self._open()

    def _open(self) -> None:
        nvml = self._library
        try:
            nvml.nvmlInit()
        except nvml.NVMLError:  # no driver, no GPU
            return
        try:
            self._handles = [
                nvml.nvmlDeviceGetHandleByIndex(i) for i in range(nvml.nvmlDeviceGetCount())
            ]
            self.names = [_text(nvml.nvmlDeviceGetName(h)) for h in self._handles]
        except nvml.NVMLError:
            self._handles = []

    def read(self) -> GpuReading | None:
        """The busiest GPU's share, and the memory in use on all of them."""
        if not self._handles:
            return None
        nvml = self._library
        try:
            busy = max(nvml.nvmlDeviceGetUtilizationRates(h).gpu for h in self._handles)
            used = sum(int(nvml.nvmlDeviceGetMemoryInfo(h).used) for h in self._handles)
        except nvml.NVMLError:
            return None
        return GpuReading(busy / 100, used)

    def close(self) -> None:
        """Shut NVML down."""
        if self._handles:
            self._handles = []
            self._library.nvmlShutdown()


def _import_nvml() -> Any:
    try:
        return importlib.import_module("pynvml")
    except ImportError:
        return None


def _text(name: str | bytes) -> str:
    return name.decode() if isinstance(name, bytes) else name


def may_use_cuda() -> bool:
    """Whether this process has imported a torch that was built for CUDA."""
    version = getattr(sys.modules.get("torch"), "version", None)
    return getattr(version, "cuda", None) is not None


def cuda_in_use() -> Any:
    """``torch.cuda``, if this process has imported torch and started CUDA; else None."""
    cuda = getattr(sys.modules.get("torch"), "cuda", None)
    if cuda is None or not hasattr(cuda, "is_initialized"):
        return None
    return cuda if cuda.is_initialized() else None


class CudaMarks:
    """Events on the current CUDA stream when a batch is requested, received and finished.

    Recording events and reading their times takes the host tens of microseconds, which is a lot for
    a short step. So their cost is measured, and only as many steps are marked as keep it below
    0.2 % of the time; the sums of these steps stand for all. Events are reused, and their times are
    read after they have passed: the host waits for the GPU only once, at the end.

    CUDA may start after the first batch; until then there are no marks.

    Attributes
    ----------
    idle, busy
        Milliseconds from request to arrival, and from arrival to the next request, by the GPU's
        clock.
    steps
        How many steps were marked.
    """

    def __init__(self) -> None:
        self._cuda: Any = None
        self._free: list[Any] = []
        self._open: list[Any] = []  # events of the step being marked
        self._whole: deque[list[Any]] = deque()  # steps whose three events are recorded
        self._skip = 0  # calls of `requested` until the next step to mark
        self._marked = 0
        self._cost = 0
        self._began = 0
        self._calls = 0
        self.idle = self.busy = 0.0
        self.steps = 0

    def requested(self) -> None:
        """The host requests a batch: a step ends, and the next begins."""
        if self._skip:
            self._skip -= 1
            return
        if self._cuda is None and not self._starts():
            return
        now = _clock()
        if self._open:
            self._record()
            self._finish_step(now)
        else:
            self._began, self._cost = now, 0
            self._record()
            self._cost += _clock() - now

    def got(self) -> None:
        """The host has a batch."""
        if len(self._open) == 1 and not self._skip:
            now = _clock()
            self._record()
            self._cost += _clock() - now

    def ended(self) -> None:
        """The epoch is over: an unfinished step is not counted."""
        self._free += self._open
        self._open = []

    def _starts(self) -> bool:
        """Whether CUDA is in use by now; checked after 1, 2, 4, 8, ... calls."""
        self._calls += 1
        if self._calls & (self._calls - 1) == 0:
            self._cuda = cuda_in_use()
        return self._cuda is not None

    def _record(self) -> None:
        event = self._free.pop() if self._free else self._cuda.Event(enable_timing=True)
        event.record()
        self._open.append(event)

    def _finish_step(self, now: int) -> None:
        self._whole.append(self._open)
        self._open = []
        self._marked += 1
        if len(self._whole) > _HARVEST:
            self._harvest()
        if self._marked > _FIRST:  # the first steps also create the events
            cost, step = self._cost + _clock() - now, max(1, now - self._began)
            self._skip = min(int(cost / (_SHARE * step)), _MOST_SKIPPED)

    def _harvest(self) -> None:
        """Read the times of steps that have passed, and reuse their events."""
        while self._whole and self._whole[0][-1].query():
            requested, got, done = events = self._whole.popleft()
            self.idle += requested.elapsed_time(got)
            self.busy += got.elapsed_time(done)
            self.steps += 1
            self._free += events

    def finish(self) -> None:
        """Wait for the last event, and read all times."""
        if self._whole:
            self._whole[-1][-1].synchronize()
            self._harvest()
