"""From recordings to a `Run`: sums, spreads, a time line, a window of a few steps."""

from __future__ import annotations

import datetime
import platform
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from tabfeed.budget import cpu_count
from tabfeed.profile import run as r
from tabfeed.profile.analyse.stages import Sums
from tabfeed.profile.collect.accelerator import CudaMarks
from tabfeed.profile.collect.batches import COMPUTE, WAIT, Pass, pipeline_of
from tabfeed.profile.collect.curves import Curve
from tabfeed.profile.collect.sampler import Sampler

__all__ = ["Recorded", "summarise"]

_BINS = 120
_MOST_THREADS = 16
_MOST_PLACES = 12
_MOST_BLOCKS = 1200
_LOADER = "tabfeed-loader"
_PHASES = {WAIT: "wait", COMPUTE: "compute"}
_NONE = r.Spread(0.0, 0.0, 0.0)
Times = npt.NDArray[np.int64]


class Recorded(NamedTuple):
    """What a profiler has at the end."""

    name: str
    passes: Sequence[Pass]
    sampler: Sampler
    marks: CudaMarks
    gpus: Sequence[str]
    training_thread: str
    extra: Mapping[str, Any]


class _Intervals(NamedTuple):
    """Of all passes, in order: when batches were asked for, there, and done with."""

    ask: Times
    got: Times
    done: Times


def _intervals(passes: Sequence[Pass]) -> _Intervals:
    ask, got, done = [], [], []
    for p in passes:
        asked, there = np.array(p.ask, np.int64), np.array(p.got, np.int64)
        count = len(there)
        ask.append(asked[:count])
        got.append(there)
        done.append(np.append(asked[1 : count + 1], [p.end] if len(asked) <= count else [])[:count])
    both = [np.concatenate(x or [np.empty(0)]).astype(np.int64) for x in (ask, got, done)]
    return _Intervals(*both)


def _ending(p: Pass) -> int:
    """Waiting for the end: asked, and there was no more."""
    return p.end - p.ask[-1] if len(p.ask) > len(p.got) else 0


def summarise(recorded: Recorded) -> r.Run:
    """The run."""
    outer = [p for p in recorded.passes if not p.inner]
    inner = [p for p in recorded.passes if p.inner]
    steps = _intervals(outer)
    copy = _marked_copy(recorded)
    times = _times(outer, inner, steps, copy)
    origin = recorded.sampler.origin
    sampler = recorded.sampler
    return r.Run(
        name=recorded.name,
        made=datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        machine=_machine(recorded.gpus),
        loader=_loader(outer),
        times=times,
        steps=_steps(outer, steps),
        interpreter=_interpreter(sampler),
        device=_device(recorded.marks),
        stages=_stages(sampler),
        transforms={k: v / 1e9 for k, v in sampler.stages.what.most_common(12)},
        threads=_threads(sampler),
        seen=_seen(sampler),
        timeline=_timeline(outer, steps, origin),
        stage_series=_stage_series(sampler),
        window=_window(steps, recorded),
        queue_most=sampler.queue_most,
        queue=_curve(sampler.queue),
        cpu=_curve(sampler.cpu),
        gpu_busy=_curve(sampler.gpu_busy),
        gpu_memory=_curve(sampler.gpu_memory),
        elapsed=sampler.elapsed,
        profiler_cpu=sampler.own_cpu / 1e9,
        **recorded.extra,
    )


def _machine(gpus: Sequence[str]) -> r.Machine:
    system = f"{platform.system()} {platform.machine()}"
    return r.Machine(platform.python_version(), system, cpu_count(), tuple(gpus))


def _loader(outer: Sequence[Pass]) -> r.Loader:
    if not outer:
        return r.Loader("none", "nothing")
    return describe_loader(outer[0].source)


def describe_loader(source: Any) -> r.Loader:
    """What kind of thing is iterated."""
    kind = type(source)
    module = kind.__module__
    feed = pipeline_of(source)
    processes = getattr(source, "num_workers", None)
    processes = processes if isinstance(processes, int) else None
    if feed is not None:
        threads = None if processes else int(feed.pipeline.options.workers)
        framework = module.removeprefix("tabfeed.loader.").partition(".")[0]
        name = "tabfeed" if framework == "state" else f"tabfeed {framework}.{kind.__name__}"
        return r.Loader("tabfeed", name, threads, processes)
    if module.startswith("torch.utils.data"):
        return r.Loader("torch", f"torch {kind.__name__}", processes=processes)
    if module.startswith("tensorflow"):
        return r.Loader("tf.data", "tf.data")
    return r.Loader("iterable", kind.__name__)


def _times(outer: Sequence[Pass], inner: Sequence[Pass], steps: _Intervals, copy: float) -> r.Times:
    if not outer:
        return r.Times(0.0, 0.0, 0.0, 0.0)
    wall = sum(p.end - p.begin for p in outer)
    waits = int((steps.got - steps.ask).sum()) + sum(_ending(p) for p in outer)
    startup = outer[0].got[0] - outer[0].begin if outer[0].got else outer[0].end - outer[0].begin
    within = _intervals(inner)
    waits += int((within.got - within.ask).sum()) + sum(_ending(p) for p in inner)
    cpu = [p.cpu for p in outer]
    return r.Times(
        wall=wall / 1e9,
        startup=startup / 1e9,
        wait=(waits - startup) / 1e9,
        compute=(wall - waits) / 1e9 - copy,
        copy=copy,
        between=sum(max(0, b.begin - a.end) for a, b in pairwise(outer)) / 1e9,
        cpu=None if min(cpu) < 0 else sum(cpu) / 1e9,
    )


