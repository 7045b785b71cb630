"""Map and reduce on a Dask cluster: any that a ``distributed.Client`` can reach.

The two verbs. Dask does what it is good at (scheduling, moving data between workers, starting
lost tasks again, spilling results to the workers' disks); nothing of its collections is used.
`tabfeed.execute.dask_run` is one run: what is sent, submitted, waited for and begun again.
`tabfeed.execute.dask_tree` is the tree of a reduction. `tabfeed.execute.dask_clients` makes
clients and judges them. No other file knows Dask.

A task that fails is tried three times in all; then the run ends with an error that names it. Tasks
of a worker that dies are done again elsewhere, by Dask while few workers died under a task, and by
submitting the task anew after that. If the scheduler itself is lost, or all results
with it, the run starts again once it is back, and ends with an error if it stays away.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable, Generator, Iterable, Sequence
from itertools import islice
from typing import Any, TypeVar

from distributed import Client, Future

from tabfeed.execute.dask_clients import connect, connected, disconnect, start_local
from tabfeed.execute.dask_run import Killed, Lost, Run
from tabfeed.execute.dask_tree import Tree
from tabfeed.execute.local import LocalExecutor
from tabfeed.execute.sending import pack, unpack
from tabfeed.execute.surroundings import Surroundings
from tabfeed.execute.tasks import Reduction, task_name

__all__ = ["DaskExecutor", "connect", "disconnect", "executor_of", "start_local"]

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
        self.surroundings = Surroundings(client)

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
