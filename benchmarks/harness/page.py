"""docs/benchmarks.md, written from the JSON: nothing on the page is typed by hand but its prose."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from .tables import digits, fewer, gigabytes, grid, million, ranked, ratio_of, short_of, table
from .wins import wins

__all__ = ["page", "write_page"]

Found = dict[str, Any]

_AXES = {
    "batch": ("Batch size", "Shuffled; rows of a batch in the head."),
    "rows": (
        "Rows",
        "Shuffled, batches of 65,536; rows of the data in the head. Each point is a process of its "
        "own: what grows with the rows is held in memory.",
    ),
    "columns": (
        "Columns",
        "Shuffled, batches of 16,384; the same number of values whatever the width. Each point is "
        "a process of its own.",
    ),
    "lists": (
        "List columns",
        "Shuffled, batches of 65,536; so many columns of lists of 0 to 9 values beside nine others "
        "and a label.",
    ),
    "workers": (
        "Workers",
        "Shuffled. For the others these are worker processes, for tabfeed threads, where 0 is as "
        "many as there are cores.",
    ),
    "codec": (
        "Codec",
        "Shuffled, batches of 65,536; plain is uncompressed and not dictionary-coded.",
    ),
    "epochs": (
        "Epochs",
        "Shuffled, batches of 65,536; getting ready and so many passes, timed together. What is "
        "held in memory must be read first. Making files in an own format is not counted.",
    ),
    "remote": (
        "Local and remote",
        "Batches of 65,536. Remote files are on an S3 server of this machine that takes {latency} "
        "ms to answer each request and sends {bandwidth} MB a second over each connection; the "
        "server itself takes its share of the cores, but not of the processor seconds below.",
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
    parts += [_features(found), wins(found), _failed(found), _own_files(found), _ways(found)]
    return "\n".join(part for part in parts if part)


def _head(found: Found, picture: str) -> str:
    about, how = found["about"], found["settings"]
    versions = ", ".join(f"{name} {v}" for name, v in about["versions"].items())
    return f"""# Benchmarks

<!-- Written by `make bench` from benchmarks/results/bench.json. Do not edit. -->

