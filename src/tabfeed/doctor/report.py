"""What the doctor reports: findings with their evidence and cost, a verdict, and tables of them."""

from __future__ import annotations

import io
from dataclasses import asdict, dataclass
from typing import Any

from rich import box
from rich.console import Console
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from tabfeed.display import count, megabytes, rate


@dataclass(frozen=True)
class Cost:
    """How many times as long one variant takes to read as another.

    Attributes
    ----------
    ratio
        The ratio of the medians.
    low, high
        The quartiles of the ratios of single rounds.
    """

    ratio: float
    low: float
    high: float

    @property
    def matters(self) -> bool:
        """Whether it is above 5 % and above the noise between rounds."""
        return self.ratio >= 1.05 and self.low > 1.0

    def __str__(self) -> str:
        return f"{self.ratio:.2f}"


@dataclass(frozen=True)
class Finding:
    """One property of the files.

    Attributes
    ----------
    name
        A fixed identifier: "codec", "small_files" and so on.
    title, evidence
        The finding, and the figures behind it.
    cost
        How many times as long reading takes because of it, measured; None if it does not affect
        the time of one process, or could not be measured.
    note
        What to print instead of a cost; empty if nothing needs to be done.
    cure
        "rewrite", "rewrite --shuffle", "workflow", or "" if there is none.
    advice
        What to do.
    """

    name: str
    title: str
    evidence: str
    cost: Cost | None = None
    note: str = ""
    cure: str = "rewrite"
    advice: str = ""

    @property
    def matters(self) -> bool:
        """Whether something should be done about it."""
        return bool(self.note) if self.cost is None else self.cost.matters


@dataclass(frozen=True)
class Forecast:
    """The predicted effect of rewriting in one layout, measured on the sample.

    Attributes
    ----------
    layout
        "fast" or "compact".
    gain
        How many times as fast reading would be.
    size
        How many times as large the files would be.
    """

    layout: str
    gain: Cost
    size: float


@dataclass(frozen=True)
class Diagnosis:
    """What slows the reading of a dataset, and what rewriting it would gain."""

    path: str
    rows: int
    files: int
    stored: int
    sample_rows: int
    rows_per_second: float
    findings: tuple[Finding, ...]
    forecasts: tuple[Forecast, ...]
    left_out: tuple[str, ...] = ()
    unreadable: tuple[str, ...] = ()

    @property
    def best(self) -> Forecast:
        """The layout that reads faster."""
        return max(self.forecasts, key=lambda f: f.gain.ratio)

    @property
    def verdict(self) -> str:
        """The result in one sentence."""
        if self.unreadable:
            return (
                f"{len(self.unreadable)} of the files cannot be read: write them again or leave "
                f"them out first. {self._verdict_on_readable()}"
            )
        return self._verdict_on_readable()

    def _verdict_on_readable(self) -> str:
        best = self.best
        now, then = self.rows_per_second, self.rows_per_second * best.gain.ratio
        worst = self._worst()
        if not best.gain.matters:
            if not worst:
                return f"These files are fine: {rate(now)} here, and rewriting gains nothing."
            return f"Rewriting alone gains nothing here ({rate(now)}); the largest cost is {worst}."
        larger = f"{best.size:.1f} times as large" if best.size >= 1.05 else "no larger"
        cause = f" The largest cost is {worst}." if worst else ""
        return (
            f"Rewriting makes these files {best.gain.ratio:.1f} times as fast to read "
            f"({rate(now)} now, {rate(then)} then) and {larger}.{cause}"
        )

    def _worst(self) -> str:
        timed = [f for f in self.findings if f.name != "skew" and f.cost and f.cost.matters]
        if not timed:
            return ""
        top = max(timed, key=lambda f: f.cost.ratio if f.cost else 0.0)
        return top.title[0].lower() + top.title[1:]

    def to_dict(self) -> dict[str, Any]:
        """As plain values, for JSON."""
        plain = asdict(self)
        for finding, values in zip(self.findings, plain["findings"], strict=True):
            values["matters"] = finding.matters
        return {"verdict": self.verdict, **plain}

    def __str__(self) -> str:
        return report(self)


# -- as text ---------------------------------------------------------------------------------------


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
        console.print(Text(f"skipped, no tensor can hold them: {names}", style="dim"))


def _headline(diagnosis: Diagnosis) -> str:
    return (
        f"{count(diagnosis.rows)} rows in {count(diagnosis.files)} files, "
        f"{megabytes(diagnosis.stored)}; measured with a loader on {count(diagnosis.sample_rows)} "
        "rows, from memory"
    )


def _findings(findings: tuple[Finding, ...]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, header_style="bold", pad_edge=False)
    table.add_column("cost", justify="right", no_wrap=True)
    table.add_column("finding")
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
    """How many times as long reading takes, or "helps" for what makes it faster."""
    if finding.cost is None:
        return finding.note
    return "helps" if finding.cost.high < 1 else f"{finding.cost.ratio:.2f} x"


def _forecasts(diagnosis: Diagnosis) -> Table:
    table = Table(box=box.SIMPLE_HEAD, header_style="bold", pad_edge=False)
    for name in ("predicted", "speed", "rows per second", "size"):
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
