"""The PyTorch guide's code runs as it stands and trains."""

from __future__ import annotations

import glob

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch

import tabfeed
from tests.integration.seeds import markdown_blocks, seed


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tables = torch.nn.ModuleList(torch.nn.Embedding(20, 4) for _ in range(2))
        self.out = torch.nn.Linear(8 + 1, 1)

    def forward(self, x_cat, x_cont):
        looked_up = [table(x_cat[:, i]) for i, table in enumerate(self.tables)]
        return self.out(torch.cat([*looked_up, x_cont], dim=1))[:, 0]


def test_the_code_of_the_guide(tmp_path, monkeypatch):
    blocks = markdown_blocks(seed("002"))
    assert len(blocks) == 4
    (tmp_path / "train").mkdir()
    random = np.random.default_rng(0)
    for number in range(3):
        c = random.integers(0, 20, (2, 400))
        x = random.normal(size=400)
        y = (x + (c[0] % 2) > 0.5).astype(np.int8)
        table = pa.table({"b": c[1], "a": c[0], "x": x, "y": y})
        pq.write_table(table, tmp_path / "train" / f"{number}.parquet")
    monkeypatch.chdir(tmp_path)
    losses = []

    def loss_func(predicted, y):
        loss = torch.nn.functional.binary_cross_entropy_with_logits(predicted, y)
        losses.append(loss.item())
        return loss

    torch.manual_seed(0)
    names = {
        "glob": glob,
        "nvt": tabfeed,
        "CATEGORICAL_COLUMNS": ["b", "a"],
        "CONTINUOUS_COLUMNS": ["x"],
        "LABEL_COLUMNS": ["y"],
        "BATCH_SIZE": 50,
        "collate_fn": lambda batch: batch,
        "get_model": Net,
        "loss_func": loss_func,
    }
    for block in blocks:
        exec(block, names)
        if "train_loader" in names:
            names["dataloader"] = names["train_loader"]
    assert len(losses) == len(names["train_loader"]) == 24
    assert np.mean(losses[-5:]) < np.mean(losses[:5])