How fast tabfeed is beside other ways to feed tables to models, each in the best form that its own
documentation advises, in one run of `make bench`, which does the same on your machine. First the
picture and what it means, then every figure, then [where a peer wins](#where-a-peer-wins-and-why).

![tabfeed and its peers]({picture})

Blue is tabfeed, brown a peer, violet what decoding alone would reach.

{about["cores"]} cores of {about["cpu"]}, {about["memory"] / 2**30:.0f} GiB of memory, \
{about["system"]}, Python {about["python"]}; {about["date"]}, {how["took_s"] / 60:.0f} minutes. \
{versions}.

The data are shaped like processed Criteo click logs: 26 int32 categories, 13 float32 numbers, a
label; {how["rows"]:,} rows in 4 Parquet files, snappy, page cache warm. A contender lives in a
process of its own and is ready before the clock starts; what importing made there is kept from the
garbage collector, for all alike. A few of them and tabfeed then go over the data in turn, \
{how["rounds"]} times after one that does not count. **Times tabfeed** is the median
of the ratios to tabfeed in the same round, with the lowest and highest of them: 0.5 is half as
fast. Rates only show the scale. A run is over all the data, from asking for the first batch to the
last: whoever reads or sorts all of it before its first batch has that time counted, and what the
others do before theirs too. Only data that a contender holds in memory throughout is read before
the clock starts; its name says so, and "Epochs" counts the reading.{_cuts(found)} Those too slow to
go over all rows go over fewer, in as many rounds; the table says how many. CPU is processor seconds
for a million rows, child processes included. Memory is the most the process and its children had,
imports included, from their start until they had gone over the data once. Before they are timed,
all values that a contender delivers are added up and compared with the files', so that none wins by
leaving some out.

A faster shuffle is often a weaker one, so the table says what is shuffled. The ids of
`TorchAsyncItr` are int64, which doubles their bytes; `Loader` leaves them as they are in the files.
"""


def _cuts(found: Found) -> str:
    """Whoever was stopped before the end, or ran once only: what the words in the tables mean."""
    suites = found["suites"].values()
    figures = [
        f for suite in suites for points in suite["figures"].values() for f in points.values()
    ]
    said = ""
    if any(figure["cut"] for figure in figures):
        said = (
            f"\nA run still going on {found['settings']['seconds']:g} s after its first batch is "
            "cut, and marked so: what was delivered until then counts."
        )
    if any(figure["slow"] for figure in figures):
        said += '\nWho takes minutes for the rounds ran once, which "one run" says.'
    return said


def _loading(found: Found) -> str:
    suite = found["suites"].get("loading")
    if suite is None:
        return ""
    out = ["## Loading\n"]
    for point in suite["points"]:
        out.append(f"### {point['label'].capitalize()}, batches of {point['batch']:,}\n")
        out.append(_who_how(found, suite, point))
    return "\n".join([*out, *_in_one_table(found, suite)])


def _in_one_table(found: Found, suite: Found) -> list[str]:
    """Why some stand in one of the tables of loading alone."""
    said = []
    for name, figures in suite["figures"].items():
        person = found["contenders"][name]
        if set(figures) == {"in order"} and not person["shuffles"]:
            memory = f" Its memory: {m} GB." if (m := gigabytes(figures["in order"])) else ""
            said.append(f"{person['title']} does not shuffle rows for training.{memory}")
    alone = [n for n, figures in suite["figures"].items() if set(figures) == {"shuffled"}]
    if alone:
        titles = "; ".join(found["contenders"][n]["title"] for n in alone)
        said.append(
            f"Shuffled only, since in order they would be slices of what lies there already, or "
            f"are what another line is: {titles}."
        )
    return [f"{' '.join(said)}\n"] if said else []


def _who_how(found: Found, suite: Found, point: Found) -> str:
    """Memory was seen while shuffling, so a table of loading in order does without."""
    more = ["memory, GB", "shuffles"] if point["shuffle"] else []
    heads = ["who", "times tabfeed", "M rows/s", "CPU s per M rows", "fewer rows", *more]
    rows = []
    for name, figure in ranked(suite, point["label"]):
        person = found["contenders"][name]
        last = [gigabytes(figure), person["shuffles"]] if point["shuffle"] else []
        cells = [person["title"], ratio_of(figure), million(figure), f"{figure['cpu']:.2f}"]
        rows.append([*cells, fewer(figure, point["rows"]), *last])
    for name in suite["failed"]:
        rows.append([found["contenders"][name]["title"], "failed", *[""] * (3 + len(more))])
    return table(heads, rows)


def _axis(found: Found, name: str) -> str:
    suite = found["suites"][name]
    title, text = _AXES[name]
    if name == "remote":
        how = found["settings"]
        text = text.format(
            latency=f"{how['latency'] * 1000:g}", bandwidth=f"{how['bandwidth'] / 1e6:g}"
        )
    said = f"## {title}\n\n{text} Million rows a second, and in brackets times tabfeed.\n"
    parts = [said, grid(found, suite, _cell), "Processor seconds for a million rows:\n"]
    parts.append(grid(found, suite, lambda figure: f"{figure['cpu']:.2f}"))
    return "\n".join([*parts, *_memory(found, suite)])


def _memory(found: Found, suite: Found) -> list[str]:
    """Where it was seen: at the first point that a process came to."""
    points = suite["points"]
    seen = {label for f in suite["figures"].values() for label in f if "memory" in f[label]}
    kept = [p for p in points if p["label"] in seen]
    if not kept:
        return []
    which = "" if len(kept) == len(points) else ", at the first of these that each came to"
    return [f"Memory, GB{which}:\n", grid(found, {**suite, "points": kept}, gigabytes)]


def _cell(figure: Found) -> str:
    if "ratio" not in figure:
        return ""
    return f"{million(figure)} ({digits(figure['ratio'])}{short_of(figure)})"


def _features(found: Found) -> str:
    suite = found["suites"].get("features")
    if suite is None:
        return ""
    out = [
        "## Features\n\nThe README's workflow on raw rows: 26 columns of strings get ids by "
        "frequency, those that come once share one, 13 of integers are filled, clipped, logged and "
        "normalised. Parquet in, Parquet out, in the order of the rows. Speed is that of fit and "
        "transform together. Who is not in the second table would have taken too long.\n"
    ]
    for point in suite["points"]:
        out += [f"### {point['label']} rows\n", _fit_and_transform(found, suite, point)]
    return "\n".join(out)


def _fit_and_transform(found: Found, suite: Found, point: Found) -> str:
    heads = ["who", "times tabfeed", "fit, s", "transform, s", "CPU s per M rows", "memory, GB"]
    rows = []
    for name, figure in ranked(suite, point["label"]):
        seconds = [f"{figure['fit_s']:.2f}", f"{figure['transform_s']:.2f}"]
        spent = [*seconds, f"{figure['cpu']:.2f}", gigabytes(figure)]
        rows.append([found["contenders"][name]["title"], ratio_of(figure), *spent])
    for name in suite["failed"]:
        rows.append([found["contenders"][name]["title"], "failed", "", "", "", ""])
    return table(heads, rows)


def _failed(found: Found) -> str:
    """Everybody who failed anywhere, and the reason."""
    lines = [
        f"- {name}: **{found['contenders'][who]['title']}**: {_first_line(reason)}"
        for name, suite in found["suites"].items()
        for who, reason in suite["failed"].items()
    ]
    return "\n".join(["## Failed\n", *lines, ""]) if lines else ""


def _first_line(text: str) -> str:
    return next(iter(text.splitlines()), "no reason given")


def _own_files(found: Found) -> str:
    """What it takes to have files in an own format."""
    suite = found["suites"].get("loading", {"figures": {}})
    rows = []
    for name, points in suite["figures"].items():
        figure = next((f for f in points.values() if "convert_s" in f), None)
        if figure is not None:
            seconds = figure["convert_s"] / figure["rows"] * 1e6
            rows.append([found["contenders"][name]["title"], f"{seconds:.3g}"])
    if not rows:
        return ""
    text = (
        "Some read files of their own, made from the Parquet files once, before the clock starts."
    )
    return f"## Own files\n\n{text}\n\n{table(['who', 'seconds for a million rows'], rows)}"


def _ways(found: Found) -> str:
    text = "The adapters are in `benchmarks/peers`, one file a peer."
    rows = []
    for person in found["contenders"].values():
        versions = ", ".join(f"{n} {v}" for n, v in person.get("versions", {}).items())
        rows.append([person["title"], f"`{person['peer']}.py`", person["delivers"], versions])
    heads = ["who", "adapter", "delivers", "versions"]
    return f"## How each was used\n\n{text}\n\n{table(heads, rows)}"
