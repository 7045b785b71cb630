"""The report as one web page that opens offline.

It has no scripts, fonts or images from elsewhere; its content security policy forbids all requests.
Light or dark follows the reader's setting. Shapes are inline SVG, drawn in a box of 1000 by 100
units that the browser stretches to the width of the page; axis labels are ordinary text beside it.
So one page serves a phone and a desk without a script.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from html import escape
from importlib.resources import files
from itertools import accumulate, pairwise

from tabfeed.display import megabytes, percent, seconds
from tabfeed.profile.judge import judge
from tabfeed.profile.report import Row, headline, stage_rows, thread_rows, time_rows
from tabfeed.profile.run import STAGE_LABELS, Activity, Lane, Run, Window
from tabfeed.profile.verdict import MIN_GAIN, Verdict, cause_of

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
    rows = "".join(_lane_row(_short(lane.name), lane, whole, labels) for lane in window.lanes)
    ends = f"<span>0</span><span>{seconds(whole)}</span>"
    return f'<div class="lanes">{rows}<div class="x">{ends}</div></div>'


def _short(thread: str) -> str:
    return (
        "training loop" if thread == "MainThread" else thread.replace("tabfeed-loader-", "loader ")
    )


def _lane_row(label: str, lane: Lane, whole: float, labels: Mapping[str, str]) -> str:
    name = escape(lane.name)
    return (
        f'<span title="{name}">{escape(label)}</span>'
        f'<svg {_SVG} aria-label="{name}">{_blocks(lane, whole, labels)}</svg>'
    )


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


def table(
    head: Sequence[str], rows: Sequence[Sequence[str]], names: Sequence[str] = (), kind: str = ""
) -> str:
    """A table; with `names`, each row begins with that stage's colour."""
    heads = "".join(f"<th>{escape(h)}</th>" for h in head)
    body = []
    for i, row in enumerate(rows):
        mark = f'<i style="background:{colour(names[i])}"></i>' if i < len(names) else ""
        cells = "".join(f"<td>{mark if j == 0 else ''}{escape(c)}</td>" for j, c in enumerate(row))
        body.append(f"<tr{' class=sum' if row[0] == 'total' else ''}>{cells}</tr>")
    return (
        f'<div class="scroll"><table class="{kind}"><thead><tr>{heads}</tr></thead>'
        f"<tbody>{''.join(body)}</tbody></table></div>"
    )


_POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
_TIMES = {"startup": "start-up", "wait": "waiting", "copy": "copying", "compute": "computing"}
_DRAWN: tuple[str, ...] = ("compute", "wait", "startup")
_ORDER = (
    *("fetch", "read", "transform", "convert", "plan", "gather", "finish", "copy", "chunk"),
    *("queue", "ahead"),
    *("share", "full"),
)


def document(title: str, body: str) -> str:
    """A complete page around `body`."""
    style = files("tabfeed.profile").joinpath("page.css").read_text("utf-8")
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>\n{style}</style>\n</head>\n"
        f"<body>\n<main>\n{body}\n</main>\n</body>\n</html>\n"
    )


def page(run: Run) -> str:
    """The report on one run."""
    verdict = judge(run)
    parts: list[Callable[[Run], str]] = [_tiles, _where, _over_time, _close_up, _stages, _curves]
    body = [_header(run), _verdict(run, verdict), *(part(run) for part in parts), _numbers(run)]
    return document(f"{run.name}: {cause_of(run, verdict)}", "\n".join(body) + _footer(run))


def comparison_page(runs: Sequence[Run], rows: Sequence[Sequence[str]]) -> str:
    """Runs side by side: a bar for each, and a table of these rows."""
    names = " and ".join(escape(r.name) for r in runs)
    longest = max(r.times.wall for r in runs) or 1.0
    bars = "".join(_lane_row(p.name, p, longest, _TIMES) for p in map(_parts, runs))
    keys = legend({n: _TIMES[n] for n in _TIMES if any(getattr(r.times, n) for r in runs)})
    numbers = table(("", *(r.name for r in runs)), rows, kind="words")
    return document(
        f"Comparison of {len(runs)} runs",
        f"<header><h1>{names}</h1><span>side by side</span></header>"
        + _section(
            "Where the time went",
            "Bars are as long as the runs took.",
            f'<div class="lanes wide">{bars}</div>{keys}',
        )
        + _section("The numbers", "The others are compared to the first.", numbers),
    )


def _parts(run: Run) -> Lane:
    """The parts of a run's time, one after another."""
    ends = list(accumulate((getattr(run.times, name) for name in _TIMES), initial=0.0))
    parts = (Activity(n, a, b) for n, (a, b) in zip(_TIMES, pairwise(ends), strict=True) if b > a)
    return Lane(f"{run.name} · {seconds(run.times.wall)}", tuple(parts))


def _header(run: Run) -> str:
    machine = run.machine
    gpus = f", {', '.join(machine.gpus)}" if machine.gpus else ""
    return (
        f"<header><h1>{escape(run.name)}</h1><span>{escape(run.loader.name)}</span>"
        f"<span>{machine.cores} cores{escape(gpus)}</span><span>Python {machine.python}</span>"
        f"<span>{escape(run.made[:16].replace('T', ' '))} UTC</span></header>"
    )


