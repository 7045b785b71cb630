"""The landing page's bars: a few peers beside tabfeed, from the figures of `make bench`.

The whole picture has thirty contenders in six parts, too much for one screen and far too much for a
phone. Here are those of the README's table and whoever is faster, as lines of text with a bar: they
take the page's size and colours. Without figures there is nothing.
"""

from __future__ import annotations

import json
from html import escape
from pathlib import Path
from typing import Any

from benchmarks.harness.readme import LOADERS
from benchmarks.harness.tables import digits, ranked
from benchmarks.harness.wins import DRAW

SOURCE = Path(__file__).parents[2] / "benchmarks" / "results" / "bench.json"
PAGE, MARK = "index.md", "<!-- measured -->"
SUITE, LABEL = "loading", "shuffled"

Found = dict[str, Any]


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Put the bars in place of the mark."""
    if page.file.src_uri != PAGE:
        return markdown
    made = bars(json.loads(SOURCE.read_text("utf-8"))) if SOURCE.exists() else ""
    return markdown.replace(MARK, made)


def bars(found: Found) -> str:
    """A line a contender, the fastest first, and what was measured."""
    suite = found["suites"][SUITE]
    shown = [(who, f) for who, f in ranked(suite, LABEL) if _is_shown(found, who, f)]
    longest = max(figure["ratio"] for _, figure in shown)
    lines = [_line(found, who, figure, longest) for who, figure in shown]
    return f'<table class="bars"><tbody>{"".join(lines)}</tbody></table>\n\n{_caption(found)}'


def _is_shown(found: Found, who: str, figure: Found) -> bool:
    """Whether it is in the README's table, or a peer that is faster."""
    ours = who.startswith("tabfeed") or found["contenders"][who]["limit"]
    return who in LOADERS or (figure["ratio"] > DRAW and not ours)


def _line(found: Found, who: str, figure: Found, longest: float) -> str:
    person = found["contenders"][who]
    reference = who == found["suites"][SUITE]["reference"]
    faster = figure["ratio"] > DRAW
    note = f"<small>shuffled: {escape(person['shuffles'])}</small>" if faster else ""
    name = escape(person["title"].replace("`", "")) + note
    told = "1" if reference else digits(figure["ratio"])
    width = max(100 * figure["ratio"] / longest, 0.4)
    row = '<tr class="ours">' if reference else "<tr>"
    bar = f'<i style="width: {width:.1f}%"></i>'
    return f"{row}<th>{name}</th><td>{bar}</td><td>{told}</td></tr>"


def _caption(found: Found) -> str:
    suite, about = found["suites"][SUITE], found["about"]
    rate = suite["figures"][suite["reference"]][LABEL]["rate"] / 1e6
    point = next(p for p in suite["points"] if p["label"] == LABEL)
    return (
        f"Shuffled batches of {point['batch']:,} from {point['rows'] / 1e6:g} M rows of "
        f"{point['columns']} columns on {about['cores']} cores of {about['cpu']}: how many times "
        f"as fast as tabfeed, which gives {rate:.1f} M rows a second. In which form each was used, "
        "and where else a peer is faster: [Benchmarks](benchmarks.md). `make bench` runs it on "
        "your machine."
    )
