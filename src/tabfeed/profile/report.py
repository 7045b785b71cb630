"""The report as text, the verdict first, and the rows of every report's tables."""

from __future__ import annotations

import io
import sys

from rich import box
from rich.console import Console, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from tabfeed.display import count, megabytes, percent, rate, seconds
from tabfeed.profile.judge import judge
from tabfeed.profile.run import STAGE_LABELS, WAITING_STAGES, Run, Stage
from tabfeed.profile.verdict import Verdict

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


_WIDTH = 100


def report(run: Run, *, width: int = _WIDTH) -> str:
    """The report as text, with colours if stdout is a terminal."""
    file = io.StringIO()
    colours = sys.stdout is not None and sys.stdout.isatty()
    console = Console(file=file, width=width, force_terminal=colours, no_color=not colours)
    show(run, console)
    return file.getvalue()


def show(run: Run, console: Console) -> None:
    """Print the report."""
    verdict = judge(run)
    console.print(_verdict(run, verdict))
    console.print(_headline(run))
    console.print(_bar(run, min(console.width, _WIDTH)))
    head: Row = ("training thread", "seconds", "share", "median", "95 %", "longest")
    console.print(_table(head, time_rows(run)))
    if run.stages:
        head = ("loader threads", "seconds", "share", "on a core", "speed")
        console.print(_table(head, stage_rows(run)))
    rows = thread_rows(run)
    if rows:
        console.print(_table(("thread", "on a core", "waiting for a core"), rows[:8]))


def _verdict(run: Run, verdict: Verdict) -> RenderableType:
    colour = "green" if verdict.good else "yellow" if verdict.cause == "short" else "red"
    text = Text(verdict.sentence, style="bold")
    for line in verdict.evidence:
        text.append(f"\n  {line}", style="not bold dim")
    for advice in verdict.advice:
        text.append(f"\n→ {advice}", style="not bold")
    title = f"[bold]{run.name}[/]: {run.loader.name}"
    return Panel(text, title=title, title_align="left", border_style=colour, box=box.ROUNDED)


def _headline(run: Run) -> Table:
    table = Table.grid(padding=(0, 3, 0, 0))
    rows = headline(run)
    table.add_row(*(Text(value, style="bold") for _, value, _ in rows))
    table.add_row(*(Text(name, style="dim") for name, _, _ in rows))
    return table


def _bar(run: Run, width: int) -> Text:
    """Start-up, waiting, copying and computing as one line."""
    times = run.times
    bar = Text("\n")
    parts = (
        (times.startup, "bright_black", "·"),
        (times.wait, "red", "░"),
        (times.copy, "yellow", "▒"),
        (times.compute, "blue", "█"),
    )
    drawn, until = 0, 0.0
    for value, colour, sign in parts:
        until += value
        end = round(width * until / max(times.wall, 1e-9))
        bar.append(sign * (end - drawn), style=colour)
        drawn = end
    bar.append("\n· start-up  ░ waiting  ▒ copying  █ computing", style="dim")
    return bar


def _table(head: Row, rows: list[Row]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, header_style="bold", pad_edge=False)
    for i, name in enumerate(head):
        table.add_column(name, justify="right" if i else "left", no_wrap=bool(i))
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    return table
