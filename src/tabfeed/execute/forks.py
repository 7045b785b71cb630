"""Refuse Polars in a forked child, where it would deadlock.

A fork copies memory, not threads. If Polars had started its threads in the parent, work handed to
Polars in the child never runs. Whether the threads exist is read from ``/proc`` at the moment of
the fork, which costs a fraction of a millisecond; without ``/proc``, Polars counts as running once
imported.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from tabfeed.errors import TabfeedError, WorkflowError

__all__ = ["refuse_forked"]

_TASKS = Path("/proc/self/task")
_running = False  # whether Polars had threads when this process last forked
_orphan = False  # whether this process was forked while Polars had threads


def _before_fork() -> None:
    global _running
    _running = "polars" in sys.modules and _threads_run()


def _threads_run() -> bool:
    try:
        names = [(task / "comm").read_text() for task in _TASKS.iterdir()]
    except OSError:
        return True
    return any(name.startswith("polars-") and name[7:].strip().isdigit() for name in names)


def _in_child() -> None:
    global _orphan
    _orphan = _orphan or _running


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_child=_in_child)


def refuse_forked(what: str = "this workflow", error: type[TabfeedError] = WorkflowError) -> None:
    """Raise if this process was forked after Polars had started its threads.

    Call this before handing Polars a frame, or taking one from it.

    Parameters
    ----------
    what
        What Polars is needed for.
    error
        The type to raise.
    """
    if _orphan:
        raise error(
            f"Polars, which runs {what}, had started its threads when this process was forked, "
            "and would wait for them forever: start processes with spawn or forkserver (for a "
            'DataLoader multiprocessing_context="spawn", gunicorn without --preload), or use '
            "only threads (num_workers=0)"
        )
