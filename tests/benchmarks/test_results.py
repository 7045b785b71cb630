"""The committed page and the README are what the committed figures make."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.harness.contender import contenders
from benchmarks.harness.page import page
from benchmarks.harness.readme import between, figures
from benchmarks.harness.suites import SUITES

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "benchmarks" / "results" / "bench.json"


@pytest.fixture(scope="module")
def found() -> dict[str, Any] | None:
    return json.loads(SOURCE.read_text("utf-8")) if SOURCE.exists() else None


def test_page_and_figures_agree(found: dict[str, Any] | None) -> None:
    text = (ROOT / "docs" / "benchmarks.md").read_text("utf-8")
    if found is None:
        assert "No results yet" in text
        return
    assert text == page(found, "../benchmarks/results/bench.svg")
    assert (SOURCE.parent / "bench.svg").exists()
    assert (SOURCE.parent / "bench.png").exists()


def test_readme_and_figures_agree(found: dict[str, Any] | None) -> None:
    text = between((ROOT / "README.md").read_text("utf-8"))
    if found is None:
        assert "No figures yet" in text
        return
    assert text == figures(found)


def test_nobody_and_nothing_is_missing(found: dict[str, Any] | None) -> None:
    if found is None:
        return
    assert set(found["suites"]) == set(SUITES)
    assert set(found["contenders"]) == set(contenders())
    assert found["settings"]["rounds"] >= 5
    assert found["settings"]["took_s"] < 20 * 60
    for suite in found["suites"].values():
        for points in suite["figures"].values():
            assert all(figure["runs"] >= 5 for figure in points.values())
