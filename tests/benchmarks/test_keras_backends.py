"""The benchmark of Keras's backends runs, small, with nothing but Keras, torch, Arrow and NumPy."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("keras")
pytest.importorskip("torch")

ROOT = Path(__file__).parents[2]
WITHOUT = """
import runpy, sys

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {"duckdb", "fsspec", "polars", "psutil", "typer"}:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Missing())
sys.argv = ["keras_backends.py", *sys.argv[1:]]
runpy.run_path("benchmarks/keras_backends.py", run_name="__main__")
assert "tensorflow" not in sys.modules
"""


def test_it_runs_with_few_packages_and_tells_the_share(tmp_path: Path) -> None:
    words = ["--rows", "3000", "--batch", "512", "--rounds", "1", "--most-ids", "20"]
    words += ["--ceiling-gb", "0.00025", "--threads", "1", "--json", str(tmp_path / "out.json")]
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT, *words],
        cwd=ROOT,
        env=os.environ | {"KERAS_BACKEND": "torch", "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads((tmp_path / "out.json").read_text())
    assert json.loads(done.stdout) == found
    # 3,000 rows give 5 whole batches, of 512 rows of 40 columns of 4 bytes: three fit in 250 kB.
    assert (found["steps"], found["batches of the ceiling"], found["device"]) == (5, 3, "cpu")
    ours, ceiling = found["KerasSequenceLoader"], found["ceiling"]
    assert found["share of the ceiling"] == pytest.approx(ours["rate"] / ceiling["rate"])
    assert ours["first"] > 0 and found["very first batch, seconds"] > 0
