"""The module that owns the threads: numbered pieces of work, done ahead, delivered in order.

Workers take the next number as long as fewer than `depth` results are waiting or in the making;
beyond that they may do something useful for later (`spare`), or rest.
Each result, or the exception that took its place, is delivered at its number's turn; then comes
the end. What is delivered does not depend on which worker was faster.

Every thread that wakes queues for the GIL, which the training loop needs. So one worker
is woken at a time, and wakes the next if it finds something to do.

Threads hold the shared `_Work`, never the `Prefetch` the consumer holds. So when the consumer
drops that (an early ``break``, a garbage collection, an exception), its finaliser stops the
work. At interpreter exit whatever still runs is stopped and waited for. No wait is without an
end: workers look up twice a second, and a consumer that waits finds out if all workers are gone.

A forked child has the memory but not the threads. There, `Prefetch` says so (`alone`), and its
owner starts another one where this one stood.
"""

from __future__ import annotations

import atexit
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Generic, TypeVar

from tabfeed.arguments import not_the_end
from tabfeed.errors import LoaderError
from tabfeed.trace import span

T = TypeVar("T")
_TICK = 0.5
_JOIN = 10.0


class _Failure:
    """An exception on its way to the consumer."""

    __slots__ = ("error",)

    def __init__(self, error: BaseException) -> None:
        self.error = error


class _Work(Generic[T]):
    """What workers and consumer share."""

    def __init__(
        self,
        do: Callable[[int], T],
        numbers: range,
        depth: int,
        spare: Callable[[Callable[[], None]], bool],
        on_stop: Callable[[], None],
    ) -> None:
        self.do = do
        self.spare = spare
        self.on_stop = on_stop
        self.numbers = numbers
        self.depth = depth
        self.lock = threading.Lock()
        self.ready = threading.Condition(self.lock)  # the consumer waits here
        self.room = threading.Condition(self.lock)  # and the workers here
        self.results: dict[int, T | _Failure] = {}
        self.taken = 0  # positions in `numbers` begun by workers
        self.given = 0  # positions handed to the consumer
        self.stopped = False

    def run(self) -> None:
        """What each worker does until there is no more work."""
        while (position := self._claim()) is not None:
            try:
                with span("chunk"):
                    result: T | _Failure = self.do(self.numbers[position])
            except StopIteration as e:
                result = _Failure(not_the_end(e, "a function that makes batches"))
            except BaseException as e:
                result = _Failure(e)
            failed = isinstance(result, _Failure)
            with self.lock:
                if not self.stopped:
                    self.results[position] = result
                del result  # a worker that waits, or has no core, must not keep it alive
                self.ready.notify_all()
                self.room.notify()  # what it was made of may have made room to read ahead
            if failed:
                return

    def _claim(self) -> int | None:
        spare = True  # until there is nothing of that kind to do
        while not self.stopped:
            with self.lock:
                failed = any(isinstance(result, _Failure) for result in self.results.values())
                if self.taken >= len(self.numbers) or failed:
                    self.room.notify_all()
                    return None
                if self.taken - self.given < self.depth:
                    self.taken += 1
                    self.room.notify()
                    return self.taken - 1
                if not spare:
                    with span("full"):
                        self.room.wait(_TICK)
            with span("ahead"):
                spare = self.spare(self.wake)
        return None

    def wake(self) -> None:
        """Let another worker look whether there is more to do."""
        with self.lock:
            self.room.notify()

    def stop(self) -> None:
        """Take no more work, forget what is done. Safe to call from anywhere, often."""
        self.stopped = True  # before the lock: a worker in `do` sees it at its next claim
        self.on_stop()
        if self.lock.acquire(timeout=_TICK):
            try:
                self.results.clear()
                self.ready.notify_all()
                self.room.notify_all()
            finally:
                self.lock.release()


_running: weakref.WeakSet[Prefetch[Any]] = weakref.WeakSet()
_threads: weakref.WeakSet[threading.Thread] = weakref.WeakSet()  # of dropped iterators as well


