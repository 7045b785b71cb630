"""Byte ranges of remote objects, fetched ahead by as many connections as are allowed.

A `Fetch` is asked for by whoever will need the bytes and begins at once. Whoever reads the same
ranges later finds it by them, begun or done: reading ahead needs no other agreement between
the two. It lives as long as somebody holds it; dropped, what was not begun is not fetched.

A request that fails is tried again (`tabfeed.io.storage.retry`): after errors of the server,
resets, answers cut short and answers that do not come. Each try may take twice as long as the one
before, so that a slow network gets its time and a dead connection is left early. All of it ends at
a deadline, with an error that names the object.

Bytes are handed out only after the object's version was seen to be the one that was opened.
"""

from __future__ import annotations

import os
import queue
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import TypeVar

import pyarrow as pa

from tabfeed.errors import UnreadableFileError
from tabfeed.io.storage.file_ref import FileRef
from tabfeed.io.storage.ranges import Range, largest_request, requests_for
from tabfeed.io.storage.remote import RemoteOptions, Version, remote_of
from tabfeed.io.storage.retry import FIRST_SHARE, reason, remedy, retry
from tabfeed.trace import span

__all__ = ["Fetch", "begin", "persist", "version_of"]

T = TypeVar("T")
_UNEXPECTED = (TypeError, ValueError, LookupError, NotImplementedError, AttributeError)
_IDLE_SECONDS = 5.0
_TICK = 0.5
_GRACE = 5.0


# -- patience ---------------------------------------------------------------------------


def persist(ref: FileRef, what: str, call: Callable[[float], T]) -> T:
    """Call ``call(timeout)`` until it works or the deadline has come."""
    deadline = (ref.remote or RemoteOptions()).deadline
    try:
        return retry(call, deadline, first=FIRST_SHARE)
    except FileNotFoundError as e:
        raise UnreadableFileError(
            f"{ref.name} is gone: it was there when the dataset was opened. Open it again"
        ) from e
    except OSError as e:
        raise UnreadableFileError(f"{ref.name} cannot be {what}: {reason(e)}. {remedy(e)}") from e
    except _UNEXPECTED as e:
        raise UnreadableFileError(f"{ref.name} cannot be {what}: {type(e).__name__}: {e}") from e


def version_of(ref: FileRef) -> Version:
    """What an object is now; refused if it is not the one that was listed or opened."""
    remote = remote_of(ref.filesystem)
    now = persist(ref, "read", lambda t: remote.version(ref.path, t))
    if not now.is_of(ref.size, ref.tag):
        raise _changed(ref)
    return now


def _changed(ref: FileRef) -> UnreadableFileError:
    when = "opened" if ref.tag else "listed"
    return UnreadableFileError(
        f"{ref.name} has changed since the dataset was {when}: another object lies there now. "
        "Open the dataset again"
    )


# -- connections ------------------------------------------------------------------------


