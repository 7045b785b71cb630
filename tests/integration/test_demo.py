"""The demo runs, at a small size, and proves what it says."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

DEMO = Path(__file__).parents[2] / "examples" / "demo.py"


def test_demo_tells_that_no_row_was_lost(tmp_path: Path) -> None:
    command = [sys.executable, "-W", "error", str(DEMO), "--rows", "20000", "--folder", "out"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "No row was lost: 20,000 rows before and after" in " ".join(done.stdout.split())
    assert (tmp_path / "out" / "shuffled" / "_tabfeed.json").exists()
