"""All that needs a GPU, in one go: its tests, and the benchmarks whose results are kept.

Tests run side by side, but for those that fill the GPU. Each benchmark writes JSON under the name
it has in `benchmarks/results`; that of the GPU is part of it. Ends with 1 if anything fails.

    python benchmarks/on_gpu.py --data DIR --out DIR [--only tests gpu large_groups wide keras]
    python benchmarks/on_gpu.py --out DIR --only tests

`DIR` for data should have 20 GB free, and be on a disk: files come from the page cache. What needs
a package that is missing (pylibcudf, JAX, Keras) is skipped, or fails, and says so.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.harness.gpu_about import gpu_about

__all__ = ["ALONE", "TESTS", "Task", "measurements", "run"]

ROOT = Path(__file__).resolve().parents[1]
FILLS = "nearly_full or mid_training"  # tests among others that take most of the memory
BESIDE = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}  # JAX would take most of it as well


@dataclass(frozen=True)
class Task:
    """A command, and which variables it needs.

    Attributes
    ----------
    name
        What its output is written to.
    arguments
        Of Python.
    env
        Variables.
    """

    name: str
    arguments: tuple[str, ...]
    env: dict[str, str] = field(default_factory=dict)

    def start(self, out: Path) -> subprocess.Popen[bytes]:
        """Begin; what it prints goes to a file."""
        with (out / f"{self.name}.txt").open("wb") as file:
            return subprocess.Popen(
                [sys.executable, *self.arguments],
                cwd=ROOT,
                env=os.environ | self.env,
                stdout=file,
                stderr=subprocess.STDOUT,
            )


def tests(name: str, *arguments: str, **env: str) -> Task:
    """Some tests of ``tests/device``."""
    files = [f"tests/device/{a}.py" if a.startswith("test_") else a for a in arguments]
    return Task(name, ("-m", "pytest", "-q", "-p", "no:cacheprovider", *files), BESIDE | env)


OPS = ("test_gpu_ops", "test_gpu_stages", "test_resident", "test_resident_store")
TESTS = (
    tests("loader", "test_gpu_loader", "test_gpu_passes", "test_gpu_delivery", "test_gpu_readers"),
    tests("ops", *OPS, "test_static", "-k", f"not ({FILLS})"),
    tests("programs", "test_dataloader_gpu", "test_examples_gpu"),
    tests("jax", "test_jax_gpu", "test_jax_gpu_chunks"),
    tests("keras_on_jax", "test_keras_gpu", KERAS_BACKEND="jax"),
    tests("keras_on_torch", "test_keras_gpu", KERAS_BACKEND="torch"),
)
ALONE = (
    tests("nearly_full", *OPS, "-k", FILLS),
    tests("no_memory", "test_no_memory"),
)


def measurements(data: Path, out: Path, gpu: str) -> Iterator[tuple[str, Task]]:
    """Each with what `--only` calls it."""

    def task(name: str, script: str, *options: str, **env: str) -> Task:
        result = ("--json", str(out / f"{name}.json"))
        return Task(name, (f"benchmarks/{script}.py", *options, *result), env)

    few = ("--rows", "24000000", "--rounds", "3", "--sections", "load")
    yield "gpu", task(f"gpu_{gpu}", "gpu", "--data", f"{data}/rows")
    for name, options in (
        ("wide", ("--wide",)),
        ("large_groups", ("--group-rows", "1000000")),
    ):
        yield name, task(f"gpu_{gpu}_{name}", "gpu", "--data", f"{data}/{name}", *few, *options)
    for backend in ("torch", "jax"):
        options = ("--rows", "8000000", "--most-ids", "10000000", "--rounds", "5")
        options += ("--data", f"{data}/keras")
        name = f"keras_{backend}_{gpu}"
        yield "keras", task(name, "keras_backends", *options, KERAS_BACKEND=backend)


def run(tasks: tuple[Task, ...], out: Path) -> bool:
    """Run side by side; say how each ended, and whether all went well."""
    begin = time.monotonic()
    started = [(task, task.start(out)) for task in tasks]
    well = True
    for task, process in started:
        failed = process.wait() != 0
        said = (out / f"{task.name}.txt").read_text(errors="replace").strip().splitlines()
        last = said[-1] if said and not task.arguments[0].startswith("benchmarks") else ""
        state = "failed" if failed else "done"
        print(f"{time.monotonic() - begin:5.0f} s  {task.name}: {state}  {last}", flush=True)
        well = well and not failed
    return well


def main() -> int:
    """Run what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    kinds = ["tests", "gpu", "large_groups", "wide", "keras"]
    parser.add_argument("--data", type=Path, help="where data are made; tests need none")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--only", nargs="*", choices=kinds, default=kinds)
    args = parser.parse_args()
    if args.data is None and args.only != ["tests"]:
        parser.error("--data is needed for all but tests")
    args.out.mkdir(parents=True, exist_ok=True)
    name = gpu_about()["GPU"]
    if name is None:
        raise SystemExit("nvidia-smi finds no GPU here")
    well = True
    if "tests" in args.only:
        well = run(TESTS, args.out)
        for task in ALONE:
            well = run((task,), args.out) and well
    for kind, task in measurements(args.data or args.out, args.out, name.split()[-1].lower()):
        if kind in args.only:
            well = run((task,), args.out) and well
    return int(not well)


if __name__ == "__main__":
    sys.exit(main())