class _Connections:
    """Threads that take requests in the order they were asked for, and go when there are none."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._jobs: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._threads = self._idle = 0

    def submit(self, job: Callable[[], None]) -> None:
        with self._lock:
            self._jobs.put(job)
            if self._idle < self._jobs.qsize() and self._threads < self._count:
                self._threads += 1
                threading.Thread(target=self._work, name="tabfeed-fetch", daemon=True).start()

    def _work(self) -> None:
        while True:
            with self._lock:
                self._idle += 1
            try:
                job = self._jobs.get(timeout=_IDLE_SECONDS)
            except queue.Empty:
                with self._lock:
                    self._idle -= 1
                    if self._jobs.empty():  # none came between the time-out and the lock
                        self._threads -= 1
                        return
                continue
            with self._lock:
                self._idle -= 1
            job()
            del job


_pools: dict[tuple[int, int, str], _Connections] = {}
_pools_lock = threading.Lock()


def _connections(count: int, purpose: str = "read") -> _Connections:
    """The connections of this process; a forked child has its own."""
    with _pools_lock:
        return _pools.setdefault((os.getpid(), count, purpose), _Connections(count))


# -- fetching ---------------------------------------------------------------------------


class _Progress:
    """What the connections and the waiting reader share. Does not hold the `Fetch`."""

    def __init__(self, ref: FileRef, requests: Sequence[Range]) -> None:
        self.ref = ref
        self.requests = requests
        self.buffers: list[pa.Buffer | None] = [None] * len(requests)
        self.left = len(requests)
        self.lock = threading.Lock()
        self.done = threading.Event()
        self.error: BaseException | None = None
        self.dropped = False
        self.moved = time.monotonic()

    def run(self, number: int) -> None:
        """One request, on a connection; the last one also looks at the version."""
        try:
            if not (self.dropped or self.error):
                self._get(number)
        except BaseException as e:
            self.error = self.error or e
        with self.lock:
            self.moved = time.monotonic()
            self.left -= 1
            last = self.left == 0
        if last:  # as many as read may look at versions: that carries no data, and nobody queues
            connections = (self.ref.remote or RemoteOptions()).connections
            _connections(connections, "check").submit(self._finish)

    def _get(self, number: int) -> None:
        wanted, ref = self.requests[number], self.ref
        remote = remote_of(ref.filesystem)

        def get(timeout: float) -> pa.Buffer:
            data = remote.read(ref.path, wanted.start, wanted.size, ref.size, timeout)
            if data.size != wanted.size:
                raise OSError(f"{data.size:,} bytes came where {wanted.size:,} were asked for")
            return data

        with span("fetch", bytes=wanted.size):
            self.buffers[number] = persist(ref, "read", get)

    def _finish(self) -> None:
        try:
            if not self.dropped:
                self._check_version()
        except BaseException as e:
            self.error = self.error or e
        self.done.set()

    def _check_version(self) -> None:
        ref = self.ref
        if not ref.tag:
            return
        if self.error is None:
            version_of(ref)
            return
        with suppress(OSError):  # a range may have been refused because the object is another now
            now = remote_of(ref.filesystem).version(ref.path, _GRACE)
            if not now.is_of(ref.size, ref.tag):
                self.error = _changed(ref)


class Fetch:
    """Ranges of one object, on their way or here."""

    def __init__(self, ref: FileRef, ranges: Iterable[Range]) -> None:
        options = ref.remote or RemoteOptions()
        requests = requests_for(ranges, largest_request(options.connections))
        self._progress = _Progress(ref, requests)
        self.nbytes = sum(r.size for r in self._progress.requests)
        weakref.finalize(self, _drop, self._progress).atexit = False
        if not requests:
            self._progress.done.set()
        pool = _connections(options.connections)
        for number in range(len(requests)):
            pool.submit(_Job(self._progress, number))

    def wait(self) -> Fetch:
        """Wait until all is here, or raise what went wrong."""
        progress = self._progress
        ref = progress.ref
        # Each request ends by its own deadline; this one is for requests that lost their thread.
        patience = 2 * (ref.remote or RemoteOptions()).deadline + _GRACE
        while not progress.done.wait(_TICK):
            if time.monotonic() - progress.moved > patience:
                raise UnreadableFileError(
                    f"{ref.name} cannot be read: nothing came for {patience:.0f} s"
                )
        if progress.error is not None:
            raise progress.error
        return self

    @property
    def failed(self) -> bool:
        """Whether it went wrong."""
        return self._progress.error is not None

    def get(self, start: int, stop: int) -> pa.Buffer | None:
        """These bytes, after `wait`; None if they were not asked for."""
        pieces = []
        for request, buffer in zip(self._progress.requests, self._progress.buffers, strict=True):
            low, high = max(start, request.start), min(stop, request.stop)
            if low < high and buffer is not None:
                pieces.append(buffer.slice(low - request.start, high - low))
        if sum(p.size for p in pieces) != stop - start:
            return None
        if len(pieces) == 1:
            return pieces[0]
        return pa.py_buffer(b"".join(memoryview(p) for p in pieces))


class _Job:
    """A request in the queue."""

    __slots__ = ("number", "progress")

    def __init__(self, progress: _Progress, number: int) -> None:
        self.progress, self.number = progress, number

    def __call__(self) -> None:
        self.progress.run(self.number)


def _drop(progress: _Progress) -> None:
    progress.dropped = True


_begun: weakref.WeakValueDictionary[object, Fetch] = weakref.WeakValueDictionary()
_begun_lock = threading.Lock()


def begin(ref: FileRef, ranges: Iterable[Range]) -> Fetch:
    """Fetch these ranges, or find the `Fetch` of them that somebody has begun."""
    wanted = tuple(ranges)
    key = (os.getpid(), ref.name, ref.tag, wanted)
    with _begun_lock:
        found = _begun.get(key)
        if found is None or found.failed:
            found = _begun[key] = Fetch(ref, wanted)
        return found


def _forget() -> None:
    """In a forked child: no connections, and no lock that a thread of the parent may have held."""
    global _begun, _begun_lock, _pools_lock
    _begun = weakref.WeakValueDictionary()
    _begun_lock, _pools_lock = threading.Lock(), threading.Lock()
    _pools.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
