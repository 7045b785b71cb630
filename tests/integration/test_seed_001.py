"""The notebook that trains on Criteo with TensorFlow runs, cell by cell, on generated data.

Its code is read from the seeds, and only the package's name is changed. The variables it reads from
the environment say where the data are and how large a batch is. Drawing the model needs Graphviz,
as the cell itself says; where that is not installed, that one cell is left out, and the test says
so.
"""

from __future__ import annotations

import json
import re
import shutil
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

tf = pytest.importorskip("tensorflow")
import keras  # noqa: E402

if keras.backend.backend() != "tensorflow":
    pytest.skip("the notebook is TensorFlow's", allow_module_level=True)

from tests.integration.keras_seeds import read_seed, rows_in, write_features  # noqa: E402

pytestmark = [
    pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning"),
]


def can_draw() -> bool:
    return find_spec("pydot") is not None and shutil.which("dot") is not None


def test_the_notebook_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    notebook = json.loads(read_seed("001"))
    write_features(tmp_path)
    for name in ("CUDA_VISIBLE_DEVICES", "TF_MEMORY_ALLOCATION"):  # it sets these: undo that after
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    monkeypatch.setenv("INPUT_DATA_DIR", str(tmp_path))
    monkeypatch.setenv("BATCH_SIZE", "256")
    monkeypatch.chdir(tmp_path)
    cells = ["".join(c["source"]) for c in notebook["cells"] if c["cell_type"] == "code"]
    assert len(cells) > 10
    names: dict[str, Any] = {}
    left_out = []
    for cell in cells:
        if "plot_model" in cell and not can_draw():
            left_out.append("the drawing of the model: Graphviz is not installed")
            continue
        exec(compile(cell, "<seed 001>", "exec"), names)  # the point of this test
    history = names["history"].history
    assert len(history["loss"]) == len(history["val_loss"]) == 1
    assert history["val_loss"][0] < 0.72  # no worse than a coin
    rows = rows_in(tmp_path / "train") + rows_in(tmp_path / "valid")
    printed = capsys.readouterr().out
    assert re.search(rf"run_time: [\d.]+  - rows:  {rows} - epochs: 1 - dl_thru: [\d.]+", printed)
    saved = tf.saved_model.load(tmp_path / "model.savedmodel")
    x, _ = names["valid_dataset_tf"][0]
    expected = names["model"](x)
    served = saved.serve({k: tf.cast(v, names["inputs"][k].dtype) for k, v in x.items()})
    tf.debugging.assert_near(served, expected, 1e-5)
    assert names["x_emb_output"].shape == (None, 26 * 16)
    if left_out:
        print("left out:", *left_out)
