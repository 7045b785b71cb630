"""What people see: numbers as readable text, HTML tables in notebooks, progress bars.

Progress bars are Rich's, in a terminal or a notebook, and nothing in a pipe. A notebook shows them
if ipywidgets is installed; without it Rich would print a warning and an empty line for each.
``TABFEED_PROGRESS=0`` turns them off, ``1`` forces them on. A bar disappears when its work is done.
Only one is shown at a time: nested work, or work on another thread, has none, since two bars would
overwrite each other.

HTML uses the notebook's own colours, so dark and light both work; lines are grey. Styles are
inline, since the page belongs to the notebook. Its text is escaped here, and only here: column
names come from users' files.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from html import escape
from importlib.util import find_spec
from typing import Any

_MOST = 200
_CELL = 'style="text-align:left;padding:2px 14px 2px 0"'


def box(kind: str, facts: Iterable[str], *parts: str) -> str:
    """A headline of a kind and facts, above other HTML.

    Examples
    --------
    >>> box("Thing", ["2 rows", "<b>"], "<hr>")
    '<div style="font-size:13px"><div><b>Thing</b> · 2 rows · &lt;b&gt;</div><hr></div>'
    """
    line = " · ".join([f"<b>{escape(kind)}</b>", *map(escape, facts)])
    return f'<div style="font-size:13px"><div>{line}</div>{"".join(parts)}</div>'


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table that scrolls; after 200 rows it is cut."""
    more = len(rows) - _MOST
    shown = [*rows[:_MOST], [f"... and {more:,} more"]] if more > 0 else rows
    heads = "".join(f"<th {_CELL}>{escape(h)}</th>" for h in head)
    cells = ("".join(f"<td {_CELL}>{escape(c)}</td>" for c in row) for row in shown)
    body = "".join(f"<tr>{row}</tr>" for row in cells)
    return (
        '<div style="max-height:26em;overflow:auto;margin-top:6px;'
        'border-top:1px solid rgba(128,128,128,.4)">'
        f"<table><thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def facts(rows: Iterable[tuple[str, str]]) -> str:
    """Names and values as a table without a head."""
    lines = "".join(
        f'<tr><td {_CELL}><span style="opacity:.65">{escape(name)}</span></td>'
        f"<td {_CELL}>{escape(value)}</td></tr>"
        for name, value in rows
    )
    return f"<table><tbody>{lines}</tbody></table>"


def seconds(value: float) -> str:
    """A duration.

    Examples
    --------
    >>> seconds(93.2), seconds(1.234), seconds(0.9999), seconds(0.0213), seconds(0.00004)
    ('93 s', '1.23 s', '1 s', '21.3 ms', '40 µs')
    """
    if value >= 60:
        return f"{value:,.0f} s"
    if value >= 0.9995:
        return f"{value:.3g} s"
    if value >= 0.9995e-3:
        return f"{value * 1e3:.3g} ms"
    return f"{value * 1e6:.3g} µs"


def percent(share: float) -> str:
    """A fraction as a percentage.

    Examples
    --------
    >>> percent(0.623), percent(0.0123), percent(0.0), percent(1.0)
    ('62 %', '1.2 %', '0 %', '100 %')
    """
    value = 100 * share
    return f"{value:.1f} %" if 0.05 <= value < 9.95 else f"{value:.0f} %"


def count(value: float) -> str:
    """A count.

    Examples
    --------
    >>> count(1234), count(2_500_000), count(16.25)
    ('1,234', '2.5 M', '16.2')
    """
    if value >= 0.9995e9:
        return f"{value / 1e9:.3g} G"
    if value >= 0.9995e6:
        return f"{value / 1e6:.3g} M"
    return f"{value:,.0f}" if value >= 100 or value == int(value) else f"{value:.3g}"


def rate(rows: float) -> str:
    """Rows per second.

    Examples
    --------
    >>> rate(1_940_000)
    '1.94 M rows/s'
    """
    return f"{count(rows)} rows/s"


def megabytes(value: float) -> str:
    """A size in bytes.

    Examples
    --------
    >>> megabytes(1.5e12), megabytes(1.5e9), megabytes(2.5e6), megabytes(1200), megabytes(999)
    ('1.5 TB', '1.5 GB', '2.5 MB', '1.2 kB', '999 B')
    """
    for size, unit in ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if value >= 0.9995 * size:
            return f"{value / size:.3g} {unit}"
    return f"{value:.0f} B"


def times(gain: float) -> str:
    """A speedup.

    Examples
    --------
    >>> times(3.42), times(120.0)
    ('3.4 times as fast', 'over 100 times as fast')
    """
    return "over 100 times as fast" if gain > 100 else f"{gain:.1f} times as fast"


_OFF = frozenset(["", "0", "false", "no", "off"])
_screen = threading.Lock()


class Bar:
    """The progress of some work; this one is not shown."""

    def advance(self, amount: int = 1) -> None:
        """Add to the amount done."""


class _RichBar(Bar):
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
        yield Bar()
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
