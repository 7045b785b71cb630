"""What docs/profiling.md shows runs as it stands: its Python in one go, then its commands."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = (Path(__file__).parent.parent / "docs" / "profiling.md").read_text("utf-8")
SCRIPT = """
from tabfeed import Dataset
from tabfeed.loader.torch import TorchAsyncItr
import sys
assert sys.argv[1:] == ["--epochs", "1"]
for batch in TorchAsyncItr(Dataset("train"), cats=["C1"], labels=["label"], batch_size=4096):
    sum(range(100_000))
"""


def run(folder: Path, *command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-W", "error", *command], cwd=folder, capture_output=True, text=True
    )


@pytest.mark.timeout(120)
def test_the_page_runs(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    blocks = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    assert len(blocks) == 3
    done = run(tmp_path, "-c", "\n".join(blocks))
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "first.html").exists() and (tmp_path / "both.html").exists()
    (tmp_path / "train.py").write_text(SCRIPT)
    commands = re.findall(r"^tabfeed (.*)$", PAGE, re.MULTILINE)
    assert [c.split()[0] for c in commands] == [
        "profile",
        "profile",
        "profile",
        "doctor",
        "rewrite",
    ]
    for command in commands:
        done = run(tmp_path, "-m", "tabfeed", *shlex.split(command))
        allowed = (0, 1) if "--fail-under" in command else (0,)  # it does little but wait
        assert done.returncode in allowed, (command, done.stderr)
        assert "Traceback" not in done.stderr
