"""Progress bars for long work: Rich, in a terminal or a notebook, and nothing in a pipe.

``TABFEED_PROGRESS=0`` turns them off, ``1`` forces them on. Work shorter than a
second leaves no trace on the screen.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

__all__ = ["Bar", "progress"]


class Bar(Protocol):
    """What the work tells the bar."""

    def advance(self, amount: int = 1) -> None: ...


class _Silent:
    def advance(self, amount: int = 1) -> None:
        return None


class _RichBar:
    def __init__(self, bars: Any, task: Any) -> None:
        self._bars, self._task = bars, task

    def advance(self, amount: int = 1) -> None:
        self._bars.advance(self._task, amount)


def wanted() -> bool:
    """Whether anyone is there to see a bar."""
    setting = os.environ.get("TABFEED_PROGRESS")
    if setting is not None:
        return setting not in ("0", "", "false", "no")
    return sys.stderr.isatty() or "ipykernel" in sys.modules


@contextmanager
def progress(label: str, total: int | None, *, unit: str = "rows") -> Iterator[Bar]:
    """Show how far some work has come.

    Examples
    --------
    >>> with progress("writing", total=10) as bar:
    ...     bar.advance(10)
    """
    if not wanted():
        yield _Silent()
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    bars = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.completed:,}/{task.total:,} " + unit if total else "{task.completed:,}"),
        TextColumn("{task.speed:,.0f} " + unit + "/s" if total else ""),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
    )
    with bars:
        yield _RichBar(bars, bars.add_task(label, total=total))
