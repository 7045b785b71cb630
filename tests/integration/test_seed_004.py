"""The fastai notebook's code runs as it stands, and the model learns."""

from __future__ import annotations

import numpy as np
import pytest

import tabfeed
from tabfeed import ops
from tests.integration.seeds import notebook_cells, seed

CATS = [f"C{i}" for i in range(1, 27)]
CONTS = [f"I{i}" for i in range(1, 14)]


def raw(rows: int, random: np.random.Generator) -> dict[str, np.ndarray]:
    """Click logs in which two columns say something about the label."""
    data = {name: random.integers(0, 30, rows) for name in CATS}
    data |= {name: random.exponential(2.0, rows) for name in CONTS}
    score = (data["C3"] % 3 - 1.0) * 2 + np.log1p(data["I5"]) - 1
    data["label"] = (random.random(rows) < 1 / (1 + np.exp(-score))).astype(np.int64)
    return data


def prepare(folder) -> None:
    """What the notebook before this one left: processed files and a saved workflow."""
    random = np.random.default_rng(0)
    cats = CATS >> ops.Categorify()
    conts = CONTS >> ops.FillMissing() >> ops.LogOp() >> ops.Normalize()
    workflow = tabfeed.Workflow(cats + conts + ["label"])
    train = tabfeed.Dataset(raw(4000, random), npartitions=3)
    workflow.fit(train)
    workflow.transform(train).to_parquet(folder / "train")
    valid = tabfeed.Dataset(raw(1000, random), npartitions=2)
    workflow.transform(valid).to_parquet(folder / "valid")
    workflow.save(folder / "workflow")


# fastai itself uses parts of torch and numpy that warn of their end.
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
@pytest.mark.filterwarnings("ignore::UserWarning:fastai", "ignore::UserWarning:torch")
def test_the_code_of_the_notebook(tmp_path, monkeypatch):
    cells = notebook_cells(seed("004"))
    prepare(tmp_path / "test_dask" / "output")
    monkeypatch.setenv("BASE_DIR", str(tmp_path))
    monkeypatch.setenv("BATCH_SIZE", "200")
    names: dict[str, object] = {}
    for cell in cells:
        exec(cell, names)
    assert len(names["embeddings"]) == 26
    assert len(names["train_dataloader"]) == 20 and len(names["valid_dataloader"]) == 5
    assert names["train_data_itrs"].num_rows_processed == 4000
    assert names["valid_data_itrs"].num_rows_processed == 1000
    learn = names["learn"]
    first = learn.recorder.values[-1][2]
    learn.fit(2, names["learning_rate"])
    _, _, auc, precision = learn.recorder.values[-1]
    assert auc > 0.75 and precision > 0.5
    assert auc > first - 0.02
