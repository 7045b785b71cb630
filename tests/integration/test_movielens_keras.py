"""The example with lists runs, at a small size, and learns something."""

from __future__ import annotations

import re
import runpy
import sys
from pathlib import Path

import pytest

pytest.importorskip("tensorflow")
import keras

if keras.backend.backend() != "tensorflow":
    pytest.skip("ragged tensors are TensorFlow's", allow_module_level=True)

EXAMPLE = Path(__file__).parents[2] / "examples" / "movielens_keras.py"


@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")
def test_the_example_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    small = ["--rows", "20000", "--batch-size", "512", "--folder", str(tmp_path / "out")]
    monkeypatch.syspath_prepend(str(EXAMPLE.parent))
    monkeypatch.setattr(sys, "argv", [str(EXAMPLE), *small])
    runpy.run_path(str(EXAMPLE), run_name="__main__")
    printed = capsys.readouterr().out
    ours, mean = re.findall(r"RMSE (\d\.\d+); of always the mean (\d\.\d+)", printed)[0]
    assert float(ours) < 0.97 * float(mean), printed
    assert len(re.findall(r"expected [\d.]+ stars, were [\d.]+", printed)) == 3
    assert (tmp_path / "out" / "model.keras").is_file()
