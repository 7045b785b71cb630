"""Polars in a forked child: an error where there would be a wait without an end.

A fork copies memory, not threads. A child of a process in which Polars has started its threads
hands it work that nobody does. Whether they run is looked up in ``/proc`` at the moment of the
fork, which costs a fraction of a millisecond; where there is no ``/proc``, Polars counts as running
once it is imported.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from tabfeed.errors import TabfeedError, WorkflowError

__all__ = ["refuse_forked"]

_TASKS = Path("/proc/self/task")
_ran = False  # in this process, when it was last forked
_orphan = False  # this process was forked from one in which Polars ran


def _before_fork() -> None:
    global _ran
    _ran = "polars" in sys.modules and _threads_run()


def _threads_run() -> bool:
    try:
        names = [(task / "comm").read_text() for task in _TASKS.iterdir()]
    except OSError:
        return True
    return any(name.startswith("polars-") and name[7:].strip().isdigit() for name in names)


def _in_child() -> None:
    global _orphan
    _orphan = _orphan or _ran


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_child=_in_child)


def refuse_forked(what: str = "this workflow", error: type[TabfeedError] = WorkflowError) -> None:
    """Raise if Polars would wait for threads that stayed in the parent.

    Whatever hands Polars a frame, or takes one from it, calls this first.

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
            "and would wait for them without end: start processes with spawn or forkserver (for a "
            'DataLoader multiprocessing_context="spawn", gunicorn without --preload), or use '
            "threads alone (num_workers=0)"
        )
