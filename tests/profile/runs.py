"""Runs written by hand, in plain values as saved ones have them, for what follows from one."""

from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import Any

from tabfeed.profile import Profiler, Run

Plain = dict[str, Any]


class Finished(Profiler):
    """A profiler after a run that was written by hand."""

    def __init__(self, run: Run) -> None:
        super().__init__(run.name)
        self._finished = run

    @property
    def run(self) -> Run:
        return self._finished


def save_page(folder: Path, run: Run) -> str:
    """The report on a run as a web page."""
    return Finished(run).save(folder / "page.html").read_text("utf-8")


def make_stage(
    name: str, seconds: float, cpu: float, count: int = 100, rows: int = 1_000_000, **more: float
) -> Plain:
    """What the threads of a loader did."""
    return {"name": name, "seconds": seconds, "cpu": cpu, "count": count, "rows": rows, **more}


def make_run(*, wait: float = 0.0, compute: float = 1.0, **changes: Any) -> Run:
    """A hundred steps of 10,000 rows in about a second, on four cores."""
    times = {"wall": wait + compute + 0.1, "startup": 0.1, "wait": wait, "compute": compute}
    steps = {"count": 100, "rows": 1_000_000, "bytes": 40_000_000}
    steps["wait"] = {"median": wait / 100, "p95": wait / 50, "most": wait / 10}
    steps["compute"] = {"median": 0.01, "p95": 0.012, "most": 0.02}
    run = {
        "format": 1,
        "name": "by hand",
        "made": "2026-01-02T03:04:05+00:00",
        "machine": {"python": "3.12.1", "system": "Linux x86_64", "cores": 4},
        "loader": {"kind": "tabfeed", "name": "tabfeed torch.Loader", "threads": 2},
        "times": {**times, "cpu": 0.5 * compute},
        "steps": steps,
        "interpreter": make_interpreter(40, 0, 40, 0),
        "elapsed": times["wall"],
    }
    return change(Run.from_dict(run), **changes)


def change(run: Run, **changes: Any) -> Run:
    """The same run but for these values."""
    plain = {k: asdict(v) if is_dataclass(v) else v for k, v in changes.items()}  # type: ignore[call-overload]
    return Run.from_dict({**run.to_dict(), **plain})


def make_interpreter(waits: int, wait_held: int, computes: int, compute_held: int) -> Plain:
    """How often the loop was looked at, and how often another thread held the GIL."""
    return {
        "wait_looks": waits,
        "wait_held": wait_held,
        "compute_looks": computes,
        "compute_held": compute_held,
    }


def full_run(name: str = "all of it", **changes: Any) -> Run:
    """A run with everything a report can show."""
    bins = 60
    waits = tuple(0.01 + 0.005 * (i % 7 == 0) for i in range(bins))
    stages = (
        make_stage("transform", 1.2, 1.1),
        make_stage("read", 0.6, 0.5),
        make_stage("full", 0.1, 0.0, 40, 0),
        make_stage("gather", 0.2, 0.2),
        make_stage("finish", 0.05, 0.05),
    )
    lanes = (
        _lane("MainThread", ("wait", 0.0, 0.02), ("compute", 0.02, 0.03)),
        _lane("tabfeed-loader-0", ("chunk", 0.0, 0.03), ("read", 0.002, 0.02)),
    )
    points = tuple((i / 20, (i * 7 % 11) / 10) for i in range(40))
    series = {
        "startup": (0.035,) * 3 + (0.0,) * (bins - 3),
        "wait": (0.0,) * 3 + waits[3:],
        "compute": (0.0,) * 3 + tuple(0.035 - w for w in waits[3:]),
        "steps": (1.0,) * bins,
    }
    gpu = {"python": "3.12.1", "system": "Linux x86_64", "cores": 4, "gpus": ["NVIDIA H200"]}
    where = {"phase": "wait", "kind": "tabfeed", "where": "loop (train.py:3)", "count": 50}
    return make_run(
        wait=1.0,
        compute=1.0,
        **{
            "name": name,
            "machine": gpu,
            "device": {"idle": 0.9, "busy": 1.1, "steps": 100},
            "ceiling": {"seconds": 0.009, "rows": 10_000, "steps": 100},
            "stages": stages,
            "transforms": {"LogOp <b>&": 1.2},
            "threads": [{"name": "MainThread", "cpu": 1.0, "delay": 0.1}],
            "seen": [where],
            "timeline": {"width": 0.035, "sums": series},
            "stage_series": {
                "width": 0.05,
                "sums": {s["name"]: (s["seconds"] / 40,) * 40 for s in stages},
            },
            "window": {"start": 1.0, "end": 1.03, "lanes": lanes},
            "queue_most": 3,
            "queue": tuple((t, 3 * v) for t, v in points),
            "cpu": points,
            "gpu_busy": points,
            "gpu_memory": tuple((t, 2e9 + 1e8 * v) for t, v in points),
            **changes,
        },
    )


def _lane(name: str, *blocks: tuple[str, float, float]) -> Plain:
    named = [{"name": what, "start": start, "end": end} for what, start, end in blocks]
    return {"name": name, "blocks": named}
