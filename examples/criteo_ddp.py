# %% [markdown]
"""Click logs in PyTorch on several ranks: one model, every row once, as many steps on each.

The loader finds its rank and their number in what `torchrun` sets. Ranks share rows, not files, so
none runs out of batches before the others, and `DistributedDataParallel` never waits for one that
is done. Started plainly, the example makes features and starts the ranks itself.

    python examples/criteo_ddp.py --ranks 2
    torchrun --nproc-per-node 8 examples/criteo_ddp.py --data criteo/raw --batch-size 65536
"""

# %%
from __future__ import annotations

import argparse
import gc
import os
import subprocess
import sys
import time
from pathlib import Path

import criteo_data
import torch
import torch.distributed as dist
from click_model import ClickModel
from criteo_data import CATEGORICAL, CONTINUOUS, LABEL, auc, options, prepare, tell_speed
from showing import arguments, with_bar
from torch.nn.functional import binary_cross_entropy_with_logits as loss_of
from torch.nn.parallel import DistributedDataParallel

from tabfeed import Dataset
from tabfeed.loader.torch import TorchAsyncItr

SCRIPT = Path(criteo_data.__file__).with_name("criteo_ddp.py")


# %%
def make_loader(data: Dataset, batch_size: int, device: str, *, shuffle: bool) -> TorchAsyncItr:
    """Loads the share of every batch that is for the rank of this process."""
    return TorchAsyncItr(
        data,
        cats=CATEGORICAL,
        conts=CONTINUOUS,
        labels=[LABEL],
        batch_size=batch_size,
        shuffle=shuffle,
        device=device,
    )


# %%
def train(
    model: torch.nn.Module, loader: TorchAsyncItr, optimizer: torch.optim.Optimizer
) -> tuple[list[int], float]:
    """One pass over the data; the rows each rank saw, and the mean loss of all."""
    seen = torch.zeros(2, dtype=torch.float64)
    first = dist.get_rank() == 0  # it draws the bar
    for x_cat, x_cont, y in with_bar(loader, "train") if first else loader:
        loss = loss_of(model(x_cat, x_cont), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        seen += torch.tensor([len(y), loss.item() * len(y)], dtype=torch.float64)
    of_all = [torch.zeros_like(seen) for _ in range(dist.get_world_size())]
    dist.all_gather(of_all, seen)
    rows = [int(one[0]) for one in of_all]
    return rows, sum(float(one[1]) for one in of_all) / sum(rows)


@torch.no_grad()
def evaluate(model: torch.nn.Module, loader: TorchAsyncItr) -> float:
    """The AUC over the validation rows of all ranks."""
    scored = [(model(x_cat, x_cont).cpu(), y.cpu()) for x_cat, x_cont, y in loader]
    mine = [torch.cat(part) for part in zip(*scored, strict=True)]
    of_all: list[list[torch.Tensor]] = [[] for _ in range(dist.get_world_size())]
    dist.all_gather_object(of_all, mine)
    scores, labels = (torch.cat(part) for part in zip(*of_all, strict=True))
    return auc(scores, labels)


# %%
def work(args: argparse.Namespace, device: str) -> None:
    """What one rank does; the first one says how it goes."""
    first = dist.get_rank() == 0
    if first:
        prepare(args)
    dist.barrier()  # the others find the features there
    clicks = prepare(args)
    torch.manual_seed(0)
    model = DistributedDataParallel(ClickModel(clicks.sizes, len(CONTINUOUS)).to(device))
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    train_loader = make_loader(clicks.train, args.batch_size, device, shuffle=True)
    valid_loader = make_loader(clicks.valid, 4 * args.batch_size, device, shuffle=False)
    if first:
        print(f"{dist.get_world_size()} ranks, {len(train_loader)} steps an epoch on each")
    seconds, rows = 0.0, [0]
    for epoch in range(args.epochs):
        start = time.perf_counter()
        rows, loss = train(model, train_loader, optimizer)
        seconds += time.perf_counter() - start
        area = evaluate(model.module, valid_loader)
        if first:
            shares = " + ".join(f"{n:,}" for n in rows)
            print(f"epoch {epoch}: {shares} rows, loss {loss:.4f}, AUC {area:.4f}")
    if first:
        tell_speed(seconds, sum(rows) * args.epochs, args.epochs)


def own_device() -> str:
    """A GPU of its own for each rank of this machine, or the CPU for all of them."""
    enough = torch.cuda.device_count() >= int(os.environ["LOCAL_WORLD_SIZE"])
    return f"cuda:{os.environ['LOCAL_RANK']}" if enough else "cpu"


def be_a_rank(args: argparse.Namespace) -> None:
    """Join the others, work, and leave."""
    device = own_device()
    if device == "cpu":
        dist.init_process_group("gloo")
    else:
        torch.cuda.set_device(device)
        dist.init_process_group("cpu:gloo,cuda:nccl")  # counts are added up on the CPU
    work(args, device)
    gc.collect()  # whatever still refers to the group's threads: let them end now
    dist.destroy_process_group()


# %%
def start_ranks(args: argparse.Namespace) -> None:
    """Start this script once for each rank, and show what the first one says."""
    command = [
        *(sys.executable, "-m", "torch.distributed.run", "--standalone"),
        *("--nproc-per-node", str(args.ranks), str(SCRIPT), "--folder", str(args.folder)),
        *("--batch-size", str(args.batch_size), "--epochs", str(args.epochs)),
    ]
    surroundings = {"OMP_NUM_THREADS": "1"} | os.environ
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=surroundings) as ranks:
        assert ranks.stdout is not None
        for line in ranks.stdout:
            print(line, end="")
    if ranks.returncode:
        raise SystemExit(f"the ranks ended with status {ranks.returncode}; what they say is above")


# %%
def main() -> None:
    """Be one of the ranks, or make features and start them."""
    parser = options(__doc__.splitlines()[0], "criteo_ddp")
    parser.add_argument("--ranks", type=int, default=2, help="how many to start")
    args = arguments(parser)
    if "RANK" in os.environ:
        be_a_rank(args)
    else:
        prepare(args)
        start_ranks(args)


# %%
if __name__ == "__main__":
    main()
