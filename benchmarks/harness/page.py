"""docs/benchmarks.md, written from the JSON: nothing on the page is typed by hand but its prose."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

__all__ = ["page", "write_page"]

Found = dict[str, Any]

_AXES = {
    "batch": ("Batch size", "Shuffled; rows of a batch in the head."),
    "rows": ("Rows", "Shuffled, batches of 65,536; rows of the data in the head."),
    "columns": (
        "Columns",
        "Shuffled, batches of 16,384; the same number of values whatever the width.",
    ),
    "lists": ("Lists", "Three columns of lists of 0 to 9 values beside nine others and a label."),
    "workers": (
        "Workers",
        "torch: worker processes. tabfeed: threads, where 0 is as many as there are cores.",
    ),
    "codec": (
        "Codec",
        "Shuffled, batches of 65,536; plain is uncompressed and not dictionary-coded.",
    ),
}


def write_page(source: Path, target: Path) -> None:
    """Write the page for a result."""
    picture = os.path.relpath(source.parent / "bench.svg", target.parent)
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(page(json.loads(source.read_text("utf-8")), picture), "utf-8")


def page(found: Found, picture: str) -> str:
    """The page as Markdown."""
    parts = [_head(found, picture), _loading(found)]
    parts += [_axis(found, suite) for suite in _AXES if suite in found["suites"]]
    parts += [_features(found), _wins(found), _epochs(found), _absent(found), _ways(found)]
    return "\n".join(part for part in parts if part)


def _head(found: Found, picture: str) -> str:
    about, how = found["about"], found["settings"]
    versions = ", ".join(f"{name} {v}" for name, v in about["versions"].items())
    return f"""# Benchmarks

Written by `make bench` from `benchmarks/results/bench.json`. Do not edit.

![tabfeed and its peers]({picture})

{about["cores"]} cores of {about["cpu"]}, {about["memory"] / 2**30:.0f} GiB of memory, \
{about["system"]}, Python {about["python"]}; {about["date"]}, {how["took_s"] / 60:.0f} minutes. \
{versions}.

The data are shaped like processed Criteo click logs: 26 int32 categories, 13 float32 numbers, a
label; {how["rows"]:,} rows in 4 Parquet files, snappy, page cache warm. A contender lives in a
process of its own and is ready before the clock starts; a few of them and tabfeed then go over the
data in turn, {how["rounds"]} times. **Times tabfeed** is the median of the ratios to tabfeed in the
same round, with the lowest and highest of them: 0.5 is half as fast. Rates only show the scale. A
run longer than {how["seconds"]} s is cut after the batch that came then, and marked so. CPU is
processor seconds for a million rows, child processes included. Memory is the most the process and
its children had, imports included, from their start until they had gone over the data once: a
contender that was given fewer rows shows how many.

