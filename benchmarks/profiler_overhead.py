"""What the profiler costs: the same loop with it and without, turn by turn.

Runs are short and alternate, so that a machine that is busier for a while is so for both. Each pair
gives a ratio; told are the median of the ratios and its 95 % interval (by resampling), of wall time
and of CPU time of the whole process, which a busy machine blurs less, but which does not see waits.
Pairs of which neither half is profiled show what can be told apart at all. Prints JSON.

Short runs tell the worst: the profiler looks most often at first.

    python benchmarks/profiler_overhead.py [--pairs 100] [--seconds 0.3]
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from tabfeed import Dataset
from tabfeed.budget import cpu_count
from tabfeed.loader.options import LoaderOptions
from tabfeed.profile import Profiler
from tabfeed.profile.spans import SpanLog
from tabfeed.profile.through import array_feed
from tabfeed.trace import recording, span


class Cost(NamedTuple):
    """Seconds."""

    wall: float
    cpu: float


def spin(seconds: float) -> Callable[[Any], None]:
    """A step that holds the interpreter: what a profiler's thread disturbs most."""
    turns = 1000
    start = time.perf_counter()
    _turn(turns)
    turns = max(1, int(turns * seconds / (time.perf_counter() - start)))
    return lambda batch: _turn(turns)


def _turn(turns: int) -> int:
    total = 0
    for i in range(turns):
        total += i
    return total


def multiply(seconds: float) -> Callable[[Any], None]:
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


def feed(steps: int, rows: int = 512) -> Any:
    """Our own loader over a table in memory."""
    count = steps * rows
    table = pa.table({f"c{i}": np.arange(count, dtype=np.int64) for i in range(8)})
    dataset = Dataset(table, npartitions=max(1, count // 50_000))
    options = LoaderOptions(batch_size=rows, shuffle=True, threads=1)
    return array_feed(dataset, options, dataset.column_names)


def loop(batches: Iterable[Any], step: Callable[[Any], None]) -> Cost:
    """Wall and CPU seconds of one pass."""
    wall, cpu = time.perf_counter(), time.process_time()
    for batch in batches:
        step(batch)
    return Cost(time.perf_counter() - wall, time.process_time() - cpu)


def profiled(batches: Any, step: Callable[[Any], None]) -> Cost:
    """The same with a profiler."""
    with Profiler(probe=False) as prof:
        return loop(prof.watch(batches), step)


def measure(batches: Any, step: Callable[[Any], None], pairs: int) -> dict[str, Any]:
    """Overhead in percent over alternating pairs, and what pairs without a profiler show."""
    loop(batches, step)
    on, control = [], []
    for number in range(pairs):
        order = (profiled, loop, loop) if number % 2 else (loop, loop, profiled)
        costs = [run(batches, step) for run in order]
        with_it, without = (costs[0], costs[1]) if number % 2 else (costs[2], costs[1])
        on.append((with_it, without))
        control.append((costs[2], costs[1]) if number % 2 else (costs[0], costs[1]))
    return {
        "wall": overhead([a.wall / b.wall for a, b in on]),
        "CPU": overhead([a.cpu / b.cpu for a, b in on]),
        "wall, neither profiled": overhead([a.wall / b.wall for a, b in control]),
    }


def overhead(ratios: list[float]) -> dict[str, Any]:
    """The median in percent, and where it lies with 95 % confidence."""
    values = 100 * (np.array(ratios) - 1)
    random = np.random.default_rng(0)
    again = np.median(random.choice(values, (2000, len(values))), axis=1)
    low, high = np.percentile(again, [2.5, 97.5])
    return {"%": round(float(np.median(values)), 2), "from": round(low, 2), "to": round(high, 2)}


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
    """Nanoseconds of the parts."""

    def marked() -> None:
        with span("a", rows=1):
            pass

    batch = {"x": np.zeros(4), "y": np.zeros(4)}
    bare = each(lambda: None)
    with Profiler(probe=False) as prof:
        start = time.perf_counter_ns()
        for _ in prof.watch([batch] * 200_000):
            pass
        watched = (time.perf_counter_ns() - start) / 200_000
    off = each(marked) - bare
    with recording(SpanLog()):
        on = each(marked, 20_000) - bare
    return {"a span, off": off, "a span, on": on, "a watched step": round(watched)}


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=100)
    parser.add_argument("--seconds", type=float, default=0.3, help="of one pass")
    args = parser.parse_args()
    result: dict[str, Any] = {"cores": cpu_count(), "load": os.getloadavg(), "loops": {}}
    for name, make in (("native", multiply), ("python", spin)):
        for length in (0.01, 0.001):
            batches = feed(max(20, int(args.seconds / length)))
            told = measure(batches, make(length), args.pairs)
            result["loops"][f"{name} step of {1000 * length:g} ms"] = told
            batches.close()
    result["nanoseconds"] = small_costs()
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
