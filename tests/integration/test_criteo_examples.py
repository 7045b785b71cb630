"""The examples on click logs run, at a small size, and their models learn."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"

# Several in one process: what takes longest is to import torch.
RUN = """
import runpy, sys
sys.path.insert(0, sys.argv[1])
names, arguments = sys.argv[2].split(","), sys.argv[3:]
for name in names:
    print("==", name, flush=True)
    sys.argv[1:] = arguments
    runpy.run_path(f"{sys.path[0]}/{name}.py", run_name="__main__")
"""


def run(names: str, *arguments: str, **environment: str) -> dict[str, str]:
    """What each example printed."""
    command = [sys.executable, "-W", "ignore", "-c", RUN, str(EXAMPLES), names, *arguments]
    done = subprocess.run(
        command,
        env=os.environ | {"OMP_NUM_THREADS": "1"} | environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-1000:] + done.stderr[-3000:]
    found = re.split(r"^== (\w+)\n", done.stdout, flags=re.M)[1:]
    return dict(zip(found[::2], found[1::2], strict=True))


def check(text: str, rows: int) -> None:
    """Every epoch is told, the model tells clicks from the rest, and all rows went through it."""
    epochs = re.findall(r"epoch (\d): loss (0\.\d+), AUC (0\.\d+)", text)
    assert [number for number, _, _ in epochs] == ["0", "1"], text
    losses, areas = [float(e[1]) for e in epochs], [float(e[2]) for e in epochs]
    assert losses[1] < losses[0] and areas[1] > 0.65, text
    speed = r"run_time: [\d.]+ - rows: (\d+) - epochs: 2 - dl_thru: \d+"
    assert re.findall(speed, text) == [str(rows)], text


SMALL = ("--rows", "4000", "--batch-size", "200")  # and 800 rows for validation


def test_torch_fastai_and_lightning(tmp_path: Path) -> None:
    pytest.importorskip("fastai")
    pytest.importorskip("lightning")
    names = "criteo_torch,criteo_fastai,criteo_lightning"
    told = run(names, *SMALL, "--folder", str(tmp_path / "out"))
    check(told["criteo_torch"], 2 * 4000)
    check(told["criteo_fastai"], 2 * 4800)
    assert "average precision" in told["criteo_fastai"]
    resumed = told["criteo_lightning"]
    assert "stopped after 6 of 20 batches" in resumed
    assert "40 batches in all: 2 epochs of 20, none twice" in resumed
    check(resumed, 2 * 4800 - 6 * 200)  # what was trained on before the stop counts there


def test_one_table_and_full_batches(tmp_path: Path) -> None:
    told = run("criteo_gpu", "--rows", "4100", *SMALL[2:], "--folder", str(tmp_path / "out"))
    text = told["criteo_gpu"]
    assert "20 batches of 200 rows an epoch" in text and "read by Arrow" in text
    before, after = (float(area) for area in re.findall(r"epoch \d: loss .*, AUC (0\.\d+)", text))
    assert after > before and after > 0.6, text
    assert "- rows: 8000 -" in text, text  # 100 are left over in each epoch


def test_jax_with_data_of_ones_own(tmp_path: Path) -> None:
    pytest.importorskip("jax")
    from tabfeed import datagen

    datagen.criteo(tmp_path / "raw", 4800, raw=True, seed=3).to_parquet(
        tmp_path / "data", output_files=["a.parquet", "b.parquet", "c.parquet"]
    )
    own = ["--data", str(tmp_path / "data"), "--folder", str(tmp_path / "out")]
    told = run("jax_criteo", *SMALL, *own, JAX_PLATFORMS="cpu")["jax_criteo"]
    rows = sum(pq.read_metadata(tmp_path / "data" / f"{n}.parquet").num_rows for n in "ab")
    batches = -(-rows // 200)  # the last one is filled up
    assert f"{batches} batches of 200 rows, on 1 device(s)" in told
    check(told, 2 * batches * 200)
