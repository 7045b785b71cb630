"""The report as one web page that opens offline.

It has no scripts, fonts or images from elsewhere; its content security policy forbids all requests.
Light or dark follows the reader's setting.
"""

from __future__ import annotations

from collections.abc import Callable
from html import escape
from importlib.resources import files

from tabfeed.profile.analyse.causes import MIN_GAIN, Verdict, cause_of
from tabfeed.profile.analyse.verdict import judge
from tabfeed.profile.format import STAGE_LABELS, megabytes, percent, seconds
from tabfeed.profile.report import charts
from tabfeed.profile.report.tables import Row, headline, stage_rows, thread_rows, time_rows
from tabfeed.profile.run import Run, Series

__all__ = ["document", "page"]

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
        charts.bar(parts) + charts.legend({n: _TIMES[n] for n in parts}),
    )


def _over_time(run: Run) -> str:
    if run.timeline is None:
        return ""
    known = run.timeline.sums
    sums: dict[str, tuple[float, ...]] = {n: known[n] for n in _DRAWN if n in known}
    drawn = charts.columns(sums, run.timeline.width, run.timeline.width, "100 %")
    return _section(
        "Steps over time",
        f"Each column is {seconds(run.timeline.width)} of the run: how long the loop computed, "
        "and how long it waited.",
        drawn + charts.legend({n: _TIMES[n] for n in sums}),
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
        charts.lanes(run.window, labels) + charts.legend(shown),
    )


def _stages(run: Run) -> str:
    if not run.stages or run.stage_series is None:
        return ""
    shares = {s.name: s.seconds for s in run.stages}
    ordered = {n: shares[n] for n in _ORDER if shares.get(n, 0) > 0}
    series = _in_order(run.stage_series)
    most = max(sum(column) for column in zip(*series.values(), strict=True))
    threads = run.loader.threads or 1
    full = max(most, threads * run.stage_series.width)
    drawn = charts.columns(series, run.stage_series.width, full, f"{threads}")
    return _section(
        "What the loader's threads did",
        "All threads together. A loader that keeps up has its queue full some of the time: it is "
        "ahead of the loop.",
        charts.bar(ordered)
        + charts.legend({n: STAGE_LABELS[n] for n in ordered})
        + f'<p class="what" style="margin:18px 0 8px">Threads at work, over time</p>{drawn}',
    )


def _in_order(series: Series) -> dict[str, tuple[float, ...]]:
    return {n: series.sums[n] for n in _ORDER if n in series.sums}


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
    drawn = charts.curve(points, most, top, name)
    return f"<div><h3>{title} <small>{escape(what)}</small></h3>{drawn}</div>"


def _numbers(run: Run) -> str:
    shown = [n for n in _TIMES if n != "copy" or run.times.copy]
    head: Row = ("training loop", "seconds", "share", "median", "95 %", "longest")
    tables = [charts.table(head, time_rows(run), shown)]
    if run.stages:
        head = ("loader threads", "seconds", "share", "on a core", "speed")
        tables.append(charts.table(head, stage_rows(run), [s.name for s in run.stages]))
    rows = thread_rows(run)
    if rows:
        tables.append(charts.table(("thread", "on a core", "waiting for a core"), rows))
    return _section(
        "The numbers", "The same data as text.", f'<div class="tables">{"".join(tables)}</div>'
    )


def _footer(run: Run) -> str:
    share = run.profiler_cpu / max(run.elapsed, 1e-9)
    return f"<footer>tabfeed profile. Its own thread used {percent(share)} of one core.</footer>"
