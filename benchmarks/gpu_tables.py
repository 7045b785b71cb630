"""What `gpu.py` found, as tables to read.

python benchmarks/gpu_tables.py benchmarks/results/gpu_h200.json    # those of a run before
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.harness.tables import digits, table

__all__ = ["tables"]

Found = dict[str, Any]


def tables(found: Found) -> str:
    """A table for each section that was run."""
    parts = {"load": _load, "train": _train, "bounded": _bounded}
    return "\n".join(part(found[name]) for name, part in parts.items() if name in found)


def _load(section: Found) -> str:
    rows = [
        [name, digits(f["rate"]), _whole(f.get("MB on the GPU")), _digits(f.get("cores"))]
        for name, f in section.items()
    ]
    return table(["loading", "million rows/s", "MB on the GPU", "cores"], rows)


def _train(section: Found) -> str:
    rows = []
    for model, figures in section.items():
        best = figures["ceiling"]["rate"]
        for name, f in figures.items():
            if isinstance(f, dict):
                share = figures.get(f"{name}, share of the ceiling", f["rate"] / best)
                busy = "" if f["busy"] is None else f"{f['busy']:.0f} %"
                first = f"{f['first'] * 1e3:.0f}"
                rows.append([model, name, digits(f["rate"]), f"{share:.3f}", busy, first])
    heads = ["training", "fed by", "million rows/s", "of the ceiling", "GPU busy", "first, ms"]
    return table(heads, rows)


def _bounded(section: Found) -> str:
    rows = []
    for name, f in section.items():
        if isinstance(f, dict):
            share = _digits(section.get(f"{name}, share of the rate without a limit"))
            rows.append([name, digits(f["rate"]), share, _digits(f.get("GB of all processes"))])
    limit = f"own memory {section['limit, GB']:g} GB, data {section['decoded data, GB']:.1f} GB"
    heads = [limit, "million rows/s", "of the rate without it", "GB of all processes"]
    return table(heads, rows)


def _whole(figure: float | None) -> str:
    return "" if figure is None else f"{figure:,.0f}"


def _digits(figure: float | None) -> str:
    return "" if figure is None else digits(figure)


if __name__ == "__main__":
    print(tables(json.loads(Path(sys.argv[1]).read_text("utf-8"))))
