"""Two or more runs side by side."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from tabfeed.display import count, percent, seconds
from tabfeed.errors import ArgumentError
from tabfeed.profile.judge import judge
from tabfeed.profile.page import comparison_page
from tabfeed.profile.run import Run, load_run
from tabfeed.profile.verdict import cause_of


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
            "GPU busy": [_known(percent, r.gpu_busy_mean) for r in self.runs],
            "waiting for data": [percent(r.wait_share) for r in self.runs],
            "per step": [seconds(r.step_seconds) for r in self.runs],
            "rows per second": [_known(count, r.rows_per_second) for r in self.runs],
            "of the ceiling": [percent(r.efficiency) if r.ceiling else "" for r in self.runs],
            "to the first batch": [seconds(r.times.startup) for r in self.runs],
            "verdict": [cause_of(r, judge(r)) for r in self.runs],
            "loader": [r.loader.name for r in self.runs],
            "rows per batch": [_known(count, _batch(r)) for r in self.runs],
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
        return comparison_page(self.runs, self.rows())

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
    old_rows, new_rows = (_known(count, _batch(r)) for r in (first, run))
    if old_rows and new_rows and old_rows != new_rows:
        found.append(f"batches of {new_rows} rows instead of {old_rows}")
    if run.machine.gpus != first.machine.gpus or run.machine.cores != first.machine.cores:
        found.append("another machine")
    return found


def _batch(run: Run) -> float | None:
    return None if run.steps.rows is None else run.steps.rows / max(1, run.steps.count)


def _ratio(first: Run, run: Run) -> str:
    """By rows if both are known, else by steps."""
    if first.rows_per_second and run.rows_per_second:
        return f"{run.rows_per_second / first.rows_per_second:.2f}"
    return f"{first.step_seconds / run.step_seconds:.2f}" if run.step_seconds else ""


def _known(text: Callable[[float], str], value: float | None) -> str:
    return "" if value is None else text(value)


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
