"""Hugging Face's Trainer, fed by a loader and stopped in the middle of an epoch."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import torch

from tabfeed.loader.torch import DLDataLoader, Loader
from tabfeed.testing.loader import write_rows

transformers = pytest.importorskip("transformers")

pytestmark = [
    pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning"),  # its own
]
PAGE = Path(__file__).parents[2] / "docs" / "pytorch.md"


def from_the_page(name):
    """A class as the documentation writes it."""
    text = PAGE.read_text("utf-8")
    blocks = [b.split("```")[0] for b in text.split("```python\n")[1:]]
    (block,) = [b for b in blocks if f"class {name}" in b]
    names: dict[str, object] = {}
    exec(block, names)
    return names[name]


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)
        self.seen: list[list[int]] = []

    def forward(self, key, x, labels):
        self.seen.append(key.tolist())
        return {"loss": ((self.layer(x[:, None] / 100)[:, 0] - labels) ** 2).mean()}


@pytest.fixture(autouse=True)
def alone(monkeypatch):
    """Trainer makes an Accelerator, which stays in the process."""
    monkeypatch.setattr(os, "environ", os.environ.copy())
    yield
    from accelerate.state import AcceleratorState, GradientState

    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()


@pytest.mark.parametrize("wrapped", [False, True])
def test_trainer_trains_saves_and_goes_on(tmp_path, wrapped):
    (tmp_path / "data").mkdir()
    dataset = write_rows(tmp_path / "data")
    feed_trainer = from_the_page("FeedTrainer")

    def run(model, resume=None):
        loader = Loader(dataset, 10, shuffle=True, columns=["key", "x"], targets=["y"])
        loader = loader.map(lambda inputs, y: {**inputs, "labels": y})
        arguments = transformers.TrainingArguments(
            output_dir=str(tmp_path / "out"),
            num_train_epochs=2,
            save_steps=9,
            ignore_data_skip=True,
            use_cpu=True,
            report_to=[],
            disable_tqdm=True,
            logging_strategy="no",
        )
        loader = DLDataLoader(loader) if wrapped else loader
        trainer = feed_trainer(loader, model=model, args=arguments)
        trainer.train(resume_from_checkpoint=resume)
        return trainer.state.global_step

    whole = Model()
    assert run(whole) == 28
    plain = Loader(dataset, 10, shuffle=True)
    assert whole.seen == [x["key"].tolist() for x, _ in plain.epochs(2)]
    for step in (9, 18):  # in the first epoch, in the second
        saved = tmp_path / "out" / f"checkpoint-{step}"
        assert "stateful_callbacks" in json.loads((saved / "trainer_state.json").read_text())
        again = Model()
        assert run(again, str(saved)) == 28
        assert again.seen == whole.seen[step:]
        assert again.layer.weight.equal(whole.layer.weight)
