"""What a loader on the CPU imports: nothing that is for GPUs."""

from __future__ import annotations

import subprocess
import sys

import pytest

MOST_LOADER_MODULES = 43  # of tabfeed.loader, for an epoch of TorchAsyncItr on the CPU
MOST_MODULES = 115  # of tabfeed in all

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
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=150)
    assert run.returncode == 0, run.stderr
    return run.stdout.splitlines()[-1].split()


@pytest.mark.timeout(180)
@pytest.mark.parametrize(("framework", "make"), [("torch", TORCH), ("jax", JAX), ("keras", KERAS)])
def test_nothing_for_gpus_is_imported_on_the_cpu(framework: str, make: str) -> None:
    pytest.importorskip(framework)
    found = modules_after_an_epoch(make)
    assert f"tabfeed.loader.{framework}" in found
    assert [name for name in found if name.startswith("tabfeed.loader.gpu")] == []


@pytest.mark.timeout(180)
def test_a_torch_loader_imports_few_modules() -> None:
    pytest.importorskip("torch")
    found = modules_after_an_epoch(TORCH)
    assert sum(name.startswith("tabfeed.loader") for name in found) <= MOST_LOADER_MODULES
    assert len(found) <= MOST_MODULES
