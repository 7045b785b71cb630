"""The README's figures, written from the JSON files between marks.

python -m benchmarks.harness.readme     # `make bench` does so by itself
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from .tables import digits, million, ranked, table
from .wins import DRAW, compared

__all__ = ["GPU", "START", "between", "figures", "gpu_figures", "write_readme"]

ROOT = Path(__file__).parents[2]
START, GPU = "<!-- figures of make bench -->", "<!-- figures of benchmarks/gpu.py -->"
END = "<!-- end of figures -->"
LOADERS = (
    "tabfeed", "polars", "torch-parquet", "torch-parquet-columns", "merlin", "petastorm", "ray",
    "hf-streaming", "tf-generator", "torch-items", "grain-parquet",
)  # fmt: skip
"""Those that shuffle rows of Parquet files, and torch's loader as its tutorials show it."""

Found = dict[str, Any]


def write_readme(results: Path, target: Path) -> None:
    """Put the figures of the results that are there in their places."""
    text = target.read_text("utf-8")
    for mark, name, told in ((START, "bench", figures), (GPU, "gpu_h200", gpu_figures)):
        source = results / f"{name}.json"
        if source.exists():
            new = told(json.loads(source.read_text("utf-8")))
            text = text.replace(f"{mark}{between(text, mark)}{END}", f"{mark}{new}{END}")
    target.write_text(text, "utf-8")


def between(text: str, mark: str = START) -> str:
    """What stands between a mark and the end of its figures."""
    return text.partition(mark)[2].partition(END)[0]


def figures(found: Found) -> str:
    """A table of loading, a sentence of features, where peers win."""
    return f"\n{_loading(found)}\n{_features(found)} {_wins(found)}\n"


def _loading(found: Found) -> str:
    suite, about = found["suites"]["loading"], found["about"]
    point = next(p for p in suite["points"] if p["label"] == "shuffled")
    rows, order = [], ranked(suite, "shuffled")
    for name, figure in order:
        if name in LOADERS:
            times = "1" if name == suite["reference"] else digits(1 / figure["ratio"])
            rows.append([found["contenders"][name]["title"], million(figure), times])
    text = (
        f"Shuffled batches of {point['batch']:,} from {point['rows'] / 1e6:g} M rows of "
        f"{point['columns']} columns, {about['cores']} cores of {about['cpu']}:\n\n"
    )
    heads = ["", "M rows/s", "tabfeed speedup"]
    return f"{text}{table(heads, rows)}{_faster(found, order)}"


def _faster(found: Found, order: list[tuple[str, Found]]) -> str:
    """Peers ahead at this point: most read other files than Parquet, or memory."""
    names = []
    for name, figure in order:
        person = found["contenders"][name]
        if figure["ratio"] > DRAW and not name.startswith("tabfeed") and not person["limit"]:
            times = f"{digits(figure['ratio'])} times as fast"
            names.append(f"{person['title']} ({times}; shuffled: {person['shuffles']})")
    return f"\nFaster than tabfeed here: {', '.join(names)}.\n" if names else ""


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


def gpu_figures(found: Found) -> str:
    """A sentence of loading on a GPU, and one of training."""
    about, load = found["hardware"], found["load"]
    shares = sorted(model["arrow, share of the ceiling"] for model in found["train"].values())
    return f"""
On one {about["GPU"]} with {about["cores"]} cores the PyTorch loader puts \
{_round(load["tabfeed, arrow, 1 GB"])} million shuffled rows of 40 columns a
second into GPU memory, {_round(load["tabfeed, cudf, 1 GB"])} million where the GPU decodes too \
(`reader="cudf"`), either in 1 GB of it, an
`IterableDataset` by hand with 8 workers {_round(load["by hand, 8 workers"])} million. Models \
train at {_percent(shares[0])} to {_percent(shares[-1])} % of the rate they
reach on batches that are already there: [docs/gpu.md](docs/gpu.md).
"""


def _round(figure: Found) -> str:
    return f"{figure['rate']:.{0 if figure['rate'] >= 10 else 1}f}"


def _percent(share: float) -> str:
    return f"{share:.0%}".rstrip("%")


def _peers(found: Found) -> int:
    return len({who for _, _, who, _, _ in compared(found)})


if __name__ == "__main__":
    write_readme(ROOT / "benchmarks" / "results", ROOT / "README.md")
