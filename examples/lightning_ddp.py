"""Lightning on several ranks, which it starts itself.

    data=$(python examples/small_clicks.py)
    python examples/lightning_ddp.py --data $data --ranks 2

The loader is made in ``train_dataloader``, when the ranks know which they are, and
``use_distributed_sampler=False`` leaves the dealing out of rows to it.
"""

from __future__ import annotations

import lightning
import torch
from ddp_torch import Clicks
from small_clicks import options, tell

from tabfeed import Dataset
from tabfeed.loader.torch import Loader


class Module(lightning.LightningModule):
    """The model, how it learns, and what from."""

    def __init__(self, data: str, batch: int) -> None:
        super().__init__()
        self.model, self.data, self.batch = Clicks(), data, batch
        self.losses: list[float] = []
        self.rows = 0

    def train_dataloader(self) -> Loader:
        """The share of the rows that is this rank's."""
        data = Dataset(self.data)
        return Loader(data, self.batch, shuffle=True, targets=["click"], device=self.device)

    def training_step(self, batch: tuple[dict[str, torch.Tensor], torch.Tensor], _: int) -> object:
        """One step."""
        x, click = batch
        logits = self.model(x["item"], x["price"])
        loss = torch.nn.functional.binary_cross_entropy_with_logits(logits, click)
        self.losses.append(loss.item())
        self.rows += len(click)
        return loss

    def on_train_end(self) -> None:
        """Say what happened."""
        rows = torch.tensor([self.rows], device=self.device)
        torch.distributed.all_reduce(rows)
        if self.global_rank == 0:
            first, last = self.losses[0], self.losses[-1]
            steps = len(self.losses)
            tell(kind="Lightning", rows=rows.item(), steps=steps, first=first, last=last)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Adam."""
        return torch.optim.Adam(self.parameters(), lr=0.05)


def main() -> None:
    """Train."""
    parser = options("Lightning")
    parser.add_argument("--ranks", type=int, default=2)
    given = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=given.ranks,
        strategy="ddp",
        max_epochs=given.epochs,
        use_distributed_sampler=False,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Module(given.data, given.batch))
    torch.distributed.destroy_process_group()  # its threads must end before the interpreter does


if __name__ == "__main__":
    main()
