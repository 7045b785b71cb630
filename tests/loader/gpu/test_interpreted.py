"""The tests of kernels, in a process of their own, where Triton interprets them on the CPU.

Triton has to be told so before it is imported, and must not share a process with TensorFlow. It is
therefore not in the environment of the other tests, but in a folder beside it.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
APART = Path(sys.prefix) / "triton"
FILES = (
    "tests/loader/gpu/parquet/test_page_kernel.py",
    "tests/loader/gpu/parquet/test_encoded_blocks.py",
)


def test_kernels_in_a_process_of_their_own(tmp_path):
    if not (APART / "triton").is_dir() and find_spec("triton") is None:
        pytest.skip(f"Triton is neither in {APART} nor installed, so kernels cannot be run")
    path = os.pathsep.join(filter(None, [str(APART), os.environ.get("PYTHONPATH")]))
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *FILES],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": path, "TRITON_INTERPRET": "1", "TMPDIR": str(tmp_path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    assert re.search(r"\d+ passed", done.stdout) and "skipped" not in done.stdout, done.stdout
