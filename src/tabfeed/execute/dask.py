"""Map and reduce on a Dask cluster: any that a ``distributed.Client`` can reach.

The only file that knows Dask. It uses what Dask is good at (scheduling, moving data between
workers, starting lost tasks again, spilling results to the workers' disks) and nothing of its
collections.

What a run holds is sent once, as a `tabfeed.execute.sending.Parcel` that every task takes as an
argument: Dask moves it to each worker once and keeps it there until the run ends. Up to half a GB
it is itself the result of a task, so that the scheduler can have it made again when every worker
that held it has died; a larger one is scattered to all workers, and if all die it is sent again.

A reduction is a tree (`tabfeed.execute.tree`): ``partial`` of each item, runs of eight merged and
cut into slots, and for each slot a tree of merges, whose root alone reaches the client, one after
the other. Tasks carry names that people understand in the dashboard.

A task that fails is tried three times in all; then the run ends with an error that names it. Tasks
of a worker that dies are done again elsewhere, by Dask while few workers died under a task, and by
submitting the task anew after that. If the scheduler itself is lost, or all results
with it, the run starts again once it is back, and ends with an error if it stays away.
"""

from __future__ import annotations

import ast
import time
import uuid
import weakref
from collections import Counter, deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import CancelledError
from contextlib import contextmanager
from itertools import count, islice
from typing import Any, TypeVar

import dask
import distributed
from distributed import Client, Future
from distributed.comm.core import CommClosedError
from distributed.scheduler import KilledWorker

from tabfeed.errors import ArgumentError, ClusterError, TabfeedError
from tabfeed.execute import tasks
from tabfeed.execute.local import LocalExecutor
from tabfeed.execute.sending import Parcel, pack, unpack
from tabfeed.execute.surroundings import Surroundings
from tabfeed.execute.tasks import Reduction, task_name
from tabfeed.execute.tree import WIDTH, runs_of

__all__ = ["DaskExecutor", "connect", "disconnect", "executor_of", "start_local"]

T = TypeVar("T")
R = TypeVar("R")

_IN_GRAPH = 2**29  # bytes of a parcel that may wait on the scheduler
_LOOK_EVERY = 5.0  # seconds between two looks at whether anybody is still working
_MOST_SHARES = 256
_AHEAD = 8  # tasks in flight for each thread of the cluster


class _Lost(Exception):
    """Results are gone, through nobody's fault: the run must start again."""


