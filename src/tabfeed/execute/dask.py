"""Map and reduce on a Dask cluster: any that a ``distributed.Client`` can reach.

The only file that knows Dask. It uses what Dask is good at (scheduling, moving data between
workers, starting lost tasks again, spilling results to the workers' disks) and nothing of its
collections.

What a run holds is sent once, as a `tabfeed.execute.sending.Parcel` that every task takes as an
argument: Dask moves it to each worker once and keeps it there until the run ends. A small one is
itself the result of a task, so that it can be made again when the worker that held it dies; a
large one is scattered to all workers, and if all are lost it is scattered again.

A reduction is a tree (`tabfeed.execute.tree`): ``partial`` of each item, runs of eight merged and
cut into slots, and for each slot a tree of merges, whose root alone reaches the client, one after
the other. Tasks carry names that people understand in the dashboard.

A task that fails is tried three times in all; then the run ends with an error that names it. Tasks
of a worker that dies are done again elsewhere. If the scheduler itself is lost, or all results
with it, the run starts again once it is back, and ends with an error if it stays away.
"""

from __future__ import annotations

import time
import uuid
import weakref
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import CancelledError
from itertools import count, islice
from typing import Any, TypeVar

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
from tabfeed.execute.tree import runs_of

__all__ = ["DaskExecutor", "connect", "disconnect", "executor_of", "start_local"]

T = TypeVar("T")
R = TypeVar("R")

_IN_GRAPH = 4 * 2**20  # a parcel up to this size can wait on the scheduler
_LOOK_EVERY = 5.0  # seconds between two looks at whether anybody is still working
_MOST_SHARES = 256
_AHEAD = 8  # tasks in flight for each thread of the cluster


class _Lost(Exception):
    """Results are gone, through nobody's fault: the run must start again."""


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
                for number, item in islice(numbered, self._window() - len(waiting)):
                    waiting.append(run.call(task_name(fn, item, number), pack(item)))
                if not waiting:
                    return
                try:
                    data = run.result(waiting[0][2])
                except _Lost:
                    run.start_again(waiting[0][0])
                    waiting = deque(run.call(name, item) for name, item, _ in waiting)
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
                roots = self._roots(run, work, self._merged_runs(run, work, leaves))
                result: R = work.assemble(self._fetched(run, roots))
                return result
            except _Lost:
                run.start_again(names[0])

    def _merged_runs(
        self, run: _Run, work: Reduction, leaves: Sequence[tuple[str, Any]]
    ) -> list[Future[Any]]:
        """Summaries of eight neighbours each, done, in slots; waits for all of them."""
        done = getattr(work.partial, "finished", lambda item: None)
        runs, items = [], {}
        for number, group in enumerate(runs_of(leaves)):
            futures = [run.submit(tasks.summarise, name, pack(item)) for name, item in group]
            items.update({f.key: item for f, (_, item) in zip(futures, group, strict=True)})
            runs.append(run.submit(tasks.merge_run, f"merge/run_{number}", *futures))
            run.watch([*futures, runs[-1]])
        for key in run.finished():
            if key in items:
                done(items[key])
        return runs

    def _roots(
        self, run: _Run, work: Reduction, runs: list[Future[Any]]
    ) -> list[tuple[int, Future[Any]]]:
        """What is left of each slot once it is merged; of one too large, each share."""
        roots = []
        for slot, (name, shares) in enumerate(
            zip(work.slots, self._shares(run, work, runs), strict=True)
        ):
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


class _Run:
    """One map or reduce: its parcel on the cluster, its tasks, and what becomes of them."""

    def __init__(self, executor: DaskExecutor, work: Any) -> None:
        self.executor, self.client = executor, executor.client
        self.parcel = Parcel.of(work)
        executor.check()
        self._again = 0
        self._send()

    def _send(self) -> None:
        self.token = uuid.uuid4().hex[:8]
        self._numbers = count()
        self._watched = distributed.as_completed(loop=self.client.loop)
        key = f"send/{self.token}"
        if len(self.parcel) <= _IN_GRAPH:
            self.sent = self.client.submit(Parcel, self.parcel.data, key=key, pure=False)
        else:
            self.sent = self.client.scatter({key: self.parcel}, broadcast=True)[key]

    # -- submitting ---------------------------------------------------------------

    def call(self, name: str, item: bytes) -> tuple[str, bytes, Future[Any]]:
        """A task of a map, and what is needed to submit it again."""
        return name, item, self.submit(tasks.call, name, item)

    def submit(self, fn: Callable[..., Any], name: str, *args: Any) -> Future[Any]:
        """A task that takes the parcel and its own name."""
        return self._submit(name, fn, self.sent, name, *args)

    def submit_plain(self, fn: Callable[..., Any], name: str, *args: Any) -> Future[Any]:
        """A task that needs no parcel."""
        return self._submit(name, fn, name, *args)

    def _submit(self, name: str, fn: Callable[..., Any], *args: Any) -> Future[Any]:
        key = f"{name}-{self.token}-{next(self._numbers)}"
        try:
            return self.client.submit(
                fn, *args, key=key, retries=self.executor.tries - 1, pure=False
            )
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

    def finished(self) -> Iterator[str]:
        """Keys of the watched tasks as they are done; raises for the first that failed."""
        alone_since: float | None = None
        looked = time.monotonic()
        while self._watched.count():
            batch = self._watched.next_batch(block=False)
            for future in batch:
                if future.status != "finished":
                    self.result(future)
                yield future.key
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
            return ClusterError(
                f"{_name(error.task)}: each of the {error.allowed_failures + 1} workers that tried "
                "it died; most often a task needs more memory than a worker has: give workers "
                "more, or the dataset a smaller part_size"
            )
        if isinstance(error, CancelledError | CommClosedError | OSError) and not isinstance(
            error, TabfeedError
        ):
            return _Lost(str(error))
        if isinstance(error, TabfeedError):
            return _tried(error, self.executor.tries)
        return ClusterError(f"{_name(key)} failed: {type(error).__name__}: {error}")

    # -- starting again -----------------------------------------------------------

    def start_again(self, name: str) -> None:
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
            f"{name}: the cluster lost this run's tasks and did not come back within "
            f"{self.executor.patience:.0f} s; nothing was changed. Run it again once it is up"
        )

    def cancel(self, futures: list[Future[Any]]) -> None:
        """Tell the cluster that nobody waits for these."""
        if futures and self.client.status == "running":
            self.client.cancel(futures, force=True)


def _name(key: Any) -> str:
    """The name in a task's key."""
    return str(key).rsplit("-", 2)[0]


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
