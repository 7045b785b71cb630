"""The rows of the tables in every report."""

from __future__ import annotations

from tabfeed.profile.format import (
    STAGE_LABELS,
    WAITING_STAGES,
    count,
    megabytes,
    percent,
    rate,
    seconds,
)
from tabfeed.profile.run import Run, Stage

__all__ = ["Row", "headline", "stage_rows", "thread_rows", "time_rows"]

Row = tuple[str, ...]
_TIMES = {
    "startup": "start-up, to the first batch",
    "wait": "waiting for data",
    "copy": "copying to the device",
    "compute": "computing",
}


def headline(run: Run) -> list[Row]:
    """The most important figures: name, value, explanation."""
    rows: list[Row] = []
    if run.model:
        what = "measured, frozen batch" if run.ceiling else "of the time after start-up"
        name = "of the ceiling" if run.ceiling else "computing"
        rows.append((name, percent(run.efficiency), what))
        waited = "of the GPU's time" if run.device else "of the training loop"
        rows.append(("waiting for data", percent(run.wait_share), waited))
    if run.rows_per_second:
        rows.append(("rows per second", count(run.rows_per_second), _bytes_rate(run)))
    rows.append(("per step", seconds(run.step_seconds), f"{count(run.steps.count)} steps"))
    if run.gpu_busy_mean is not None:
        rows.append(("GPU busy", percent(run.gpu_busy_mean), ", ".join(run.machine.gpus)))
    rows.append(("to the first batch", seconds(run.times.startup), "start-up"))
    return rows


def _bytes_rate(run: Run) -> str:
    if run.steps.bytes is None or run.times.steady <= 0:
        return ""
    return f"{megabytes(run.steps.bytes / run.times.steady)} per second"


def time_rows(run: Run) -> list[Row]:
    """The training thread's time: label, seconds, share, median, 95th percentile, longest."""
    spreads = {"wait": run.steps.wait, "compute": run.steps.compute}
    rows: list[Row] = []
    for name, label in _TIMES.items():
        value = getattr(run.times, name)
        if name == "copy" and not value:
            continue
        spread = spreads.get(name)
        each = (
            ("", "", "")
            if spread is None
            else (seconds(spread.median), seconds(spread.p95), seconds(spread.most))
        )
        rows.append((label, seconds(value), percent(value / max(run.times.wall, 1e-9)), *each))
    rows.append(("total", seconds(run.times.wall), percent(1.0), "", "", ""))
    return rows


def stage_rows(run: Run) -> list[Row]:
    """The loader threads' time: stage, seconds, share, share on a core, rows per second."""
    total = sum(s.seconds for s in run.stages) or 1.0
    return [_stage_row(s, total) for s in run.stages]


def _stage_row(stage: Stage, total: float) -> Row:
    waiting = stage.name in WAITING_STAGES
    on_core = "" if waiting or not stage.seconds else percent(stage.cpu / stage.seconds)
    fast = rate(stage.rows / stage.seconds) if stage.rows and stage.seconds else ""
    label = STAGE_LABELS.get(stage.name, stage.name)
    return label, seconds(stage.seconds), percent(stage.seconds / total), on_core, fast


def thread_rows(run: Run) -> list[Row]:
    """Threads that used a core: name, share of the run on a core, share waiting for one."""
    whole = run.elapsed or 1.0
    return [
        (t.name, percent(t.cpu / whole), percent(t.delay / whole))
        for t in run.threads
        if t.cpu / whole >= 0.001
    ]
