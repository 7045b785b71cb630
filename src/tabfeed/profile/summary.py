"""Turn recordings into a `Run`: sums, percentiles, a timeline, a close-up of a few steps."""

from __future__ import annotations

import datetime
import platform
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from tabfeed.budget import cpu_count
from tabfeed.profile import run as r
from tabfeed.profile.collect.batches import COMPUTE, WAIT, EpochTimer, state_of
from tabfeed.profile.collect.processors import CudaMarks
from tabfeed.profile.collect.sampler import Sampler
from tabfeed.profile.collect.spans import Curve, StageTotal

_BINS = 120
_MAX_THREADS = 16
_MAX_PLACES = 12
_MAX_ACTIVITIES = 1200
_LOADER = "tabfeed-loader"
_PHASES = {WAIT: "wait", COMPUTE: "compute"}
_NONE = r.Spread(0.0, 0.0, 0.0)
Times = npt.NDArray[np.int64]


class _Intervals(NamedTuple):
    """When the batches of all epochs were requested, received, and finished."""

    ask: Times
    got: Times
    done: Times


def _intervals(epochs: Sequence[EpochTimer]) -> _Intervals:
    ask, got, done = [], [], []
    for p in epochs:
        asked, there = np.array(p.ask, np.int64), np.array(p.got, np.int64)
        count = len(there)
        ask.append(asked[:count])
        got.append(there)
        done.append(np.append(asked[1 : count + 1], [p.end] if len(asked) <= count else [])[:count])
    both = [np.concatenate(x or [np.empty(0)]).astype(np.int64) for x in (ask, got, done)]
    return _Intervals(*both)


def _ending(p: EpochTimer) -> int:
    """Nanoseconds of waiting at the end, for a batch that didn't come."""
    return p.end - p.ask[-1] if len(p.ask) > len(p.got) else 0


def summarise(
    name: str,
    epochs: Sequence[EpochTimer],
    sampler: Sampler,
    marks: CudaMarks,
    training_thread: str,
    gpus: Sequence[str],
    **others: Any,
) -> r.Run:
    """Summarise a recording; `others` are more attributes of the run."""
    outer = [p for p in epochs if not p.inner]
    steps = _intervals(outer)
    marked = sampler.stages.sums.get((training_thread, "copy"))
    copy = 0.0 if marked is None else marked.own / 1e9
    samples, held = sampler.samples, sampler.held
    used = [r.ThreadUse(n, cpu / 1e9, wait / 1e9) for n, cpu, wait in sampler.threads.totals()]
    system = f"{platform.system()} {platform.machine()}"
    device = r.DeviceTimes(marks.idle / 1e3, marks.busy / 1e3, marks.steps)
    return r.Run(
        name=name,
        made=datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        machine=r.Machine(platform.python_version(), system, cpu_count(), tuple(gpus)),
        loader=describe_loader(outer[0].source) if outer else r.LoaderInfo("none", "nothing"),
        times=_times(outer, [p for p in epochs if p.inner], steps, copy),
        steps=_steps(outer, steps),
        interpreter=r.Interpreter(samples[WAIT], held[WAIT], samples[COMPUTE], held[COMPUTE]),
        device=device if marks.steps else None,
        stages=_stages(sampler),
        transforms={k: v / 1e9 for k, v in sampler.stages.what.most_common(12)},
        threads=tuple(thread for thread in used if thread.cpu > 0)[:_MAX_THREADS],
        seen=tuple(
            r.SampledPlace(_PHASES[line.phase], line.kind, line.where, line.count)
            for line in sampler.stacks.lines()[:_MAX_PLACES]
        ),
        timeline=_timeline(outer, steps),
        stage_series=_stage_series(sampler),
        window=_window(steps, sampler, training_thread),
        queue_most=sampler.queue_most,
        queue=_curve(sampler.queue),
        cpu=_curve(sampler.cpu),
        gpu_busy=_curve(sampler.gpu_busy),
        gpu_memory=_curve(sampler.gpu_memory),
        elapsed=sampler.elapsed,
        profiler_cpu=sampler.own_cpu / 1e9,
        **others,
    )


