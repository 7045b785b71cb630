"""The committed page is what the committed figures make."""

from __future__ import annotations

import json
from pathlib import Path

from benchmarks.harness.page import page

ROOT = Path(__file__).parents[2]


def test_page_and_figures_agree() -> None:
    source = ROOT / "benchmarks" / "results" / "bench.json"
    text = (ROOT / "docs" / "benchmarks.md").read_text("utf-8")
    if not source.exists():
        assert "No results yet" in text
        return
    found = json.loads(source.read_text("utf-8"))
    assert text == page(found, "../benchmarks/results/bench.svg")
    assert found["settings"]["rounds"] >= 5
    assert (source.parent / "bench.svg").exists()
    assert (source.parent / "bench.png").exists()
