"""The torch doors inside the frameworks people train with."""

from __future__ import annotations

import pytest
import torch

from tabfeed.loader.torch import DLDataLoader, Loader
from tabfeed.testing.loader import write_rows


def make_module(lightning):
    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(1, 1)
            self.seen: list[list[int]] = []

        def training_step(self, batch, index):
            inputs, y = batch
            self.seen.append(inputs["key"].tolist())
            return ((self.layer(inputs["x"][:, None] / 100)[:, 0] - y) ** 2).mean()

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.01)

    return Module()


@pytest.mark.filterwarnings("ignore")  # Lightning's own
@pytest.mark.parametrize("wrapped", [False, True])
def test_lightning_trains_saves_and_goes_on(tmp_path, wrapped):
    lightning = pytest.importorskip("lightning.pytorch")
    (tmp_path / "data").mkdir()
    ds = write_rows(tmp_path / "data")

    def data():
        loader = Loader(ds, 10, shuffle=True, targets=["y"])
        return DLDataLoader(loader) if wrapped else loader

    quiet = {
        "logger": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "accelerator": "cpu",
        "default_root_dir": str(tmp_path),
    }
    plain = Loader(ds, 10, shuffle=True)
    expected = [x["key"].tolist() for x, _ in plain.epochs(2)]
    module = make_module(lightning)
    keep = lightning.callbacks.ModelCheckpoint(tmp_path, "middle", every_n_train_steps=5)
    trainer = lightning.Trainer(max_steps=5, callbacks=[keep], **quiet)
    trainer.fit(module, data())
    assert module.seen == expected[:5]
    again = make_module(lightning)
    rest = lightning.Trainer(max_epochs=2, enable_checkpointing=False, **quiet)
    rest.fit(again, data(), ckpt_path=tmp_path / "middle.ckpt")
    assert module.seen + again.seen == expected
