import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tabfeed.profile.collect import proc
from tests.profile.cases import spin


def test_a_busy_thread_is_seen_with_its_time() -> None:
    if not Path("/proc/self/task").exists():
        pytest.skip("no /proc here")
    before = proc.thread_times()
    spin(0.05)
    after = proc.thread_times()
    me = threading.get_native_id()
    assert after[me].cpu > before[me].cpu
    assert proc.thread_names()[me] == threading.current_thread().name


def test_without_schedstat_the_ticks_are_taken(tmp_path: Path) -> None:
    task = tmp_path / "self" / "task" / "17"
    task.mkdir(parents=True)
    fields = " ".join(["S"] + ["0"] * 10 + ["30", "12"] + ["0"] * 10)
    (task / "stat").write_text(f"17 (odd ) name) {fields}")
    tick = 1_000_000_000 // os.sysconf("SC_CLK_TCK")
    assert proc.thread_times(tmp_path) == {17: proc.CpuTime(42 * tick, 0)}
    (task / "schedstat").write_text("123 456 7\n")
    assert proc.thread_times(tmp_path) == {17: proc.CpuTime(123, 456)}


def test_without_proc_nothing_is_told(tmp_path: Path) -> None:
    assert proc.thread_times(tmp_path) == {}
    assert proc.child_times(tmp_path) == {}
    assert proc.system_name(1, tmp_path) == "threads of libraries"


def test_children_are_seen() -> None:
    if not Path(f"/proc/self/task/{os.getpid()}/children").exists():
        pytest.skip("this kernel does not list children")
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        assert child.pid in proc.child_times()
    finally:
        child.communicate(b"\n")


def test_waiting_for_a_core_never_shrinks() -> None:
    delay = proc.RunDelay()
    readings = [delay() for _ in range(50)]
    assert readings == sorted(readings)
    delay.close()
    delay.close()
    assert delay() == 0
