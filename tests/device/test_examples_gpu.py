"""Examples whose model has to be where the batches are, on a machine with a GPU."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

EXAMPLES = Path(__file__).parents[2] / "examples"
PATH = os.pathsep.join(str(Path(place).resolve()) for place in sys.path if place)
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no NVIDIA GPU here"),
]


def run(*command: str | Path) -> str:
    """What a program says."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", *map(str, command)],
        cwd=EXAMPLES,
        env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": PATH},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-1000:] + done.stderr[-3000:]
    return done.stdout


@pytest.mark.parametrize(
    ("name", "small", "told"),
    [
        ("movielens_torch", ("--rows", "20000", "--epochs", "1"), "with genres"),
        ("sessions_torch", ("--sessions", "3000", "--epochs", "1"), "GRU"),
        ("criteo_ddp", ("--rows", "4000", "--batch-size", "200", "--epochs", "1"), "2 ranks"),
        ("criteo_fastai", ("--rows", "8000", "--batch-size", "200", "--epochs", "2"), "epoch 1:"),
    ],
)
def test_it_trains(name: str, small: tuple[str, ...], told: str, tmp_path: Path) -> None:
    if name == "criteo_fastai":
        pytest.importorskip("fastai")
    assert told in run(f"{name}.py", *small, "--folder", tmp_path / "out")


@pytest.mark.parametrize("name", ["ddp_torch", "accelerate_ddp"])
def test_ranks_on_cpus_stay_there(name: str) -> None:
    if name == "accelerate_ddp":
        pytest.importorskip("accelerate")
    data = run("small_clicks.py").strip()
    kinds = ("--kind", "DDP", "FSDP") if name == "ddp_torch" else ()
    assert '"rows": 4000' in run(*TORCHRUN, f"{name}.py", "--data", data, *kinds)