class _Killed(_Lost):
    """Every worker that was given a task died: the task must be given out again."""


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
        self.client = _connected(client)
        self.shared, self.tries, self.patience = shared, tries, patience
        self.surroundings = Surroundings(client)

    # -- the two verbs ------------------------------------------------------------

    def map(self, items: Iterable[T], fn: Callable[[T], R]) -> Generator[R, None, None]:
        """``fn`` of each item, in order, lazily; a bounded number of results waits on workers."""
        run = _Run(self, fn)
        numbered = enumerate(items)
        waiting: deque[tuple[str, bytes, Future[Any]]] = deque()
        try:
            while True:
                if len(waiting) <= self._window() // 2:  # some at a time: each submission costs
                    more = list(islice(numbered, self._window() - len(waiting)))
                    waiting += run.call([(task_name(fn, item, n), pack(item)) for n, item in more])
                if not waiting:
                    return
                name, packed, future = waiting[0]
                try:
                    data = run.result(future)
                except _Killed as e:
                    run.count_death(name, e)
                    waiting[0] = run.call([(name, packed)])[0]
                    continue
                except _Lost as e:
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
        run = _Run(self, work)
        names = [task_name(partial, item, i) for i, item in enumerate(every)]
        leaves = list(zip(names, every, strict=True))
        while True:
            try:
                roots = self._roots(run, work, _FirstLevel(run, work, leaves).merged())
                result: R = work.assemble(self._fetched(run, roots))
                return result
            except _Lost as e:
                run.start_again(names[0], e)

    def _roots(
        self, run: _Run, work: Reduction, runs: list[Future[Any]]
    ) -> list[tuple[int, Future[Any]]]:
        """What is left of each slot once it is merged; of one too large, each share."""
        roots = []
        for slot, (name, shares) in enumerate(
            zip(work.slots, self._shares(run, work, runs), strict=True)
        ):
            if shares == 1 and len(runs) <= WIDTH:  # so few that each worker may have them all
                roots.append((slot, run.submit(tasks.merge_picked, name, slot, *runs)))
                continue
            parts = [run.submit_plain(tasks.pick, name, f, slot) for f in runs]
            if shares == 1:
                roots.append((slot, self._tree(run, slot, name, parts)))
                continue
            cut = [run.submit(tasks.cut_slot, name, slot, shares, part) for part in parts]
            for share in range(shares):
                level = [run.submit_plain(tasks.pick, name, f, share) for f in cut]
                roots.append((slot, self._tree(run, slot, name, level)))
        return roots

    def _shares(self, run: _Run, work: Reduction, runs: list[Future[Any]]) -> list[int]:
        """How many shares each slot is cut into, so that a merge is a fraction of the memory."""
        if len(runs) == 1:
            return [1] * len(work.slots)
        asked = [run.submit_plain(tasks.sizes, "merge/sizes", f) for f in runs]
        totals = [sum(s) for s in zip(*(run.result(f) for f in asked), strict=True)]
        most = max(1, (self.surroundings.task_memory() or 2**30) // 8)
        return [min(_MOST_SHARES, max(1, -(-total // most))) for total in totals]

    def _tree(self, run: _Run, slot: int, name: str, level: list[Future[Any]]) -> Future[Any]:
        while len(level) > 1:
            level = [
                group[0] if len(group) == 1 else run.submit(tasks.merge_slot, name, slot, *group)
                for group in runs_of(level)
            ]
        return level[0]

    def _fetched(
        self, run: _Run, roots: list[tuple[int, Future[Any]]]
    ) -> Iterator[tuple[int, Any]]:
        """Slots and their merged parts, one at a time, forgotten by the cluster as they come."""
        roots.reverse()
        while roots:
            slot, future = roots.pop()
            yield slot, unpack(run.result(future))

    # -- what the cluster is like -------------------------------------------------

    def check(self) -> None:
        """Refuse a client that is closed, and workers that cannot do the work."""
        _connected(self.client)
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


class _FirstLevel:
    """The first level of a reduction's tree: a summary of each item, merged eight at a time.

    When workers die under a task Dask suspects all tasks they had, so the whole run of eight is
    submitted again; if that goes on, one after the other, which shows the one to blame.
    """

    def __init__(self, run: _Run, work: Reduction, leaves: Sequence[tuple[str, Any]]) -> None:
        self._run = run
        self._done = getattr(work.partial, "finished", lambda item: None)
        self._groups = runs_of(leaves)
        self._merged: dict[int, Future[Any]] = {}
        self._runs: dict[Any, int] = {}
        self._tasks: dict[int, list[Future[Any]]] = {}
        self._items: dict[Any, Any] = {}
        self._deaths: Counter[int] = Counter()

    def merged(self) -> list[Future[Any]]:
        """What was merged, in slots; waits for all of it."""
        leaves = [leaf for group in self._groups for leaf in group]
        summaries = iter(self._summaries(leaves))
        for number, group in enumerate(self._groups):
            self._merge(number, list(islice(summaries, len(group))))
        for future in self._run.finished():
            if future.key not in self._runs:
                continue  # of a run that was submitted again
            try:
                self._run.raise_for(future)
            except _Killed:
                self._submit_again(self._runs[future.key])
                continue
            if future.key in self._items:
                self._done(self._items.pop(future.key))
            else:
                del self._tasks[self._runs[future.key]]  # so that the cluster forgets them too
        return [self._merged[number] for number in range(len(self._groups))]

    def _summaries(self, leaves: Sequence[tuple[str, Any]]) -> list[Future[Any]]:
        work = [(name, pack(item)) for name, item in leaves]
        futures = self._run.submit_many(tasks.summarise, work)
        self._items.update({f.key: item for f, (_, item) in zip(futures, leaves, strict=True)})
        return futures

    def _merge(self, number: int, futures: list[Future[Any]]) -> None:
        merged = self._run.submit(tasks.merge_run, f"merge/run_{number}", *futures)
        self._merged[number] = merged
        self._tasks[number] = [*futures, merged]
        self._runs.update({f.key: number for f in self._tasks[number]})
        self._run.watch(self._tasks[number])

    def _submit_again(self, number: int) -> None:
        self._runs = {key: n for key, n in self._runs.items() if n != number}
        self._run.cancel(self._tasks.pop(number))
        self._deaths[number] += 1
        if self._deaths[number] < max(1, self._run.executor.tries - 1):
            self._merge(number, self._summaries(self._groups[number]))
            return
        self._merge(number, [self._alone(*leaf) for leaf in self._groups[number]])

    def _alone(self, name: str, item: Any) -> Future[Any]:
        """A summary made while nothing else of its run is under way; twice, against bad luck."""
        for _ in range(2):
            (future,) = self._summaries([(name, item)])
            try:
                self._run.result(future)
                return future
            except _Killed as e:
                killed = e
        raise _deadly(name) from killed


class _Run:
    """One map or reduce: its parcel on the cluster, its tasks, and what becomes of them."""

    def __init__(self, executor: DaskExecutor, work: Any) -> None:
        self.executor, self.client = executor, executor.client
        self.parcel = Parcel.of(work)
        executor.check()
        self._again = 0
        self._deaths: Counter[str] = Counter()
        self._send()

    def _send(self) -> None:
        self.token = uuid.uuid4().hex[:8]
        self._numbers = count()
        self._watched = distributed.as_completed(loop=self.client.loop)
        key = f"send/{self.token}"
        if len(self.parcel) <= _IN_GRAPH:
            with dask.config.set({"distributed.admin.large-graph-warning-threshold": "1GiB"}):
                self.sent = self.client.submit(Parcel, self.parcel.data, key=key, pure=False)
        else:
            self.sent = self.client.scatter({key: self.parcel}, broadcast=True)[key]

    # -- submitting ---------------------------------------------------------------

    def call(self, work: Sequence[tuple[str, bytes]]) -> list[tuple[str, bytes, Future[Any]]]:
        """Tasks of a map, and what is needed to submit each again."""
        futures = self.submit_many(tasks.call, work)
        return [(name, item, f) for (name, item), f in zip(work, futures, strict=True)]

    def submit_many(
        self, fn: Callable[..., Any], work: Sequence[tuple[str, bytes]]
    ) -> list[Future[Any]]:
        """Tasks of one kind, each with its name and its item, which need each other for nothing.

        They come as one group, so that the scheduler keeps them and gives each to whoever is free,
        wherever the parcel lies: a slow worker gets few.
        """
        if not work:
            return []
        names, items = zip(*work, strict=True)
        keys = [(f"{n.split('/')[0]}-{self.token}", n, next(self._numbers)) for n in names]
        sent = [self.sent] * len(names)
        with self._submitting():
            return list(
                self.client.map(
                    fn, sent, names, items, key=keys, retries=self.executor.tries - 1, pure=False
                )
            )

    def submit(self, fn: Callable[..., Any], name: str, *args: Any) -> Future[Any]:
        """A task that takes the parcel and its own name."""
        return self._submit(name, fn, self.sent, name, *args)

    def submit_plain(self, fn: Callable[..., Any], name: str, *args: Any) -> Future[Any]:
        """A task that needs no parcel."""
        return self._submit(name, fn, name, *args)

    def _submit(self, name: str, fn: Callable[..., Any], *args: Any) -> Future[Any]:
        key = f"{name}-{self.token}-{next(self._numbers)}"
        with self._submitting():
            return self.client.submit(
                fn, *args, key=key, retries=self.executor.tries - 1, pure=False
            )

    @contextmanager
    def _submitting(self) -> Iterator[None]:
        try:
            yield
        except CommClosedError as e:
            raise _Lost(str(e)) from e

    # -- waiting ------------------------------------------------------------------

    def result(self, future: Future[Any]) -> bytes:
        """A task's result; `_Lost` if it must be done again."""
        alone_since: float | None = None
        while True:
            try:
                data: bytes = future.result(timeout=_LOOK_EVERY)
                return data
            except distributed.TimeoutError:
                alone_since = self._look(alone_since, future.key)
            except Exception as e:
                raise self._explain(e, future.key) from e

    def watch(self, futures: Sequence[Future[Any]]) -> None:
        """Have `finished` report these."""
        self._watched.update(futures)

    def raise_for(self, future: Future[Any]) -> None:
        """Raise what went wrong with a task that is done, if anything did."""
        if future.status != "finished":
            self.result(future)

    def finished(self) -> Iterator[Future[Any]]:
        """The watched tasks as they are done, well or not."""
        alone_since: float | None = None
        looked = time.monotonic()
        while self._watched.count():
            batch = self._watched.next_batch(block=False)
            yield from batch
            if batch:
                alone_since, looked = None, time.monotonic()
                continue
            time.sleep(0.01)
            if time.monotonic() - looked > _LOOK_EVERY:
                alone_since = self._look(alone_since, "the run")
                looked = time.monotonic()

    def _look(self, alone_since: float | None, key: Any) -> float | None:
        """Whether there is still a worker; since when not; an error if for too long."""
        now = time.monotonic()
        if self.executor.surroundings.count_workers():
            return None
        if alone_since is not None and now - alone_since > self.executor.patience:
            raise ClusterError(
                f"{_name(key)}: the cluster has had no worker for {self.executor.patience:.0f} s; "
                "start some, then run it again"
            )
        return now if alone_since is None else alone_since

    def _explain(self, error: Exception, key: Any) -> Exception:
        """What a task's failure means."""
        if isinstance(error, KilledWorker):
            return _Killed(_name(error.task))
        if isinstance(error, CancelledError | CommClosedError | OSError) and not isinstance(
            error, TabfeedError
        ):
            return _Lost(str(error))
        if isinstance(error, TabfeedError):
            return _tried(error, self.executor.tries)
        return ClusterError(f"{_name(key)} failed: {type(error).__name__}: {error}")

    def count_death(self, name: str, killed: _Killed) -> None:
        """Raise if workers died under a task again and again, and not by bad luck."""
        self._deaths[name] += 1
        if self._deaths[name] >= max(2, self.executor.tries):
            raise _deadly(name) from killed

    # -- starting again -----------------------------------------------------------

    def start_again(self, name: str, why: _Lost) -> None:
        """Wait until there is a cluster again, and send the parcel anew."""
        self._again += 1
        end = time.monotonic() + self.executor.patience
        while self._again <= self.executor.tries and time.monotonic() < end:
            if self.client.status in ("closed", "closing"):
                break
            if self.client.status == "running" and self.executor.surroundings.count_workers():
                try:
                    self._send()
                    return
                except (OSError, CancelledError, distributed.TimeoutError):
                    pass
            time.sleep(0.2)
        raise ClusterError(
            f"{name}: the cluster lost this run's tasks ({why}), {self._again} times now, and is "
            f"{self.client.status}; nothing was changed. Run it again once the cluster is well"
        ) from why

    def cancel(self, futures: list[Future[Any]]) -> None:
        """Tell the cluster that nobody waits for these."""
        if futures and self.client.status == "running":
            self.client.cancel(futures, force=True)


def _name(key: Any) -> str:
    """The name in a task's key, whichever of the two kinds it is, or the text of it."""
    if isinstance(key, str) and key.startswith("("):
        key = ast.literal_eval(key)
    return str(key[1]) if isinstance(key, tuple) else str(key).rsplit("-", 2)[0]


def _deadly(name: str) -> ClusterError:
    return ClusterError(
        f"{name}: every worker that tried it died; most often a task needs more memory than a "
        "worker has: give workers more, or the dataset a smaller part_size"
    )


def _tried(error: TabfeedError, tries: int) -> TabfeedError:
    if hasattr(error, "add_note"):
        error.add_note(f"the task was tried {tries} times")
    return error


def _connected(client: Any) -> Client:
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


_known: weakref.WeakKeyDictionary[Client, DaskExecutor] = weakref.WeakKeyDictionary()


def executor_of(client: Any) -> DaskExecutor:
    """The executor of a client, the same one each time."""
    if isinstance(client, DaskExecutor):
        return client
    if client not in _known:
        _known[_connected(client)] = DaskExecutor(client)
    return _known[client]


def start_local(workers: int, threads: int, memory_limit: str) -> Client:
    """A cluster of processes on this machine, and a client of it."""
    cluster = distributed.LocalCluster(
        n_workers=workers,
        threads_per_worker=threads,
        memory_limit=memory_limit,
        processes=True,
        dashboard_address=":0",
        env={"POLARS_MAX_THREADS": str(threads), "TABFEED_THREADS": str(threads)},
    )
    return Client(cluster, set_as_default=False)


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
