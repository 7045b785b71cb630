"""What docs/profiling.md shows runs as it stands: its Python in one go, then its commands."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tabfeed.cli import app

PAGE = (Path(__file__).parent.parent / "docs" / "profiling.md").read_text("utf-8")
SCRIPT = """
from tabfeed import Dataset
from tabfeed.loader.torch import TorchAsyncItr
import sys
assert sys.argv[1:] == ["--epochs", "1"]
for batch in TorchAsyncItr(Dataset("train"), cats=["C1"], labels=["label"], batch_size=4096):
    sum(range(100_000))
"""


@pytest.mark.timeout(180)
def test_the_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    assert len(blocks) == 3
    exec(compile("\n".join(blocks), "profiling.md", "exec"), {"__name__": "page"})
    assert Path("first.html").exists() and Path("both.html").exists()
    Path("train.py").write_text(SCRIPT)
    commands = re.findall(r"^tabfeed (.*)$", PAGE, re.MULTILINE)
    assert [c.split()[0] for c in commands] == ["profile"] * 3 + ["doctor", "rewrite"]
    for command in commands:
        done = CliRunner().invoke(app, shlex.split(command))
        allowed = (0, 1) if "--fail-under" in command else (0,)  # it does little but wait
        assert done.exit_code in allowed, (command, done.output, done.exception)
    assert Path("report.html").exists() and Path("train_fast").is_dir()