A faster shuffle is often a weaker one, so the table says what is shuffled. tabfeed's ids are int64
in `TorchAsyncItr`, which doubles their bytes; `Loader` leaves them as they are in the files.
"""


def _loading(found: Found) -> str:
    suite = found["suites"].get("loading")
    if suite is None:
        return ""
    out = ["## Loading\n"]
    for point in suite["points"]:
        batch = f"batches of {point['batch']:,}"
        out.append(f"### {point['label'].capitalize()}, {batch}\n")
        out.append(_table(found, suite, point))
    return "\n".join(out)


def _table(found: Found, suite: Found, point: Found) -> str:
    """Memory was seen while shuffling, so a table of loading in order does without."""
    more = "| memory, GB | shuffles |" if point["shuffle"] else "|"
    lines = [f"| who | times tabfeed | M rows/s | CPU s per M rows {more}"]
    lines.append("| --- | --- | --- | --- |" + " --- | --- |" * point["shuffle"])
    for name, figure in ranked(suite, point["label"]):
        person = found["contenders"][name]
        line = (
            f"| {person['title']} | {_ratio(figure)} | {_million(figure)} | {figure['cpu']:.2f} |"
        )
        if point["shuffle"]:
            line += f" {_gigabytes(figure, point['rows'])} | {person['shuffles']} |"
        lines.append(line)
    return "\n".join(lines) + "\n"


def _gigabytes(figure: Found, rows: int) -> str:
    if "memory" not in figure:
        return ""
    less = f" ({figure['rows']:,.0f} rows)" if figure["rows"] < rows else ""
    return f"{figure['memory'] / 1e9:.2f}{less}"


def ranked(suite: Found, label: str) -> list[tuple[str, Found]]:
    """Contenders at a point, the fastest first."""
    rows = [(n, f[label]) for n, f in suite["figures"].items() if "ratio" in f.get(label, {})]
    return sorted(rows, key=lambda row: -row[1]["ratio"])


def _ratio(figure: Found) -> str:
    ratio = figure["ratio"]
    low, high = figure["ratio_range"]
    if low == high == 1.0:
        return "1"
    text = f"**{_digits(ratio)}** ({_digits(low)} to {_digits(high)})"
    text += ", one run" if figure["slow"] else ""
    return f"{text}, cut" if figure["cut"] else text


def _digits(value: float) -> str:
    return f"{value:.2f}" if value >= 0.1 else f"{value:.2g}"


def _million(figure: Found) -> str:
    return f"{figure['rate'] / 1e6:.3g}"


def _axis(found: Found, name: str) -> str:
    suite = found["suites"][name]
    title, text = _AXES[name]
    labels = [p["label"] for p in suite["points"]]
    lines = [
        f"## {title}\n\n{text} Million rows a second, and in brackets times tabfeed.\n",
        f"| who | {' | '.join(labels)} |",
        f"| --- |{' --- |' * len(labels)}",
    ]
    for who, figures in suite["figures"].items():
        cells = [_cell(figures.get(label)) for label in labels]
        lines.append(f"| {found['contenders'][who]['title']} | {' | '.join(cells)} |")
    return "\n".join([*lines, *_memory(found, suite, labels, name), ""])


def _cell(figure: Found | None) -> str:
    if figure is None:
        return ""
    return f"{_million(figure)} ({_digits(figure['ratio'])})" if "ratio" in figure else ""


def _memory(found: Found, suite: Found, labels: list[str], name: str) -> list[str]:
    """How memory grows, where each point was a process of its own."""
    if name != "rows":
        return []
    lines = ["\nMemory, GB:\n", f"| who | {' | '.join(labels)} |"]
    lines.append(f"| --- |{' --- |' * len(labels)}")
    for who, figures in suite["figures"].items():
        cells = [f"{figures[k]['memory'] / 1e9:.2f}" if k in figures else "" for k in labels]
        lines.append(f"| {found['contenders'][who]['title']} | {' | '.join(cells)} |")
    return lines


def _features(found: Found) -> str:
    suite = found["suites"].get("features")
    if suite is None:
        return ""
    point = suite["points"][0]
    lines = [
        "## Features\n",
        f"The README's workflow on {point['rows']:,} raw rows: 26 columns of strings get ids by "
        "frequency, 13 of integers are filled, clipped, logged and normalised. Parquet in, Parquet "
        "out. Speed is that of fit and transform together.\n",
        "| who | times tabfeed | fit, s | transform, s | CPU s per M rows | memory, GB |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for name, figure in ranked(suite, point["label"]):
        lines.append(
            f"| {found['contenders'][name]['title']} | {_ratio(figure)} | {figure['fit_s']:.2f} "
            f"| {figure['transform_s']:.2f} | {figure['cpu']:.2f} | {figure['memory'] / 1e9:.2f} |"
        )
    return "\n".join([*lines, ""])


def _wins(found: Found) -> str:
    """Where a peer is ahead in speed, processor time or memory, and why."""
    out = ["## Where a peer wins, and why\n"]
    for name, suite in found["suites"].items():
        for point in suite["points"]:
            out += _wins_at(found, name, suite, point)
    if len(out) == 1:
        out.append("Nowhere in this run.")
    return "\n".join([*out, ""])


def _wins_at(found: Found, name: str, suite: Found, point: Found) -> list[str]:
    label = point["label"]
    ours = suite["figures"].get(suite["reference"], {}).get(label)
    out = []
    for who, figure in ranked(suite, label) if ours else ():
        person = found["contenders"][who]
        if who.startswith("tabfeed") or person["limit"]:
            continue
        said = _ahead(figure, ours, whole=figure["rows"] >= point["rows"])
        if said:
            out.append(f"- {name}, {label}: **{person['title']}** {said}. {person['why']}")
    return out


def _ahead(figure: Found, ours: Found, *, whole: bool) -> str:
    said = []
    if figure["ratio"] > 1:
        said.append(f"is {_digits(figure['ratio'])} times as fast")
    if figure["cpu"] < ours["cpu"]:
        said.append(f"takes {_digits(figure['cpu'] / ours['cpu'])} of the processor time")
    if whole and "memory" in figure and figure["memory"] < ours.get("memory", 0):
        said.append(f"takes {_digits(figure['memory'] / ours['memory'])} of the memory")
    return " and ".join(said)


def _epochs(found: Found) -> str:
    """Seconds for several passes, what comes before the first of them included."""
    suite = found["suites"].get("loading")
    if suite is None:
        return ""
    rows = found["settings"]["rows"]
    lines = [
        "## Epochs\n",
        f"Seconds to get ready and go {rows:,} rows over so many times, shuffled, from the rates "
        "above. Making files in an own format comes on top, once; for contenders measured on fewer "
        "rows it is scaled up.\n",
        "| who | 1 | 3 | 10 | own files |",
        "| --- | --- | --- | --- | --- |",
    ]
    for name, figure in ranked(suite, "shuffled"):
        if found["contenders"][name]["limit"]:
            continue
        more = rows / figure["rows"]
        times = [figure["open_s"] * more + n * rows / figure["rate"] for n in (1, 3, 10)]
        own = f"{figure['convert_s'] * more:.0f}" if "convert_s" in figure else ""
        cells = " | ".join(f"{t:.3g}" if t < 1000 else f"{t:.0f}" for t in times)
        lines.append(f"| {found['contenders'][name]['title']} | {cells} | {own} |")
    return "\n".join([*lines, ""])


def _absent(found: Found) -> str:
    lines = [
        f"- {person['title']}: {person['error'].splitlines()[0]}"
        for person in found["contenders"].values()
        if person["state"] != "ok"
    ]
    return "\n".join(["## Not measured\n", *lines, ""]) if lines else ""


def _ways(found: Found) -> str:
    lines = [
        "## How each was used\n",
        "The adapters are in `benchmarks/peers`, one file a peer.\n",
        "| who | adapter | delivers | versions |",
        "| --- | --- | --- | --- |",
    ]
    for person in found["contenders"].values():
        versions = ", ".join(f"{n} {v}" for n, v in person.get("versions", {}).items())
        lines.append(
            f"| {person['title']} | `{person['peer']}.py` | {person['delivers']} | {versions} |"
        )
    return "\n".join([*lines, ""])
