"""How the demo tells its story: in the terminal as it goes, and as a page in the end."""

from __future__ import annotations

import os
import sys
import time
import webbrowser
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from html import escape
from pathlib import Path

from demo_model import Batch, Trained, evaluate
from rich import box
from rich.console import Console
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from tabfeed import Dataset
from tabfeed.profile import Profiler, compare
from tabfeed.profile.page import document

LOOKED_AT = 4


@dataclass(frozen=True)
class Result:
    """What the page tells of a training run."""

    prof: Profiler
    auc: float


class Story:
    """Tells what is done, how long it took, and what came of it."""

    def __init__(self, title: str) -> None:
        self.title = title
        self.steps: list[tuple[str, float, int]] = []
        self._console = Console()
        self._console.rule(f"[bold]{title}")

    @contextmanager
    def step(self, what: str, rows: int) -> Iterator[None]:
        """Time a step that handles `rows` rows."""
        self._console.print(f"\n[bold cyan]{len(self.steps) + 1}[/]  [bold]{what}[/]")
        start = time.perf_counter()
        yield
        seconds = time.perf_counter() - start
        self.steps.append((what, seconds, rows))
        self.tell(f"[green]✓[/] {seconds:.1f} s, {rows / seconds:,.0f} rows/s")

    def tell(self, text: str) -> None:
        """A line under the step."""
        self._console.print(Text.from_markup(text), highlight=False)

    def look_at(self, dataset: Dataset, columns: list[str]) -> None:
        """The first rows of a few columns."""
        table = Table(box=box.SIMPLE_HEAD, header_style="bold", pad_edge=False)
        for name in [*columns, "..."]:
            table.add_column(name, justify="right")
        for row in dataset.head(LOOKED_AT).select(columns).to_dicts():
            table.add_row(*(_cell(row[c]) for c in columns), "")
        self.tell(f"{dataset.num_rows:,} rows of {len(dataset.column_names)} columns, like these:")
        self._console.print(table)

    def verdict(self, trained: Trained, held_out: list[Batch]) -> Result:
        """What the profiler says of a training run, and how good the model is."""
        result = Result(trained.prof, evaluate(trained.model, held_out))
        trained.prof.measure_ceiling(trained.step, held_out[0])  # which trains: the model is done
        verdict = trained.prof.verdict
        text = Text(verdict.sentence, style="bold")
        for advice in verdict.advice[:2]:
            text.append(f"\n→ {advice}", style="not bold")
        colour = "green" if verdict.good else "red"
        title = "[bold]the profiler's verdict"
        self._console.print(Panel(text, title=title, title_align="left", border_style=colour))
        self.tell(f"loss {trained.loss:.4f}, AUC {result.auc:.4f} on rows not trained on")
        return result

    def finish(self, seconds: float, report: Path, folder: Path) -> None:
        """Where everything is."""
        self._console.rule(f"[bold]done in {seconds:.0f} s")
        for what, where in (
            ("the report", report.resolve().as_uri()),
            ("the files", f"tabfeed inspect {folder / 'train'}"),
            ("what slows them", f"tabfeed doctor {folder / 'raw'}"),
            ("your own script", "tabfeed profile --save report.html train.py"),
        ):
            self._console.print(f"{what:>16}  [cyan]{where}[/]", soft_wrap=True, highlight=False)


def _cell(value: object) -> Text:
    if value is None:
        return Text("null", style="dim italic")
    return Text(f"{value:.3f}" if isinstance(value, float) else str(value))


def save_reports(story: Story, results: list[Result], folder: Path) -> Path:
    """A page of the whole story, and beside it the profiler's page of each run."""
    runs = [result.prof for result in results]
    pages = {
        "Fed by tabfeed": runs[1].save(folder / "tabfeed.html"),
        "Fed row by row": runs[0].save(folder / "row_by_row.html"),
        "Both side by side": compare([r.run for r in runs]).save(folder / "side_by_side.html"),
    }
    body = [
        f"<header><h1>{escape(story.title)}</h1><span>raw files to a trained model</span></header>",
        *(_verdict(result) for result in reversed(results)),
        _tiles(results),
        _section("What happened", _table(("step", "seconds", "rows a second"), _step_rows(story))),
        _section("Where the time of training went", _links(pages)),
    ]
    report = folder / "report.html"
    report.write_text(document(story.title, "\n".join(body)), "utf-8")
    return report


def _verdict(result: Result) -> str:
    verdict = result.prof.verdict
    return (
        f'<div class="verdict {"good" if verdict.good else "bad"}">'
        f'<div class="cause">fed by {escape(result.prof.run.loader.name)}</div>'
        f'<div class="sentence">{escape(verdict.sentence)}</div></div>'
    )


def _tiles(results: list[Result]) -> str:
    slow, fast = (result.prof.run for result in results)
    rates = slow.rows_per_second or 0.0, fast.rows_per_second or 0.0
    tiles = (
        (f"{rates[1] / rates[0]:.1f} times", "as fast as row by row", "the same model and rows"),
        (f"{rates[1]:,.0f}", "rows a second", f"{rates[0]:,.0f} row by row"),
        (f"{fast.wait_share:.1%}", "waiting for data", f"{slow.wait_share:.1%} row by row"),
        (f"{results[1].auc:.4f}", "AUC on new rows", f"{results[0].auc:.4f} row by row"),
    )
    shown = "".join(
        f'<div class="tile"><b>{value}</b><span>{name}</span><small>{what}</small></div>'
        for value, name, what in tiles
    )
    return f'<div class="tiles">{shown}</div>'


def _step_rows(story: Story) -> list[tuple[str, str, str]]:
    return [(what, f"{took:.2f}", f"{rows / took:,.0f}") for what, took, rows in story.steps]


def _table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    heads = "".join(f"<th>{escape(h)}</th>" for h in head)
    body = "".join("<tr>" + "".join(f"<td>{escape(c)}</td>" for c in r) + "</tr>" for r in rows)
    return f"<table><thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table>"


def _links(pages: dict[str, Path]) -> str:
    items = "".join(
        f'<li><a href="{escape(page.name)}">{escape(title)}</a></li>'
        for title, page in pages.items()
    )
    return f'<p class="what">The profiler\'s own pages, with pictures.</p><ul>{items}</ul>'


def _section(title: str, body: str) -> str:
    return f"<section><h2>{title}</h2>{body}</section>"


def open_in_browser(page: Path) -> bool:
    """Open a page if somebody is there to see it: a terminal, and a screen behind it."""
    screen = sys.platform in ("darwin", "win32") or any(
        os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY")
    )
    return sys.stdout.isatty() and screen and webbrowser.open(page.resolve().as_uri())
