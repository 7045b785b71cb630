"""Who does the work: two verbs, map and reduce, over whatever a partition is.

An executor is anything with these two methods. `tabfeed.execute.local` runs them on
threads of this process. The work itself (decoding, expressions, writing) releases the
interpreter lock, so threads are enough on one machine. `tabfeed.execute.dask` runs them on a
cluster; `tabfeed.execute.choice` says which of them is meant where nobody says.
"""

from __future__ import annotations

from tabfeed.execute.choice import Distributed, as_executor, current_executor, set_client
from tabfeed.execute.local import Executor, LocalExecutor

__all__ = [
    "Distributed",
    "Executor",
    "LocalExecutor",
    "as_executor",
    "current_executor",
    "set_client",
]
