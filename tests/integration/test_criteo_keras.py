"""The example runs, at a small size: it prints what the notebook prints, and its loss falls."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("tensorflow")
EXAMPLE = Path(__file__).parents[2] / "examples" / "criteo_keras.py"


def test_the_example_runs(tmp_path: Path) -> None:
    small = ["--rows", "4000", "--batch-size", "128", "--folder", str(tmp_path / "out")]
    run = subprocess.run(
        [sys.executable, str(EXAMPLE), *small],
        env={**os.environ, "KERAS_BACKEND": "tensorflow"},
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stdout + run.stderr[-3000:]
    printed = r"run_time: [\d.]+  - rows:  9600 - epochs: 2 - dl_thru: \d+"
    assert re.search(printed, run.stdout), run.stdout
    assert "The loss fell" in run.stdout
    assert len(re.findall(r"Clicks expected of three raw rows: \[0\.", run.stdout)) == 1
    drawn = (tmp_path / "out" / "model.png").is_file()
    assert drawn != ("No picture of the model" in run.stdout)
    assert (tmp_path / "out" / "model.savedmodel" / "saved_model.pb").is_file()
    assert (tmp_path / "out" / "model.keras").is_file()
    assert (tmp_path / "out" / "workflow").is_dir()
