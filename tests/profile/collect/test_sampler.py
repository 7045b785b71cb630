"""What the profiler's own thread looks at, and how often."""

from __future__ import annotations

import sys
import time
import types
from typing import Any

from tabfeed.profile.collect.batches import COMPUTE, WAIT, LoopPhase
from tabfeed.profile.collect.processors import Nvml
from tabfeed.profile.collect.sampler import Sampler, StackLog
from tabfeed.profile.collect.spans import SpanLog


def busy(seconds: float) -> None:
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


def test_what_takes_long_is_sampled_less_often(monkeypatch) -> None:
    sampler, second = Sampler(LoopPhase(), SpanLog(), Nvml()), 1_000_000_000
    monkeypatch.setattr(sampler.threads, "sample", lambda: None)
    sampler._sample_threads()
    assert sampler._threads_at <= time.perf_counter_ns() + second
    begin = time.perf_counter_ns()
    monkeypatch.setattr(sampler.threads, "sample", lambda: busy(0.02))
    sampler._sample_threads()
    assert sampler._threads_at >= begin + 20 * second  # half of a five-hundredth of the time


def look(phase: int = WAIT) -> tuple[str, str]:
    log = StackLog()
    log.add(phase, sys._getframe(1))
    (place,) = log.lines()
    return place.kind, place.where


class Rows:
    def load_image(self) -> Any:
        return look()

    def augment(self) -> Any:
        return helper()

    def plain(self) -> Any:
        return look()

    def through_a_library(self, transform: Any) -> Any:
        return transform()


def helper() -> Any:
    return look()


def test_names_tell_what_a_line_does() -> None:
    rows = Rows()
    assert rows.load_image()[0] == "read"
    kind, where = rows.augment()
    assert kind == "transform"
    assert where.startswith("Rows.augment" if sys.version_info >= (3, 11) else "augment")


def test_a_name_that_tells_nothing() -> None:
    log = StackLog()
    frame = types.SimpleNamespace(
        f_code=compile("x = 1", "/own/a.py", "exec"), f_lasti=2, f_back=None
    )
    log.add(WAIT, frame)
    assert [(p.kind, p.where) for p in log.lines()] == [("python", "<module> (a.py:1)")]


def test_the_call_tells_if_the_function_is_a_librarys() -> None:
    kind, _ = Rows().through_a_library(lambda: look())
    assert kind == "transform"


def copy(tensor: Any) -> Any:
    return look(COMPUTE)


def test_in_the_loop_only_copies_count() -> None:
    class Tensor:
        def to(self, device: str) -> Any:
            return look(COMPUTE)

    assert copy(None)[0] == "copy"
    assert Rows().load_image.__func__ is Rows.load_image
    assert look(COMPUTE)[0] == "python"


def test_the_same_place_is_counted() -> None:
    log = StackLog()
    for _ in range(5):
        log.add(WAIT, sys._getframe())
    assert sum(p.count for p in log.lines()) == 5
    log.add(WAIT, None)
    assert sum(p.count for p in log.lines()) == 6
