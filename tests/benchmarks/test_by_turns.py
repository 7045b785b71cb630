"""Two checkouts, one benchmark: what is compared, and that each runs its own code."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from benchmarks.by_turns import numbers

ROOT = Path(__file__).parents[2]
SCRIPT = """
import json, tabfeed
print(json.dumps({"rate": [tabfeed.RATE, tabfeed.RATE], "same": True}))
"""


def checkout(folder: Path, rate: int) -> Path:
    (folder / "src" / "tabfeed").mkdir(parents=True)
    (folder / "src" / "tabfeed" / "__init__.py").write_text(f"RATE = {rate}\n")
    (folder / "benchmarks").mkdir()
    (folder / "benchmarks" / "speed.py").write_text(SCRIPT)
    return folder


def test_numbers_are_named_by_their_path() -> None:
    found = numbers({"a": {"b": 2, "all": [1.0, 5.0, 3.0]}, "ok": True, "name": "x"})
    assert dict(found) == {"/a/b": 2.0, "/a/all": 3.0}


def test_each_checkout_runs_its_own_code(tmp_path: Path) -> None:
    old, new = checkout(tmp_path / "old", 4), checkout(tmp_path / "new", 3)
    tool = new / "benchmarks" / "by_turns.py"
    tool.write_text((ROOT / "benchmarks" / "by_turns.py").read_text("utf-8"))
    out = subprocess.run(
        [sys.executable, str(tool), "--old", str(old), "--rounds", "2", "speed.py"],
        stdout=subprocess.PIPE,
        env=dict(os.environ),
        check=True,
        timeout=120,
    )
    assert json.loads(out.stdout)["found"] == {"/rate": {"old": 4, "new": 3, "new / old": 0.75}}
