"""The report as text for a terminal: the verdict first, then the evidence."""

from __future__ import annotations

import io
import sys

from rich import box
from rich.console import Console, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from tabfeed.profile.analyse.causes import Verdict
from tabfeed.profile.analyse.verdict import judge
from tabfeed.profile.report.tables import Row, headline, stage_rows, thread_rows, time_rows
from tabfeed.profile.run import Run

__all__ = ["report", "show"]

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
    for seconds, colour, sign in parts:
        until += seconds
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
