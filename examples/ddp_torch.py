"""PyTorch on several ranks: DDP, FSDP, or one after the other.

    data=$(python examples/small_clicks.py)
    torchrun --nproc-per-node 2 examples/ddp_torch.py --data $data --kind DDP FSDP

The loader finds rank and world size in what torchrun sets. Every rank gets the same number of
batches, so no rank waits for another at the end of an epoch; over all ranks each row comes once.
These ranks are on CPUs, and so are their batches; `criteo_ddp.py` takes GPUs where there are some.
"""

from __future__ import annotations

import gc

import torch
import torch.distributed as dist
from small_clicks import ITEMS, options, tell
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from tabfeed import Dataset
from tabfeed.loader.torch import Loader


class Clicks(torch.nn.Module):
    """An embedding and a line."""

    def __init__(self) -> None:
        super().__init__()
        self.items = torch.nn.Embedding(ITEMS, 8)
        self.line = torch.nn.Linear(9, 1)

    def forward(self, item: torch.Tensor, price: torch.Tensor) -> torch.Tensor:
        """How likely a click is, as a logit."""
        return self.line(torch.cat([self.items(item), price[:, None]], dim=1)).sum(dim=1)


def spread(model: torch.nn.Module, kind: str) -> torch.nn.Module:
    """The model on all ranks: copied, or its parameters in shards."""
    if kind == "FSDP":
        return fully_shard(model, mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
    return DistributedDataParallel(model)


def train(kind: str, data: str, batch: int, epochs: int) -> None:
    """Train, and let rank 0 say how it went."""
    torch.manual_seed(0)
    loader = Loader(Dataset(data), batch, shuffle=True, targets=["click"], device="cpu")
    model = spread(Clicks(), kind)
    optimiser = torch.optim.Adam(model.parameters(), lr=0.05)
    losses, rows = [], torch.zeros(1, dtype=torch.int64)
    for _ in range(epochs):
        for x, click in loader:
            logits = model(x["item"], x["price"])
            loss = torch.nn.functional.binary_cross_entropy_with_logits(logits, click)
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            losses.append(loss.item())
            rows += len(click)
    dist.all_reduce(rows)
    if dist.get_rank() == 0:
        tell(kind=kind, rows=rows.item(), steps=len(losses), first=losses[0], last=losses[-1])


def main() -> None:
    """Train."""
    parser = options("torchrun")
    parser.add_argument("--kind", nargs="+", choices=["DDP", "FSDP"], default=["DDP"])
    given = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    for kind in given.kind:
        train(kind, given.data, given.batch, given.epochs)
    gc.collect()  # a model in shards refers to itself, and to the group's threads: let them end now
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