def _verdict(run: Run, verdict: Verdict) -> str:
    tone = "good" if verdict.good else "unsure" if verdict.cause in ("short", "unseen") else "bad"
    why = "".join(f"<li>{escape(line)}</li>" for line in verdict.evidence)
    todo = "".join(f"<li>{escape(a.text)}{_gain(a.gain)}</li>" for a in verdict.advice)
    lists = "".join(
        f"<div><h3>{title}</h3><ul>{items}</ul></div>"
        for title, items in (("What to do", todo), ("Evidence", why))
        if items
    )
    return (
        f'<div class="verdict {tone}"><div class="cause">{cause_of(run, verdict)}</div>'
        f'<div class="sentence">{escape(verdict.sentence)}</div>'
        f'<div class="two">{lists}</div></div>'
    )


def _gain(gain: float | None) -> str:
    if gain is None or gain < MIN_GAIN:
        return ""
    shown = "over 100" if gain > 100 else f"{gain:.1f}"
    return f' <span class="gain">up to {shown} times as fast</span>'


def _tiles(run: Run) -> str:
    tiles = "".join(
        f'<div class="tile"><b>{escape(value)}</b><span>{escape(name)}</span>'
        f"<small>{escape(what)}</small></div>"
        for name, value, what in headline(run)
    )
    return f'<div class="tiles">{tiles}</div>'


def _section(title: str, what: str, body: str) -> str:
    return f'<section><h2>{title}</h2><p class="what">{what}</p>{body}</section>'


def _where(run: Run) -> str:
    times = run.times
    parts = {n: getattr(times, n) for n in _TIMES if getattr(times, n) > 0}
    return _section(
        "Where the training loop's time went",
        f"{seconds(times.wall)} in total, from requesting the first batch to the end of the last.",
        bar(parts) + legend({n: _TIMES[n] for n in parts}),
    )


def _over_time(run: Run) -> str:
    if run.timeline is None:
        return ""
    known = run.timeline.sums
    sums: dict[str, tuple[float, ...]] = {n: known[n] for n in _DRAWN if n in known}
    drawn = columns(sums, run.timeline.width, run.timeline.width, "100 %")
    return _section(
        "Steps over time",
        f"Each column is {seconds(run.timeline.width)} of the run: how long the loop computed, "
        "and how long it waited.",
        drawn + legend({n: _TIMES[n] for n in sums}),
    )


def _close_up(run: Run) -> str:
    if run.window is None:
        return ""
    names = {b.name for lane in run.window.lanes for b in lane.blocks}
    labels = {"compute": "computing", **STAGE_LABELS, "wait": "waiting"}
    shown = {n: labels.get(n, n) for n in ("compute", "wait", *_ORDER) if n in names}
    return _section(
        "A few steps, close up",
        f"{seconds(run.window.end - run.window.start)} from the middle of the run, by thread.",
        lanes(run.window, labels) + legend(shown),
    )


def _stages(run: Run) -> str:
    if not run.stages or run.stage_series is None:
        return ""
    shares = {s.name: s.seconds for s in run.stages}
    ordered = {n: shares[n] for n in _ORDER if shares.get(n, 0) > 0}
    series = {n: run.stage_series.sums[n] for n in _ORDER if n in run.stage_series.sums}
    most = max(sum(column) for column in zip(*series.values(), strict=True))
    threads = run.loader.threads or 1
    full = max(most, threads * run.stage_series.width)
    drawn = columns(series, run.stage_series.width, full, f"{threads}")
    return _section(
        "What the loader's threads did",
        "All threads together. A loader that keeps up has its queue full some of the time: it is "
        "ahead of the loop.",
        bar(ordered)
        + legend({n: STAGE_LABELS[n] for n in ordered})
        + f'<p class="what" style="margin:18px 0 8px">Threads at work, over time</p>{drawn}',
    )


def _curves(run: Run) -> str:
    drawn = []
    if len(run.queue) > 1:
        most = max(run.queue_most, 1)
        drawn.append(
            _curve("Queue", f"chunks ready, of {most}", run.queue, most, str(most), "gather")
        )
    if len(run.gpu_busy) > 1:
        drawn.append(_curve("GPU busy", "by the driver", run.gpu_busy, 1.0, "100 %", "compute"))
        peak = max(v for _, v in run.gpu_memory)
        drawn.append(
            _curve("GPU memory", "in use", run.gpu_memory, peak, megabytes(peak), "convert")
        )
    if len(run.cpu) > 1:
        cores = float(max(run.machine.cores, 1))
        label = f"{run.machine.cores}"
        drawn.append(_curve("Cores in use", "by this process", run.cpu, cores, label, "transform"))
    if not drawn:
        return ""
    body = f'<div class="curves">{"".join(drawn)}</div>'
    return _section("Over time", "Sampled while the loop ran.", body)


def _curve(
    title: str,
    what: str,
    points: tuple[tuple[float, float], ...],
    most: float,
    top: str,
    name: str,
) -> str:
    drawn = curve(points, most, top, name)
    return f"<div><h3>{title} <small>{escape(what)}</small></h3>{drawn}</div>"


def _numbers(run: Run) -> str:
    shown = [n for n in _TIMES if n != "copy" or run.times.copy]
    head: Row = ("training loop", "seconds", "share", "median", "95 %", "longest")
    tables = [table(head, time_rows(run), shown)]
    if run.stages:
        head = ("loader threads", "seconds", "share", "on a core", "speed")
        tables.append(table(head, stage_rows(run), [s.name for s in run.stages]))
    rows = thread_rows(run)
    if rows:
        tables.append(table(("thread", "on a core", "waiting for a core"), rows))
    return _section(
        "The numbers", "The same data as text.", f'<div class="tables">{"".join(tables)}</div>'
    )


def _footer(run: Run) -> str:
    share = run.profiler_cpu / max(run.elapsed, 1e-9)
    return f"<footer>tabfeed profile. Its own thread used {percent(share)} of one core.</footer>"
