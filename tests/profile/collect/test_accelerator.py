"""GPU readings and CUDA events, on stand-ins: the machine of a test has no GPU."""

import sys
import types
from typing import Any

import pytest

from tabfeed.profile import Profiler
from tabfeed.profile.collect import accelerator


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
    nvml = accelerator.Nvml(library)
    assert nvml.names == ["NVIDIA A", "NVIDIA B"]
    assert nvml.read() == accelerator.GpuReading(0.61, 201)
    nvml.close()
    nvml.close()
    assert library.shut == 1
    assert nvml.read() is None


@pytest.mark.parametrize("broken", ["init", "rates"])
def test_a_driver_that_fails_gives_no_reading(broken: str) -> None:
    assert accelerator.Nvml(FakeNvml(broken=broken)).read() is None


def test_readings_reach_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accelerator, "_import_nvml", FakeNvml)
    with Profiler() as prof:
        for _ in prof.watch(range(30)):
            prof._phase  # noqa: B018
            __import__("time").sleep(0.01)
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
    marks = accelerator.CudaMarks()
    marks.requested()
    marks.got()
    marks.finish()
    assert (cuda.made, marks.steps) == (0, 0)


def test_idle_and_busy_by_the_gpus_own_clock(cuda: FakeCuda) -> None:
    cuda.started = True
    marks = accelerator.CudaMarks()
    for _ in range(1000):
        marks.requested()
        cuda.now += 3.0
        marks.got()
        cuda.now += 7.0
    marks.requested()
    marks.finish()
    assert marks.steps >= accelerator._FIRST
    assert (marks.idle, marks.busy) == (3.0 * marks.steps, 7.0 * marks.steps)
    assert cuda.made <= 3 * (accelerator._HARVEST + 2)  # events are used again


def test_a_step_cut_off_by_the_end_of_a_pass_is_not_counted(cuda: FakeCuda) -> None:
    cuda.started = True
    marks = accelerator.CudaMarks()
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

    monkeypatch.setattr(accelerator, "_clock", ticking)
    for step, often in ((100_000, False), (500_000_000, True)):
        marks = accelerator.CudaMarks()
        for _ in range(2000):
            marks.requested()
            marks.got()
            clock[0] += step
        marks.finish()
        assert (marks.steps > 900) == often
        assert marks.steps >= accelerator._FIRST


def test_torch_without_cuda_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", types.SimpleNamespace())
    assert accelerator.cuda_in_use() is None
    monkeypatch.delitem(sys.modules, "torch")
    assert accelerator.cuda_in_use() is None
