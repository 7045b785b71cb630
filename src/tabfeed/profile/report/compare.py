"""Two or more runs side by side."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from tabfeed.errors import ArgumentError
from tabfeed.profile.analyse.causes import cause_of
from tabfeed.profile.analyse.verdict import judge
from tabfeed.profile.format import count, percent, seconds
from tabfeed.profile.report.page import document
from tabfeed.profile.run import Run, load_run

__all__ = ["Comparison", "compare"]

_PARTS = {"startup": "start-up", "wait": "waiting", "copy": "copying", "compute": "computing"}


@dataclass(frozen=True)
class Comparison:
    """Several runs, compared to the first."""

    runs: tuple[Run, ...]

    def rows(self) -> list[tuple[str, ...]]:
        """One row per figure: its name, then a cell for each run."""
        first = self.runs[0]
        table = {
            "seconds": [seconds(r.times.wall) for r in self.runs],
            "speedup": [_ratio(first, r) for r in self.runs],
            "GPU busy": [_percent(r.gpu_busy_mean) for r in self.runs],
            "waiting for data": [percent(r.wait_share) for r in self.runs],
            "per step": [seconds(r.step_seconds) for r in self.runs],
            "rows per second": [_count(r.rows_per_second) for r in self.runs],
            "of the ceiling": [percent(r.efficiency) if r.ceiling else "" for r in self.runs],
            "to the first batch": [seconds(r.times.startup) for r in self.runs],
            "verdict": [cause_of(r, judge(r)) for r in self.runs],
            "loader": [r.loader.name for r in self.runs],
            "rows per batch": [_count(_batch(r)) for r in self.runs],
            "changed": ["", *(", ".join(changes(first, r)) for r in self.runs[1:])],
        }
        return [(name, *cells) for name, cells in table.items() if any(cells)]

    def to_dict(self) -> list[dict[str, Any]]:
        """As plain values, for JSON."""
        return [
            {
                "name": r.name,
                "loader": r.loader.name,
                "seconds": r.times.wall,
                "gpu_busy": r.gpu_busy_mean,
                "wait_share": r.wait_share,
                "step_seconds": r.step_seconds,
                "rows_per_second": r.rows_per_second,
                "efficiency": r.efficiency,
                "cause": judge(r).cause,
                "changed": changes(self.runs[0], r),
            }
            for r in self.runs
        ]

    def __str__(self) -> str:
        table = Table(box=box.SIMPLE_HEAD, header_style="bold", pad_edge=False)
        table.add_column("")
        for run in self.runs:
            table.add_column(run.name, justify="right", max_width=34)
        for row in self.rows():
            table.add_row(*(Text(cell) for cell in row))
        file = io.StringIO()
        Console(file=file, width=100, no_color=True).print(table)
        return file.getvalue()

    def to_html(self) -> str:
        """A web page that opens offline: bars and the table."""
        heads = "".join(f"<th>{escape(r.name)}</th>" for r in self.runs)
        body = "".join(
            "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>"
            for row in self.rows()
        )
        names = " and ".join(escape(r.name) for r in self.runs)
        return document(
            f"Comparison of {len(self.runs)} runs",
            f"<header><h1>{names}</h1><span>side by side</span></header>"
            '<section><h2>Where the time went</h2><p class="what">Bars are as long as the runs '
            f"took.</p>{self._bars()}</section>"
            '<section><h2>The numbers</h2><p class="what">The others are compared to the'
            " first.</p>"
            f'<div class="scroll"><table class="words"><thead><tr><th></th>{heads}</tr></thead>'
            f"<tbody>{body}</tbody></table></div></section>",
        )

    def _bars(self) -> str:
        longest = max(r.times.wall for r in self.runs) or 1.0
        rows = []
        for run in self.runs:
            cells = "".join(
                f'<rect x="{x:.2f}" width="{w:.2f}" height="100" fill="var(--{name})">'
                f"<title>{part}: {seconds(value)}</title></rect>"
                for name, part, value, x, w in _spread(run, longest)
            )
            label = f"{escape(run.name)} · {seconds(run.times.wall)}"
            rows.append(
                f'<span title="{escape(run.name)}">{label}</span><svg viewBox="0 0 1000 100" '
                f'preserveAspectRatio="none" role="img" aria-label="{label}">{cells}</svg>'
            )
        keys = "".join(
            f'<span><i style="background:var(--{name})"></i>{label}</span>'
            for name, label in _PARTS.items()
            if any(getattr(r.times, name) for r in self.runs)
        )
        return f'<div class="lanes wide">{"".join(rows)}</div><div class="legend">{keys}</div>'

    def save(self, path: str | Path) -> Path:
        """Write the page."""
        path = Path(path)
        if path.suffix != ".html":
            raise ArgumentError(f"{path} must end in .html")
        path.write_text(self.to_html(), "utf-8")
        return path


def changes(first: Run, run: Run) -> list[str]:
    """Differences from the first run: loader, batch size, machine. Runs don't record the model."""
    found = []
    if run.loader.name != first.loader.name:
        found.append(f"{run.loader.name} instead of {first.loader.name}")
    for what in ("threads", "processes"):
        old, new = getattr(first.loader, what), getattr(run.loader, what)
        if old and new and old != new:
            found.append(f"{new} {what} instead of {old}")
    batches = _batch(first), _batch(run)
    if None not in batches and _count(batches[0]) != _count(batches[1]):
        found.append(f"batches of {_count(batches[1])} rows instead of {_count(batches[0])}")
    if run.machine.gpus != first.machine.gpus or run.machine.cores != first.machine.cores:
        found.append("another machine")
    return found


def _batch(run: Run) -> float | None:
    return None if run.steps.rows is None else run.steps.rows / max(1, run.steps.count)


def _spread(run: Run, longest: float) -> list[tuple[str, str, float, float, float]]:
    """Each part of a run's bar: name, label, seconds, start, width."""
    out, x = [], 0.0
    for name, label in _PARTS.items():
        value = getattr(run.times, name)
        wide = 1000 * value / longest
        if wide > 0:
            out.append((name, label, value, x, wide))
        x += wide
    return out


def _ratio(first: Run, run: Run) -> str:
    """By rows if both are known, else by steps."""
    if first.rows_per_second and run.rows_per_second:
        return f"{run.rows_per_second / first.rows_per_second:.2f}"
    return f"{first.step_seconds / run.step_seconds:.2f}" if run.step_seconds else ""


def _percent(share: float | None) -> str:
    return "" if share is None else percent(share)


def _count(value: float | None) -> str:
    return "" if value is None else count(value)


def compare(runs: Sequence[Run | str | Path]) -> Comparison:
    """Compare runs to the first of them.

    Parameters
    ----------
    runs
        Two or more: `Profiler.run`, or files that `Profiler.save` wrote as JSON.
    """
    if isinstance(runs, str | Path | Run) or len(runs) < 2:
        raise ArgumentError("compare takes a list of two or more runs, or of their JSON files")
    return Comparison(tuple(r if isinstance(r, Run) else load_run(r) for r in runs))
