"""`tabfeed profile`: scripts unchanged, by subprocess; datasets alone, comparisons, refusals."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from tabfeed.cli import app
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
    return subprocess.run(command, capture_output=True, text=True, cwd=cwd)


def here(*arguments: object) -> Any:
    """The same in this process, for what needs no process of its own."""
    return CliRunner().invoke(app, ["profile", *map(str, arguments)])


@pytest.fixture
def data(tmp_path: Path) -> Path:
    folder = tmp_path / "data"
    folder.mkdir()
    table = {"x": np.arange(200), "y": np.zeros(200, np.float32), "name": ["a"] * 200}
    pq.write_table(pa.table(table), folder / "a.parquet", row_group_size=50)
    return folder


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


def test_tf_data_is_watched_where_it_runs_eagerly(tmp_path: Path) -> None:
    pytest.importorskip("tensorflow")
    (tmp_path / "train.py").write_text(TENSORFLOW)
    run = profile("--json", "train.py", cwd=tmp_path)
    assert run.returncode == 0, run.stderr
    told = json.loads(run.stdout)
    assert (told["steps"]["count"], told["loader"]["kind"]) == (10, "tf.data")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_script_with_nothing_to_watch(folder: Path) -> None:
    (folder / "plain.py").write_text("import sys; sys.exit(0)")
    run = here("--fail-under", "1", "plain.py")
    assert "no steps: the script" in run.stderr
    assert run.exit_code == 1


def test_a_script_that_ends_with_a_number_ends_so(folder: Path) -> None:
    (folder / "bad.py").write_text("raise SystemExit(7)")
    assert here("bad.py").exit_code == 7


def test_what_a_script_raises_is_told_as_its_own(folder: Path) -> None:
    (folder / "bad.py").write_text("def step():\n    return 1 / 0\nstep()")
    run = here("bad.py")
    assert run.exit_code == 1
    assert [line for line in run.stderr.splitlines() if line.startswith("  File")] == [
        '  File "bad.py", line 3, in <module>',
        '  File "bad.py", line 2, in step',
    ]
    assert run.stderr.endswith("ZeroDivisionError: division by zero\n")


def test_an_interrupted_script_still_has_a_profile(folder: Path) -> None:
    (folder / "long.py").write_text("raise KeyboardInterrupt")
    run = here("long.py", "--save", "never.html")  # the script's own option
    assert run.exit_code == 130
    assert "interrupted; this is the profile so far" in run.stderr
    assert "to the first batch" in run.stdout


def test_a_dataset_alone(folder: Path, data: Path) -> None:
    run = here(data, "--model", "none", "--seconds", "0.3", "--batch-size", "20")
    assert run.exit_code == 0, run.stderr
    assert "left out, no tensor can hold them: name" in run.stderr
    assert "without a model, the loader delivers" in " ".join(run.stdout.split())


def test_what_cannot_be_profiled(folder: Path, data: Path) -> None:
    for arguments, code, words in (
        ([data], 1, "use --model none"),
        (["none.py"], 1, "there is no script none.py"),
        ([data, "--model", "none", "--fail-under", "9"], 2, "needs a script"),
        ([data, "--model", "none", "other"], 2, "only one dataset"),
        ([data, "--modle", "none"], 2, "no such option"),
        (["--save", "a.png", "none.py"], 2, "must end in .html, .json, .txt"),
        (["--save", "none/a.html", "none.py"], 2, "there is no folder none"),
    ):
        run = here(*arguments)
        assert run.exit_code == code, (arguments, run.stderr)
        assert words in run.stderr


def test_saved_runs_are_compared(folder: Path) -> None:
    for name in ("fed", "tabfeed"):
        (folder / f"{name}.json").write_text(json.dumps(full_run(name=name).to_dict()))
    run = here("fed.json", "tabfeed.json", "--save", "both.html")
    assert run.exit_code == 0, run.stderr
    assert "speedup" in run.stdout
    assert (folder / "both.html").exists()
