"""What the tests of the seeds' code share: where it lies, and data of the shape it expects."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

import tabfeed
from tabfeed import Dataset, datagen, ops

SEEDS = Path(os.environ.get("TABFEED_SEEDS", Path(__file__).parents[3] / "shared" / "seeds"))

CONTINUOUS = [f"I{i}" for i in range(1, 14)]
CATEGORICAL = [f"C{i}" for i in range(1, 27)]


def read_seed(number: str) -> str:
    """The text of a seed, with the package's name changed; skips where it is not there."""
    found = sorted(SEEDS.glob(f"{number}_*.txt"))
    if not found:
        pytest.skip(f"the seeds are not in {SEEDS}; TABFEED_SEEDS may say where they are")
    return found[0].read_text("utf-8").replace("nvtabular", "tabfeed")


def write_features(folder: Path, rows: int = 2_000) -> dict[str, Any]:
    """``train``, ``valid`` and ``workflow``, as the notebook before this one leaves them."""
    cats = CATEGORICAL >> ops.Categorify(max_size=1_000)
    conts = CONTINUOUS >> ops.FillMissing() >> ops.Clip(min_value=0) >> ops.LogOp()
    conts = conts >> ops.Normalize(out_dtype="float32")
    workflow = tabfeed.Workflow(cats + conts + ["label"])
    for name, seed in (("train", 0), ("valid", 1)):
        raw = datagen.criteo(folder / "raw" / name, rows, raw=True, files=2, seed=seed)
        if name == "train":
            workflow.fit(raw)
        workflow.transform(raw).to_parquet(folder / name, shuffle=None)
    workflow.save(folder / "workflow")
    sizes = ops.get_embedding_sizes(workflow)
    assert isinstance(sizes, dict)
    return sizes


def rows_in(folder: Path) -> int:
    return Dataset(folder).num_rows
