"""Medians and ratios of figures written by hand, and the page and picture made of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.harness.contender import Contender
from benchmarks.harness.page import page, write_page
from benchmarks.harness.picture import draw
from benchmarks.harness.summary import summarise


def who(name: str, **more: Any) -> Contender:
    return Contender(name, name.title(), lambda case: iter, ("loading",), ("numpy",), **more)


KNOWN = {
    "tabfeed": who("tabfeed", shuffles="lots"),
    "quick": who("quick", why="It does less.", shuffles="little"),
    "slow": who("slow", why="It does more.", most_rows=100),
    "gone": who("gone"),
}


def seen(rates: list[float], *, memory: int = 10**9, rows: int = 1000) -> dict[str, Any]:
    runs = [{"rows": 1000, "seconds": 1000 / r, "cpu": 0.001, "first_s": 0.1} for r in rates]
    point = {"convert_s": None, "open_s": 1.0, "rows": rows, "warm": runs[0], "runs": runs}
    return {
        "state": "ok",
        "versions": {"numpy": "2.0"},
        "import": {"seconds": 1.0, "memory": 10**8},
        "memory": memory,
        "points": {"shuffled": point},
    }


def heat(**people: Any) -> dict[str, Any]:
    facts = {"rows": 1000, "columns": 40, "lists": 0, "batch": 10, "shuffle": True, "workers": 0}
    points = [{"label": "shuffled", **facts}]
    reference = {"suite": "loading", "reference": "tabfeed", "points": points, "seconds": 30.0}
    return {**reference, "contenders": people}


HEATS = [
    heat(tabfeed=seen([100, 200, 400]), quick=seen([200, 300, 400], memory=5 * 10**8)),
    heat(
        tabfeed=seen([10, 10, 40]),
        slow=seen([1, 2, 2], rows=100),
        gone={"state": "failed", "error": "OSError: gone\nmore", "points": {}},
    ),
]
ABOUT = {
    "about": {
        "date": "today", "cpu": "a CPU", "cores": 2, "memory": 2**31, "system": "Linux",
        "python": "3.12", "versions": {"numpy": "2.0"},
    },
    "settings": {"rows": 1000, "rounds": 3, "seconds": 1.2, "took_s": 60},
}  # fmt: skip


def test_ratios_are_within_a_round() -> None:
    figures = summarise(HEATS, KNOWN)["suites"]["loading"]["figures"]
    quick, slow = figures["quick"]["shuffled"], figures["slow"]["shuffled"]
    assert quick["ratio"] == pytest.approx(1.5)  # of 2, 1.5, 1
    assert quick["ratio_range"] == pytest.approx([1.0, 2.0])
    assert quick["rate"] == pytest.approx(300)
    assert slow["ratio"] == pytest.approx(0.1)  # of 0.1, 0.2, 0.05: not 2 / 200
    assert quick["cpu"] == pytest.approx(1.0)  # a millisecond for a thousand rows


def test_the_reference_is_the_median_of_all_heats() -> None:
    ours = summarise(HEATS, KNOWN)["suites"]["loading"]["figures"]["tabfeed"]["shuffled"]
    assert ours["rate"] == pytest.approx(70)  # of 10, 10, 40, 100, 200, 400
    assert (ours["ratio"], ours["runs"]) == (1.0, 6)


def test_who_failed_is_not_forgotten() -> None:
    found = summarise(HEATS, KNOWN)
    assert found["suites"]["loading"]["failed"] == {"gone": "OSError: gone\nmore"}
    assert "gone" not in found["suites"]["loading"]["figures"]


def test_features_count_fit_and_transform() -> None:
    one, two = seen([1.0]), seen([1.0])
    one["points"]["shuffled"]["runs"] = [{"fit_s": 1.0, "transform_s": 3.0, "cpu": 2.0}]
    two["points"]["shuffled"]["runs"] = [{"fit_s": 1.0, "transform_s": 1.0, "cpu": 1.0}]
    figures = summarise([heat(tabfeed=one, quick=two)], KNOWN)["suites"]["loading"]["figures"]
    assert figures["quick"]["shuffled"]["ratio"] == pytest.approx(2.0)
    assert figures["quick"]["shuffled"]["rate"] == pytest.approx(500)
    assert figures["quick"]["shuffled"]["cpu"] == pytest.approx(1000)


def test_the_page_says_where_a_peer_wins() -> None:
    text = page({**ABOUT, **summarise(HEATS, KNOWN)}, "bench.svg")
    assert "| Quick | **1.50** (1.00 to 2.00) | 0.0003 | 1.00 |  | 0.50 | little |" in text
    assert (
        "- **Quick**. It does less.\n"
        "  - loading, shuffled: 1.50 times as fast, 0.50 of the memory.\n" in text
    )
    assert "**Slow**" not in text  # slower, and its memory is that of fewer rows
    assert "- loading: **Gone**: OSError: gone\n" in text
    assert "| Gone | failed |" in text
    assert "| Slow | **0.10** (0.05 to 0.20) | 2e-06 | 1.00 | 100 | 1.00 |" in text


def test_page_and_picture_are_files(tmp_path: Path) -> None:
    source = tmp_path / "results" / "bench.json"
    source.parent.mkdir()
    source.write_text(json.dumps({**ABOUT, **summarise(HEATS, KNOWN)}))
    draw(source, source.parent)
    write_page(source, tmp_path / "docs" / "benchmarks.md")
    assert "](../results/bench.svg)" in (tmp_path / "docs" / "benchmarks.md").read_text()
    first = (source.parent / "bench.svg").read_bytes()
    assert b"Loading, shuffled" in first or b"<path" in first
    assert (source.parent / "bench.png").stat().st_size > 1000
    draw(source, source.parent)
    assert (source.parent / "bench.svg").read_bytes() == first
