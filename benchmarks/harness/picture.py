"""The picture: who loads how fast, what growth costs, who makes features how fast.

Bars begin at tabfeed and go left for who is slower, right for who is faster, on a logarithmic
scale: twice and half as fast are bars of one length. The background is transparent and all inks are
of middling lightness, so that it can be read on a white page and on a dark one.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from .tables import digits, ranked

__all__ = ["draw"]

INK = "#7d8590"
OURS = "#2f81f7"
LIMIT = "#9e7bd9"
THEIRS = "#c2873f"
LINES = {"tabfeed": OURS, "arrow": LIMIT, "polars": "#3fa66b", "merlin": "#d65f6b"}
"""By the beginning of an adapter's name, so that a peer has one colour in all parts."""

STYLE = {
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": INK,
    "axes.facecolor": "none",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "xtick.color": INK,
    "ytick.color": INK,
    "font.size": 9,
    "svg.hashsalt": "tabfeed",  # so that the same figures make the same file
}

Found = dict[str, Any]


def draw(source: Path, folder: Path) -> None:
    """Draw `source` into ``bench.svg`` and ``bench.png`` of a folder."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    found = json.loads(source.read_text("utf-8"))
    with plt.rc_context(STYLE):
        figure = plt.figure(figsize=(12, 13))
        _fill(figure, found)
        folder.mkdir(parents=True, exist_ok=True)
        plain = {"Date": None, "Creator": None}
        figure.savefig(folder / "bench.svg", transparent=True, metadata=plain)
        figure.savefig(folder / "bench.png", transparent=True, dpi=110)
        plt.close(figure)


def _fill(figure: Any, found: Found) -> None:
    edges = {"left": 0.275, "right": 0.965, "wspace": 1.22}
    top = figure.add_gridspec(1, 2, top=0.975, bottom=0.47, **edges)
    middle = figure.add_gridspec(1, 2, top=0.405, bottom=0.245, **edges)
    last = figure.add_gridspec(1, 2, top=0.175, bottom=0.045, **edges)
    _bars(figure.add_subplot(top[0]), found, "loading", "shuffled", "Loading, shuffled")
    _bars(figure.add_subplot(top[1]), found, "loading", "in order", "Loading, in order")
    _lines(figure.add_subplot(middle[0]), found, "rows", "Rows: M rows/s")
    _lines(figure.add_subplot(middle[1]), found, "columns", "Columns: M numbers/s")
    few = _fewest(found)
    _bars(figure.add_subplot(last[0]), found, "features", few, f"Features of {few} rows")
    _lines(figure.add_subplot(last[1]), found, "rows", "Rows: memory, GB", memory=True)


def _fewest(found: Found) -> str:
    """The point of the features where everybody takes part."""
    points = found["suites"].get("features", {"points": []})["points"]
    return min((p["rows"], str(p["label"])) for p in points)[1] if points else ""


def _bars(axis: Any, found: Found, suite: str, label: str, title: str) -> None:
    """A bar a contender, the fastest at the top; those who failed at the bottom."""
    axis.set_title(title, color=INK, fontweight="bold", loc="left")
    part = found["suites"].get(suite)
    rows = ranked(part, label) if part is not None else []
    if part is None or not rows:
        axis.set_axis_off()
        return
    failed = list(part["failed"])
    names = [name for name, _ in rows] + failed
    ratios = [figure["ratio"] for _, figure in rows]
    places = range(len(rows))
    colours = [_colour(name, found["contenders"][name]) for name, _ in rows]
    axis.barh(places, [r - 1 for r in ratios], left=1.0, color=colours, height=0.66)
    for place, (name, figure) in zip(places, rows, strict=True):
        _tip(axis, place, figure, reference=name == part["reference"])
    for place in range(len(rows), len(names)):
        axis.text(0.9, place, "failed", va="center", ha="right", fontsize=8)
    axis.axvline(1.0, color=OURS, linewidth=1.0)
    axis.set_yticks(range(len(names)), [_short(found["contenders"][n]) for n in names], fontsize=8)
    axis.tick_params(axis="y", length=0)
    axis.spines["left"].set_visible(False)
    axis.set_ylim(len(names) - 0.4, -0.6)
    axis.set_xscale("log")
    axis.set_xlim(min(ratios) / 9, max(max(ratios) * 5, 8.0))
    _plain_numbers(axis.xaxis, (1.0,))
    axis.set_xlabel("times as fast as tabfeed")


def _tip(axis: Any, place: int, figure: Found, *, reference: bool) -> None:
    """What is written at the end of a bar."""
    ratio = figure["ratio"]
    right = ratio >= 1
    text = f"{figure['rate'] / 1e6:.2g} M rows/s" if reference else digits(ratio)
    at = ratio * 1.12 if right else ratio / 1.12
    side = "left" if right else "right"
    axis.text(at, place, text, va="center", ha=side, fontsize=8, color=OURS if reference else INK)


def _lines(axis: Any, found: Found, suite: str, title: str, *, memory: bool = False) -> None:
    """Along an axis: a flat line is cost in proportion to the data, or no more memory for it."""
    axis.set_title(title, color=INK, fontweight="bold", loc="left")
    part = found["suites"].get(suite)
    if part is None:
        axis.set_axis_off()
        return
    along = {p["label"]: p[suite] for p in part["points"]}
    each = {p["label"]: p["columns"] if suite == "columns" else 1 for p in part["points"]}
    for name, figures in _by_name(part["figures"]):
        found_at = {k: f for k, f in figures.items() if not memory or "memory" in f}
        ys = [
            f["memory"] / 1e9 if memory else f["rate"] * each[k] / 1e6 for k, f in found_at.items()
        ]
        who = _short(found["contenders"][name])
        look = {"color": _line_colour(found["contenders"][name]), "marker": "o", "markersize": 4}
        axis.plot([along[k] for k in found_at], ys, label=who, **look)
    axis.set_xscale("log")
    axis.set_xticks(list(along.values()), [_brief(v) for v in along.values()])
    axis.set_yscale("log")
    _plain_numbers(axis.yaxis, (1.0, 2.0, 5.0))
    axis.minorticks_off()
    axis.set_xlabel(suite)
    beside = {"loc": "upper right", "bbox_to_anchor": (-0.13, 1.02)}  # below the names above
    tight = {"handlelength": 1.2, "handletextpad": 0.5}
    axis.legend(fontsize=8, frameon=False, labelcolor=INK, **beside, **tight)


def _plain_numbers(axis: Any, steps: tuple[float, ...]) -> None:
    """0.01 rather than a power of ten, and where an axis hardly holds two of these, 20 and 50."""
    from matplotlib.ticker import FormatStrFormatter, LogLocator

    axis.set_major_locator(LogLocator(subs=steps, numticks=20))
    axis.set_major_formatter(FormatStrFormatter("%g"))


def _brief(value: int) -> str:
    return f"{value / 1e6:g} M" if value >= 1_000_000 else f"{value:,}"


def _by_name(figures: dict[str, Found]) -> list[tuple[str, Found]]:
    """With tabfeed first."""
    return sorted(figures.items(), key=lambda item: not item[0].startswith("tabfeed"))


def _colour(name: str, person: Found) -> str:
    if person["limit"]:
        return LIMIT
    return OURS if name.startswith("tabfeed") else THEIRS


def _line_colour(person: Found) -> str:
    return next((c for name, c in LINES.items() if person["peer"].startswith(name)), THEIRS)


def _short(person: Found) -> str:
    return str(person["title"]).replace("`", "").replace(", in memory", " (memory)")
