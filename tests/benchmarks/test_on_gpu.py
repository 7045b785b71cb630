"""What is run on a GPU is all there is to run."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.on_gpu import ALONE, TESTS, Task, measurements, run

ROOT = Path(__file__).parents[2]


def test_no_test_of_a_gpu_is_forgotten():
    named = {a for task in (*TESTS, *ALONE) for a in task.arguments if a.endswith(".py")}
    assert named == {str(f.relative_to(ROOT)) for f in (ROOT / "tests/device").glob("test_*.py")}


def test_results_have_the_names_of_those_that_are_kept():
    tasks = [task for _, task in measurements(Path("data"), Path("out"), "h200")]
    written = {Path(task.arguments[-1]).name for task in tasks}
    kept = {file.name for file in (ROOT / "benchmarks/results").glob("*_h200*.json")}
    # Of another day, or another machine.
    others = {"deepconn_h200.json", "gpu_h200_bounded.json"}
    others |= {f"gpu_h200_{name}.json" for name in ("before", "quieter", "busier", "slower")}
    assert kept - others <= written
    assert all((ROOT / task.arguments[0]).exists() for task in tasks)


@pytest.mark.parametrize("status", [0, 3])
def test_how_a_task_ended(tmp_path, capsys, status):
    tasks = (
        Task("one", ("-c", f"print('7 passed'); raise SystemExit({status})")),
        Task("two", ("-c", "import os; print(os.environ['WHICH'])"), {"WHICH": "that"}),
    )
    assert run(tasks, tmp_path) == (not status)
    said = capsys.readouterr().out
    assert f"one: {'failed' if status else 'done'}  7 passed" in said
    assert "two: done  that" in said
