"""Figures as cells and tables of Markdown."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

__all__ = [
    "digits", "fewer", "gigabytes", "grid", "million", "ranked", "ratio_of", "row", "short_of",
    "table",
]  # fmt: skip

Found = dict[str, Any]


def table(heads: list[str], rows: list[list[str]]) -> str:
    """A table; nothing where there are no rows."""
    if not rows:
        return ""
    return "\n".join([row(heads), row(["---"] * len(heads)), *(row(cells) for cells in rows), ""])


def row(cells: list[str]) -> str:
    """One line of a table.

    Examples
    --------
    >>> row(["who", "", "1"])
    '| who |  | 1 |'
    """
    return f"| {' | '.join(cells)} |"


def grid(found: Found, suite: Found, cell: Callable[[Found], str]) -> str:
    """Contenders down, points across; who failed stands there too."""
    labels = [p["label"] for p in suite["points"]]
    rows = []
    for name in dict.fromkeys([*suite["figures"], *suite["failed"]]):
        figures, blank = suite["figures"].get(name, {}), "failed" if name in suite["failed"] else ""
        cells = [cell(figures[label]) if label in figures else blank for label in labels]
        if any(cells):
            rows.append([found["contenders"][name]["title"], *cells])
    return table(["who", *labels], rows)


def ranked(suite: Found, label: str) -> list[tuple[str, Found]]:
    """Contenders at a point, the fastest first."""
    rows = [(n, f[label]) for n, f in suite["figures"].items() if "ratio" in f.get(label, {})]
    return sorted(rows, key=lambda pair: -pair[1]["ratio"])


def ratio_of(figure: Found) -> str:
    """The median ratio, the lowest and the highest, and what is to be said of them."""
    low, high = figure["ratio_range"]
    if low == high == 1.0:
        return "1"
    return f"**{digits(figure['ratio'])}** ({digits(low)} to {digits(high)}){short_of(figure)}"


def short_of(figure: Found) -> str:
    """Whether it was not measured as often, or not as long, as the others.

    Examples
    --------
    >>> short_of({"slow": True, "cut": False}), short_of({"slow": False, "cut": False})
    (', one run', '')
    """
    return f"{', one run' if figure['slow'] else ''}{', cut' if figure['cut'] else ''}"


def digits(value: float) -> str:
    """Two decimals, or two digits of something small.

    Examples
    --------
    >>> digits(1.234), digits(0.01234), digits(123.4)
    ('1.23', '0.012', '123')
    """
    if value >= 100:
        return f"{value:.0f}"
    return f"{value:.2f}" if value >= 0.1 else f"{value:.2g}"


def million(figure: Found) -> str:
    """Million rows a second."""
    return f"{figure['rate'] / 1e6:.3g}"


def gigabytes(figure: Found) -> str:
    """Memory; empty where it was not seen."""
    return f"{figure['memory'] / 1e9:.2f}" if "memory" in figure else ""


def fewer(figure: Found, rows: int) -> str:
    """How many rows, where they were fewer than the others'."""
    return f"{figure['rows']:,.0f}" if figure["rows"] < rows else ""