def describe_loader(source: Any) -> r.LoaderInfo:
    """The kind and the name of a loader."""
    kind = type(source)
    module = kind.__module__
    state = state_of(source)
    processes = getattr(source, "num_workers", None)
    processes = processes if isinstance(processes, int) else None
    if state is not None:
        threads = None if processes else int(state.pipeline.options.workers)
        framework = module.removeprefix("tabfeed.loader.").partition(".")[0]
        name = "tabfeed" if framework == "state" else f"tabfeed {framework}.{kind.__name__}"
        return r.LoaderInfo("tabfeed", name, threads, processes)
    if module.startswith("torch.utils.data"):
        return r.LoaderInfo("torch", f"torch {kind.__name__}", processes=processes)
    if module.startswith("tensorflow"):
        return r.LoaderInfo("tf.data", "tf.data")
    return r.LoaderInfo("iterable", kind.__name__)


def _times(
    outer: Sequence[EpochTimer], inner: Sequence[EpochTimer], steps: _Intervals, copy: float
) -> r.LoopTimes:
    if not outer:
        return r.LoopTimes(0.0, 0.0, 0.0, 0.0)
    wall = sum(p.end - p.begin for p in outer)
    waits = int((steps.got - steps.ask).sum()) + sum(_ending(p) for p in outer)
    startup = outer[0].got[0] - outer[0].begin if outer[0].got else outer[0].end - outer[0].begin
    within = _intervals(inner)
    waits += int((within.got - within.ask).sum()) + sum(_ending(p) for p in inner)
    cpu = [p.cpu for p in outer]
    return r.LoopTimes(
        wall=wall / 1e9,
        startup=startup / 1e9,
        wait=(waits - startup) / 1e9,
        compute=(wall - waits) / 1e9 - copy,
        copy=copy,
        between=sum(max(0, b.begin - a.end) for a, b in pairwise(outer)) / 1e9,
        cpu=None if min(cpu) < 0 else sum(cpu) / 1e9,
    )


def _steps(outer: Sequence[EpochTimer], steps: _Intervals) -> r.StepStats:
    counts = [p.rows for p in outer if p.got]
    known = [n for n in counts if n is not None]
    rows = sum(known) if known and len(known) == len(counts) else None
    sizes = [s for p in outer for s in p.sizes]
    known_rows, known_bytes = sum(n for n, _ in sizes), sum(b for _, b in sizes)
    seen = rows is not None and known_rows and known_bytes
    total = int(known_bytes / known_rows * rows) if rows is not None and seen else None
    return r.StepStats(
        count=len(steps.got),
        rows=rows,
        bytes=total,
        wait=_spread((steps.got - steps.ask)[1:]),
        compute=_spread(steps.done - steps.got),
    )


def _spread(nanoseconds: Times) -> r.Spread:
    if not len(nanoseconds):
        return _NONE
    median, p95 = np.percentile(nanoseconds, [50, 95])
    return r.Spread(float(median) / 1e9, float(p95) / 1e9, float(nanoseconds.max()) / 1e9)


def _stages(sampler: Sampler) -> tuple[r.Stage, ...]:
    by_name: dict[str, list[StageTotal]] = {}
    for (thread, name), sums in sampler.stages.sums.items():
        if thread.startswith(_LOADER):
            by_name.setdefault(name, []).append(sums)
    stages = [
        r.Stage(
            name,
            seconds=sum(s.own for s in found) / 1e9,
            cpu=sum(s.cpu for s in found) / 1e9,
            count=sum(s.count for s in found),
            rows=sum(s.rows for s in found),
            delay=sum(s.delay for s in found) / 1e9,
        )
        for name, found in by_name.items()
    ]
    return tuple(sorted(stages, key=lambda s: -s.seconds))


def _curve(curve: Curve) -> tuple[tuple[float, float], ...]:
    return tuple((t / 1e9, v) for t, v in curve.points)


