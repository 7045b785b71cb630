"""The picture: who loads how fast, what growth costs, who makes features how fast.

Its background is transparent and its inks are of middling lightness, so that it can be read on a
white page and on a dark one.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

__all__ = ["draw"]

INK = "#7d8590"
OURS = "#2f81f7"
LIMIT = "#9e7bd9"
THEIRS = "#c2873f"
LINES = (OURS, "#3fa66b", THEIRS, "#d65f6b", LIMIT, "#4fa3b5")

Found = dict[str, Any]
Figures = dict[str, dict[str, Found]]


def draw(source: Path, folder: Path) -> None:
    """Draw `source` into ``bench.svg`` and ``bench.png`` of a folder."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    found = json.loads(source.read_text("utf-8"))
    style = {
        "text.color": INK,
        "axes.labelcolor": INK,
        "axes.edgecolor": INK,
        "xtick.color": INK,
        "ytick.color": INK,
        "font.size": 9,
        "svg.hashsalt": "tabfeed",  # so that the same figures make the same file
    }
    with plt.rc_context(style):
        figure, axes = plt.subplots(2, 2, figsize=(12.5, 11), height_ratios=[2.6, 1])
        _bars(axes[0][0], found, "loading", "shuffled", "Loading, shuffled")
        _bars(axes[0][1], found, "loading", "in order", "Loading, in order")
        _lines(axes[1][0], found, "columns", "Shuffled loading, by columns")
        _bars(axes[1][1], found, "features", "fit and transform", "Features: fit and transform")
        figure.tight_layout(pad=1.4)
        folder.mkdir(parents=True, exist_ok=True)
        figure.savefig(
            folder / "bench.svg", transparent=True, metadata={"Date": None, "Creator": None}
        )
        figure.savefig(folder / "bench.png", transparent=True, dpi=110)
        plt.close(figure)


def _bars(axis: Any, found: Found, suite: str, label: str, title: str) -> None:
    """A bar a contender, the fastest at the top; how long it is beside tabfeed's is the ratio."""
    rows = _ranked(found, suite, label)
    axis.set_title(title, color=INK, fontweight="bold", loc="left")
    _bare(axis)
    if not rows:
        axis.set_axis_off()
        return
    names = [_plain(found["contenders"][name]["title"]) for name, _ in rows]
    ratios = [figure["ratio"] for _, figure in rows]
    colours = [_colour(name, found["contenders"][name]) for name, _ in rows]
    places = range(len(rows))
    axis.barh(places, ratios, color=colours, height=0.7)
    axis.set_yticks(places, names, fontsize=7.5)
    axis.invert_yaxis()
    axis.set_xscale("log")
    axis.set_xlim(min(ratios) / 1.5, max(ratios) * 6)
    axis.set_xlabel("times tabfeed in the same rounds (log scale)")
    axis.axvline(1.0, color=OURS, linewidth=0.8, linestyle=":")
    for place, (_, figure) in zip(places, rows, strict=True):
        axis.text(figure["ratio"] * 1.08, place, _rate(figure), va="center", fontsize=7.5)


def _lines(axis: Any, found: Found, suite: str, title: str) -> None:
    """Numbers a second along an axis: a flat line is cost in proportion to the data."""
    axis.set_title(title, color=INK, fontweight="bold", loc="left")
    _bare(axis)
    part = found["suites"].get(suite)
    if part is None:
        axis.set_axis_off()
        return
    widths = {p["label"]: p["columns"] for p in part["points"]}
    for (name, figures), colour in zip(_by_name(part["figures"]), LINES, strict=False):
        points = [(widths[k], f["rate"] * widths[k] / 1e6) for k, f in figures.items()]
        x, y = zip(*points, strict=True)
        who = _plain(found["contenders"][name]["title"])
        axis.plot(x, y, color=colour, marker="o", markersize=4, label=who)
    axis.set_xscale("log")
    axis.set_yscale("log")
    axis.set_xticks(list(widths.values()), list(widths))
    axis.minorticks_off()
    axis.set_xlabel("columns")
    axis.set_ylabel("million numbers a second")
    beside = {"loc": "upper right", "bbox_to_anchor": (-0.22, 1.0)}  # below the names above
    axis.legend(fontsize=7.5, frameon=False, labelcolor=INK, **beside)


def _by_name(figures: Figures) -> list[tuple[str, dict[str, Found]]]:
    """With tabfeed first."""
    return sorted(figures.items(), key=lambda item: not item[0].startswith("tabfeed"))


def _ranked(found: Found, suite: str, label: str) -> list[tuple[str, Found]]:
    figures: Figures = found["suites"].get(suite, {}).get("figures", {})
    rows = [(n, f[label]) for n, f in figures.items() if "ratio" in f.get(label, {})]
    return sorted(rows, key=lambda row: -row[1]["ratio"])


def _rate(figure: Found) -> str:
    rate = figure["rate"] / 1e6
    return f"{rate:.1f} M/s" if rate >= 1 else f"{rate:.2g} M/s"


def _colour(name: str, person: Found) -> str:
    if person["limit"]:
        return LIMIT
    return OURS if name.startswith("tabfeed") else THEIRS


def _plain(title: str) -> str:
    return title.replace("`", "")


def _bare(axis: Any) -> None:
    axis.set_facecolor("none")
    for side in ("top", "right"):
        axis.spines[side].set_visible(False)
