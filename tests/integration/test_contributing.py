"""The operator that CONTRIBUTING makes start to finish does what it says there."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

import tabfeed as nvt

CONTRIBUTING = Path(__file__).parents[2] / "CONTRIBUTING.md"


def test_the_operator_in_contributing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blocks = re.findall(r"```python\n(.*?)```", CONTRIBUTING.read_text(), re.DOTALL)
    (tmp_path / "below_max.py").write_text("\n".join(blocks))
    monkeypatch.syspath_prepend(tmp_path)
    try:
        from below_max import BelowMax  # type: ignore[import-not-found]

        workflow = nvt.Workflow(["price"] >> BelowMax(scale=2)).fit({"price": [1.0, 4.0]})
        assert workflow.transform({"price": [1.0, 3.0]})["price"].tolist() == [6.0, 2.0]
    finally:
        sys.modules.pop("below_max", None)
