"""Contenders that fail, hang, die or cheat; the others must go on."""

from __future__ import annotations

import gc
import json
from pathlib import Path
from typing import Any

import psutil
import pytest

from benchmarks.harness import heat
from benchmarks.harness.contender import Case, contenders
from benchmarks.harness.heat import Heat, Point, Settings, run_heat
from benchmarks.harness.remote import ContenderFailed, Remote
from benchmarks.harness.worker import Worker, go_over
from tests.benchmarks.fake_peers import people

PEOPLE = "tests.benchmarks.fake_peers"


def a_case(folder: Path, **changes: Any) -> Case:
    values: dict[str, Any] = {"rows": 25, "cats": ("C1", "C2"), "batch": 10, **changes}
    return Case(folder=str(folder), scratch=str(folder / "own"), **values)


def run(folder: Path, names: tuple[str, ...], **changes: Any) -> dict[str, Any]:
    settings = Settings(rounds=2, seconds=changes.pop("seconds", 60.0), logs=folder / "logs")
    points = (Point("here", a_case(folder, **changes)),)
    found = run_heat(Heat("loading", points, names, "good", PEOPLE), settings)
    return dict(found["contenders"])


def test_who_fails_is_reported_and_the_rest_go_on(tmp_path: Path) -> None:
    out = ("raising", "column", "row", "forgetful", "dying", "absent", "elsewhere")
    names = ("good", *out, "talking")
    found = run(tmp_path, names)
    assert {n: f["state"] for n, f in found.items() if n not in ("good", "talking")} == {
        n: "failed" for n in out
    }
    assert found["raising"]["error"] == "OSError: no such disk"
    assert found["column"]["error"] == (
        "ValueError: a batch of 25 rows has 50 values instead of 75"
    )
    assert found["row"]["error"] == "ValueError: 24 rows came instead of 25"
    assert found["forgetful"]["error"] == "ValueError: 0 rows came instead of 25"
    assert found["dying"]["error"] == "its process ended with 7 when told to open"
    assert "no_such_module" in found["absent"]["error"]
    assert found["elsewhere"]["error"] == "not set up: there is no .venv-nowhere"
    for name in ("good", "talking"):
        runs = found[name]["points"]["here"]["runs"]
        assert [(r["rows"], r["batches"], r["whole"]) for r in runs] == [(25, 3, True)] * 2
        assert found[name]["memory"] > found[name]["import"]["memory"] / 2 > 0
    assert "this is not an answer" in (tmp_path / "logs" / "loading-talking.log").read_text()


def test_what_importing_made_is_put_aside_for_the_collector() -> None:
    """Looking at all of it before every run took longer than many runs."""
    before = gc.get_freeze_count()
    try:
        assert "numpy" in Worker(contenders(PEOPLE)["good"]).load()["versions"]
        assert gc.get_freeze_count() > before
    finally:
        gc.unfreeze()


def test_who_hangs_is_ended(tmp_path: Path) -> None:
    points = (Point("here", a_case(tmp_path)),)
    settings = Settings(hang=1.0, logs=tmp_path / "logs")
    found = run_heat(Heat("loading", points, ("hanging",), "good", PEOPLE), settings)
    assert found["contenders"]["hanging"]["error"] == "took longer than 1 s to open"
    left = [p for p in psutil.Process().children(recursive=True) if "hanging" in p.cmdline()]
    assert left == []


def test_a_long_run_is_cut(tmp_path: Path) -> None:
    run_seen = run(tmp_path, ("endless",), rows=1_000_000, seconds=0.2)["endless"]
    run_seen = run_seen["points"]["here"]["runs"][0]
    assert not run_seen["whole"]
    assert 0 < run_seen["rows"] < 1_000_000
    assert run_seen["rows"] == run_seen["batches"]


def test_what_is_made_ready_before_the_first_batch_is_timed_but_never_cut(tmp_path: Path) -> None:
    for seen in run(tmp_path, ("late",), seconds=0.2)["late"]["points"]["here"]["runs"]:
        assert (seen["rows"], seen["whole"]) == (25, True)  # in runs that are cut after 0.2 s
        assert seen["seconds"] > seen["first_s"] > 0.4


def test_who_leaves_values_out_is_out(tmp_path: Path) -> None:
    case = a_case(tmp_path)

    def note(**values: Any) -> None:
        text = json.dumps({"rows": 25, "whole": 0, "real": 0.0, "size": 10.0, **values})
        (tmp_path / "_done").write_text(text)

    def over() -> int:
        return int(go_over(people.good(case)(), case, 60.0, True)["rows"])

    note()
    assert over() == 25  # zeros, as in the files
    note(real=5.0)
    with pytest.raises(ValueError, match=r"all numbers delivered add up to 0\.0 instead of 5\.0"):
        over()
    note(whole=7)
    with pytest.raises(ValueError, match="all integers delivered add up to 0 instead of 7"):
        over()
    note(real=5.0, rows=30)
    assert over() == 25  # a part of them, whose sum is not known


def test_memory_is_that_of_a_whole_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A warm-up of one point is cut; what comes later must be in the figure."""
    monkeypatch.setattr(heat, "WARM_ALONE", 0.05)
    found = run(tmp_path, ("growing",), rows=3, seconds=20.0)["growing"]
    assert not found["points"]["here"]["warm"]["whole"]
    assert found["memory"] > 200e6


def test_fewer_rows_and_own_files(tmp_path: Path) -> None:
    found = run(tmp_path, ("few",))["few"]["points"]["here"]
    assert found["rows"] == 10
    assert [r["rows"] for r in found["runs"]] == [10, 10]
    assert found["convert_s"] > 0
    again = run(tmp_path, ("few",))["few"]["points"]["here"]
    assert again["convert_s"] == found["convert_s"]  # made once
    run(tmp_path, ("few",), rows=5)  # and once more, where other rows are wanted
    assert (tmp_path / "own" / "few" / "own").read_text() == "5"


def test_what_one_cannot_do_is_left_out(tmp_path: Path) -> None:
    assert run(tmp_path, ("ordered",))["ordered"]["points"] == {}
    assert list(run(tmp_path, ("ordered",), shuffle=False)["ordered"]["points"]) == ["here"]


def test_too_slow_for_the_rounds(tmp_path: Path) -> None:
    points = (Point("here", a_case(tmp_path, rows=1_000_000)),)
    settings = Settings(rounds=2, seconds=0.1, patience=0.0, logs=tmp_path / "logs")
    one = Heat("loading", points, ("endless",), "good", PEOPLE)
    seen = run_heat(one, settings)["contenders"]["endless"]["points"]["here"]
    assert seen["slow"] and len(seen["runs"]) == 1
    assert seen["runs"][0]["rows"] > 0


def test_a_closed_one_does_not_answer(tmp_path: Path) -> None:
    remote = Remote(contenders(PEOPLE)["good"], tmp_path / "log", PEOPLE)
    remote.close()
    assert remote.process.poll() is not None
    with pytest.raises((ContenderFailed, ValueError)):
        remote.ask("load", limit=1)
