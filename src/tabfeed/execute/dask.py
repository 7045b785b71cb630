"""Map and reduce on a Dask cluster: any that a ``distributed.Client`` can reach.

Dask does what it is good at: scheduling, moving data between workers, repeating lost tasks,
spilling results to the workers' disks. Its collections are not used. `tabfeed.execute.dask_run` is
one run, submitted, awaited and restarted; `tabfeed.execute.dask_cluster` makes clients and checks
workers. No other module imports Dask.

A reduction has one task for ``partial`` of each item. Each run of eight summaries is merged and
split into merge groups; each group then has a tree of merges
(`tabfeed.execute.executor.MergeTree`), whose root alone reaches the client. A group too large for
one worker is first cut into hash partitions, each with a tree of its own. Tasks carry readable
names for the dashboard.

A task that fails is tried three times in all; then the run ends with an error that names it. Tasks
of a worker that dies are repeated elsewhere, by Dask while few workers died under a task, and by
submitting the task again after that. If the scheduler or all results are lost, the run restarts
once the cluster is back, and ends with an error if it stays away.
"""

from __future__ import annotations

import weakref
from collections import Counter, deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from itertools import islice
from operator import getitem
from typing import Any, TypeVar

from distributed import Client, Future

from tabfeed.execute import tasks
from tabfeed.execute.dask_cluster import Preflight, connected
from tabfeed.execute.dask_run import ClusterRun, Lost, WorkersDied, fatal_task
from tabfeed.execute.executor import MERGE_WIDTH, LocalExecutor, runs_of
from tabfeed.execute.tasks import Reduction, pack, task_name, unpack

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
        temporary folder of this process by default, which works if all run on one machine.
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
        self.preflight = Preflight(self.client)

    # -- map and reduce -----------------------------------------------------------

    def map(self, items: Iterable[T], fn: Callable[[T], R]) -> Generator[R, None, None]:
        """``fn`` of each item, in order, lazily; a bounded number of results waits on workers."""
        run = self._run(fn)
        numbered = enumerate(items)
        waiting: deque[tuple[str, bytes, Future[Any]]] = deque()
        try:
            while True:
                if len(waiting) <= self._window() // 2:  # several at a time: each submission costs
                    more = list(islice(numbered, self._window() - len(waiting)))
                    waiting += run.call([(task_name(fn, item, n), pack(item)) for n, item in more])
                if not waiting:
                    return
                name, _, future = waiting[0]
                try:
                    data = run.result(future)
                except WorkersDied as e:
                    run.count_death(name, e)
                    waiting = _resubmitted(run, waiting)
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
        """``partial`` of each item, neighbours merged; None if there are no items."""
        every = list(items)
        if not every:
            return None
        work = Reduction(partial, merge)
        run = self._run(work)
        names = [task_name(partial, item, i) for i, item in enumerate(every)]
        leaves = list(zip(names, every, strict=True))
        while True:
            try:
                result: R = work.assemble(ClusterReduction(run, work).merged(leaves))
                return result
            except Lost as e:
                run.start_again(names[0], e)

    # -- checks -------------------------------------------------------------------

    def check(self) -> None:
        """Raise if the client is closed, or a worker can't do the work."""
        self.preflight.check(self.patience)

    def require_files(self, files: Sequence[Any]) -> None:
        """Raise unless the workers see these files as this process does."""
        self.check()
        self.preflight.require_files(files)

    def require_folder(self, folder: Any) -> None:
        """Raise unless the workers can write into a folder of this process."""
        self.check()
        self.preflight.require_folder(folder)

    @property
    def task_memory(self) -> int | None:
        """Bytes one task may use: half of the smallest worker's memory per thread."""
        self.check()
        return self.preflight.task_memory()

    def _run(self, work: Any) -> ClusterRun:
        return ClusterRun(self.preflight, work, tries=self.tries, patience=self.patience)

    def _window(self) -> int:
        return max(8, _AHEAD * self.preflight.threads)

    def __reduce__(self) -> tuple[type[LocalExecutor], tuple[()]]:
        return LocalExecutor, ()  # in another process, work runs in that process

    def __repr__(self) -> str:
        return f"DaskExecutor({self.client!r})"


