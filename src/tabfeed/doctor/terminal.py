"""A diagnosis as text, through Rich: the sentence first, then what it stands on."""

from __future__ import annotations

import io

from rich import box
from rich.console import Console
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from tabfeed.doctor.findings import Diagnosis, Finding, Forecast
from tabfeed.doctor.rewriter import Rewritten
from tabfeed.profile.format import count, megabytes, rate

__all__ = ["report", "show", "show_rewritten"]

_WIDTH = 110


def report(diagnosis: Diagnosis, *, width: int = _WIDTH) -> str:
    """The report without colours."""
    file = io.StringIO()
    show(diagnosis, Console(file=file, width=width, no_color=True))
    return file.getvalue()


def show(diagnosis: Diagnosis, console: Console) -> None:
    """Print the report."""
    good = not diagnosis.unreadable and not diagnosis.best.gain.matters
    colour = "red" if diagnosis.unreadable else "green" if good else "yellow"
    title = Text(diagnosis.path, style="bold")
    text = Text(diagnosis.verdict, style="bold")
    console.print(
        Panel(text, title=title, title_align="left", border_style=colour, box=box.ROUNDED)
    )
    for reason in diagnosis.unreadable:
        console.print(Text(f"cannot be read: {reason}", style="red"))
    console.print(Text(_headline(diagnosis), style="dim"))
    if diagnosis.findings:
        console.print(_findings(diagnosis.findings))
    console.print(_forecasts(diagnosis))
    if diagnosis.left_out:
        names = ", ".join(diagnosis.left_out[:8])
        console.print(Text(f"not looked at, no tensor holds them: {names}", style="dim"))


def _headline(diagnosis: Diagnosis) -> str:
    return (
        f"{count(diagnosis.rows)} rows in {count(diagnosis.files)} files, "
        f"{megabytes(diagnosis.stored)}; measured on {count(diagnosis.sample_rows)} rows, read as "
        "a loader reads, from memory"
    )


def _findings(findings: tuple[Finding, ...]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, header_style="bold", pad_edge=False)
    table.add_column("costs here", justify="right", no_wrap=True)
    table.add_column("what was found")
    for finding in findings:
        style = "" if finding.matters else "dim"
        table.add_row(Text(_cost(finding), style=style or "bold"), _what(finding, style))
    return table


def _what(finding: Finding, style: str) -> Text:
    text = Text(finding.title, style=style or "bold")
    text.append(f": {finding.evidence}", style=style or "not bold")
    if finding.matters and finding.cure:
        text.append(f"\n→ {finding.cure}: {finding.advice}", style="not bold")
    return text


def _cost(finding: Finding) -> str:
    """How many times as long reading takes; of what makes it faster, only that it does."""
    if finding.cost is None:
        return finding.note
    return "helps" if finding.cost.high < 1 else f"{finding.cost.ratio:.2f} x"


def _forecasts(diagnosis: Diagnosis) -> Table:
    table = Table(box=box.SIMPLE_HEAD, header_style="bold", pad_edge=False)
    for name in ("predicted", "speed", "rows a second", "size"):
        table.add_column(name, justify="left" if name == "predicted" else "right", no_wrap=True)
    now = diagnosis.rows_per_second
    table.add_row("as they are", "1.00 x", rate(now), megabytes(diagnosis.stored))
    for forecast in diagnosis.forecasts:
        table.add_row(*_forecast_row(forecast, diagnosis))
    return table


def _forecast_row(forecast: Forecast, diagnosis: Diagnosis) -> list[str]:
    gain = forecast.gain.ratio
    return [
        f"tabfeed rewrite --layout {forecast.layout}",
        f"{gain:.2f} x",
        rate(diagnosis.rows_per_second * gain),
        megabytes(diagnosis.stored * forecast.size),
    ]


def show_rewritten(told: Rewritten, out: str, seconds: float, console: Console) -> None:
    """Print what rewriting gained: predicted and measured side by side."""
    rows, files = told.dataset.num_rows, len(told.dataset.files)
    console.print(Text(f"{out}: {count(rows)} rows in {count(files)} files, in {seconds:.1f} s"))
    table = Table(box=box.SIMPLE_HEAD, header_style="bold", pad_edge=False)
    for name in ("", "before", "predicted", "measured"):
        table.add_column(name, justify="right" if name else "left", no_wrap=True)
    gain, found, before = told.forecast.gain.ratio, told.measured, told.rows_per_second
    table.add_row(
        "times as fast", "1.00", f"{gain:.2f}", "" if found is None else f"{found.ratio:.2f}"
    )
    measured = "not on this machine" if found is None else rate(before * found.ratio)
    table.add_row("read at", rate(before), rate(before * gain), measured)
    foretold = told.forecast.size * told.stored_before
    sizes = (told.stored_before, foretold, told.stored)
    table.add_row("size", *(megabytes(size) for size in sizes))
    console.print(table)
