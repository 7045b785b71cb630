"""Byte ranges of remote objects, fetched ahead by as many connections as are allowed.

`begin` starts to fetch ranges at once, and gives a second caller of the same ranges the `Fetch`
that is under way: reading ahead needs no other agreement between the two. A `Fetch` that is no
longer referenced drops the requests it has not begun.

A request costs a round trip before its first byte comes: 50 ms, say, in which a connection of
100 MB/s could have carried 5 MB. So ranges that lie close together are fetched as one, holes and
all, as long as what is read in vain stays a small part of the whole (`requests_for`); and requests
are large: of one of 32 MiB the round trip is an eighth. The more connections share the memory for
what is on its way, the smaller they are (`largest_request`).

A request that fails is tried again (`tabfeed.io.storage.retry`): after errors of the server,
resets, answers cut short and answers that do not come. Each try may take twice as long as the one
before, so that a slow network gets its time and a dead connection is left early. All of it ends at
a deadline, with an error that names the object.

Bytes are handed out only once the object's version was found to be the one that was opened.
"""

from __future__ import annotations

import os
import queue
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from itertools import pairwise
from typing import NamedTuple, TypeVar

import pyarrow as pa

from tabfeed.errors import UnreadableFileError
from tabfeed.io.storage.files import FileRef
from tabfeed.io.storage.remote import RemoteOptions, Version, remote_of
from tabfeed.io.storage.retry import FIRST_SHARE, reason, remedy, retry
from tabfeed.trace import span

__all__ = ["Fetch", "Range", "begin", "largest_request", "requests_for", "version_of"]

T = TypeVar("T")
_UNEXPECTED = (TypeError, ValueError, LookupError, NotImplementedError, AttributeError)
_IDLE_SECONDS = 5.0
_TICK = 0.5
_GRACE = 5.0
_LARGEST = 64 * 2**20
_SMALLEST = 8 * 2**20
_ON_THE_WAY = 256 * 2**20
_LARGEST_HOLE = 4 * 2**20
_SHARE = 10  # a hole may be a tenth of what is wanted around it


# -- requests ---------------------------------------------------------------------------


class Range(NamedTuple):
    """The bytes ``[start, stop)`` of a file."""

    start: int
    stop: int

    @property
    def size(self) -> int:
        """How many bytes."""
        return self.stop - self.start


def largest_request(connections: int) -> int:
    """How large a request may be, so that all connections together hold 256 MiB.

    Examples
    --------
    >>> [largest_request(n) // 2**20 for n in (1, 4, 8, 16, 64)]
    [64, 64, 32, 16, 8]
    """
    return max(_SMALLEST, min(_LARGEST, _ON_THE_WAY // connections))


def requests_for(wanted: Iterable[Range], largest: int = _LARGEST) -> list[Range]:
    """The requests that bring all of these ranges, in the order of the file.

    Examples
    --------
    >>> requests_for([Range(0, 1000), Range(1050, 2000), Range(9000, 9500)])
    [Range(start=0, stop=2000), Range(start=9000, stop=9500)]
    >>> requests_for([Range(0, 10)], largest=6)
    [Range(start=0, stop=5), Range(start=5, stop=10)]
    """
    merged: list[Range] = []
    useful = 0
    for piece in sorted({r for r in wanted if r.size > 0}):
        last = merged[-1] if merged else None
        if last is not None and _belongs(last, piece, useful, largest):
            useful += max(0, piece.stop - max(last.stop, piece.start))
            merged[-1] = Range(last.start, max(last.stop, piece.stop))
        else:
            merged.append(piece)
            useful = piece.size
    return [part for piece in merged for part in _split(piece, largest)]


def _belongs(last: Range, piece: Range, useful: int, largest: int) -> bool:
    hole = piece.start - last.stop
    if hole < 0:
        return True
    small = hole <= min(_LARGEST_HOLE, (useful + piece.size) // _SHARE)
    return small and piece.stop - last.start <= largest


def _split(piece: Range, largest: int) -> list[Range]:
    """As few parts as possible, of equal size, so that those of one partition end together."""
    count = -(-piece.size // largest)
    bounds = [piece.start + piece.size * i // count for i in range(count + 1)]
    return [Range(start, stop) for start, stop in pairwise(bounds)]


# -- retries ----------------------------------------------------------------------------


def _retrying(ref: FileRef, what: str, call: Callable[[float], T]) -> T:
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
    now = _retrying(ref, "read", lambda t: remote.version(ref.path, t))
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
    """Threads that serve requests in order, and end when there are none."""

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
        if last:  # versions are checked by connections of their own: small requests don't queue
            connections = (self.ref.remote or RemoteOptions()).connections
            _connections(connections, "check").submit(self._finish)

    def _get(self, number: int) -> None:
        wanted, ref = self.requests[number], self.ref
        remote = remote_of(ref.filesystem)

        def get(timeout: float) -> pa.Buffer:
            data = remote.read(ref.path, wanted.start, wanted.size, ref.size, timeout)
            if data.size != wanted.size:
                raise OSError(f"{data.size:,} bytes came where {wanted.size:,} were requested")
            return data

        with span("fetch", bytes=wanted.size):
            self.buffers[number] = _retrying(ref, "read", get)

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
        """Wait for these bytes; None if they are outside the ranges."""
        self.wait()
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
    """Fetch these ranges, or return the `Fetch` of them that is under way."""
    wanted = tuple(ranges)
    key = (os.getpid(), ref.name, ref.tag, wanted)
    with _begun_lock:
        found = _begun.get(key)
        if found is None or found.failed:
            found = _begun[key] = Fetch(ref, wanted)
        return found


def _forget() -> None:
    """Drop connections and recreate locks after a fork."""
    global _begun, _begun_lock, _pools_lock
    _begun = weakref.WeakValueDictionary()
    _begun_lock, _pools_lock = threading.Lock(), threading.Lock()
    _pools.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