def _resubmitted(
    run: ClusterRun, waiting: deque[tuple[str, bytes, Future[Any]]]
) -> deque[tuple[str, bytes, Future[Any]]]:
    """The tasks, with those under which workers died submitted again."""
    killed = [i for i, (_, _, future) in enumerate(waiting) if run.was_killed(future)]
    again = dict(zip(killed, run.call([waiting[i][:2] for i in killed]), strict=True))
    return deque(again.get(i, task) for i, task in enumerate(waiting))


_known: weakref.WeakKeyDictionary[Client, DaskExecutor] = weakref.WeakKeyDictionary()


def executor_of(client: Any) -> DaskExecutor:
    """The executor of a client, the same one each time."""
    if isinstance(client, DaskExecutor):
        return client
    if client not in _known:
        _known[connected(client)] = DaskExecutor(client)
    return _known[client]


# -- a reduction -----------------------------------------------------------------------------------


_MAX_PARTITIONS = 256
_TASK_COST = 2**20  # bytes that could be merged in the time Dask needs for a task
Leaf = tuple[str, Any]  # a task's name, and its item


class ClusterReduction:
    """One reduction, level by level.

    Parameters
    ----------
    run
        Submits and waits.
    work
        The partial and the merge.
    """

    def __init__(self, run: ClusterRun, work: Reduction) -> None:
        self._run, self._work = run, work

    def merged(self, leaves: Sequence[Leaf]) -> Iterator[tuple[int, Any]]:
        """Groups and their merged parts, one at a time; the cluster drops each once fetched."""
        roots = self._roots(_FirstLevel(self._run, self._work, leaves).merged())
        roots.reverse()
        while roots:
            group, future = roots.pop()
            yield group, unpack(self._run.result(future))

    def _roots(self, runs: list[Future[Any]]) -> list[tuple[int, Future[Any]]]:
        """The root of each group's tree of merges; of a group too large, one per hash partition.

        The largest come first: the client fetches them while workers merge the others.
        """
        sizes = self._sizes(runs)
        partitions = self._partitions(sizes) if len(runs) > 1 else [1] * len(sizes)
        workers = self._workers(sizes)
        order = sorted(range(len(sizes)), key=lambda group: -sizes[group])
        return [
            (group, root)
            for number, group in enumerate(order)
            for root in self._group_roots(
                group, partitions[group], runs, worker=workers[group], priority=-number / len(order)
            )
        ]

    def _group_roots(
        self, group: int, partitions: int, runs: list[Future[Any]], **where: Any
    ) -> list[Future[Any]]:
        run, name = self._run, self._work.groups[group]
        if partitions == 1 and len(runs) <= MERGE_WIDTH:  # few enough to send all to each worker
            return [run.submit(tasks.merge_picked, name, group, *runs, **where)]
        parts = self._picked(name, runs, group)
        if partitions == 1:
            return [self._merge_tree(group, name, parts)]
        cut = [run.submit(tasks.cut_group, name, group, partitions, part) for part in parts]
        return [
            self._merge_tree(group, name, self._picked(name, cut, n)) for n in range(partitions)
        ]

    def _picked(self, name: str, runs: list[Future[Any]], number: int) -> list[Future[Any]]:
        """One of the parts of each run."""
        submit = self._run.submit
        return [submit(getitem, name, f, number, with_payload=False) for f in runs]

    def _sizes(self, runs: list[Future[Any]]) -> list[int]:
        """Bytes of each group over all runs."""
        run = self._run
        asked = [run.submit(tasks.sizes, "merge/sizes", f, with_payload=False) for f in runs]
        return [sum(s) for s in zip(*(run.result(f) for f in asked), strict=True)]

    def _partitions(self, sizes: list[int]) -> list[int]:
        """How many hash partitions each group needs, so that a merge fits a worker's memory."""
        most = max(1, (self._run.task_memory() or 2**30) // 8)
        return [min(_MAX_PARTITIONS, max(1, -(-size // most))) for size in sizes]

    def _workers(self, sizes: list[int]) -> list[str | None]:
        """A worker for each group, so that all have about the same amount to merge.

        By itself Dask merges everything where most of it already is, since it overestimates the
        cost of moving bytes.
        """
        loads: dict[str | None, int] = dict.fromkeys(self._run.workers(), 0)
        chosen: list[str | None] = [None] * len(sizes)
        for group in sorted(range(len(sizes)), key=lambda group: -sizes[group]):
            least = min(loads, key=lambda worker: loads[worker], default=None)
            loads[least] = loads.get(least, 0) + sizes[group] + _TASK_COST
            chosen[group] = least
        return chosen

    def _merge_tree(self, group: int, name: str, level: list[Future[Any]]) -> Future[Any]:
        while len(level) > 1:
            level = [
                run[0] if len(run) == 1 else self._run.submit(tasks.merge_group, name, group, *run)
                for run in runs_of(level)
            ]
        return level[0]


class _FirstLevel:
    """The first level of a reduction's tree: a summary of each item, merged eight at a time.

    When workers die under a task, Dask suspects all tasks they had, so the whole run of eight is
    submitted again; if that keeps happening, one after the other, to find the task to blame.
    """

    def __init__(self, run: ClusterRun, work: Reduction, leaves: Sequence[Leaf]) -> None:
        self._run = run
        self._done = getattr(work.partial, "finished", lambda item: None)
        self._groups = runs_of(leaves)
        self._merged: dict[int, Future[Any]] = {}
        self._runs: dict[Any, int] = {}
        self._tasks: dict[int, list[Future[Any]]] = {}
        self._items: dict[Any, Any] = {}
        self._deaths: Counter[int] = Counter()

    def merged(self) -> list[Future[Any]]:
        """Each run merged and split into groups; waits for all of them."""
        workers = self._run.workers()
        even = len(self._groups) // len(workers) * len(workers) if len(workers) > 1 else 0
        for number, group in enumerate(self._groups[:even]):
            # A run on one worker, where its summaries are merged without being sent.
            self._merge(number, self._summaries(group, workers[number % len(workers)]))
        rest = [leaf for group in self._groups[even:] for leaf in group]
        summaries = iter(self._summaries(rest))
        for number, group in enumerate(self._groups[even:], even):
            self._merge(number, list(islice(summaries, len(group))))
        for future in self._run.finished():
            if future.key not in self._runs:
                continue  # belongs to a run that was submitted again
            try:
                self._run.raise_for(future)
            except WorkersDied as e:
                self._submit_again(self._runs[future.key], e)
                continue
            if future.key in self._items:
                self._done(self._items.pop(future.key))
            else:
                del self._tasks[self._runs[future.key]]  # so that the cluster drops them too
        return [self._merged[number] for number in range(len(self._groups))]

    def _summaries(self, leaves: Sequence[Leaf], worker: str | None = None) -> list[Future[Any]]:
        work = [(name, pack(item)) for name, item in leaves]
        futures = self._run.submit_many(tasks.summarise, work, worker=worker)
        self._items.update({f.key: item for f, (_, item) in zip(futures, leaves, strict=True)})
        return futures

    def _merge(self, number: int, futures: list[Future[Any]]) -> None:
        merged = self._run.submit(tasks.merge_run, f"merge/run_{number}", *futures)
        self._merged[number] = merged
        self._tasks[number] = [*futures, merged]
        self._runs.update({f.key: number for f in self._tasks[number]})
        self._run.watch(self._tasks[number])

    def _submit_again(self, number: int, error: WorkersDied) -> None:
        self._runs = {key: n for key, n in self._runs.items() if n != number}
        self._run.cancel(self._tasks.pop(number))
        self._deaths[number] += not error.is_payload
        if self._deaths[number] < max(1, self._run.tries - 1):
            self._merge(number, self._summaries(self._groups[number]))
            return
        self._merge(number, [self._summary_alone(*leaf) for leaf in self._groups[number]])

    def _summary_alone(self, name: str, item: Any) -> Future[Any]:
        """A summary made while nothing else of its run is in progress, with two attempts."""
        attempts = 2
        while True:
            (future,) = self._summaries([(name, item)])
            try:
                self._run.result(future)
                return future
            except WorkersDied as e:
                attempts -= not e.is_payload
                if attempts == 0:
                    raise fatal_task(name) from e
