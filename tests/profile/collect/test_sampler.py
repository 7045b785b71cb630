"""What the profiler's own thread looks at, and how often."""

from __future__ import annotations

import time

from tabfeed.profile.collect.accelerator import Nvml
from tabfeed.profile.collect.batches import LoopPhase
from tabfeed.profile.collect.sampler import Sampler
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
