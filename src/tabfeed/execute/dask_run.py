"""One map or reduce on a Dask cluster: what is sent, submitted, waited for, begun again.

What a run holds is sent once, as a `tabfeed.execute.payload.Payload` that every task takes as an
argument: Dask moves it to each worker once and keeps it there until the run ends. Up to half a GB
it is itself the result of a task, so that the scheduler can have it made again when every worker
that held it has died; a larger one is scattered to all workers, and if all die it is sent again.

Whose fault is it when a worker dies? Dask suspects every task the worker had, and gives a task up
after four deaths. Such a task is submitted anew here, a few times; the parcel, which does
nothing but lie there, as often as needed while other tasks get done in between.
"""

from __future__ import annotations

import ast
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError
from contextlib import contextmanager
from itertools import count
from typing import TYPE_CHECKING, Any, TypeVar

import dask
import distributed
from distributed import Future
from distributed.comm.core import CommClosedError
from distributed.scheduler import KilledWorker

from tabfeed.errors import ClusterError, TabfeedError
from tabfeed.execute import dask_tasks
from tabfeed.execute.payload import Payload

if TYPE_CHECKING:
    from tabfeed.execute.dask import DaskExecutor

__all__ = ["Killed", "Lost", "Run", "deadly"]

R = TypeVar("R")
_IN_GRAPH = 2**29  # bytes of a parcel that may wait on the scheduler
_LOOK_EVERY = 5.0  # seconds between two looks at whether anybody is still working
_IN_VAIN = 5  # times that a parcel is sent while no task gets done
_SENT = "send/"


class Lost(Exception):
    """Results are gone, through nobody's fault: the run must start again."""


class Killed(Lost):
    """Every worker that was given a task died: the task must be given out again.

    Parameters
    ----------
    task
        Its name.
    parcel
        Whether it was not a task of the run but the parcel that all of them take.
    """

    def __init__(self, task: str, *, parcel: bool) -> None:
        super().__init__(task)
        self.parcel = parcel


