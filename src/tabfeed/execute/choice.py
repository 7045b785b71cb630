"""Who does the work when nobody says: the threads of this machine, or a cluster set for all.

The order is: an ``executor=`` given to the call; the client or executor a `Workflow` was made
with; the innermost ``with Distributed(...)`` block that is open; what `set_client` set; the threads
of this machine. A ``distributed.Client`` that merely exists in the process is left alone: it may
belong to somebody else, and its workers may not see the files.

The choice holds for the whole process, threads included.
"""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING, Any

from tabfeed.budget import cpu_count
from tabfeed.errors import ArgumentError, MissingExtraError
from tabfeed.execute.local import Executor, LocalExecutor

if TYPE_CHECKING:
    from tabfeed.execute.dask import DaskExecutor

__all__ = ["Distributed", "as_executor", "current_executor", "set_client"]

_for_all: list[Executor] = []
_blocks: list[Executor] = []


def current_executor() -> Executor:
    """Who does the work now, where nobody says.

    Examples
    --------
    >>> type(current_executor()).__name__
    'LocalExecutor'
    """
    chosen = _blocks or _for_all
    return chosen[-1] if chosen else LocalExecutor()


def set_client(client: Any | None) -> None:
    """Do all further work of this process on a cluster; None goes back to threads.

    Parameters
    ----------
    client
        A ``distributed.Client``, a `tabfeed.execute.dask.DaskExecutor`, or None.
    """
    _for_all[:] = [] if client is None else [as_executor(client)]


def as_executor(client: Any) -> Executor:
    """A client's executor; an executor as it is."""
    if hasattr(client, "map") and hasattr(client, "reduce"):
        executor: Executor = client
        return executor
    return _dask().executor_of(client)  # type: ignore[no-any-return]


def _dask() -> Any:
    try:
        from tabfeed.execute import dask
    except ModuleNotFoundError as e:
        if e.name not in ("dask", "distributed"):
            raise
        raise MissingExtraError("dask", "Dask clusters") from e
    return dask


class Distributed:
    """Do the work inside a ``with`` block on a Dask cluster.

    Parameters
    ----------
    client
        A ``distributed.Client``, or the address of a scheduler. Without it, a cluster of processes
        is started on this machine and stopped when the block ends.
    workers
        How many processes to start; one for each core by default.
    threads_per_worker
        Threads of each.
    memory_limit
        Memory of each: ``"4GB"``; an equal share of this machine's by default.
    shared
        A folder that every worker and this process can write, for rows that are regrouped
        (`Dataset.shuffle_by_keys`, `tabfeed.ops.Groupby`). The temporary folder of this process
        by default, which does where all share a machine; it is tried before the work starts.

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
            raise ArgumentError("give client= or workers=, not both: a client has its workers")
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
        dask = _dask()
        client = self._given
        if client is None:
            client = self._own = dask.start_local(*self._sizes)
        elif isinstance(client, str):
            client = self._own = dask.connect(client)
        self.executor = dask.DaskExecutor(client, shared=self._shared)
        _blocks.append(self.executor)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self.executor is not None:
            _blocks.remove(self.executor)
        self.executor = None
        if self._own is not None:
            _dask().disconnect(self._own)
            self._own = None
