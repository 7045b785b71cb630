"""The figures on the page about clusters are those that the benchmark wrote."""

from __future__ import annotations

import importlib
import json
import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "scaling.md").read_text()
RESULTS = ROOT / "benchmarks" / "results"
FOUND = json.loads((RESULTS / "scale.json").read_text())


@pytest.mark.parametrize(
    ("name", "made_by", "place"),
    [
        ("scale", "table", "scale.py"),
        ("remote", "table", "remote.py"),
        ("remote", "library_table", "remote.py, libraries"),
    ],
)
def test_the_tables(name: str, made_by: str, place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))  # which the scripts add to
    pytest.importorskip({"scale": "distributed", "remote": "torch"}[name])
    script = importlib.import_module(f"benchmarks.{name}")
    table = getattr(script, made_by)(json.loads((RESULTS / f"{name}.json").read_text()))
    assert f"<!-- {place} writes from here -->\n\n{table}\n\n<!-- to here -->" in PAGE


@pytest.mark.parametrize("step", ["fit", "transform"])
def test_the_rates_that_the_model_starts_from_were_reached(step: str) -> None:
    (thousands,) = re.findall(rf"\| {step}, workers \| rows / \(100 x (\d+) k rows/s\)", PAGE)
    each = FOUND["rows"] / FOUND["workers"]["2"][f"{step}_s"] / 2
    assert each >= 1000 * int(thousands)