def _marked_copy(recorded: Recorded) -> float:
    sums = recorded.sampler.stages.sums.get((recorded.training_thread, "copy"))
    return 0.0 if sums is None else sums.own / 1e9


def _steps(outer: Sequence[Pass], steps: _Intervals) -> r.Steps:
    counts = [p.rows for p in outer if p.got]
    known = [n for n in counts if n is not None]
    rows = sum(known) if known and len(known) == len(counts) else None
    sizes = [s for p in outer for s in p.sizes]
    looked_rows, looked_bytes = sum(n for n, _ in sizes), sum(b for _, b in sizes)
    seen = rows is not None and looked_rows and looked_bytes
    total = int(looked_bytes / looked_rows * rows) if rows is not None and seen else None
    return r.Steps(
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


def _interpreter(sampler: Sampler) -> r.Interpreter:
    looks, held = sampler.looks, sampler.held
    return r.Interpreter(looks[WAIT], held[WAIT], looks[COMPUTE], held[COMPUTE])


def _device(marks: CudaMarks) -> r.Device | None:
    if not marks.steps:
        return None
    return r.Device(marks.idle / 1e3, marks.busy / 1e3, marks.steps)


def _stages(sampler: Sampler) -> tuple[r.Stage, ...]:
    by_name: dict[str, list[Sums]] = {}
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
        )
        for name, found in by_name.items()
    ]
    return tuple(sorted(stages, key=lambda s: -s.seconds))


def _threads(sampler: Sampler) -> tuple[r.ThreadUse, ...]:
    rows = sampler.threads.totals()
    used = [r.ThreadUse(n, cpu / 1e9, delay / 1e9) for n, cpu, delay in rows if cpu > 0]
    return tuple(used[:_MOST_THREADS])


def _seen(sampler: Sampler) -> tuple[r.Seen, ...]:
    places = sampler.stacks.places()[:_MOST_PLACES]
    return tuple(r.Seen(_PHASES[p.phase], p.kind, p.where, p.count) for p in places)


def _curve(curve: Curve) -> tuple[tuple[float, float], ...]:
    return tuple((t / 1e9, v) for t, v in curve.points)


def _timeline(outer: Sequence[Pass], steps: _Intervals, origin: int) -> r.Series | None:
    """Seconds waiting and computing, and steps, in each of some stretches of the run."""
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
    """How much of each stretch lies inside the intervals, which do not overlap."""
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


def _window(steps: _Intervals, recorded: Recorded) -> r.Window | None:
    """A few steps about two thirds through, or as many as show a few chunks being made."""
    count = len(steps.got)
    if count < 2:
        return None
    recent = recorded.sampler.stages.recent
    begin, end = int(steps.ask[0]), int(steps.done[-1])
    chunks = [e.end - e.start for e in recent if e.name == "chunk"]
    length = max(12 * (end - begin) // count, 3 * int(np.median(chunks)) if chunks else 0)
    length = min(length, end - begin, _MOST_BLOCKS // 2 * (end - begin) // count)
    start = begin + (end - begin - length) * 2 // 3
    if chunks:
        start = min(max(start, recent[0].start), end - length)
    return _cut(steps, recorded, start, start + length)


def _cut(steps: _Intervals, recorded: Recorded, start: int, stop: int) -> r.Window:
    shown = np.flatnonzero((steps.done > start) & (steps.ask < stop))
    spans: list[tuple[str, int, int]] = []
    for i in shown.tolist():
        spans.append(("wait", int(steps.ask[i]), int(steps.got[i])))
        spans.append(("compute", int(steps.got[i]), int(steps.done[i])))
    lanes = {recorded.training_thread: spans}
    entries = [e for e in recorded.sampler.stages.recent if e.end > start and e.start < stop]
    for e in sorted(entries, key=lambda e: (e.start, -e.end)):
        if e.thread != recorded.training_thread or e.name == "copy":
            lanes.setdefault(e.thread, []).append((e.name, e.start, e.end))
    first, *others = lanes
    made = [_lane(n, lanes[n], start, stop) for n in (first, *sorted(others))]
    return r.Window(
        (start - recorded.sampler.origin) / 1e9, (stop - recorded.sampler.origin) / 1e9, tuple(made)
    )


def _lane(name: str, spans: Sequence[tuple[str, int, int]], start: int, stop: int) -> r.Lane:
    """Blocks in seconds from the window's start; the smallest are left out where there are many."""
    cut = [(n, max(a, start) - start, min(b, stop) - start) for n, a, b in spans]
    if len(cut) > _MOST_BLOCKS:
        least = sorted(b - a for _, a, b in cut)[-_MOST_BLOCKS]
        cut = [c for c in cut if c[2] - c[1] >= least]
    return r.Lane(name, tuple(r.Block(n, a / 1e9, b / 1e9) for n, a, b in cut if b > a))
