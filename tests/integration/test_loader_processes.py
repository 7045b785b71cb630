"""Several processes, and processes that die: the promises hold there too."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from tabfeed import Dataset
from tabfeed.loader.torch import Loader, TorchAsyncItr
from tabfeed.testing.loader import write_rows

SIZES = (90, 31, 0, 64, 77, 12, 50, 40)  # 364 rows in unequal files

# Trains `world` ranks in step, noting each global batch and then its state: the last line may be
# cut by a kill, the others are whole. Without a framework, which takes seconds to import; the test
# holds what comes against torch's loader.
TRAIN = """
import json, os, sys, time
from tabfeed import Dataset
from tabfeed.loader.build import Steps, build_pipeline, dict_layout
from tabfeed.loader.options import LoaderOptions
from tests.integration.rank_process import keys
folder, log, world, per_rank, steps = sys.argv[1], sys.argv[2], *map(int, sys.argv[3:])
data = Dataset(folder)
layout = dict_layout(data.schema, data.column_names)
ranks = [
    LoaderOptions(batch_size=per_rank, shuffle=True, global_size=world, global_rank=rank)
    for rank in range(world)
]
feeds = [build_pipeline(data, layout, options, keys, Steps()).start() for options in ranks]
if os.path.exists(log + ".state"):
    for feed in feeds:
        feed.load_state_dict(json.load(open(log + ".state")))
out = open(log, "a")
while steps:
    for batches in zip(*feeds, strict=True):
        out.write(json.dumps({"keys": sum(batches, []), "state": feeds[-1].state_dict()}) + "\\n")
        out.flush()
        time.sleep(0.005)
        steps -= 1
        if not steps:
            break
