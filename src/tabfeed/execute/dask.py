"""Map and reduce on a Dask cluster: any that a ``distributed.Client`` can reach.

The two verbs. Dask does what it is good at (scheduling, moving data between workers, starting
lost tasks again, spilling results to the workers' disks); nothing of its collections is used.
`tabfeed.execute.dask_run` is one run: what is sent, submitted, waited for and begun again.
`tabfeed.execute.dask_reduce` is the tree of a reduction. `tabfeed.execute.dask` makes
clients and judges them. No other file knows Dask.

A task that fails is tried three times in all; then the run ends with an error that names it. Tasks
of a worker that dies are done again elsewhere, by Dask while few workers died under a task, and by
submitting the task anew after that. If the scheduler itself is lost, or all results
with it, the run starts again once it is back, and ends with an error if it stays away.

Clients of Dask clusters: whether one can be used, made for an address, or with its own cluster.

Workers started here keep the memory they free for a while instead of giving it back at once.
Dask's own setting returns it after every task; the next one then takes each page anew from the
kernel, zeroed: fitting the README's workflow on 0.75 M rows took 300,000 page faults and 4.3 s of
processor time so, and 35,000 and 3.3 s with these settings. They reach glibc and
Polars' allocator only through the environment in which a worker starts; whoever set one of these
variables is obeyed.

Nor do they watch themselves as closely as Dask's do. Sampling the stack a hundred times a second,
looking at the memory ten times and at the event loop fifty times took 4.8 % of a core for two
workers that had nothing to do, and 2.8 % for the client that has their scheduler; now 0.7 and
0.8 %. What is lost is the dashboard's page of profiles, and half a second until a worker that
outgrows its memory is noticed. Nobody takes the work of a run (its parcel) off a worker either, as
Dask's memory manager does while the worker waits: it would be opened again for the next task.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable, Generator, Iterable, Sequence
from itertools import islice
from typing import Any, TypeVar

import dask
import distributed
from distributed import Client, Future

from tabfeed.errors import ArgumentError, ClusterError
from tabfeed.execute.dask_reduce import Tree
from tabfeed.execute.dask_run import Killed, Lost, Run
from tabfeed.execute.dask_tasks import Reduction, task_name
from tabfeed.execute.local import LocalExecutor
from tabfeed.execute.payload import pack, unpack
from tabfeed.execute.preflight import Preflight

__all__ = [
    "KEEP_MEMORY",
    "DaskExecutor",
    "connect",
    "connected",
    "disconnect",
    "executor_of",
    "start_local",
]

_BEFORE_SPAWN = "distributed.nanny.pre-spawn-environ"
KEEP_MEMORY = {
    "MALLOC_TRIM_THRESHOLD_": 2**28,
    "MALLOC_MMAP_THRESHOLD_": 2**25,
    "_RJEM_MALLOC_CONF": "dirty_decay_ms:5000,muzzy_decay_ms:5000",
}

_QUIETLY = {
    "distributed.worker.profile.enabled": False,
    "distributed.worker.memory.monitor-interval": "500ms",
    "distributed.admin.tick.interval": "500ms",
    "distributed.admin.system-monitor.interval": "5s",
    "distributed.scheduler.active-memory-manager.start": False,
}


def connected(client: Any) -> Client:
    """The client, if it can be used."""
    if not isinstance(client, Client):
        raise ArgumentError(
            f"client is {client!r}; it must be a distributed.Client, or a DaskExecutor made of one"
        )
    if client.asynchronous:
        raise ArgumentError("the client is asynchronous; make one without asynchronous=True")
    if client.status != "running":
        raise ClusterError(
            f"the client is {client.status}: {client!r}. Connect a new one: Client(address)"
        )
    return client


def start_local(workers: int, threads: int, memory_limit: str) -> Client:
    """A cluster of processes on this machine, and a client of it."""
    memory = {**dask.config.get(_BEFORE_SPAWN), **KEEP_MEMORY}
    with dask.config.set({_BEFORE_SPAWN: memory, **_QUIETLY}):
        cluster = distributed.LocalCluster(
            n_workers=workers,
            threads_per_worker=threads,
            memory_limit=memory_limit,
            processes=True,
            dashboard_address=":0",
            env={"POLARS_MAX_THREADS": str(threads), "TABFEED_THREADS": str(threads)},
        )
    return Client(cluster, set_as_default=False, direct_to_workers=True)


def connect(address: str) -> Client:
    """A client of the scheduler at an address."""
    try:
        return Client(address, set_as_default=False)
    except (OSError, ValueError, distributed.TimeoutError) as e:
        raise ClusterError(
            f"no scheduler answers at {address!r}: {e}; give the address that `dask scheduler` "
            "prints, such as tcp://10.0.0.1:8786"
        ) from e


def disconnect(client: Client) -> None:
    """Close a client, and the cluster that was started for it."""
    cluster = client.cluster
    client.close()
    if cluster is not None:
        cluster.close()


T = TypeVar("T")
R = TypeVar("R")

_AHEAD = 8  # tasks in flight for each thread of the cluster


class DaskExecutor:
    """The workers of a Dask cluster.

    Parameters
    ----------
    client
        A connected, synchronous ``distributed.Client``.
    shared
        A folder that every worker and this process can write, for rows that are regrouped; the
        temporary folder of this process by default, which does where all share a machine.
    tries
        How often a task may fail before the run ends.
    patience
        Seconds to wait for a worker, or for a lost scheduler, before giving up.
    """

    remote = True

    def __init__(
        self,
        client: Client,
        *,
        shared: str | None = None,
        tries: int = 3,
        patience: float = 60.0,
    ) -> None:
        self.client = connected(client)
        self.shared, self.tries, self.patience = shared, tries, patience
        self.surroundings = Preflight(client)

    # -- the two verbs ------------------------------------------------------------

    def map(self, items: Iterable[T], fn: Callable[[T], R]) -> Generator[R, None, None]:
        """``fn`` of each item, in order, lazily; a bounded number of results waits on workers."""
        run = Run(self, fn)
        numbered = enumerate(items)
        waiting: deque[tuple[str, bytes, Future[Any]]] = deque()
        try:
            while True:
                if len(waiting) <= self._window() // 2:  # some at a time: each submission costs
                    more = list(islice(numbered, self._window() - len(waiting)))
                    waiting += run.call([(task_name(fn, item, n), pack(item)) for n, item in more])
                if not waiting:
                    return
                name, _, future = waiting[0]
                try:
                    data = run.result(future)
                except Killed as e:
                    run.count_death(name, e)
                    waiting = _called_again(run, waiting)
                    continue
                except Lost as e:
                    run.start_again(name, e)
                    waiting = deque(run.call([(n, p) for n, p, _ in waiting]))
                    continue
                waiting.popleft()
                yield unpack(data)
                del data
        finally:
            run.cancel([future for _, _, future in waiting])

    def reduce(
        self, items: Iterable[T], partial: Callable[[T], R], merge: Callable[[R, R], R]
    ) -> R | None:
        """All of ``partial(item)``, neighbours merged; None if there are no items."""
        every = list(items)
        if not every:
            return None
        work = Reduction(partial, merge)
        run = Run(self, work)
        names = [task_name(partial, item, i) for i, item in enumerate(every)]
        leaves = list(zip(names, every, strict=True))
        while True:
            try:
                result: R = work.assemble(Tree(run, work).merged(leaves))
                return result
            except Lost as e:
                run.start_again(names[0], e)

    # -- what the cluster is like -------------------------------------------------

    def check(self) -> None:
        """Refuse a client that is closed, and workers that cannot do the work."""
        connected(self.client)
        self.surroundings.check(self.patience)

    def require_files(self, files: Sequence[Any]) -> None:
        """Refuse to start unless the workers see these files as this process does."""
        self.check()
        self.surroundings.require_files(files)

    def require_folder(self, place: Any) -> None:
        """Refuse to start unless the workers can write into a folder of this process."""
        self.check()
        self.surroundings.require_folder(place)

    @property
    def task_memory(self) -> int | None:
        """Bytes one task may use: half of the smallest worker's share for a thread."""
        self.check()
        return self.surroundings.task_memory()

    def _window(self) -> int:
        return max(8, _AHEAD * self.surroundings.threads)

    def __reduce__(self) -> tuple[type[LocalExecutor], tuple[()]]:
        return LocalExecutor, ()  # elsewhere, the work is done there

    def __repr__(self) -> str:
        return f"DaskExecutor({self.client!r})"


def _called_again(
    run: Run, waiting: deque[tuple[str, bytes, Future[Any]]]
) -> deque[tuple[str, bytes, Future[Any]]]:
    """The same tasks, those anew under which workers died."""
    killed = [i for i, (_, _, future) in enumerate(waiting) if run.was_killed(future)]
    anew = dict(zip(killed, run.call([waiting[i][:2] for i in killed]), strict=True))
    return deque(anew.get(i, task) for i, task in enumerate(waiting))


_known: weakref.WeakKeyDictionary[Client, DaskExecutor] = weakref.WeakKeyDictionary()


def executor_of(client: Any) -> DaskExecutor:
    """The executor of a client, the same one each time."""
    if isinstance(client, DaskExecutor):
        return client
    if client not in _known:
        _known[connected(client)] = DaskExecutor(client)
    return _known[client]
