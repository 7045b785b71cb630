"""Executors: objects with two methods, ``map`` and ``reduce``, that do the work.

`tabfeed.execute.executor` runs them on threads of this process. The work itself (decoding,
expressions, writing) releases the GIL, so threads are enough on one machine. `tabfeed.execute.dask`
runs them on a cluster. `tabfeed.execute.choice` holds the default.
"""

from __future__ import annotations

from tabfeed.execute.choice import Distributed, as_executor, current_executor, set_client
from tabfeed.execute.executor import Executor, LocalExecutor

__all__ = [
    "Distributed",
    "Executor",
    "LocalExecutor",
    "as_executor",
    "current_executor",
    "set_client",
]
