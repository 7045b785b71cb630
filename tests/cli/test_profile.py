"""`tabfeed profile`, by subprocess: scripts unchanged, datasets alone, comparisons."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.profile.runs import full_run

TORCH = """
import argparse, time, torch
from torch.utils.data import DataLoader
parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int)
parser.add_argument("--batch-size", type=int)
args = parser.parse_args()

class Rows:
    def __len__(self): return 40
    def __getitem__(self, i): return self.load(i)
    def load(self, i): time.sleep(0.005); return torch.ones(3)

for epoch in range(args.epochs):
    for batch in DataLoader(Rows(), batch_size=args.batch_size):
        assert batch.shape == (args.batch_size, 3)
print("trained", __name__)
"""

OURS = """
import sys
from tabfeed import Dataset
from tabfeed.loader.torch import DLDataLoader, Loader
loader = Loader(Dataset(sys.argv[1]), batch_size=10, targets=["y"])
for epoch in range(2):
    for x, y in DLDataLoader(loader):
        pass
for x, y in loader:
    break
"""

TENSORFLOW = """
import tensorflow as tf
total = 0
for batch in tf.data.Dataset.range(40).batch(4):
    total += int(batch[0])

@tf.function
def graph(data):
    out = tf.constant(0, tf.int64)
    for x in data:
        out += x
    return out

assert int(graph(tf.data.Dataset.range(5))) == 10
"""


def profile(*arguments: object, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tabfeed", "profile", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, cwd=cwd, timeout=100)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    folder = tmp_path / "data"
    folder.mkdir()
    table = {"x": np.arange(200), "y": np.zeros(200, np.float32), "name": ["a"] * 200}
    pq.write_table(pa.table(table), folder / "a.parquet", row_group_size=50)
    return folder


@pytest.mark.timeout(120)
def test_a_script_runs_unchanged_and_is_told_on(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    (tmp_path / "train.py").write_text(TORCH)
    run = profile(
        *("--save", "run.json", "--save", "run.html", "--fail-under", "90"),
        *("train.py", "--epochs", "2", "--batch-size", "4"),
        cwd=tmp_path,
    )
    assert "trained __main__" in run.stdout
    assert "Starved by reading" in run.stdout
    assert "is below --fail-under 90" in run.stderr
    assert run.returncode == 1
    saved = json.loads((tmp_path / "run.json").read_text())
    assert saved["steps"]["count"] == 20
    assert saved["loader"]["name"] == "torch DataLoader"
    assert (tmp_path / "run.html").exists()


@pytest.mark.timeout(120)
def test_our_loader_inside_a_dataloader_is_one_loader(tmp_path: Path, data: Path) -> None:
    pytest.importorskip("torch")
    (tmp_path / "train.py").write_text(OURS.replace('"name"', ""))
    numbers = tmp_path / "numbers"
    numbers.mkdir()
    pq.write_table(pq.read_table(data).drop(["name"]), numbers / "a.parquet")
    run = profile("--json", "train.py", numbers, cwd=tmp_path)
    assert run.returncode == 0, run.stderr
    told = json.loads(run.stdout)
    assert told["steps"]["count"] == 41  # two epochs of 20, and the one before the break
    assert told["loader"]["kind"] == "tabfeed"


@pytest.mark.timeout(120)
def test_tf_data_is_watched_where_it_runs_eagerly(tmp_path: Path) -> None:
    pytest.importorskip("tensorflow")
    (tmp_path / "train.py").write_text(TENSORFLOW)
    run = profile("--json", "train.py", cwd=tmp_path)
    assert run.returncode == 0, run.stderr
    told = json.loads(run.stdout)
    assert (told["steps"]["count"], told["loader"]["kind"]) == (10, "tf.data")


def test_a_script_with_nothing_to_watch(tmp_path: Path) -> None:
    (tmp_path / "plain.py").write_text("import sys; sys.exit(0)")
    run = profile("--fail-under", "1", "plain.py", cwd=tmp_path)
    assert "no step was seen" in run.stderr
    assert run.returncode == 1


@pytest.mark.parametrize(("text", "code"), [("raise SystemExit(7)", 7), ("1 / 0", 1)])
def test_a_script_that_fails_fails(tmp_path: Path, text: str, code: int) -> None:
    (tmp_path / "bad.py").write_text(text)
    assert profile("bad.py", cwd=tmp_path).returncode == code


def test_a_dataset_alone(tmp_path: Path, data: Path) -> None:
    run = profile(data, "--model", "none", "--seconds", "0.3", "--batch-size", "20", cwd=tmp_path)
    assert run.returncode == 0, run.stderr
    assert "left out, no tensor holds them: name" in run.stderr
    assert "fed alone, the data gives" in " ".join(run.stdout.split())


def test_what_cannot_be_profiled(tmp_path: Path, data: Path) -> None:
    for arguments, code, words in (
        ([data], 1, "say --model none"),
        (["none.py"], 1, "there is no script none.py"),
        ([data, "--model", "none", "--fail-under", "9"], 2, "needs a script"),
        ([data, "--model", "none", "other"], 2, "one dataset at a time"),
        ([data, "--modle", "none"], 2, "No such option"),
    ):
        run = profile(*arguments, cwd=tmp_path)
        assert run.returncode == code, (arguments, run.stderr)
        assert words in " ".join(run.stderr.replace("│", " ").split())


def test_saved_runs_are_compared(tmp_path: Path) -> None:
    for name in ("fed", "tabfeed"):
        (tmp_path / f"{name}.json").write_text(json.dumps(full_run(name=name).to_dict()))
    run = profile("fed.json", "tabfeed.json", "--save", "both.html", cwd=tmp_path)
    assert run.returncode == 0, run.stderr
    assert "times as fast" in run.stdout
    assert (tmp_path / "both.html").exists()
