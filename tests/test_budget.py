"""Amounts of memory: what users write, and what a machine or its container has left.

What a GPU has, as a driver that is not there would say it; and the shares that follow.
"""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import pytest

from tabfeed import Dataset, budget
from tabfeed.budget import GpuMemory, cpu_count, device_memory, free_memory, parse_bytes
from tabfeed.errors import ArgumentError
from tabfeed.io import partition


@pytest.mark.parametrize(("share", "expected"), [(0.5, 500), ("0.25", 250), (1.0, 1000), (1e-9, 1)])
def test_a_share(share: Any, expected: int) -> None:
    assert parse_bytes(share, of=1000) == expected


def test_a_share_is_of_the_free_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(budget, "free_memory", lambda: 4000)
    assert parse_bytes(0.25) == 1000


def test_nothing_is_no_amount() -> None:
    with pytest.raises(ArgumentError, match=r"part_size is .*share"):
        parse_bytes(None, name="part_size")


# -- the machine and its containers -------------------------------------------------


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine with 8 MiB free and no control groups, to be furnished."""
    monkeypatch.setattr(budget, "_MEMINFO", tmp_path / "meminfo")
    monkeypatch.setattr(budget, "_OWN_GROUPS", tmp_path / "own")
    monkeypatch.setattr(budget, "_GROUPS", tmp_path / "cgroup")
    monkeypatch.delenv("TABFEED_THREADS", raising=False)
    write(tmp_path / "meminfo", "MemTotal: 999999 kB\nMemAvailable:    8192 kB\n")
    return tmp_path


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_this_machine_has_memory_and_cores() -> None:
    assert free_memory() > 0
    assert cpu_count() >= 1


def test_without_groups_the_machine_counts(machine: Path) -> None:
    assert free_memory() == 8 * 2**20


def test_a_container_limits_memory_and_its_page_cache_is_free(machine: Path) -> None:
    write(machine / "own", "0::/\n")
    write(machine / "cgroup/memory.max", "1000000\n")
    write(machine / "cgroup/memory.current", "900000\n")
    write(
        machine / "cgroup/memory.stat", "anon 1\ninactive_file 300000\nactive_file 50000\nfile 9\n"
    )
    assert free_memory() == 1_000_000 - 900_000 + 350_000


def test_the_tightest_of_nested_groups_counts(machine: Path) -> None:
    write(machine / "own", "0::/job/step\n")
    for folder, limit in [("", "max"), ("job/", "5000"), ("job/step/", "70000")]:
        write(machine / f"cgroup/{folder}memory.max", limit)
        write(machine / f"cgroup/{folder}memory.current", "2000")
    assert free_memory() == 3000


def test_a_group_that_is_over_its_limit_has_nothing(machine: Path) -> None:
    write(machine / "own", "0::/\n")
    write(machine / "cgroup/memory.max", "1000")
    write(machine / "cgroup/memory.current", "1001")
    assert free_memory() == 0
    assert parse_bytes(0.5) == 1


def test_version_1_groups(machine: Path) -> None:
    write(machine / "own", "4:memory:/docker/abc\n1:cpu,cpuacct:/\n0::/\n")
    write(machine / "cgroup/memory/memory.limit_in_bytes", "7000")
    write(machine / "cgroup/memory/memory.usage_in_bytes", "6000")
    write(machine / "cgroup/cpu/cpu.cfs_quota_us", "50000")
    write(machine / "cgroup/cpu/cpu.cfs_period_us", "100000")
    assert free_memory() == 1000
    assert cpu_count() == 1


def test_a_machine_that_says_nothing(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (machine / "meminfo").unlink()
    monkeypatch.setattr(budget.os, "sysconf_names", {})
    assert free_memory() == 4 * 2**30


def test_a_container_limits_cores(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(budget.os, "sched_getaffinity", lambda _: set(range(64)), raising=False)
    write(machine / "own", "0::/\n")
    assert cpu_count() == 64
    write(machine / "cgroup/cpu.max", "150000 100000\n")
    assert cpu_count() == 2
    write(machine / "cgroup/cpu.max", "max 100000\n")
    assert cpu_count() == 64


def test_the_environment_overrides_the_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TABFEED_THREADS", "7")
    assert cpu_count() == 7


@pytest.mark.parametrize("setting", ["0", "-1", "two", "1.5", "²"])
def test_a_wrong_number_of_threads_is_refused(
    setting: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TABFEED_THREADS", setting)
    with pytest.raises(ArgumentError, match="TABFEED_THREADS"):
        cpu_count()


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
    assert budget.gpu_memory(number) == expected
    assert driver.open == 0


def test_a_driver_that_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda name: Driver(broken=True))
    assert budget.gpu_memory() is None
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
