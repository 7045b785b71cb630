"""Heats already run, one file each, so that an interrupted run goes on where it stopped."""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import asdict
from pathlib import Path
from typing import Any

from .heat import Settings
from .suites import Options, Plan

__all__ = ["Store", "write_json"]


class Store:
    """The folder of finished heats.

    Parameters
    ----------
    folder
        Where they are kept.
    code
        Anything that, when it changes, makes finished heats worthless: a digest of the code.
    """

    def __init__(self, folder: Path, code: str) -> None:
        self.folder, self.code = folder, code

    def path(self, plan: Plan, options: Options, settings: Settings) -> Path:
        """Where a heat with these settings is kept."""
        what = [asdict(plan), options.rows, options.feature_rows, self.code]
        how = [settings.rounds, settings.seconds, settings.patience]
        digest = hashlib.sha256(json.dumps([what, how], default=str).encode()).hexdigest()[:12]
        return self.folder / f"{plan.suite}-{digest}.json"

    def get(self, path: Path) -> dict[str, Any] | None:
        """A finished heat, or None."""
        return dict(json.loads(path.read_text("utf-8"))) if path.exists() else None

    def put(self, path: Path, found: dict[str, Any]) -> None:
        """Keep a finished heat."""
        write_json(path, found)

    def clear(self) -> None:
        """Forget all."""
        for path in self.folder.glob("*.json"):
            path.unlink()


def write_json(path: Path, value: Any) -> None:
    """All of it or nothing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_suffix(".part")
    beside.write_text(json.dumps(value, indent=1) + "\n", "utf-8")
    os.replace(beside, path)
