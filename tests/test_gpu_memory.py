"""What a GPU has, as a driver that is not there would say it; and the shares that follow."""

from __future__ import annotations

import ctypes
from typing import Any

import pytest

from tabfeed import Dataset, gpu_memory
from tabfeed.budget import free_memory
from tabfeed.gpu_memory import GpuMemory, device_memory
from tabfeed.io import partition

GIB = 2**30


class Driver:
    """Two GPUs, of 80 and of 40 GiB, each half of it free."""

    names = ("0", "1", "GPU-a", "GPU-b")

    def __init__(self, *, broken: bool = False) -> None:
        self.open = 0
        self.broken = broken

    def nvmlInit_v2(self) -> int:
        self.open += not self.broken
        return int(self.broken)

    def nvmlShutdown(self) -> int:
        self.open -= 1
        return 0

    def nvmlDeviceGetHandleByIndex_v2(self, number: Any, handle: Any) -> int:
        return self._find(str(number.value), handle)

    def nvmlDeviceGetHandleByUUID(self, name: bytes, handle: Any) -> int:
        return self._find(name.decode(), handle)

    def _find(self, name: str, handle: Any) -> int:
        if name not in self.names:
            return 6
        handle._obj.value = self.names.index(name) % 2 + 1
        return 0

    def nvmlDeviceGetMemoryInfo(self, handle: Any, memory: Any) -> int:
        total = 80 * GIB // handle.value
        memory._obj.total, memory._obj.free = total, total // 2
        return 0


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Driver:
    """A driver in place of the real one, if there is one."""
    fake = Driver()
    monkeypatch.setattr(ctypes, "CDLL", lambda name: fake)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return fake


@pytest.mark.parametrize(
    ("visible", "number", "total"),
    [
        (None, 0, 80),
        (None, 1, 40),
        (None, 2, None),
        ("1,0", 0, 40),
        ("GPU-b", 0, 40),
        ("GPU-b", 1, None),
        ("", 0, None),
    ],
)
def test_a_gpu_as_this_process_counts_them(
    driver: Driver,
    monkeypatch: pytest.MonkeyPatch,
    visible: str | None,
    number: int,
    total: int | None,
) -> None:
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    expected = None if total is None else GpuMemory(total * GIB, total * GIB // 2)
    assert gpu_memory.gpu_memory(number) == expected
    assert driver.open == 0


def test_a_driver_that_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda name: Driver(broken=True))
    assert gpu_memory.gpu_memory() is None
    assert 0 < device_memory() <= free_memory() * 1.5  # the host's


def test_a_share_is_one_of_the_gpu(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partition, "free_memory", lambda: 10 * GIB)
    assert device_memory() == 80 * GIB
    assert partition.choose_part_size(None, 0.04, None) == int(3.2 * GIB)
    assert partition.choose_part_size(None, 0.5, None) == 10 * GIB  # no more than the host has


def test_partitions_obey_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    Dataset({"x": list(range(100))}).to_parquet(tmp_path / "rows")
    monkeypatch.setattr(partition, "device_memory", lambda: 100 * 8 * 10)
    assert Dataset(tmp_path / "rows", part_mem_fraction=0.02).npartitions > 1
    assert Dataset(tmp_path / "rows", part_mem_fraction=1.0).npartitions == 1
