"""The example runs, at a small size: both ways see the same rows, and it tells what it measured."""

from __future__ import annotations

import importlib
import json
import math
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")
EXAMPLES = Path(__file__).parents[2] / "examples"


def test_the_example_runs(tmp_path: Path) -> None:
    small = ["--rows", "600", "--epochs", "2", "--batch-size", "128", "--device", "cpu"]
    small += ["--folder", str(tmp_path / "out"), "--json", str(tmp_path / "result.json")]
    run = subprocess.run(
        [sys.executable, "-W", "error", str(EXAMPLES / "deepconn.py"), *small],
        env={**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "120"},
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stdout + run.stderr[-3000:]
    for told in ("GPU busy", "tensors made in the training loop", "times as fast"):
        assert told in run.stdout
    result = json.loads((tmp_path / "result.json").read_text())
    assert {"gpu", "cpu", "cores", "memory_gb", "versions"} <= result["machine"].keys()
    assert {"python", "torch", "tabfeed"} <= result["machine"]["versions"].keys()
    assert result["experiment"]["rows"] == 600
    fed, ours = result["runs"]
    assert (fed["name"], ours["name"]) == ("fed from Python", "through tabfeed")
    for figures in (fed, ours):
        assert figures["steps"] == 10 and figures["seconds"] > 0
        assert figures["gpu_busy_most"] is None or 0 <= figures["gpu_busy_most"] <= 1
        assert 0 <= figures["wait_share"] <= 1 and math.isfinite(figures["root_mean_square_error"])
    page = (tmp_path / "out" / "comparison.html").read_text()
    assert "fed from Python" in page and "through tabfeed" in page


def test_both_ways_make_the_same_ids(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(EXAMPLES)
    deepconn = importlib.import_module("deepconn")
    sizes = deepconn.Sizes(40, dimension=4, filters=4, window=3)  # some texts are cut, some filled
    experiment = deepconn.Experiment(50, 1, 8, "cpu", sizes)
    raw = deepconn.make_texts(tmp_path, 50, 40)
    ids = deepconn.make_features(tmp_path, raw, 30)
    experiment = deepconn.Experiment(50, 1, 8, "cpu", deepconn.Sizes(30, 4, 4, 3))
    fed = deepconn.fed_batches(raw[0], ids, experiment)
    batches = list(deepconn.load(tmp_path / "train", experiment, shuffle=False))
    for name in ("user_text", "item_text"):
        ours = np.concatenate([texts[name].numpy() for texts, _ in batches])
        assert ours.shape == (50, 30) and (ours[:, -1] == 0).any() and (ours[:, -1] > 0).any()
        assert ours.tolist() == [fed.encode(text) for text in fed.texts[name]]
    assert sorted(len(y) for _, y in fed) == sorted(len(y) for _, y in batches)
    one, rating = next(iter(fed))
    assert one["user_text"].shape == (8, 30) and rating.shape == (8,)
    model = deepconn.Trainer(max(ids.values()) + 1, experiment.sizes, "cpu").model
    assert model(one["user_text"], one["item_text"]).shape == (8,)
