"""Who does the work: two verbs, map and reduce, over whatever a partition is.

An executor is anything with these two methods. `tabfeed.execute.local` runs them on
threads of this process. The work itself (decoding, expressions, writing) releases the
interpreter lock, so threads are enough on one machine.
"""

from __future__ import annotations

from tabfeed.execute.local import Executor, LocalExecutor

__all__ = ["Executor", "LocalExecutor"]
