"""The machine and the versions a result belongs to."""

from __future__ import annotations

import hashlib
import os
import platform
import subprocess
from collections.abc import Iterable
from contextlib import suppress
from datetime import datetime, timezone
from importlib import metadata
from pathlib import Path
from typing import Any

__all__ = ["about", "code_digest", "code_version", "versions"]

ROOT = Path(__file__).parents[2]
_ALWAYS = ("tabfeed", "numpy", "pyarrow", "polars", "duckdb", "torch")


def about() -> dict[str, Any]:
    """Hardware, system, versions, date."""
    return {
        "date": datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
        "cpu": _cpu(),
        "cores": len(os.sched_getaffinity(0)),
        "memory": os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "versions": versions(_ALWAYS),
        "load": round(os.getloadavg()[0], 2),
    }


def versions(names: Iterable[str]) -> dict[str, str]:
    """Of those packages that are installed."""
    found = {}
    for name in names:
        with suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    return found


def code_version() -> str:
    """Of tabfeed's own code: the tree of the commit, and whether files differ from it."""
    commit = _git("rev-parse", "--short", "HEAD:src")
    changed = _git("status", "--porcelain", "--", "src")
    return f"{commit or 'unknown'}{' with changes' if changed else ''}"


def code_digest() -> str:
    """Of all that is measured and that measures: whether a heat is still worth something."""
    digest = hashlib.sha256()
    for folder in ("src/tabfeed", "benchmarks/harness", "benchmarks/peers"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            digest.update(path.read_bytes())
    return digest.hexdigest()[:12]


def _git(*arguments: str) -> str:
    try:
        found = subprocess.run(
            ["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        return ""
    return found.stdout.strip()


def _cpu() -> str:
    for line in _lines("/proc/cpuinfo"):
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _lines(path: str) -> list[str]:
    return Path(path).read_text().splitlines() if os.path.exists(path) else []
