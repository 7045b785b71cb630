"""The committed page and the README are what the committed figures make."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from benchmarks.gpu_tables import tables
from benchmarks.harness.contender import contenders
from benchmarks.harness.page import page
from benchmarks.harness.readme import GPU, between, figures, gpu_figures, write_readme
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


def test_readme_and_gpu_figures_agree() -> None:
    found = json.loads((SOURCE.parent / "gpu_h200.json").read_text("utf-8"))
    text = between((ROOT / "README.md").read_text("utf-8"), GPU)
    assert text == gpu_figures(found), "run: python -m benchmarks.harness.readme"
    rate = found["load"]["tabfeed, arrow, 1 GB"]["rate"]
    assert f"puts {rate:.0f} million shuffled rows" in text


def test_the_gpu_benchmark_prints_a_table_of_all_it_found() -> None:
    found = json.loads((SOURCE.parent / "gpu_h200.json").read_text("utf-8"))
    text = tables(found)
    rate, share = (
        found["load"]["tabfeed, arrow, 1 GB"]["rate"],
        found["train"]["512-256, Adam, batch 400,000"]["arrow, share of the ceiling"],
    )
    assert f"| tabfeed, arrow, 1 GB | {rate:.2f} | 923 |" in text
    assert re.search(rf"^\| 512-256, Adam, .* \| arrow \| .* \| {share:.3f} \|", text, re.M)
    fed = sum(isinstance(f, dict) for model in found["train"].values() for f in model.values())
    rows = len(found["load"]) + fed + 4  # within the limit, and without
    assert text.count("\n| ") + 1 == rows + 3 * 2


def test_figures_are_put_in_their_own_places(tmp_path: Path) -> None:
    (tmp_path / "gpu_h200.json").write_bytes((SOURCE.parent / "gpu_h200.json").read_bytes())
    text = (ROOT / "README.md").read_text("utf-8")
    stale = text.replace(between(text, GPU), "\nold\n")
    (tmp_path / "README.md").write_text(stale, "utf-8")
    write_readme(tmp_path, tmp_path / "README.md")
    assert (tmp_path / "README.md").read_text("utf-8") == text


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
