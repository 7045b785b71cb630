"""The examples of training on several ranks, each run as a user would, at small size."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
QUIET = {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "TF_CPP_MIN_LOG_LEVEL": "3"}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("clicks")
    program = f"import small_clicks, pathlib; small_clicks.write(pathlib.Path({str(folder)!r}))"
    subprocess.run([sys.executable, "-c", program], cwd=EXAMPLES, check=True)
    return str(folder)


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


@contextmanager
def started(*commands: list[str], **environment: str) -> Iterator[list[subprocess.Popen[str]]]:
    """Processes in groups of their own, so that none of their children outlives the test."""
    jobs = [
        subprocess.Popen(
            [sys.executable, *command],
            env=os.environ | QUIET | environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        for command in commands
    ]
    try:
        yield jobs
    finally:
        for job in jobs:
            if job.poll() is None:
                os.killpg(job.pid, signal.SIGKILL)
            job.communicate()


def told(*commands: list[str], **environment: str) -> list[dict[str, Any]]:
    """What the processes said, one JSON object a line."""
    with started(*commands, **environment) as jobs:
        outputs = [job.communicate() for job in jobs]
        for job, (_, errors) in zip(jobs, outputs, strict=True):
            assert job.returncode == 0, errors[-3000:]
    lines = [line for out, _ in outputs for line in out.splitlines()]
    return [json.loads(line) for line in lines if line.startswith("{")]


def check(found: dict[str, Any], rows: int = 4000, steps: int = 32) -> None:
    """Two epochs of 2,000 rows in global batches of 128, each row once an epoch, and learning."""
    assert (found["rows"], found["steps"]) == (rows, steps)
    assert found["last"] < 0.6 * found["first"]


def test_torchrun_ddp_and_fsdp_learn_alike(data: str) -> None:
    launch = ["-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port"]
    script = [str(EXAMPLES / "ddp_torch.py"), "--data", data, "--kind", "DDP", "FSDP"]
    copied, sharded = told([*launch, str(free_port()), *script])
    assert (copied.pop("kind"), sharded.pop("kind")) == ("DDP", "FSDP")
    check(copied)
    assert sharded == pytest.approx(copied, rel=1e-4)


def test_lightning(data: str) -> None:
    pytest.importorskip("lightning")
    (found,) = told(["-W", "ignore", str(EXAMPLES / "lightning_ddp.py"), "--data", data])
    check(found)


def test_accelerate(data: str) -> None:
    pytest.importorskip("accelerate")
    script = str(EXAMPLES / "accelerate_ddp.py")
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": "2"}
    ranks = [
        ["-c", f"import os; os.environ.update(RANK='{r}', LOCAL_RANK='{r}'); import sys, runpy; "
         f"sys.path.insert(0, {str(EXAMPLES)!r}); sys.argv[1:] = ['--data', {data!r}]; "
         f"runpy.run_path({script!r}, run_name='__main__')"]
        for r in range(2)
    ]  # fmt: skip
    (found,) = told(*ranks, **place)
    check(found)


def test_jax_on_two_processes(data: str) -> None:
    pytest.importorskip("jax")
    address = ["--address", f"localhost:{free_port()}", "--processes", "2"]
    script = [str(EXAMPLES / "jax_processes.py"), "--data", data, *address]
    (found,) = told([*script, "--number", "0"], [*script, "--number", "1"])
    check(found, rows=4096)  # the last batch of each epoch is filled up


def test_keras_on_two_devices(data: str) -> None:
    pytest.importorskip("jax")
    pytest.importorskip("tensorflow")
    script = [str(EXAMPLES / "keras_distribution.py"), "--data", data, "--devices", "2"]
    found = told([*script, "--backend", "jax"], [*script, "--backend", "tensorflow"])
    assert [(f["kind"], f["devices"]) for f in found] == [
        ("Keras on jax", 2),
        ("Keras on tensorflow", 2),
    ]
    assert all(f["last"] < 0.8 * f["first"] for f in found)
