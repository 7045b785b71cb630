"""Hugging Face Accelerate on several ranks.

    data=$(python examples/small_clicks.py)
    torchrun --nproc-per-node 2 examples/accelerate_ddp.py --data $data

or ``accelerate launch`` on GPUs; on CPUs that would want MPI.

The loader is not given to ``prepare``: it already gives each rank its own rows, and
Accelerate would deal them out a second time.
"""

from __future__ import annotations

import torch
from accelerate import Accelerator
from ddp_torch import Clicks
from small_clicks import options, tell

from tabfeed import Dataset
from tabfeed.loader.torch import Loader


def main() -> None:
    """Train."""
    given = options("accelerate launch").parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    accelerator = Accelerator(cpu=True)
    loader = Loader(Dataset(given.data), given.batch, shuffle=True, targets=["click"])
    model = Clicks()
    model, optimiser = accelerator.prepare(model, torch.optim.Adam(model.parameters(), lr=0.05))
    losses, rows = [], torch.zeros(1, dtype=torch.int64)
    for _ in range(given.epochs):
        for x, click in loader:
            logits = model(x["item"], x["price"])
            loss = torch.nn.functional.binary_cross_entropy_with_logits(logits, click)
            optimiser.zero_grad()
            accelerator.backward(loss)
            optimiser.step()
            losses.append(loss.item())
            rows += len(click)
    rows = accelerator.reduce(rows, "sum")
    if accelerator.is_main_process:
        tell(
            kind="Accelerate", rows=rows.item(), steps=len(losses), first=losses[0], last=losses[-1]
        )
    accelerator.end_training()


if __name__ == "__main__":
    main()
