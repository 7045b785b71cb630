"""GPU readings and CUDA events, on stand-ins: the machine of a test has no GPU."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import types
from pathlib import Path
from typing import Any

import pytest

from tabfeed.profile import Profiler
from tabfeed.profile.collect import processors
from tests.profile.cases import spin
from tests.waiting import HANG


class FakeNvml:
    """What of `pynvml` is used; two GPUs."""

    class NVMLError(Exception):
        pass

    def __init__(self, *, broken: str = "") -> None:
        self.broken = broken
        self.shut = 0

    def _check(self, name: str) -> None:
        if name == self.broken:
            raise self.NVMLError(name)

    def nvmlInit(self) -> None:
        self._check("init")

    def nvmlShutdown(self) -> None:
        self.shut += 1

    def nvmlDeviceGetCount(self) -> int:
        return 2

    def nvmlDeviceGetHandleByIndex(self, i: int) -> int:
        return i

    def nvmlDeviceGetName(self, handle: int) -> Any:
        return [b"NVIDIA A", "NVIDIA B"][handle]

    def nvmlDeviceGetMemoryInfo(self, handle: int) -> Any:
        return types.SimpleNamespace(total=1000, used=100 + handle)

    def nvmlDeviceGetUtilizationRates(self, handle: int) -> Any:
        self._check("rates")
        return types.SimpleNamespace(gpu=[30, 61][handle])


def test_readings() -> None:
    library = FakeNvml()
    nvml = processors.Nvml(library)
    assert nvml.names == ["NVIDIA A", "NVIDIA B"]
    assert nvml.read() == processors.GpuReading(0.61, 201)
    nvml.close()
    nvml.close()
    assert library.shut == 1
    assert nvml.read() is None


@pytest.mark.parametrize("broken", ["init", "rates"])
def test_a_driver_that_fails_gives_no_reading(broken: str) -> None:
    assert processors.Nvml(FakeNvml(broken=broken)).read() is None


def test_readings_reach_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    read = threading.Event()

    class Seen(FakeNvml):
        def nvmlDeviceGetUtilizationRates(self, handle: int) -> Any:
            read.set()
            return super().nvmlDeviceGetUtilizationRates(handle)

    monkeypatch.setattr(processors, "_import_nvml", Seen)
    with Profiler() as prof:
        for _ in prof.watch(range(30)):
            assert read.wait(HANG)
    assert prof.run.machine.gpus == ("NVIDIA A", "NVIDIA B")
    assert prof.run.gpu_busy_mean == pytest.approx(0.61)
    assert "GPU busy" in prof.report()


class FakeCuda:
    """A GPU whose clock is set by hand."""

    def __init__(self) -> None:
        self.now, self.started, self.made = 0.0, False, 0
        self.Event = self._event

    def is_initialized(self) -> bool:
        return self.started

    def _event(self, *, enable_timing: bool) -> Any:
        assert enable_timing
        self.made += 1
        cuda = self

        class Event:
            at = 0.0

            def record(self) -> None:
                self.at = cuda.now

            def query(self) -> bool:
                return True

            def synchronize(self) -> None: ...

            def elapsed_time(self, other: Any) -> float:
                return float(other.at - self.at)

        return Event()


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> FakeCuda:
    fake = FakeCuda()
    monkeypatch.setitem(sys.modules, "torch", types.SimpleNamespace(cuda=fake))
    return fake


def test_no_mark_before_cuda_is_started(cuda: FakeCuda) -> None:
    marks = processors.CudaMarks()
    marks.requested()
    marks.got()
    marks.finish()
    assert (cuda.made, marks.steps) == (0, 0)


def test_idle_and_busy_by_the_gpus_own_clock(cuda: FakeCuda) -> None:
    cuda.started = True
    marks = processors.CudaMarks()
    for _ in range(1000):
        marks.requested()
        cuda.now += 3.0
        marks.got()
        cuda.now += 7.0
    marks.requested()
    marks.finish()
    assert marks.steps >= processors._FIRST
    assert (marks.idle, marks.busy) == (3.0 * marks.steps, 7.0 * marks.steps)
    assert cuda.made <= 3 * (processors._HARVEST + 2)  # events are used again


def test_a_step_cut_off_by_the_end_of_a_pass_is_not_counted(cuda: FakeCuda) -> None:
    cuda.started = True
    marks = processors.CudaMarks()
    for after in (lambda: None, marks.got):
        marks.requested()
        after()
        marks.ended()
        cuda.now += 1000.0
    marks.requested()
    cuda.now += 1.0
    marks.got()
    cuda.now += 2.0
    marks.requested()
    marks.finish()
    assert (marks.idle, marks.busy, marks.steps) == (1.0, 2.0, 1)


def test_short_steps_are_marked_seldom_and_long_ones_always(
    cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    cuda.started = True
    clock = [0]

    def ticking() -> int:
        clock[0] += 10_000  # every look at the clock takes 10 microseconds
        return clock[0]

    monkeypatch.setattr(processors, "_clock", ticking)
    for step, often in ((100_000, False), (500_000_000, True)):
        marks = processors.CudaMarks()
        for _ in range(2000):
            marks.requested()
            marks.got()
            clock[0] += step
        marks.finish()
        assert (marks.steps > 900) == often
        assert marks.steps >= processors._FIRST


def test_torch_without_cuda_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", types.SimpleNamespace())
    assert processors.cuda_in_use() is None
    monkeypatch.delitem(sys.modules, "torch")
    assert processors.cuda_in_use() is None


def test_a_busy_thread_is_seen_with_its_time() -> None:
    if not Path("/proc/self/task").exists():
        pytest.skip("no /proc here")
    before = processors.thread_times()
    spin(0.05)
    after = processors.thread_times()
    me = threading.get_native_id()
    assert after[me].cpu > before[me].cpu
    assert processors.thread_names()[me] == threading.current_thread().name


def test_without_schedstat_the_ticks_are_taken(tmp_path: Path) -> None:
    task = tmp_path / "self" / "task" / "17"
    task.mkdir(parents=True)
    fields = " ".join(["S"] + ["0"] * 10 + ["30", "12"] + ["0"] * 10)
    (task / "stat").write_text(f"17 (odd ) name) {fields}")
    tick = 1_000_000_000 // os.sysconf("SC_CLK_TCK")
    assert processors.thread_times(tmp_path) == {17: processors.CpuTime(42 * tick, 0)}
    (task / "schedstat").write_text("123 456 7\n")
    assert processors.thread_times(tmp_path) == {17: processors.CpuTime(123, 456)}


def test_without_proc_nothing_is_told(tmp_path: Path) -> None:
    assert processors.thread_times(tmp_path) == {}
    assert processors.child_times(tmp_path) == {}
    assert processors.system_name(1, tmp_path) == "threads of libraries"


def test_children_are_seen() -> None:
    if not Path(f"/proc/self/task/{os.getpid()}/children").exists():
        pytest.skip("this kernel does not list children")
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        assert child.pid in processors.child_times()
    finally:
        child.communicate(b"\n")


def test_waiting_for_a_core_never_shrinks() -> None:
    delay = processors.RunDelay()
    readings = [delay() for _ in range(50)]
    assert readings == sorted(readings)
    delay.close()
    delay.close()
    assert delay() == 0
