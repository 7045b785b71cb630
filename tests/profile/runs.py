"""Runs written by hand, for what follows from one."""

from dataclasses import replace
from typing import Any

from tabfeed.profile import run as r


def make_run(*, wait: float = 0.0, compute: float = 1.0, **changes: Any) -> r.Run:
    """A hundred steps of 10,000 rows in about a second, on four cores."""
    times = r.LoopTimes(
        wall=wait + compute + 0.1, startup=0.1, wait=wait, compute=compute, cpu=0.5 * compute
    )
    spread = r.Spread(wait / 100, wait / 50, wait / 10)
    run = r.Run(
        name="by hand",
        made="2026-01-02T03:04:05+00:00",
        machine=r.Machine("3.12.1", "Linux x86_64", 4),
        loader=r.LoaderInfo("tabfeed", "tabfeed torch.Loader", threads=2),
        times=times,
        steps=r.StepStats(100, 1_000_000, 40_000_000, spread, r.Spread(0.01, 0.012, 0.02)),
        interpreter=r.Interpreter(40, 0, 40, 0),
        elapsed=times.wall,
    )
    return replace(run, **changes)


def full_run(name: str = "all of it", **changes: Any) -> r.Run:
    """A run with everything a report can show."""
    bins = 60
    waits = tuple(0.01 + 0.005 * (i % 7 == 0) for i in range(bins))
    stages = (
        r.Stage("transform", 1.2, 1.1, 100, 1_000_000),
        r.Stage("read", 0.6, 0.5, 100, 1_000_000),
        r.Stage("full", 0.1, 0.0, 40, 0),
        r.Stage("gather", 0.2, 0.2, 100, 1_000_000),
        r.Stage("finish", 0.05, 0.05, 100, 1_000_000),
    )
    lanes = (
        r.Lane("MainThread", (r.Activity("wait", 0.0, 0.02), r.Activity("compute", 0.02, 0.03))),
        r.Lane(
            "tabfeed-loader-0", (r.Activity("chunk", 0.0, 0.03), r.Activity("read", 0.002, 0.02))
        ),
    )
    points = tuple((i / 20, (i * 7 % 11) / 10) for i in range(40))
    return make_run(
        wait=1.0,
        compute=1.0,
        **{
            "name": name,
            "machine": r.Machine("3.12.1", "Linux x86_64", 4, ("NVIDIA H200",)),
            "device": r.DeviceTimes(0.9, 1.1, 100),
            "ceiling": r.Ceiling(0.009, 10_000, 100),
            "stages": stages,
            "transforms": {"LogOp <b>&": 1.2},
            "threads": (r.ThreadUse("MainThread", 1.0, 0.1),),
            "seen": (r.SampledPlace("wait", "tabfeed", "loop (train.py:3)", 50),),
            "timeline": r.Series(
                0.035,
                {
                    "startup": (0.035,) * 3 + (0.0,) * (bins - 3),
                    "wait": (0.0,) * 3 + waits[3:],
                    "compute": (0.0,) * 3 + tuple(0.035 - w for w in waits[3:]),
                    "steps": (1.0,) * bins,
                },
            ),
            "stage_series": r.Series(0.05, {s.name: (s.seconds / 40,) * 40 for s in stages}),
            "window": r.Window(1.0, 1.03, lanes),
            "queue_most": 3,
            "queue": tuple((t, 3 * v) for t, v in points),
            "cpu": points,
            "gpu_busy": points,
            "gpu_memory": tuple((t, 2e9 + 1e8 * v) for t, v in points),
            **changes,
        },
    )