"""
ROOT = Path(__file__).parents[2]
FOREVER = 10**9


def start(folder: Path, log: Path, world: int, per_rank: int, steps: int):
    arguments = [str(folder), str(log), *map(str, (world, per_rank, steps))]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    return subprocess.Popen([sys.executable, "-c", TRAIN, *arguments], env=environment)


def lines(log: Path) -> list[dict]:
    text = log.read_text() if log.exists() else ""
    return [json.loads(line) for line in text.split("\n")[:-1]]


def train_and_kill(folder: Path, log: Path, world: int, per_rank: int, batches: int) -> list[dict]:
    """Train until some batches are noted, kill -9, and give what was noted."""
    process = start(folder, log, world, per_rank, FOREVER)
    try:
        while len(lines(log)) < batches:
            assert process.poll() is None, "training ended by itself"
            time.sleep(0.02)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    return lines(log)[:-2]  # the checkpoint is a little older than the kill


def uninterrupted(folder: Path, count: int, batch: int) -> list[list[int]]:
    """The batches of one process that nobody kills."""
    loader = Loader(Dataset(str(folder)), batch, True)
    out: list[list[int]] = []
    while len(out) < count:
        out += [x["key"].tolist() for x, _ in loader]
    return out[:count]


def test_kill_9_and_restart_give_the_batches_of_an_uninterrupted_run(tmp_path):
    folder = tmp_path / "data"
    folder.mkdir()
    write_rows(folder, SIZES)
    seen: list[list[int]] = []
    for attempt in range(2):
        done = train_and_kill(folder, tmp_path / f"log{attempt}", 1, 7, 40)
        seen += [line["keys"] for line in done]
        (tmp_path / f"log{attempt + 1}.state").write_text(json.dumps(done[-1]["state"]))
    assert start(folder, tmp_path / "log2", 1, 7, 30).wait() == 0
    seen += [line["keys"] for line in lines(tmp_path / "log2")]
    assert seen == uninterrupted(folder, len(seen), 7)
    assert len(seen) > 2 * 52  # more than two epochs: the kills fell within them


@pytest.mark.parametrize("world", [2, 8])
def test_kill_9_on_4_ranks_and_restart_on_others(tmp_path, world):
    folder = tmp_path / "data"
    folder.mkdir()
    write_rows(folder, SIZES)
    done = train_and_kill(folder, tmp_path / "first", 4, 4, 10)
    (tmp_path / "second.state").write_text(json.dumps(done[-1]["state"]))
    assert start(folder, tmp_path / "second", world, 16 // world, 30).wait() == 0
    seen = [line["keys"] for line in [*done, *lines(tmp_path / "second")]]
    assert seen == uninterrupted(folder, len(seen), 16)


DDP = """
import gc, os, sys, torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from tabfeed import Dataset
from tabfeed.loader.torch import TorchAsyncItr
torch.set_num_threads(1)
folder, out, epochs = sys.argv[1], sys.argv[2], int(sys.argv[3])
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
itr = TorchAsyncItr(Dataset(folder), ["check"], ["x"], ["y"], batch_size=12 // world, shuffle=True)
torch.manual_seed(0)
model = DDP(torch.nn.Linear(2, 1).double())
grads, steps = [], []
for epoch in range(epochs):
    count = 0
    for x_cat, x_cont, y in itr:
        x = torch.cat([x_cat / 2**31, x_cont / 100], dim=1).double()
        loss = ((model(x)[:, 0] - y) ** 2).sum() * world
        rows = torch.tensor(len(y))
        dist.all_reduce(rows)
        model.zero_grad()
        (loss / rows).backward()
        grads.append(torch.cat([p.grad.reshape(-1) for p in model.parameters()]))
        with torch.no_grad():
            for p in model.parameters():
                p -= 0.01 * p.grad
        count += 1
    steps.append(count)
torch.save({"grads": torch.stack(grads), "steps": steps}, f"{out}/{rank}.pt")
del model, loss  # they hold the group: its threads shall end before the interpreter does
gc.collect()
dist.destroy_process_group()
"""


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


def single_process_gradients(folder: Path, world: int, epochs: int):
    plan = TorchAsyncItr(
        Dataset(str(folder)), ["check"], batch_size=12 // world, shuffle=True,
        global_size=world, global_rank=0,
    ).pipeline.plan  # fmt: skip
    itr = TorchAsyncItr(
        Dataset(str(folder)), ["check"], ["x"], ["y"], 12, True, streams=plan.streams
    )
    torch.manual_seed(0)
    model = torch.nn.Linear(2, 1).double()
    grads = []
    for _ in range(epochs):
        for x_cat, x_cont, y in itr:
            x = torch.cat([x_cat / 2**31, x_cont / 100], dim=1).double()
            model.zero_grad()
            ((model(x)[:, 0] - y) ** 2).mean().backward()
            grads.append(torch.cat([p.grad.reshape(-1) for p in model.parameters()]))
            with torch.no_grad():
                for p in model.parameters():
                    p -= 0.01 * p.grad
    return torch.stack(grads)


@pytest.mark.parametrize("world", [2, 3])
def test_ddp_on_unequal_files_equals_one_process(tmp_path, world):
    folder = tmp_path / "data"
    folder.mkdir()
    write_rows(folder, SIZES)
    environment = os.environ | {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
        "WORLD_SIZE": str(world),
        "GLOO_SOCKET_IFNAME": "lo",
    }
    arguments = [sys.executable, "-W", "ignore", "-c", DDP, str(folder), str(tmp_path), "3"]
    processes = [
        subprocess.Popen(arguments, env=environment | {"RANK": str(r)}) for r in range(world)
    ]
    assert [p.wait() for p in processes] == [0] * world
    results = [torch.load(tmp_path / f"{r}.pt") for r in range(world)]
    assert [r["steps"] for r in results] == [[31, 31, 31]] * world  # 364 rows, 12 a step
    single = single_process_gradients(folder, world, 3)
    for result in results:
        torch.testing.assert_close(result["grads"], single, rtol=1e-9, atol=1e-12)
