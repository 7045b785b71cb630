"""What the examples share to show their work: arguments, progress bars, tables, figures.

In a notebook the first cell of code holds the arguments; tables and figures appear below the cell.
Figures are PNG files everywhere; they need matplotlib, and are left out without it.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeVar

from rich.console import Console
from rich.table import Table

from tabfeed.display import progress

T = TypeVar("T")


def in_notebook() -> bool:
    """Whether Jupyter runs this."""
    return "ipykernel" in sys.modules


def arguments(parser: argparse.ArgumentParser) -> argparse.Namespace:
    """What the user asked for, on the command line or in the notebook's first cell of code."""
    return parser.parse_args()


def fresh(folder: Path) -> Path:
    """An empty folder to work in. Only what an example has made before is removed."""
    mark = folder / ".made_by_an_example"
    if folder.exists() and any(folder.iterdir()) and not mark.exists():
        raise SystemExit(f"{folder} holds something else; say another --folder")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    mark.touch()
    return folder


def with_bar(batches: Any, label: str) -> Iterator[Any]:
    """The same batches, with a bar that says how many of them are done."""
    with progress(label, len(batches), unit="batches") as bar:
        for batch in batches:
            yield batch
            bar.advance()


def on_screen() -> bool:
    """Whether somebody looks: what libraries draw of their own progress is for nobody else."""
    return in_notebook() or sys.stderr.isatty()


def table(
    title: str, heads: Sequence[str], rows: Iterable[Sequence[Any]], *, text: int = 1
) -> None:
    """Print a table: the first `text` columns are words, the others are figures."""
    made = Table(title=title, title_justify="left", header_style="bold")
    for i, head in enumerate(heads):
        made.add_column(head, justify="left" if i < text else "right", overflow="fold")
    for row in rows:
        made.add_row(*(str(value) for value in row))
    Console(width=None if sys.stdout.isatty() else 140).print(made)


class Clock:
    """How long each step took, and how many rows a second went through it."""

    def __init__(self) -> None:
        self.steps: list[tuple[str, float, int]] = []

    def time(self, name: str, rows: int, work: Callable[[], T]) -> T:
        """Do some work and remember how long it took."""
        start = time.perf_counter()
        done = work()
        self.steps.append((name, time.perf_counter() - start, rows))
        return done

    def show(self, title: str) -> None:
        """Print a table of the steps."""
        rows = [(name, f"{s:.2f}", f"{n:,}", f"{n / s:,.0f}") for name, s, n in self.steps]
        table(title, ("step", "seconds", "rows", "rows a second"), rows)


def draw(
    path: Path, size: tuple[float, float], paint: Callable[..., None], panels: int = 1
) -> None:
    """Let ``paint(*axes)`` draw a figure of some panels side by side, and save it as a PNG."""
    if find_spec("matplotlib") is None:
        print("No figure: that needs matplotlib.")
        return
    from matplotlib.figure import Figure

    figure = Figure(figsize=size, layout="constrained")
    axes = figure.subplots(1, panels, squeeze=False)[0]
    for panel in axes:
        panel.spines[["top", "right"]].set_visible(False)
    paint(*axes)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
    print(f"The figure is in {path}.")
    if in_notebook():
        from IPython.display import Image, display

        display(Image(str(path)))
