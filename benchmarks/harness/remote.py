"""A contender's process seen from outside: commands with a time limit, and a certain end."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

from .contender import Contender
from .usage import Watch, tree

__all__ = ["ContenderFailed", "Remote", "python_of"]

ROOT = Path(__file__).parents[2]


class ContenderFailed(Exception):
    """A contender raised, took too long or died; the message says which."""


def python_of(venv: str) -> Path:
    """The interpreter a contender runs in; ours, unless it needs an environment of its own."""
    return Path(sys.executable) if venv == "bench" else ROOT / f".venv-{venv}" / "bin" / "python"


class Remote:
    """Starts the process and talks to it.

    Parameters
    ----------
    who
        The contender.
    log
        Where what it prints goes.
    package
        Where its adapter is looked for.
    """

    def __init__(self, who: Contender, log: Path, package: str = "benchmarks.peers") -> None:
        self.who = who
        python = python_of(who.venv)
        if not python.exists():
            raise ContenderFailed(f"not set up: there is no {python.parents[1].name}")
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("wb") as errors:
            self.process = subprocess.Popen(
                [str(python), "-m", "benchmarks.harness.worker", who.name, package],
                cwd=ROOT,
                env=_environment(),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                start_new_session=True,
            )

    def ask(self, do: str, *, limit: float, **arguments: Any) -> dict[str, Any]:
        """Send a command and wait for its answer, at most `limit` seconds."""
        assert self.process.stdin is not None
        with suppress(BrokenPipeError):
            self.process.stdin.write(json.dumps({"do": do, **arguments}).encode() + b"\n")
            self.process.stdin.flush()
        found: dict[str, Any] = json.loads(self._line(do, limit))
        if not found.pop("ok"):
            raise ContenderFailed(found["error"])
        return found

    def _line(self, do: str, limit: float) -> bytes:
        assert self.process.stdout is not None
        parts: list[bytes] = []
        end = time.monotonic() + limit
        while not parts or not parts[-1].endswith(b"\n"):
            left = end - time.monotonic()
            if left <= 0 or not select.select([self.process.stdout], [], [], left)[0]:
                raise ContenderFailed(f"took longer than {limit:.0f} s to {do}")
            part = os.read(self.process.stdout.fileno(), 65_536)
            if not part:
                code = self.process.wait(10)
                raise ContenderFailed(f"its process ended with {code} when told to {do}")
            parts.append(part)
        return b"".join(parts)

    def watched(self, do: str, *, limit: float, **arguments: Any) -> tuple[dict[str, Any], int]:
        """The same, and the most memory the process and its children had meanwhile, in bytes."""
        with Watch(self.process.pid) as watch:
            found = self.ask(do, limit=limit, **arguments)
        return found, watch.most

    def close(self, *, wait: float = 5.0) -> None:
        """End it and all it started, after some seconds' grace."""
        processes = tree(self.process.pid)
        with suppress(BrokenPipeError):
            if self.process.stdin is not None:
                self.process.stdin.close()
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(wait)
        for process in processes:
            with suppress(psutil.Error):
                process.kill()
        self.process.wait(10)
        if self.process.stdout is not None:
            self.process.stdout.close()


def _environment() -> dict[str, str]:
    """Ours, and quiet."""
    quiet = {
        "TF_CPP_MIN_LOG_LEVEL": "3",
        "HF_HUB_OFFLINE": "1",
        "HF_DATASETS_OFFLINE": "1",
        "RAY_DEDUP_LOGS": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "DO_NOT_TRACK": "1",
        "CUDA_VISIBLE_DEVICES": "",
        "PYTHONPATH": "",
    }
    return {**os.environ, **quiet}
