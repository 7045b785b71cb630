"""Hugging Face Accelerate on several ranks.

    data=$(python examples/small_clicks.py)
    torchrun --nproc-per-node 2 examples/accelerate_ddp.py --data $data

These ranks are on CPUs. For GPUs leave ``cpu=True`` out, and use ``accelerate launch``, which would
want MPI on CPUs.

The loader is not given to ``prepare``: it already gives each rank its own rows, and
Accelerate would deal them out a second time. It is told the device instead.
"""

from __future__ import annotations

import torch
from accelerate import Accelerator
from ddp_torch import Clicks
from small_clicks import options, tell

from tabfeed import Dataset
from tabfeed.loader.torch import Loader


def train(accelerator: Accelerator, data: str, batch: int, epochs: int) -> None:
    """Train, and let the main process say how it went."""
    torch.manual_seed(0)
    device = accelerator.device
    loader = Loader(Dataset(data), batch, shuffle=True, targets=["click"], device=device)
    model = Clicks()
    model, optimiser = accelerator.prepare(model, torch.optim.Adam(model.parameters(), lr=0.05))
    losses, rows = [], torch.zeros(1, dtype=torch.int64, device=device)
    for _ in range(epochs):
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
        found = {"rows": rows.item(), "steps": len(losses)}
        tell(kind="Accelerate", **found, first=losses[0], last=losses[-1])


def main() -> None:
    """Train."""
    given = options("accelerate launch").parse_args()
    torch.set_num_threads(1)
    accelerator = Accelerator(cpu=True)
    train(accelerator, given.data, given.batch, given.epochs)
    if accelerator.num_processes > 1:
        torch.distributed.barrier()  # Accelerate's own wants a GPU for each rank, if there is one
    accelerator.end_training()  # or the ranks' connections go down with whoever exits first


if __name__ == "__main__":
    main()
