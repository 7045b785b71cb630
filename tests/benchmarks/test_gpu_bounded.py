"""Two processes that load turn by turn, as far as that goes without a GPU."""

from __future__ import annotations

import resource
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

ROOT = Path(__file__).parents[2]


@pytest.fixture
def bounded(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    for name in ("gpu_bounded", "gpu_ours", "loader"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    import gpu_bounded

    return gpu_bounded


class Loader:
    """One that stands for a process's; all threads share the latest."""

    def __init__(self, folder, batch, *, reader, device_memory):
        self.reader, self.closed = reader, False
        self.reader_choice = f"{reader}: as asked for"
        self.pipeline = SimpleNamespace(plan=SimpleNamespace(rows=10**9))

    def close(self):
        self.closed = True


def test_both_take_turns(bounded, monkeypatch):
    turns = []

    def drain(loader):
        assert not loader.closed
        limit = threading.current_thread().name.split("_")[0]
        turns.append((loader.reader, limit))
        return {"rate": 50.0 if limit == "6.0" else 100.0, "first": 0.1}

    monkeypatch.setattr(bounded, "ours", Loader)
    monkeypatch.setattr(bounded, "drain", drain)
    monkeypatch.setattr(bounded, "own_memory", lambda pid: 2 * 10**9)
    monkeypatch.setattr(bounded, "_process", lambda gb: ThreadPoolExecutor(1, str(gb)))
    found = bounded.bounded_section(Path("data"), 6.0, rounds=3)
    both = ["6.0", "None"]
    memory = ["6.0", "6.0", "None", "None"]  # two epochs each
    expected = [*both, *both * 3, *memory]
    assert turns == [(reader, limit) for reader in ("arrow", "cudf") for limit in expected]
    assert found["decoded data, GB"] == 160.0 and found["limit, GB"] == 6.0
    for reader in ("arrow", "cudf"):
        told = {"GB of all processes": 2.0, "reader": f"{reader}: as asked for"}
        assert found[reader] == {"rate": 50.0, "first": 0.1, **told}
        assert found[f"{reader}, no limit"]["rate"] == 100.0
        assert found[f"{reader}, share of the rate without a limit"] == 0.5


def test_the_limit_is_below_what_there_was(bounded, monkeypatch):
    said = []
    monkeypatch.setattr(torch.cuda, "init", lambda: said.append("init"))
    monkeypatch.setattr(resource, "setrlimit", lambda *limit: said.append(limit))
    bounded._limit(None)
    assert said == ["init"]
    bounded._limit(6.0)
    most = resource.getrlimit(resource.RLIMIT_DATA)[1]
    assert said[1:] == ["init", (resource.RLIMIT_DATA, (6 * 10**9, most))]


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_a_process_that_cannot_begin_is_an_error(bounded, tmp_path):
    with pytest.raises(BrokenProcessPool):
        bounded.bounded_section(tmp_path, 6.0, rounds=1)
