"""Where a peer is ahead of tabfeed, and why: a part of the page.

Ahead by less than a twentieth is a draw: medians of five differ by as much from run to run. Who was
given fewer rows is not compared in memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from .tables import digits, ranked

__all__ = ["ahead", "compared", "wins"]

Found = dict[str, Any]
DRAW = 1.05


def wins(found: Found) -> str:
    """One line a peer and suite, and its reason once."""
    peers: dict[str, list[str]] = {}
    for suite, label, who, said in ahead(found):
        peers.setdefault(who, []).append(f"  - {suite}, {label}: {said}.")
    out = ["## Where a peer wins, and why\n", _in_general(found)]
    if not peers:
        out.append("Nowhere in this run.\n")
    for who, lines in peers.items():
        person = found["contenders"][who]
        out += [f"- **{person['title']}**. {person['why']}", *lines]
    return "\n".join([*out, ""])


def _in_general(found: Found) -> str:
    """What the figures below have in common, and what a short pass costs tabfeed."""
    suite = found["suites"].get("loading", {"figures": {}, "reference": ""})
    figure = suite["figures"].get(suite["reference"], {}).get("in order")
    said = (
        "Who has the data in memory before the clock starts decodes nothing. Who shuffles less "
        "(batches, or blocks of neighbours) gathers nothing. In order there is nothing to gather "
        "at all, so that handing over what was decoded as it lies is the least work there is; "
        "tabfeed writes each value into its place in a matrix all the same, and reads ahead with "
        "threads, which pays where batches are shuffled or the model takes its time: here nobody "
        "trains, and the loop does nothing but ask."
    )
    if figure is not None and "first_s" in figure:
        whole = figure["rows"] / figure["rate"]
        said += (
            f" A pass in order takes tabfeed {whole * 1000:.0f} ms here, "
            f"{figure['first_s'] * 1000:.0f} of them until its first batch."
        )
    return f"{said}\n"


def ahead(found: Found) -> Iterator[tuple[str, str, str, str]]:
    """Suite, point and contender, and in what it is ahead."""
    for suite, point, who, figure, ours in compared(found):
        said = _said(figure, ours, whole=figure["rows"] >= point["rows"])
        if said:
            yield suite, point["label"], who, said


def compared(found: Found) -> Iterator[tuple[str, Found, str, Found, Found]]:
    """Every figure of a peer beside tabfeed's at the same point."""
    for name, suite in found["suites"].items():
        for point in suite["points"]:
            ours = suite["figures"].get(suite["reference"], {}).get(point["label"])
            for who, figure in ranked(suite, point["label"]) if ours else ():
                person = found["contenders"][who]
                if not who.startswith("tabfeed") and not person["limit"]:
                    yield name, point, who, figure, ours


def _said(figure: Found, ours: Found, *, whole: bool) -> str:
    said = []
    if figure["ratio"] > DRAW:
        said.append(f"{digits(figure['ratio'])} times as fast")
    if figure["cpu"] * DRAW < ours["cpu"]:
        said.append(f"{digits(figure['cpu'] / ours['cpu'])} of the processor time")
    if whole and "memory" in figure and figure["memory"] * DRAW < ours.get("memory", 0):
        said.append(f"{digits(figure['memory'] / ours['memory'])} of the memory")
    return ", ".join(said)