class Run:
    """One map or reduce: its parcel on the cluster, its tasks, and what becomes of them."""

    def __init__(self, executor: DaskExecutor, work: Any) -> None:
        self.executor, self.client = executor, executor.client
        self.parcel = Payload.of(work)
        executor.check()
        self._again = 0
        self._in_vain = 0
        self._deaths: Counter[str] = Counter()
        self._begin()

    def _begin(self) -> None:
        self.token = uuid.uuid4().hex[:8]
        self._numbers = count()
        self._watched = distributed.as_completed(loop=self.client.loop)
        self._send()

    def _send(self) -> None:
        """The parcel, ahead of whatever else waits for a worker."""
        key = f"{_SENT}{uuid.uuid4().hex[:8]}"
        if len(self.parcel) <= _IN_GRAPH:
            with dask.config.set({"distributed.admin.large-graph-warning-threshold": "1GiB"}):
                self.sent = self.client.submit(
                    dask_tasks.receive, self.parcel, key=key, pure=False, priority=1
                )
        else:
            self.sent = self.client.scatter({key: self.parcel}, broadcast=True)[key]

    def _send_again(self, killed: KilledWorker) -> None:
        """The parcel, to those that are there now."""
        self._in_vain += 1
        if self._in_vain > _IN_VAIN:
            raise ClusterError(
                f"the work of this run, {len(self.parcel):,} bytes, was sent {_IN_VAIN} times, and "
                "every worker that got it died before a task was done; give workers more memory"
            ) from killed
        self._send()

    # -- submitting ---------------------------------------------------------------

    def call(self, work: Sequence[tuple[str, bytes]]) -> list[tuple[str, bytes, Future[Any]]]:
        """Tasks of a map, and what is needed to submit each again."""
        futures = self.submit_many(dask_tasks.call, work)
        return [(name, item, f) for (name, item), f in zip(work, futures, strict=True)]

    def submit_many(
        self,
        fn: Callable[..., Any],
        work: Sequence[tuple[str, bytes]],
        *,
        worker: str | None = None,
    ) -> list[Future[Any]]:
        """Tasks of one kind, each with its name and its item, which need each other for nothing.

        They come as one group, so that the scheduler keeps them and gives each to whoever is free,
        wherever the parcel lies: a slow worker gets few. A worker that is wished for gets them at
        once; others that have nothing to do may take them from it.
        """
        if not work:
            return []
        names, items = zip(*work, strict=True)
        keys = [(f"{n.split('/')[0]}-{self.token}", n, next(self._numbers)) for n in names]
        sent = [self.sent] * len(names)
        with self._submitting():
            return list(
                self.client.map(
                    fn, sent, names, items, key=keys, retries=self.executor.tries - 1, pure=False,
                    **_wish(worker),
                )
            )  # fmt: skip

    def submit(
        self,
        fn: Callable[..., Any],
        name: str,
        *args: Any,
        worker: str | None = None,
        priority: float = 0.0,
    ) -> Future[Any]:
        """A task that takes the parcel and its own name; the worker is a wish."""
        return self._submit(name, fn, self.sent, name, *args, worker=worker, priority=priority)

    def submit_plain(self, fn: Callable[..., Any], name: str, *args: Any) -> Future[Any]:
        """A task that needs no parcel."""
        return self._submit(name, fn, name, *args)

    def _submit(
        self,
        name: str,
        fn: Callable[..., Any],
        *args: Any,
        worker: str | None = None,
        priority: float = 0.0,
    ) -> Future[Any]:
        key = f"{name}-{self.token}-{next(self._numbers)}"
        tries = self.executor.tries - 1
        with self._submitting():
            return self.client.submit(
                fn, *args, key=key, retries=tries, pure=False, priority=priority, **_wish(worker)
            )

    @contextmanager
    def _submitting(self) -> Iterator[None]:
        try:
            yield
        except CommClosedError as e:
            raise Lost(str(e)) from e

    # -- who is there -------------------------------------------------------------

    def workers(self) -> list[str]:
        """The workers; `Lost` if the scheduler does not answer."""
        return list(_answered(self.executor.surroundings.workers))

    def task_memory(self) -> int | None:
        """Bytes one task may use; `Lost` if the scheduler does not answer."""
        return _answered(self.executor.surroundings.task_memory)

    # -- waiting ------------------------------------------------------------------

    def result(self, future: Future[Any]) -> bytes:
        """A task's result; `Lost` if it must be done again."""
        alone_since: float | None = None
        while True:
            try:
                data: bytes = future.result(timeout=_LOOK_EVERY)
                self._in_vain = 0
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
        self._in_vain = 0

    def was_killed(self, future: Future[Any]) -> bool:
        """Whether a task is done for because workers died."""
        return future.status == "error" and isinstance(future.exception(), KilledWorker)

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
            with self._watched.thread_condition:  # told whenever a task is done
                if not self._watched.has_ready():
                    self._watched.thread_condition.wait(_LOOK_EVERY)
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
            parcel = str(error.task).startswith(_SENT)
            if error.task == self.sent.key:  # and not one that was sent again already
                self._send_again(error)
            return Killed(_name(error.task), parcel=parcel)
        if isinstance(error, CancelledError | CommClosedError | OSError) and not isinstance(
            error, TabfeedError
        ):
            return Lost(str(error))
        if isinstance(error, TabfeedError):
            return _tried(error, self.executor.tries)
        return ClusterError(f"{_name(key)} failed: {type(error).__name__}: {error}")

    def count_death(self, name: str, killed: Killed) -> None:
        """Raise if workers died under a task again and again, and not by bad luck."""
        self._deaths[name] += not killed.parcel
        if self._deaths[name] >= max(2, self.executor.tries):
            raise deadly(name) from killed

    # -- starting again -----------------------------------------------------------

    def start_again(self, name: str, why: Lost) -> None:
        """Wait until there is a cluster again, and send the parcel anew."""
        self._again += 1
        end = time.monotonic() + self.executor.patience
        while self._again <= self.executor.tries and time.monotonic() < end:
            if self.client.status in ("closed", "closing"):
                break
            if self.client.status == "running" and self.executor.surroundings.count_workers():
                try:
                    self._begin()
                    return
                except (OSError, CancelledError, distributed.TimeoutError):
                    pass
            time.sleep(0.2)
        raise ClusterError(
            f"{name}: the cluster lost this run's tasks ({why}), {self._again} times now, and "
            f"{self._state()}; nothing was changed. Run it again once the cluster is well"
        ) from why

    def _state(self) -> str:
        """What the cluster is like, for a message."""
        if self.client.status != "running":
            return f"its scheduler does not answer (the client is {self.client.status})"
        workers = self.executor.surroundings.count_workers()
        if not workers:
            return f"no workers are left, nor did any come within {self.executor.patience:.0f} s"
        return f"has {workers} workers"

    def cancel(self, futures: list[Future[Any]]) -> None:
        """Tell the cluster that nobody waits for these."""
        if futures and self.client.status == "running":
            self.client.cancel(futures, force=True)


def _answered(question: Callable[[], R]) -> R:
    """What the scheduler says."""
    try:
        return question()
    except (OSError, TimeoutError, AttributeError, KeyError) as e:  # reconnecting
        raise Lost(str(e)) from e


def _wish(worker: str | None) -> dict[str, Any]:
    """What to tell Dask of a worker that would be best."""
    return {} if worker is None else {"workers": [worker], "allow_other_workers": True}


def _name(key: Any) -> str:
    """The name in a task's key, whichever of the two kinds it is, or the text of it."""
    if isinstance(key, str) and key.startswith("("):
        key = ast.literal_eval(key)
    return str(key[1]) if isinstance(key, tuple) else str(key).rsplit("-", 2)[0]


def deadly(name: str) -> ClusterError:
    """What is told of a task under which workers keep dying."""
    return ClusterError(
        f"{name}: every worker that tried it died; most often a task needs more memory than a "
        "worker has: give workers more, or the dataset a smaller part_size"
    )


def _tried(error: TabfeedError, tries: int) -> TabfeedError:
    if hasattr(error, "add_note"):
        error.add_note(f"the task was tried {tries} times")
    return error
