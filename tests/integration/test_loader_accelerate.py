"""Accelerate leaves the loader's rows to their ranks, and keeps its state with its own."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections import Counter

import pytest
import torch

from tabfeed.loader.torch import DLDataLoader, Loader
from tabfeed.testing.loader import write_rows

accelerate = pytest.importorskip("accelerate")

# What a user writes, as each of two processes runs it that torchrun or `accelerate launch` starts.
TRAIN = """
import json, sys, torch
from accelerate import Accelerator
from tabfeed import Dataset
from tabfeed.loader.torch import DLDataLoader, Loader

torch.set_num_threads(1)
accelerator = Accelerator(cpu=True)
data = DLDataLoader(
    Loader(Dataset(sys.argv[1]), 6, shuffle=True, targets=["y"], device=accelerator.device)
)
torch.manual_seed(accelerator.process_index)
model = torch.nn.Linear(1, 1)
sgd = torch.optim.SGD(model.parameters(), lr=0.01)
model, sgd, data = accelerator.prepare(model, sgd, data)
seen = []
for _ in range(2):
    for inputs, y in data:
        loss = ((model(inputs["x"][:, None] / 100)[:, 0] - y) ** 2).mean()
        sgd.zero_grad()
        accelerator.backward(loss)
        sgd.step()
        seen.append(inputs["key"].tolist())
weights = [p.tolist() for p in accelerator.unwrap_model(model).parameters()]
with open(f"{sys.argv[2]}/{accelerator.process_index}.json", "w") as file:
    json.dump({"world": accelerator.num_processes, "seen": seen, "weights": weights}, file)
del loss
# The model refers to the group's threads: they must end before the interpreter does.
model, sgd, data = accelerator.free_memory(model, sgd, data)
accelerator.end_training()
"""


def test_two_processes_share_the_rows_and_train_one_model(tmp_path):
    (tmp_path / "data").mkdir()
    write_rows(tmp_path / "data")
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = str(s.getsockname()[1])
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": "2"}
    place |= {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    script = ["-W", "ignore", "-c", TRAIN, str(tmp_path / "data"), str(tmp_path)]
    processes = [
        subprocess.Popen(
            [sys.executable, *script],
            env=os.environ | place | {"RANK": rank, "LOCAL_RANK": rank},
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in ("0", "1")
    ]
    errors = [process.communicate()[1] for process in processes]
    assert [process.returncode for process in processes] == [0, 0], errors
    ranks = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in (0, 1)]
    assert [r["world"] for r in ranks] == [2, 2]
    assert [len(r["seen"]) for r in ranks] == [22, 22]  # 132 rows, 12 a step, twice
    seen = Counter(k for r in ranks for batch in r["seen"] for k in batch)
    assert seen == Counter({k: 2 for k in range(132)})
    assert ranks[0]["weights"] == ranks[1]["weights"]


@pytest.fixture
def accelerator(monkeypatch):
    from accelerate.state import AcceleratorState, GradientState

    monkeypatch.setattr(os, "environ", os.environ.copy())
    yield lambda: accelerate.Accelerator(cpu=True)
    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()


def train(accelerator, model, data, steps):
    seen, sgd = [], torch.optim.SGD(model.parameters(), lr=0.01)
    sgd = accelerator.prepare(sgd)
    for inputs, y in data:
        loss = ((model(inputs["x"][:, None] / 100)[:, 0] - y) ** 2).mean()
        sgd.zero_grad()
        accelerator.backward(loss)
        sgd.step()
        seen.append(inputs["key"].tolist())
        if len(seen) == steps:
            break
    return seen


@pytest.mark.parametrize("workers", [0, 2])
def test_save_state_and_load_state_hold_the_loaders(tmp_path, accelerator, workers):
    dataset = write_rows(tmp_path)

    def data():
        loader = Loader(dataset, 10, shuffle=True, targets=["y"])
        return DLDataLoader(loader, num_workers=workers)

    whole = [x["key"].tolist() for x, _ in data()]
    first, model, before = accelerator(), torch.nn.Linear(1, 1), data()
    model, prepared = first.prepare(model, before)
    assert prepared is before
    seen = train(first, model, prepared, 6)
    first.save_state(str(tmp_path / "saved"))
    other, again, after = accelerator(), torch.nn.Linear(1, 1), data()
    again, after = other.prepare(again, after)
    other.load_state(str(tmp_path / "saved"))
    assert again.weight.equal(model.weight)
    assert seen + train(other, again, after, 99) == whole


def test_a_loader_passes_through_prepare_untouched(tmp_path, accelerator):
    loader = Loader(write_rows(tmp_path), 10, targets=["y"])
    assert accelerator().prepare(loader) is loader
