"""What the profiler costs: the same loop with it and without, turn by turn.

Runs alternate, so that a machine that is busier for a while is so for both; each pair gives one
ratio, and the median of the ratios is told, with the middle half of them. Prints JSON.

    python benchmarks/profiler_overhead.py [--pairs 20] [--seconds 1.0]
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pyarrow as pa

from tabfeed import Dataset
from tabfeed.budget import cpu_count
from tabfeed.loader.options import LoaderOptions
from tabfeed.profile import Profiler
from tabfeed.profile.spans import SpanLog
from tabfeed.profile.through import array_feed
from tabfeed.trace import recording, span


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


def loop(batches: Iterable[Any], step: Callable[[Any], None]) -> float:
    """Seconds of one pass."""
    start = time.perf_counter()
    for batch in batches:
        step(batch)
    return time.perf_counter() - start


def pair(batches: Any, step: Callable[[Any], None], first_on: bool) -> tuple[float, float]:
    """Seconds with the profiler on, and off."""
    found = {}
    for on in (first_on, not first_on):
        if on:
            with Profiler(probe=False) as prof:
                found[on] = loop(prof.watch(batches), step)
        else:
            found[on] = loop(batches, step)
    return found[True], found[False]


def measure(batches: Any, step: Callable[[Any], None], pairs: int) -> dict[str, Any]:
    """Overhead in percent over alternating pairs, after one that does not count."""
    pair(batches, step, True)
    times = [pair(batches, step, number % 2 == 0) for number in range(pairs)]
    ratios = sorted(100 * (on / off - 1) for on, off in times)
    quarter = len(ratios) // 4
    least_on, least_off = min(on for on, _ in times), min(off for _, off in times)
    return {
        "overhead in %, median of pairs": round(statistics.median(ratios), 3),
        "middle half": [round(ratios[quarter], 3), round(ratios[-1 - quarter], 3)],
        "overhead in %, fastest of each": round(100 * (least_on / least_off - 1), 3),
        "seconds off, median": round(statistics.median(off for _, off in times), 4),
    }


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
    parser.add_argument("--pairs", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=1.0, help="of one pass")
    args = parser.parse_args()
    result: dict[str, Any] = {"cores": cpu_count(), "load": os.getloadavg(), "loops": {}}
    for name, make in (("native", multiply), ("python", spin)):
        for length in (0.01, 0.002, 0.0005):
            batches = feed(max(20, int(args.seconds / length)))
            told = measure(batches, make(length), args.pairs)
            result["loops"][f"{name} step of {1000 * length:g} ms"] = told
            batches.close()
    result["nanoseconds"] = small_costs()
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
