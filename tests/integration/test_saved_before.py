"""Files that tabfeed 0.1 wrote, one of each kind: they are read as they were then.

`tests/saved/v0_1` holds a dataset, a workflow fitted on it, what the workflow made of the dataset,
a loader's state after 5 of 15 batches, and the 10 batches that followed.
"""

import json
import shutil
from pathlib import Path

import polars as pl
import pytest

from tabfeed import Dataset, Workflow
from tabfeed.loader.torch import TorchAsyncItr

SAVED = Path(__file__).parents[1] / "saved" / "v0_1"


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """A copy, so that no test can change what the next one reads."""
    shutil.copytree(SAVED, tmp_path / "saved")
    return tmp_path / "saved"


def test_a_dataset_and_a_workflow(saved: Path) -> None:
    dataset = Dataset(saved / "dataset")
    assert dataset.num_rows == 600
    assert dataset.validate().ok
    made = pl.DataFrame(Workflow.load(saved / "workflow").transform(dataset).to_arrow())
    assert made.equals(pl.read_parquet(saved / "transformed.parquet"))


def test_the_state_of_a_loader(saved: Path) -> None:
    loader = TorchAsyncItr(
        Dataset(saved / "dataset"),
        cats=["user"],
        conts=["price"],
        labels=["click"],
        batch_size=40,
        shuffle=True,
        seed=3,
    )
    loader.load_state_dict(json.loads((saved / "loader_state.json").read_text()))
    rest = [[tensor.tolist() for tensor in batch] for batch in loader]
    assert rest == json.loads((saved / "loader_rest.json").read_text())
