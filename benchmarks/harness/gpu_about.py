"""Which GPU a benchmark ran on, in the words of its driver."""

from __future__ import annotations

import subprocess

__all__ = ["gpu_about"]

_ASKED = {"GPU": "name", "GPU memory": "memory.total", "driver": "driver_version"}


def gpu_about() -> dict[str, str | None]:
    """Name, memory and driver of the first GPU; None where there is none to ask.

    Examples
    --------
    >>> sorted(gpu_about())
    ['GPU', 'GPU memory', 'driver']
    """
    command = ["nvidia-smi", f"--query-gpu={','.join(_ASKED.values())}", "--format=csv,noheader"]
    try:
        told = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return dict.fromkeys(_ASKED)
    first = told.splitlines()[0].split(", ")
    return dict(zip(_ASKED, first, strict=True))
