"""A few kills of each kind that benchmarks/kills.py does by the hundred."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "kills.py"


@pytest.fixture(scope="module")
def kills() -> ModuleType:
    spec = importlib.util.spec_from_file_location("kills", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["kills"] = module  # where its dataclasses look for their types
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("task", ["commit", "two writers"])
def test_some_kills(kills: ModuleType, task: str) -> None:
    """At calls and returns of tabfeed's functions, not at times."""
    pytest.importorskip("moto")
    figures = kills.kill(3, seed=1, tasks=(task,), by_time=False)
    assert figures["wrong"] == []
    assert figures["kills"] >= 3
