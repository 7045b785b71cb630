"""What a loader on the CPU imports: nothing that is for GPUs, and little before it is used."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import polars as pl
import pytest

MOST_LOADER_MODULES = 34  # of tabfeed.loader, for an epoch of TorchAsyncItr on the CPU
MOST_MODULES = 88  # of tabfeed in all
MOST_IMPORTED = 65  # of tabfeed, by importing tabfeed.loader.torch alone

TORCH = """
from tabfeed.loader.torch import TorchAsyncItr
loader = TorchAsyncItr(data, ["c"], ["x"], ["y"], batch_size=10, shuffle=True, device="cpu")
"""
JAX = """
from tabfeed.loader.jax import Loader
loader = Loader(data, 10, shuffle=True, targets=["y"], device="cpu")
"""
KERAS = """
import os
os.environ["KERAS_BACKEND"] = "torch"
from tabfeed.loader.keras import KerasSequenceLoader
loader = KerasSequenceLoader(data, 10, ["y"], cat_names=["c"], cont_names=["x"], device="cpu")
"""


def modules_after_an_epoch(make: str) -> list[str]:
    code = f"""
import sys
from tabfeed import Dataset
data = Dataset({{"c": [1] * 100, "x": [0.5] * 100, "y": [1.0] * 100}})
{make}
assert sum(1 for _ in loader) == 10
print(*(name for name in sys.modules if name.partition(".")[0] == "tabfeed"))
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    return run.stdout.splitlines()[-1].split()


@pytest.mark.parametrize(("framework", "make"), [("torch", TORCH), ("jax", JAX), ("keras", KERAS)])
def test_nothing_for_gpus_is_imported_on_the_cpu(framework: str, make: str) -> None:
    pytest.importorskip(framework)
    found = modules_after_an_epoch(make)
    assert f"tabfeed.loader.{framework}" in found
    assert [name for name in found if name.startswith("tabfeed.loader.gpu")] == []


def test_a_torch_loader_imports_few_modules() -> None:
    pytest.importorskip("torch")
    found = modules_after_an_epoch(TORCH)
    assert sum(name.startswith("tabfeed.loader") for name in found) <= MOST_LOADER_MODULES
    assert len(found) <= MOST_MODULES


def test_importing_the_torch_loaders_imports_nothing_that_writes_or_opens_files() -> None:
    pytest.importorskip("torch")
    code = "import sys, tabfeed.loader.torch; print(*(m for m in sys.modules if 'tabfeed' in m))"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    found = run.stdout.split()
    unneeded = ("io.write", "io.shuffle", "io.commit", "io.open_table", "io.find_files")
    unneeded += ("loader.read.cache", "loader.gpu")
    assert [
        name for name in found if name.startswith(tuple(f"tabfeed.{u}" for u in unneeded))
    ] == []
    assert len(found) <= MOST_IMPORTED


@pytest.mark.timeout(180)
@pytest.mark.parametrize("part_size", [None, 1], ids=["whole", "slices"])
@pytest.mark.parametrize("cache", [None, "memory"])
def test_an_epoch_of_numbers_does_not_import_pandas(
    cache: str | None, part_size: int | None, tmp_path: Path
) -> None:
    """Arrow's own way to NumPy would."""
    pytest.importorskip("torch")
    pytest.importorskip("pandas")
    frame = pl.DataFrame({"c": [1, 2], "b": [True, False], "l": [[1], [2, 3]], "n": [0.5, 1.5]})
    frame.write_parquet(tmp_path / "a.parquet")
    code = f"""
import sys
from tabfeed import Dataset
from tabfeed.loader.torch import Loader
data = Dataset({str(tmp_path / "a.parquet")!r}, part_size={part_size!r})
loader = Loader(data, 2, shuffle=True, device="cpu", cache={cache!r})
assert [sum(1 for _ in loader) for _ in range(2)] == [1, 1]
assert "pandas" not in sys.modules
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=150)
    assert run.returncode == 0, run.stderr
