"""One map or reduce on a Dask cluster: submitted, awaited, restarted.

The function of a run is sent once, as a `tabfeed.execute.tasks.Payload` that every task takes as
an argument: Dask moves it to each worker once and keeps it there until the run ends. Up to half a
GB it is itself the result of a task, so the scheduler can have it made again when every worker
that held it has died. A larger one is scattered to all workers, and sent again if all of them die.

When a worker dies, Dask suspects every task it had, and gives a task up after four deaths. Such a
task is submitted again here, a few times. The payload can't be at fault by itself, so it is sent
again as often as needed, as long as other tasks finish in between.
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
from typing import Any, TypeVar

import dask
import distributed
from distributed import Future
from distributed.comm.core import CommClosedError
from distributed.scheduler import KilledWorker

from tabfeed.arguments import add_note
from tabfeed.errors import ClusterError, TabfeedError
from tabfeed.execute import tasks
from tabfeed.execute.dask_cluster import Preflight
from tabfeed.execute.tasks import Payload

R = TypeVar("R")
_IN_GRAPH = 2**29  # bytes of a payload that may be kept on the scheduler
_CHECK_EVERY = 5.0  # seconds between two checks that there still are workers
_MAX_RESENDS = 5  # times a payload is sent while no task finishes
_SENT = "send/"
_MORE_MEMORY = (
    "Most often a task needs more memory than a worker has: give workers more, or the dataset a "
    "smaller part_size"
)


class Lost(Exception):
    """Results are lost, and no task is to blame: the run must start again."""


class WorkersDied(Lost):
    """Every worker that got a task died: the task must be submitted again.

    Parameters
    ----------
    task
        Its name.
    is_payload
        Whether it was not a task of the run, but the one that delivers its payload.
    """

    def __init__(self, task: str, *, is_payload: bool) -> None:
        super().__init__(task)
        self.is_payload = is_payload


class ClusterRun:
    """One map or reduce: its payload on the cluster, and its tasks."""

    def __init__(self, preflight: Preflight, work: Any, *, tries: int, patience: float) -> None:
        self.preflight, self.client = preflight, preflight.client
        self.tries, self.patience = tries, patience
        self.payload = Payload.of(work)
        preflight.check(patience)
        self._restarts = 0
        self._resends = 0
        self._deaths: Counter[str] = Counter()
        self._begin()

    def _begin(self) -> None:
        self.token = uuid.uuid4().hex[:8]
        self._numbers = count()
        self._watched = distributed.as_completed(loop=self.client.loop)
        self._send()

    def _send(self) -> None:
        """Send the payload, ahead of all waiting tasks."""
        key = f"{_SENT}{uuid.uuid4().hex[:8]}"
        if len(self.payload) <= _IN_GRAPH:
            with dask.config.set({"distributed.admin.large-graph-warning-threshold": "1GiB"}):
                self.sent = self.client.submit(
                    tasks.receive, self.payload, key=key, pure=False, priority=1
                )
        else:
            self.sent = self.client.scatter({key: self.payload}, broadcast=True)[key]

    def _send_again(self, error: KilledWorker) -> None:
        """Send the payload to the current workers."""
        self._resends += 1
        if self._resends > _MAX_RESENDS:
            raise ClusterError(
                f"the payload of this run, {len(self.payload):,} bytes, was sent {_MAX_RESENDS} "
                "times, and every worker that got it died before a task finished; give workers "
                "more memory"
            ) from error
        self._send()

    # -- submitting ---------------------------------------------------------------

    def call(self, work: Sequence[tuple[str, bytes]]) -> list[tuple[str, bytes, Future[Any]]]:
        """Submit tasks of a map; each comes with what is needed to submit it again."""
        futures = self.submit_many(tasks.call, work)
        return [(name, item, f) for (name, item), f in zip(work, futures, strict=True)]

    def submit_many(
        self,
        fn: Callable[..., Any],
        work: Sequence[tuple[str, bytes]],
        *,
        worker: str | None = None,
    ) -> list[Future[Any]]:
        """Submit independent tasks of one kind, each with its name and item.

        They form one group, so the scheduler queues them and gives each to a free worker, wherever
        the payload is: a slow worker gets few. A preferred worker gets them at once; idle workers
        may take them from it.
        """
        if not work:
            return []
        names, items = zip(*work, strict=True)
        keys = [(f"{n.split('/')[0]}-{self.token}", n, next(self._numbers)) for n in names]
        sent = [self.sent] * len(names)
        with self._submitting():
            return list(
                self.client.map(
                    fn, sent, names, items, key=keys, retries=self.tries - 1, pure=False,
                    **_prefer(worker),
                )
            )  # fmt: skip

    def submit(
        self,
        fn: Callable[..., Any],
        name: str,
        *args: Any,
        with_payload: bool = True,
        worker: str | None = None,
        priority: float = 0.0,
    ) -> Future[Any]:
        """Submit a task that takes the payload and its own name; `worker` is a preference."""
        given = (self.sent, name, *args) if with_payload else args
        key = f"{name}-{self.token}-{next(self._numbers)}"
        tries = self.tries - 1
        with self._submitting():
            return self.client.submit(
                fn, *given, key=key, retries=tries, pure=False, priority=priority, **_prefer(worker)
            )

    @contextmanager
    def _submitting(self) -> Iterator[None]:
        try:
            yield
        except CommClosedError as e:
            raise Lost(str(e)) from e

    # -- workers ------------------------------------------------------------------

    def workers(self) -> list[str]:
        """The addresses of the workers; raises `Lost` if the scheduler does not answer."""
        return list(_answered(self.preflight.workers))

    def task_memory(self) -> int | None:
        """Bytes one task may use; raises `Lost` if the scheduler does not answer."""
        return _answered(self.preflight.task_memory)

    # -- waiting ------------------------------------------------------------------

    def result(self, future: Future[Any]) -> bytes:
        """Wait for a task's result; raises `Lost` if it must be done again."""
        without_workers_since: float | None = None
        while True:
            try:
                data: bytes = future.result(timeout=_CHECK_EVERY)
                self._resends = 0
                return data
            except distributed.TimeoutError:
                without_workers_since = self._check_workers(without_workers_since, future.key)
            except Exception as e:
                raise self._explain(e, future.key) from e

    def watch(self, futures: Sequence[Future[Any]]) -> None:
        """Add tasks for `finished` to report."""
        self._watched.update(futures)

    def raise_for(self, future: Future[Any]) -> None:
        """Raise the error of a finished task, if it has one."""
        if future.status != "finished":
            self.result(future)
        self._resends = 0

    def was_killed(self, future: Future[Any]) -> bool:
        """Whether a task failed because workers died."""
        return future.status == "error" and isinstance(future.exception(), KilledWorker)

    def finished(self) -> Iterator[Future[Any]]:
        """The watched tasks as they finish or fail."""
        without_workers_since: float | None = None
        checked = time.monotonic()
        while self._watched.count():
            batch = self._watched.next_batch(block=False)
            yield from batch
            if batch:
                without_workers_since, checked = None, time.monotonic()
                continue
            with self._watched.thread_condition:  # notified when a task finishes
                if not self._watched.has_ready():
                    self._watched.thread_condition.wait(_CHECK_EVERY)
            if time.monotonic() - checked > _CHECK_EVERY:
                without_workers_since = self._check_workers(without_workers_since, "the run")
                checked = time.monotonic()

    def _check_workers(self, without_workers_since: float | None, key: Any) -> float | None:
        """None if there are workers, else since when not; raises after `patience` seconds."""
        now = time.monotonic()
        if self.preflight.count_workers():
            return None
        if without_workers_since is not None and now - without_workers_since > self.patience:
            raise ClusterError(
                f"{_name(key)}: the cluster has had no worker for {self.patience:.0f} s; "
                f"start some, then run it again{self._suspicion()}"
            )
        self.preflight.replace_lost_workers()
        return now if without_workers_since is None else without_workers_since

    def _suspicion(self) -> str:
        """The tasks under which the workers died, for an error message."""
        try:
            keys = self.client.run_on_scheduler(tasks.find_suspects, self.token)
        except (OSError, TimeoutError, AttributeError):  # it is gone too
            return ""
        names = ", ".join(_name(key) for key in keys[:3])
        return f". Workers died under {names}. {_MORE_MEMORY}" if names else ""

    def _explain(self, error: Exception, key: Any) -> Exception:
        """The exception to raise for a task's failure."""
        if isinstance(error, KilledWorker):
            is_payload = str(error.task).startswith(_SENT)
            if error.task == self.sent.key:  # not an earlier one, already replaced
                self._send_again(error)
            return WorkersDied(_name(error.task), is_payload=is_payload)
        if isinstance(error, CancelledError | CommClosedError | OSError) and not isinstance(
            error, TabfeedError
        ):
            return Lost(str(error))
        if isinstance(error, TabfeedError):
            add_note(error, f"the task was tried {self.tries} times")
            return error
        return ClusterError(f"{_name(key)} failed: {type(error).__name__}: {error}")

    def count_death(self, name: str, error: WorkersDied) -> None:
        """Raise if workers keep dying under a task."""
        self._deaths[name] += not error.is_payload
        if self._deaths[name] >= max(2, self.tries):
            raise fatal_task(name) from error

    # -- starting again -----------------------------------------------------------

    def start_again(self, name: str, why: Lost) -> None:
        """Wait until the cluster is back, and send the payload again."""
        self._restarts += 1
        end = time.monotonic() + self.patience
        while self._restarts <= self.tries and time.monotonic() < end:
            if self.client.status in ("closed", "closing"):
                break
            if self.client.status == "running":
                self.preflight.replace_lost_workers()
            if self.client.status == "running" and self.preflight.count_workers():
                try:
                    self._begin()
                    return
                except (OSError, CancelledError, distributed.TimeoutError):
                    pass
            time.sleep(0.2)
        raise ClusterError(
            f"{name}: the cluster lost this run's tasks ({why}), {self._restarts} times now, and "
            f"{self._state()}; nothing was changed. Run it again once the cluster is back"
        ) from why

    def _state(self) -> str:
        """The state of the cluster, for an error message."""
        if self.client.status != "running":
            return f"its scheduler does not answer (the client is {self.client.status})"
        workers = self.preflight.count_workers()
        if not workers:
            return f"no workers are left, nor did any come within {self.patience:.0f} s"
        return f"has {workers} workers"

    def cancel(self, futures: list[Future[Any]]) -> None:
        """Cancel these tasks."""
        if futures and self.client.status == "running":
            self.client.cancel(futures, force=True)


def _answered(question: Callable[[], R]) -> R:
    """The scheduler's answer; raises `Lost` if there is none."""
    try:
        return question()
    except (OSError, TimeoutError, AttributeError, KeyError) as e:  # reconnecting
        raise Lost(str(e)) from e


def _prefer(worker: str | None) -> dict[str, Any]:
    """Dask's options for a preferred worker."""
    return {} if worker is None else {"workers": [worker], "allow_other_workers": True}


def _name(key: Any) -> str:
    """The task's name in a key, which is a tuple or a text."""
    if isinstance(key, str) and key.startswith("("):
        key = ast.literal_eval(key)
    return str(key[1]) if isinstance(key, tuple) else str(key).rsplit("-", 2)[0]


def fatal_task(name: str) -> ClusterError:
    """The error for a task under which workers keep dying."""
    return ClusterError(f"{name}: every worker that tried it died. {_MORE_MEMORY}")
