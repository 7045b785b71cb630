"""The default executor: threads of this machine, or a cluster chosen for the whole process.

In order of precedence: an ``executor=`` given to the call; the client or
executor a `Workflow` was made with; the innermost open ``with Distributed(...)`` block; what
`set_client` set; the threads of this machine. A ``distributed.Client`` that merely exists in the
process is not used: it may belong to other code, and its workers may not see the files. The choice
applies to all threads of the process.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from tabfeed.budget import cpu_count
from tabfeed.errors import ArgumentError, MissingExtraError
from tabfeed.execute.executor import Executor, LocalExecutor

if TYPE_CHECKING:
    from tabfeed.execute.dask import DaskExecutor

_process_wide: list[Executor] = []
_blocks: list[Executor] = []


def current_executor() -> Executor:
    """The executor used when a call names none.

    Examples
    --------
    >>> type(current_executor()).__name__
    'LocalExecutor'
    """
    chosen = _blocks or _process_wide
    return chosen[-1] if chosen else LocalExecutor()


def set_client(client: Any | None) -> None:
    """Use a cluster for all further work of this process; None goes back to threads.

    Parameters
    ----------
    client
        A ``distributed.Client``, a `tabfeed.execute.dask.DaskExecutor`, or None.
    """
    _process_wide[:] = [] if client is None else [as_executor(client)]


def as_executor(client: Any) -> Executor:
    """The executor of a client; an executor is returned as it is."""
    if hasattr(client, "map") and hasattr(client, "reduce"):
        executor: Executor = client
        return executor
    _require_dask()
    from tabfeed.execute.dask import executor_of

    return executor_of(client)


def _require_dask() -> None:
    try:
        importlib.import_module("distributed")
    except ModuleNotFoundError as e:
        if e.name not in ("dask", "distributed"):
            raise
        raise MissingExtraError("dask", "Dask clusters") from e


class Distributed:
    """Run the work inside a ``with`` block on a Dask cluster.

    Parameters
    ----------
    client
        A ``distributed.Client``, or the address of a scheduler. Without it, a cluster of processes
        is started on this machine, and stopped when the block ends.
    workers
        How many processes to start; one per core by default.
    threads_per_worker
        Threads of each worker.
    memory_limit
        Memory of each worker: ``"4GB"``; by default an equal share of this machine's.
    shared
        A folder that every worker and this process can write, for rows that are regrouped
        (`Dataset.shuffle_by_keys`, `tabfeed.ops.Groupby`). By default the temporary folder of this
        process, which works if all run on one machine. It is checked before the work starts.

    Examples
    --------
    >>> import tabfeed
    >>> with tabfeed.Distributed(workers=2) as cluster:  # doctest: +SKIP
    ...     print(cluster.client.dashboard_link)
    ...     workflow.fit(dataset)
    """

    def __init__(
        self,
        client: Any = None,
        *,
        workers: int | None = None,
        threads_per_worker: int = 1,
        memory_limit: str = "auto",
        shared: str | None = None,
    ) -> None:
        if client is not None and workers is not None:
            raise ArgumentError("give client= or workers=, not both: a client already has workers")
        for name, number in {"workers": workers, "threads_per_worker": threads_per_worker}.items():
            if number is not None and number < 1:
                raise ArgumentError(f"{name} is {number}; it must be 1 or more")
        self._given, self._shared = client, shared
        self._sizes = (workers or cpu_count(), threads_per_worker, memory_limit)
        self._own: Any = None
        self.executor: DaskExecutor | None = None

    @property
    def client(self) -> Any:
        """The client, while the block is open."""
        return None if self.executor is None else self.executor.client

    def __enter__(self) -> Distributed:
        _require_dask()
        from tabfeed.execute.dask import DaskExecutor
        from tabfeed.execute.dask_cluster import connect, start_local

        client = self._given
        if client is None:
            client = self._own = start_local(*self._sizes)
        elif isinstance(client, str):
            client = self._own = connect(client)
        self.executor = DaskExecutor(client, shared=self._shared)
        _blocks.append(self.executor)
        return self

    def __exit__(self, *exc: object) -> None:
        if self.executor is not None:
            _blocks.remove(self.executor)
        self.executor = None
        if self._own is not None:
            from tabfeed.execute.dask_cluster import disconnect

            disconnect(self._own)
            self._own = None
