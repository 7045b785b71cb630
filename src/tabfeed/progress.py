"""Progress bars for long work: Rich, in a terminal or a notebook, and nothing in a pipe.

A notebook shows them if ipywidgets is installed; without it Rich would print a warning and an
empty line for each. ``TABFEED_PROGRESS=0`` turns them off, ``1`` forces them on. A bar disappears
when its work is done. Only one bar is shown at a time: nested work, or work on another thread, has
none, since two bars would overwrite each other.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any, Protocol

__all__ = ["Bar", "progress"]

_OFF = frozenset(["", "0", "false", "no", "off"])
_screen = threading.Lock()


class Bar(Protocol):
    """Receives progress."""

    def advance(self, amount: int = 1) -> None:
        """Add to the amount done."""
        ...


class _Silent:
    def advance(self, amount: int = 1) -> None:
        return None


class _RichBar:
    def __init__(self, bars: Any, task: Any, unit: str) -> None:
        self._bars, self._task, self._unit = bars, task, unit

    def advance(self, amount: int = 1) -> None:
        self._bars.advance(self._task, amount)
        task = self._bars.tasks[0]
        speed = f", {task.speed:,.0f} {self._unit}/s" if task.speed else ""
        total = f"/{task.total:,}" if task.total else ""
        self._bars.update(self._task, counts=f"{task.completed:,}{total} {self._unit}{speed}")


def wanted() -> bool:
    """Whether to show bars."""
    setting = os.environ.get("TABFEED_PROGRESS")
    if setting is not None:
        return setting.strip().lower() not in _OFF
    if "ipykernel" in sys.modules:
        return find_spec("ipywidgets") is not None
    try:
        return sys.stderr is not None and sys.stderr.isatty()
    except ValueError:  # closed
        return False


@contextmanager
def progress(label: str, total: int | None, *, unit: str = "rows") -> Iterator[Bar]:
    """Show the progress of some work; `total` is None if unknown.

    Examples
    --------
    >>> with progress("writing", total=10) as bar:
    ...     bar.advance(10)
    """
    if not wanted() or not _screen.acquire(blocking=False):
        yield _Silent()
        return
    try:
        bars = _make_bars()
        with bars:
            yield _RichBar(bars, bars.add_task(label, total=total, counts=""), unit)
    finally:
        _screen.release()


def _make_bars() -> Any:
    from rich import progress as rich
    from rich.console import Console

    return rich.Progress(
        rich.TextColumn("{task.description}", markup=False),
        rich.BarColumn(),
        rich.TextColumn("{task.fields[counts]}", markup=False),
        rich.TimeElapsedColumn(),
        rich.TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
    )
