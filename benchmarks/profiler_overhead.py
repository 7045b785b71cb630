"""What the profiler costs: one loop, with it and without, turn by turn.

The loop never stops; every fifth of a second the profiler's watching is switched on or off. A
machine that is busier or slower for a while is so for both; whole runs of seconds would differ by
several percent from themselves. Each turn is held against the mean of the turns without the
profiler before and after it; told are the median of these ratios and its 95 % interval (by
resampling). Turns that are not profiled either, held against their neighbours in the same way, show
what can be told apart at all. Prints JSON.

    OMP_NUM_THREADS=1 python benchmarks/profiler_overhead.py [--turns 100] [--only "native 10"]
"""

from __future__ import annotations

import argparse
import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from itertools import islice, repeat
from typing import Any

import numpy as np

from tabfeed.budget import cpu_count
from tabfeed.profile import Profiler, profiler
from tabfeed.profile.collect.sampler import Sampler
from tabfeed.profile.collect.spans import SpanLog
from tabfeed.trace import recording, span

_TURN = 0.2
Step = Callable[[Any], Any]


def spin(seconds: float) -> Step:
    """A step that holds the interpreter: what a profiler's thread disturbs most."""
    turns = 100_000
    start = time.perf_counter()
    _count(turns)
    turns = max(1, int(turns * seconds / (time.perf_counter() - start)))
    return lambda batch: _count(turns)


def _count(turns: int) -> int:
    total = 0
    for i in range(turns):
        total += i
    return total


def multiply(seconds: float) -> Step:
    """A step that computes outside of the interpreter."""
    a = np.random.default_rng(0).random((160, 160))
    start, count = time.perf_counter(), 0
    while time.perf_counter() - start < 0.2:
        a @ a
        count += 1
    repeats = max(1, round(seconds / ((time.perf_counter() - start) / count)))

    def step(batch: Any) -> None:
        for _ in range(repeats):
            a @ a

    return step


class Gated(Sampler):
    """A sampler that can be held still."""

    gate = threading.Event()

    def _look(self, asked: int, late: int) -> None:
        self.gate.wait()
        super()._look(asked, late)


def turn(batches: Iterator[Any], step: Step, count: int) -> float:
    """Seconds of so many steps."""
    start = time.perf_counter()
    for batch in islice(batches, count):
        step(batch)
    return time.perf_counter() - start


def measure(step: Step, turns: int) -> dict[str, Any]:
    """Overhead in percent, and what turns without the profiler show."""
    bare = repeat({"x": np.zeros((256, 4), np.float32), "y": np.zeros(256, np.float32)})
    turn(bare, step, 20)
    count = max(1, int(_TURN / (turn(bare, step, 50) / 50)))
    profiled, neither = [], []
    with Profiler(probe=False) as prof:
        watched = iter(prof.watch(bare))

        def on() -> float:
            Gated.gate.set()
            return turn(watched, step, count)

        def off() -> float:
            Gated.gate.clear()
            return turn(bare, step, count)

        before = off()
        for _ in range(turns):
            for run, kept in ((on, profiled), (off, neither)):
                seconds, after = run(), off()
                kept.append(2 * seconds / (before + after))
                before = after
        Gated.gate.set()
    return {"profiled": overhead(profiled), "neither profiled": overhead(neither)}


def overhead(ratios: list[float]) -> dict[str, float]:
    """The median in percent, and where it lies with 95 % confidence."""
    values = 100 * (np.array(ratios) - 1)
    again = np.random.default_rng(0).choice(values, (2000, len(values)))
    low, high = np.percentile(np.median(again, axis=1), [2.5, 97.5])
    found = {"median": np.median(values), "from": low, "to": high}
    return {name: round(float(value), 2) for name, value in found.items()}


def each(work: Callable[[], Any], count: int = 100_000) -> float:
    """Nanoseconds of a call; the best of five."""
    best = float("inf")
    for _ in range(5):
        start = time.perf_counter_ns()
        for _ in range(count):
            work()
        best = min(best, (time.perf_counter_ns() - start) / count)
    return round(best)


def small_costs() -> dict[str, float]:
    """Nanoseconds of the parts, with warm caches."""

    def marked() -> None:
        with span("a", rows=1):
            pass

    bare = each(lambda: None)
    with Profiler(probe=False) as prof:
        start = time.perf_counter_ns()
        for _ in prof.watch([{"x": np.zeros(4), "y": np.zeros(4)}] * 200_000):
            pass
        watched = (time.perf_counter_ns() - start) / 200_000
    off = each(marked) - bare
    with recording(SpanLog()):
        on = each(marked, 20_000) - bare
    return {"a span, off": off, "a span, on": on, "a watched step": round(watched)}


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--turns", type=int, default=100)
    parser.add_argument("--only", default="", help="the steps whose name begins so")
    args = parser.parse_args()
    profiler.Sampler = Gated  # type: ignore[attr-defined,misc]
    result: dict[str, Any] = {"cores": cpu_count(), "load": os.getloadavg(), "overhead in %": {}}
    for name, make in (("native", multiply), ("python", spin)):
        for length in (0.01, 0.001):
            case = f"{name} {1000 * length:g} ms"
            if case.startswith(args.only):
                result["overhead in %"][case] = measure(make(length), args.turns)
    result["nanoseconds"] = small_costs()
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
