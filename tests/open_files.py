"""Which files this process holds open."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

__all__ = ["open_files"]


def open_files(below: Path) -> list[str]:
    """The open files in a folder, itself included; other threads may open and close others."""
    if not Path("/proc/self/fd").exists():
        pytest.skip("needs Linux's list of the files a process holds open")
    found = []
    for handle in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{handle}")
        except FileNotFoundError:  # closed since it was listed
            continue
        if Path(target).is_relative_to(below):
            found.append(target)
    return found