def _timeline(outer: Sequence[EpochTimer], steps: _Intervals) -> r.Series | None:
    """Seconds of waiting and computing, and steps, in equal stretches of the run."""
    if not len(steps.got):
        return None
    low, high = outer[0].begin, outer[-1].end
    edges = np.linspace(low, high, _BINS + 1)
    ends = np.array([(p.ask[-1], p.end) for p in outer if _ending(p)], np.int64).reshape(-1, 2)
    asked, there = np.append(steps.ask[1:], ends[:, 0]), np.append(steps.got[1:], ends[:, 1])
    startup = _cumulated(steps.ask[:1], steps.got[:1], edges)
    wait = _cumulated(asked, there, edges)
    compute = _cumulated(steps.got, steps.done, edges)
    count = np.diff(np.searchsorted(steps.got, edges, side="right")).astype(float)
    sums = {"startup": startup / 1e9, "wait": wait / 1e9, "compute": compute / 1e9, "steps": count}
    width = float(edges[1] - edges[0]) / 1e9
    return r.Series(width, {k: tuple(np.round(v, 9).tolist()) for k, v in sums.items()})


def _cumulated(start: Times, end: Times, edges: npt.NDArray[np.float64]) -> Any:
    """How much of each stretch is inside the intervals, which don't overlap."""
    if not len(start):
        return np.zeros(len(edges) - 1)
    order = np.argsort(start, kind="stable")
    start, end = start[order], end[order]
    knots = np.stack([start, end], axis=1).ravel()
    lengths = np.stack([np.zeros_like(start), end - start], axis=1).ravel()
    return np.diff(np.interp(edges, knots, np.cumsum(lengths)))


def _stage_series(sampler: Sampler) -> r.Series | None:
    bins = sampler.stages.bins
    if not bins.sums:
        return None
    count = max(max(sums) for sums in bins.sums.values()) + 1
    return r.Series(
        bins.width / 1e9,
        {
            name: tuple(round(sums.get(i, 0.0) / 1e9, 6) for i in range(count))
            for name, sums in bins.sums.items()
        },
    )


def _window(steps: _Intervals, sampler: Sampler, training_thread: str) -> r.Window | None:
    """A few steps after two thirds of the run, enough to show several chunks being made."""
    count = len(steps.got)
    if count < 2:
        return None
    recent = sampler.stages.recent
    begin, end = int(steps.ask[0]), int(steps.done[-1])
    chunks = [e.end - e.start for e in recent if e.name == "chunk"]
    length = max(12 * (end - begin) // count, 3 * int(np.median(chunks)) if chunks else 0)
    length = min(length, end - begin, _MAX_ACTIVITIES // 2 * (end - begin) // count)
    start = begin + (end - begin - length) * 2 // 3
    if chunks:
        start = min(max(start, recent[0].start), end - length)
    return _cut(steps, sampler, training_thread, start, start + length)


def _cut(
    steps: _Intervals, sampler: Sampler, training_thread: str, start: int, stop: int
) -> r.Window:
    shown = np.flatnonzero((steps.done > start) & (steps.ask < stop))
    spans: list[tuple[str, int, int]] = []
    for i in shown.tolist():
        spans.append(("wait", int(steps.ask[i]), int(steps.got[i])))
        spans.append(("compute", int(steps.got[i]), int(steps.done[i])))
    lanes = {training_thread: spans}
    entries = [e for e in sampler.stages.recent if e.end > start and e.start < stop]
    for e in sorted(entries, key=lambda e: (e.start, -e.end)):
        if e.thread != training_thread or e.name == "copy":
            lanes.setdefault(e.thread, []).append((e.name, e.start, e.end))
    first, *others = lanes
    made = tuple(_lane(n, lanes[n], start, stop) for n in (first, *sorted(others)))
    return r.Window((start - sampler.origin) / 1e9, (stop - sampler.origin) / 1e9, made)


def _lane(name: str, spans: Sequence[tuple[str, int, int]], start: int, stop: int) -> r.Lane:
    """A thread's activities in seconds from the window's start, without the shortest if many."""
    cut = [(n, max(a, start) - start, min(b, stop) - start) for n, a, b in spans]
    if len(cut) > _MAX_ACTIVITIES:
        least = sorted(b - a for _, a, b in cut)[-_MAX_ACTIVITIES]
        cut = [c for c in cut if c[2] - c[1] >= least]
    return r.Lane(name, tuple(r.Activity(n, a / 1e9, b / 1e9) for n, a, b in cut if b > a))
