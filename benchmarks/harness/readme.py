"""The README's figures, written from the JSON between two marks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from .tables import digits, million, table
from .wins import DRAW, compared

__all__ = ["between", "figures", "write_readme"]

START, END = "<!-- figures of make bench -->", "<!-- end of figures -->"
LOADERS = (
    "tabfeed", "polars", "torch-parquet", "merlin", "petastorm", "ray", "hf-streaming",
    "tf-generator", "torch-items", "grain-parquet",
)  # fmt: skip
"""Those that shuffle rows of Parquet files, and torch's loader as its tutorials show it."""

Found = dict[str, Any]


def write_readme(source: Path, target: Path) -> None:
    """Put the figures of a result in their place."""
    text = target.read_text("utf-8")
    new = figures(json.loads(source.read_text("utf-8")))
    target.write_text(text.replace(between(text), new), "utf-8")


def between(text: str) -> str:
    """What stands between the marks."""
    return text.partition(START)[2].partition(END)[0]


def figures(found: Found) -> str:
    """A table of loading, a sentence of features, where peers win."""
    return f"\n{_loading(found)}\n{_features(found)} {_wins(found)}\n"


def _loading(found: Found) -> str:
    suite, about = found["suites"]["loading"], found["about"]
    point = next(p for p in suite["points"] if p["label"] == "shuffled")
    rows = []
    for name in LOADERS:
        figure = suite["figures"].get(name, {}).get("shuffled")
        if figure is not None:
            times = "1" if name == suite["reference"] else digits(1 / figure["ratio"])
            rows.append([found["contenders"][name]["title"], million(figure), times])
    text = (
        f"Shuffled batches of {point['batch']:,} from {point['rows'] / 1e6:g} M rows of "
        f"{point['columns']} columns, {about['cores']} cores of {about['cpu']}:\n\n"
    )
    return text + table(["", "M rows/s", "tabfeed is so many times as fast"], rows)


def _features(found: Found) -> str:
    """Each beside tabfeed on the most rows it was given."""
    suite = found["suites"]["features"]
    parts = []
    for who, points in suite["figures"].items():
        if who != suite["reference"]:
            *_, (label, figure) = points.items()
            times, title = digits(1 / figure["ratio"]), found["contenders"][who]["title"]
            parts.append(f"{times} times as fast as {title} ({label} rows)")
    parts[-1:] = [f"and {parts[-1]}"] if len(parts) > 1 else parts[-1:]
    return f"Fitting and applying the workflow above, tabfeed is {', '.join(parts)}."


def _wins(found: Found) -> str:
    every = [figure["ratio"] for *_, figure, _ in compared(found)]
    faster = sum(ratio > DRAW for ratio in every)
    return (
        f"In {faster} of {len(every)} comparisons with {_peers(found)} other ways to load and to "
        "make features a peer is faster: [docs/benchmarks.md](docs/benchmarks.md) says where and "
        "why, and `make bench` measures all of it on your machine."
    )


def _peers(found: Found) -> int:
    return len({who for _, _, who, _, _ in compared(found)})