class Prefetch(Generic[T]):
    """An iterator over ``do(n)`` for each number, computed ahead by threads.

    Parameters
    ----------
    do
        The work; called from any worker, for different numbers at the same time.
    numbers
        Which pieces, in the order of delivery.
    workers
        How many threads.
    depth
        Most pieces in the making or waiting.
    spare
        Called by a worker that must not go further ahead: may do something that later pieces
        will need, and says whether it did. What it is given is to be called as soon as it is clear
        that there is something to do: another worker then looks for more.
    on_stop
        Called when the work is to end early, so that `do` may give up; must not wait.

    Examples
    --------
    >>> list(Prefetch(lambda n: n * n, range(5), workers=2, depth=3))
    [0, 1, 4, 9, 16]
    """

    def __init__(
        self,
        do: Callable[[int], T],
        numbers: range,
        *,
        workers: int = 2,
        depth: int = 3,
        spare: Callable[[Callable[[], None]], bool] = lambda wake: False,
        on_stop: Callable[[], None] = lambda: None,
    ) -> None:
        self._work = _Work(do, numbers, max(1, depth), spare, on_stop)
        self._pid = os.getpid()
        self._threads = [
            threading.Thread(target=self._work.run, name=f"tabfeed-loader-{i}", daemon=True)
            for i in range(max(1, min(workers, len(numbers))))
        ]
        self._finaliser = weakref.finalize(self, _stop, self._work, self._threads, self._pid)
        self._finaliser.atexit = False  # `_stop_all` waits for the threads as well
        _running.add(self)
        _threads.update(self._threads)
        for thread in self._threads:
            thread.start()

    @property
    def alone(self) -> bool:
        """Whether this is a forked copy, whose threads stayed in the parent."""
        return os.getpid() != self._pid

    def __iter__(self) -> Iterator[T]:
        return self

    def __next__(self) -> T:
        work = self._work
        if self.alone:
            raise LoaderError("this iterator was begun in another process; begin a new one here")
        with work.lock:
            result = self._take()
        if isinstance(result, _Failure):
            self.close()
            raise result.error
        return result

    def _take(self) -> T | _Failure:
        work = self._work
        if work.given not in work.results:
            with span("wait"):
                self._wait()
        result = work.results.pop(work.given)
        work.given += 1
        return result

    def _wait(self) -> None:
        work = self._work
        work.room.notify()
        while work.given not in work.results:
            if work.stopped or work.given >= len(work.numbers):
                raise StopIteration
            work.ready.wait(_TICK)
            alive = any(thread.is_alive() for thread in self._threads)
            if not (work.stopped or work.given in work.results or alive):
                work.stopped = True
                raise LoaderError(
                    "all worker threads exited unexpectedly; what they raised is on stderr"
                )

    @property
    def ready(self) -> bool:
        """Whether the next piece can be had without waiting, and is none that failed."""
        found = self._work.results.get(self._work.given)
        return found is not None and not isinstance(found, _Failure)

    def go_on(self) -> None:
        """Let the workers know that a piece was taken and, with what it was made of, used.

        Not before: they would get in the way of whoever uses it.
        """
        self._work.wake()

    def close(self) -> None:
        """Stop, and wait for the threads to end. May be called any number of times."""
        if self.alone:
            return
        self._finaliser.detach()
        self._work.stop()
        join_threads(self._threads)

    @property
    def threads(self) -> list[threading.Thread]:
        """The workers, which may outlive a `Prefetch` that was dropped by the piece they are at."""
        return self._threads


def join_threads(threads: Iterable[threading.Thread]) -> None:
    """Wait for threads that were stopped to end, but not for ever."""
    end = time.monotonic() + _JOIN
    for thread in threads:
        if thread.is_alive() and thread is not threading.current_thread():
            thread.join(max(0.0, end - time.monotonic()))


def queue_depths() -> list[tuple[int, int]]:
    """For each iterator that runs: pieces that are ready, and the most there may be.

    A look without a lock, for a profiler: what it says may be a moment old.
    """
    works = [p._work for p in list(_running)] if _running else []
    return [(len(w.results), w.depth) for w in works if not w.stopped]


def _stop(work: _Work[Any], threads: list[threading.Thread], pid: int) -> None:
    """Called when the consumer dropped its `Prefetch`, perhaps inside a garbage collection."""
    if os.getpid() == pid:
        work.stop()


def _stop_all() -> None:
    """End every thread before the interpreter goes: one inside Arrow would take it down."""
    for prefetch in list(_running):
        prefetch.close()
    join_threads(list(_threads))


atexit.register(_stop_all)
