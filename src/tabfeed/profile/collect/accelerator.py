"""Measurements of the GPU: NVML readings, and CUDA events around each step.

NVML is read through ``nvidia-ml-py`` if that is installed and there is a driver; otherwise there
are no readings. CUDA events are used if the program itself has imported torch and started CUDA;
nothing here imports a framework or starts a GPU.

Between the request and the arrival of a batch the loop gives the GPU nothing to do. So the time the
GPU itself measures between these two events is time it was idle for lack of data. A host that waits
while the GPU still has queued work costs nothing.
"""

from __future__ import annotations

import importlib
import sys
import time
from collections import deque
from typing import Any, NamedTuple

__all__ = ["CudaMarks", "GpuReading", "Nvml", "cuda_in_use", "may_use_cuda"]

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
        self.memory_total = 0
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
            self.memory_total = sum(
                int(nvml.nvmlDeviceGetMemoryInfo(h).total) for h in self._handles
            )
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
    """Whether the program has imported a torch that was built for CUDA."""
    version = getattr(sys.modules.get("torch"), "version", None)
    return getattr(version, "cuda", None) is not None


def cuda_in_use() -> Any:
    """``torch.cuda``, if the program has imported torch and started CUDA; else None."""
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
