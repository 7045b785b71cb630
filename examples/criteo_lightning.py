# %% [markdown]
"""Click logs in Lightning: stopped in the middle of an epoch, and gone on with from there.

A `Loader` is given to ``Trainer.fit`` as it is. Its place in the data goes into Lightning's
checkpoints, so that training which was cut off goes on with the very batch that would have come.

    python examples/criteo_lightning.py
    python examples/criteo_lightning.py --data criteo/raw --batch-size 65536 --folder features
"""

# %%
from __future__ import annotations

import logging
import time
import warnings
from typing import Any

import lightning
import torch
from click_model import ClickModel
from criteo_data import CATEGORICAL, CONTINUOUS, LABEL, Clicks, auc, options, prepare, tell_speed
from lightning.pytorch.callbacks import ModelCheckpoint
from showing import arguments, on_screen
from torch.nn.functional import binary_cross_entropy_with_logits as loss_of

from tabfeed import Dataset
from tabfeed.loader.torch import Loader

Batch = tuple[dict[str, torch.Tensor], torch.Tensor]


# %%
class ClickModule(lightning.LightningModule):
    """The model, how it learns, and what it is judged by."""

    def __init__(self, sizes: list[tuple[int, int]]) -> None:
        super().__init__()
        self.model = ClickModel(sizes, len(CONTINUOUS))
        self.losses: list[torch.Tensor] = []
        self.scored: list[tuple[torch.Tensor, torch.Tensor]] = []

    def forward(self, inputs: dict[str, torch.Tensor]) -> torch.Tensor:
        """The log-odds of a click."""
        cats = torch.stack([inputs[name] for name in sorted(CATEGORICAL)], 1)
        return self.model(cats, torch.stack([inputs[name] for name in CONTINUOUS], 1))

    def training_step(self, batch: Batch, index: int) -> torch.Tensor:
        """The loss of a batch."""
        inputs, y = batch
        loss = loss_of(self(inputs), y.float())
        self.losses.append(loss.detach())
        return loss

    def validation_step(self, batch: Batch, index: int) -> None:
        """Keep the scores of a batch."""
        inputs, y = batch
        self.scored.append((self(inputs).cpu(), y.cpu()))

    def on_validation_epoch_end(self) -> None:
        """Say how well clicks are told from the rest."""
        area = auc(torch.cat([s for s, _ in self.scored]), torch.cat([y for _, y in self.scored]))
        loss = torch.stack(self.losses[-10:]).mean()
        print(f"epoch {self.current_epoch}: loss {loss:.4f}, AUC {area:.4f}")
        self.scored.clear()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Adam."""
        return torch.optim.Adam(self.parameters(), lr=3e-3)


# %%
def make_loader(data: Dataset, batch_size: int, *, shuffle: bool) -> Loader:
    """Batches ``(inputs, y)``."""
    return Loader(data, batch_size, shuffle=shuffle, targets=[LABEL])


def make_trainer(args: Any, **more: Any) -> lightning.Trainer:
    """A trainer on one device, whose rows are all; it says little but what we print."""
    return lightning.Trainer(
        devices=1,
        max_epochs=args.epochs,
        default_root_dir=args.folder,
        logger=False,
        enable_progress_bar=on_screen(),
        enable_model_summary=False,
        num_sanity_val_steps=0,
        **more,
    )


# %%
def train_and_stop(args: Any, clicks: Clicks, steps: int) -> str:
    """Train for some steps, as if the machine then failed; the path of the last checkpoint."""
    keep = ModelCheckpoint(args.folder / "checkpoints", every_n_train_steps=steps, save_last=True)
    trainer = make_trainer(args, max_steps=steps, callbacks=[keep])
    trainer.fit(ClickModule(clicks.sizes), make_loader(clicks.train, args.batch_size, shuffle=True))
    return keep.last_model_path


# %%
def main() -> None:
    """Make features, train in two parts, and say what came of it."""
    args = arguments(options(__doc__.splitlines()[0], "criteo_lightning"))
    warnings.filterwarnings("ignore", module="lightning")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    clicks = prepare(args)
    lightning.seed_everything(0, verbose=False)
    train = make_loader(clicks.train, args.batch_size, shuffle=True)
    valid = make_loader(clicks.valid, 4 * args.batch_size, shuffle=False)
    stop = max(1, len(train) // 3)
    checkpoint = train_and_stop(args, clicks, stop)
    print(f"stopped after {stop} of {len(train)} batches; going on from {checkpoint}")
    module, start = ClickModule(clicks.sizes), time.perf_counter()
    make_trainer(args, enable_checkpointing=False).fit(module, train, valid, ckpt_path=checkpoint)
    seconds = time.perf_counter() - start
    tell_speed(seconds, train.num_rows_processed + valid.num_rows_processed, args.epochs)
    trained = stop + len(module.losses)
    print(f"{trained} batches in all: {args.epochs} epochs of {len(train)}, none twice")
    if trained != args.epochs * len(train):
        raise SystemExit("some batches came twice or not at all")


# %%
if __name__ == "__main__":
    main()
