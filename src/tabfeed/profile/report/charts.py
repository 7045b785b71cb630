"""Pictures as inline SVG and HTML: shapes stretch with the page, words never do.

Shapes are drawn in a box of 1000 by 100 units that the browser stretches to whatever room there is;
axis labels are ordinary text beside it. So one page serves a phone and a desk without a script.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

from tabfeed.profile.format import percent, seconds
from tabfeed.profile.run import Lane, Window

__all__ = ["bar", "colour", "columns", "curve", "lanes", "legend", "table"]

_KNOWN = {
    *("wait", "compute", "startup", "copy", "read", "transform", "convert", "gather", "plan"),
    *("finish", "chunk", "share", "full"),
}
_PALE = {"startup", "share", "full"}
_SVG = 'viewBox="0 0 1000 100" preserveAspectRatio="none" role="img"'


def colour(name: str) -> str:
    """The page's colour for a stage."""
    return f"var(--{name if name in _KNOWN else 'other'})"


def legend(items: Mapping[str, str]) -> str:
    """Names to labels, each with its colour."""
    keys = "".join(
        f'<span><i style="background:{colour(name)}"></i>{escape(label)}</span>'
        for name, label in items.items()
    )
    return f'<div class="legend">{keys}</div>'


def bar(parts: Mapping[str, float]) -> str:
    """One bar cut in proportion."""
    total = sum(parts.values()) or 1.0
    cells = []
    for name, value in parts.items():
        share = value / total
        if share <= 0:
            continue
        text = percent(share) if share >= 0.11 else ""
        pale = ' class="pale"' if name in _PALE else ""
        cells.append(
            f'<div{pale} style="flex:{share:.5f};background:{colour(name)}" '
            f'title="{escape(name)}: {seconds(value)}">{text}</div>'
        )
    return f'<div class="bar">{"".join(cells)}</div>'


def columns(sums: Mapping[str, Sequence[float]], width: float, most: float, unit: str) -> str:
    """Stacked columns over time; `most` is the full height."""
    count = len(next(iter(sums.values())))
    shapes, base = [], [100.0] * count
    for name, values in sums.items():
        top = [b - 100 * v / (most or 1.0) for b, v in zip(base, values, strict=True)]
        shapes.append(f'<path fill="{colour(name)}" d="{_band(top, base)}"/>')
        base = top
    ends = ("0 s", seconds(width * count / 2), seconds(width * count))
    return _plot("".join(shapes), ("0", unit), ends, "stacked columns over time")


def _band(top: Sequence[float], base: Sequence[float]) -> str:
    """The outline between two flights of stairs, so that no seam shows between columns."""
    wide = 1000 / len(top)
    over = [f"V{y:.2f}H{(i + 1) * wide:.2f}" for i, y in enumerate(top)]
    back = [f"V{base[i]:.2f}H{i * wide:.2f}" for i in reversed(range(len(base)))]
    return f"M0 {base[0]:.2f}{''.join(over)}{''.join(back)}z"


def curve(points: Sequence[tuple[float, float]], most: float, top: str, name: str) -> str:
    """One curve, filled to the ground."""
    first, last = points[0][0], points[-1][0]
    span = (last - first) or 1.0
    xy = [(1000 * (t - first) / span, 100 - 100 * min(v, most) / (most or 1.0)) for t, v in points]
    line = " ".join(f"{x:.1f},{y:.2f}" for x, y in xy)
    shapes = (
        f'<polygon class="under" points="0,100 {line} 1000,100"/>'
        f'<polyline class="curve" points="{line}"/>'
    )
    ends = (seconds(first) if first > 0 else "0 s", seconds(last))
    return _plot(shapes, ("0", top), ends, name, height=96, style=f"--c:{colour(name)}")


def _plot(
    shapes: str,
    y: tuple[str, str],
    x: Sequence[str],
    name: str,
    *,
    height: int = 150,
    style: str = "",
) -> str:
    lines = "".join(f'<path class="grid" d="M0 {v}H1000"/>' for v in (0, 50, 100))
    low, high = y
    ends = "".join(f"<span>{escape(text)}</span>" for text in x)
    return (
        f'<div class="plot" style="--h:{height}px;{style}"><div class="y">'
        f'<span style="top:0">{escape(high)}</span>'
        f'<span style="top:100%">{escape(low)}</span></div>'
        f'<svg {_SVG} aria-label="{escape(name)}">{lines}{shapes}</svg>'
        f'<div class="x">{ends}</div></div>'
    )


def lanes(window: Window, labels: Mapping[str, str]) -> str:
    """What each thread did, one line a thread."""
    whole = window.end - window.start
    rows = []
    for lane in window.lanes:
        rows.append(
            f"<span>{escape(_short(lane.name))}</span>"
            f'<svg {_SVG} aria-label="{escape(lane.name)}">{_blocks(lane, whole, labels)}</svg>'
        )
    ends = f"<span>{seconds(0)}</span><span>{seconds(whole)}</span>".replace("0 µs", "0")
    return f'<div class="lanes">{"".join(rows)}<div class="x">{ends}</div></div>'


def _short(name: str) -> str:
    if name == "MainThread":
        return "training loop"
    return name.replace("tabfeed-loader-", "loader ")


def _blocks(lane: Lane, whole: float, labels: Mapping[str, str]) -> str:
    out = []
    for b in lane.blocks:
        x, wide = 1000 * b.start / whole, 1000 * (b.end - b.start) / whole
        title = f"{labels.get(b.name, b.name)}: {seconds(b.end - b.start)}"
        out.append(
            f'<rect x="{x:.2f}" width="{max(wide, 0.3):.2f}" height="100" '
            f'fill="{colour(b.name)}"><title>{escape(title)}</title></rect>'
        )
    return "".join(out)


def table(head: Sequence[str], rows: Sequence[Sequence[str]], names: Sequence[str] = ()) -> str:
    """A table; with `names`, each row begins with that stage's colour."""
    heads = "".join(f"<th>{escape(h)}</th>" for h in head)
    body = []
    for i, row in enumerate(rows):
        mark = f'<i style="background:{colour(names[i])}"></i>' if i < len(names) else ""
        cells = "".join(f"<td>{mark if j == 0 else ''}{escape(c)}</td>" for j, c in enumerate(row))
        body.append(f"<tr{' class=sum' if row[0] == 'total' else ''}>{cells}</tr>")
    return (
        f'<div class="scroll"><table><thead><tr>{heads}</tr></thead>'
        f"<tbody>{''.join(body)}</tbody></table></div>"
    )
