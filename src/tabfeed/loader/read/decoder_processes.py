"""Processes that work on *staging buffers*, memory in equal pieces that they share with this one.

Many threads of one process wait for each other: for the GIL, and for the kernel, which
hands out memory to one thread of a process at a time. And the time they hold the GIL is
missing where a training loop launches its kernels. So a thread here asks a `DecoderProcess`, a
process of its own, and waits for its answer without the GIL.

The child is a plain ``python`` with nothing but a socket to us: neither forked, which a process
with GPU threads does not survive, nor started through the user's main module. It ends when its
socket does, hence when this process ends, however that comes about. One that dies is an error in
the thread that asked. It is nice to others: what it does is needed later, the training loop's
next kernel now.

All staging buffers lie in one piece of memory without a name, so that there is nothing to clean up
whatever becomes of a process. A staging buffer is free again when nothing refers to it and the
event that it was given, if any, has happened: a GPU may still be copying from it.
"""

from __future__ import annotations

import gc
import mmap
import os
import pickle
import socket
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection
from queue import Empty, SimpleQueue
from typing import Any

import numpy as np
import numpy.typing as npt

from tabfeed.errors import LoaderError

Array = npt.NDArray[Any]
Work = Callable[[Array, Any], Any]
_START = "from tabfeed.loader.read.decoder_processes import serve; serve()"
_KILLED = -9
_NICE = 5
_PAGE = 4096
_MOMENT = 0.05
_PATIENCE = 300.0  # for an answer: a block takes milliseconds, from the slowest of disks seconds
_BUFFER_PATIENCE = 60.0  # for a buffer that comes free
_LAST_WAIT = 10.0  # for a process that was killed; one that waits for a disk may not go
_ONE_THREAD = {"POLARS_MAX_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
# What these variables held before stays in front, and what stands last is what counts.
_TUNED = {
    # Writes to a staging buffer bypass the cache: a GPU reads it next. Copying 40 columns of a
    # megabyte took 7 ms instead of 12 when 14 processes did so at a time.
    "GLIBC_TUNABLES": (":", "glibc.cpu.x86_non_temporal_threshold=262144"),
    # Polars gives memory back to the system within half a second. A model that takes a row group a
    # second from each process had it decoded in 41 ms, and so in 27.
    "_RJEM_MALLOC_CONF": (",", "dirty_decay_ms:10000,muzzy_decay_ms:10000"),
}


# -- in this process ------------------------------------------------------------------------------


def attach(fd: int, nbytes: int) -> Array:
    """The memory behind a file descriptor; the process's own where there is none."""
    if fd < 0:
        return np.frombuffer(mmap.mmap(-1, nbytes), np.uint8)
    return np.frombuffer(mmap.mmap(fd, nbytes, flags=mmap.MAP_SHARED), np.uint8)


class StagingBuffer:
    """One piece, lent until nothing refers to it."""

    def __init__(self, staging_buffers: StagingBuffers, number: int) -> None:
        self._staging_buffers, self.number = staging_buffers, number
        self.used: Any = None  # an event after which its content is no longer needed

    @property
    def memory(self) -> Array:
        """Its bytes."""
        return self._staging_buffers.piece(self.number)

    def __del__(self) -> None:
        self._staging_buffers.give(self.number, self.used)


class StagingBuffers:
    """Some staging buffers of one size.

    Parameters
    ----------
    nbytes
        Size of each.
    count
        How many.
    prepare
        Called with the memory of a staging buffer before it is lent for the first time.
    release
        Called with the memory of each staging buffer that was prepared, before it goes.

    Examples
    --------
    >>> buffers = StagingBuffers(1000, 2)
    >>> one, two = buffers.take(), buffers.take()
    >>> one.memory.size, one.number, two.number
    (1000, 0, 1)
    >>> del one
    >>> buffers.take().number
    0
    """

    def __init__(
        self,
        nbytes: int,
        count: int,
        prepare: Callable[[Array], None] = lambda memory: None,
        release: Callable[[Array], None] = lambda memory: None,
    ) -> None:
        self.nbytes, self.count = nbytes, count
        self.spacing = -(-nbytes // _PAGE) * _PAGE
        total = max(1, self.spacing * count)
        self.fd = os.memfd_create("tabfeed-desks") if hasattr(os, "memfd_create") else -1
        if self.fd >= 0:
            os.ftruncate(self.fd, total)
        self._memory = attach(self.fd, total)
        self._prepare, self._release, self._prepared = prepare, release, 0
        self._lock = threading.Lock()
        self._free: SimpleQueue[tuple[int, Any]] = SimpleQueue()  # may be filled in a finaliser

    @property
    def total(self) -> int:
        """Bytes of all of them."""
        return len(self._memory)

    def piece(self, number: int) -> Array:
        """The bytes of a staging buffer."""
        return self._memory[number * self.spacing :][: self.nbytes]

    def take(self) -> StagingBuffer:
        """A staging buffer that may be written."""
        try:
            number, event = self._free.get_nowait()
        except Empty:
            if (new := self._next()) is not None:
                return StagingBuffer(self, new)
            number, event = self._wait()
        if event is not None and not event.query():  # which holds the GIL
            event.synchronize()
        return StagingBuffer(self, number)

    def _wait(self) -> tuple[int, Any]:
        """A staging buffer that comes free, and its event."""
        try:
            return self._free.get(timeout=_BUFFER_PATIENCE)
        except Empty:
            raise LoaderError(
                f"no staging buffer became free within {_BUFFER_PATIENCE:.0f} s; raise host_memory"
            ) from None

    def _next(self) -> int | None:
        """A staging buffer that was never used."""
        with self._lock:
            number = self._prepared
            if number >= self.count:
                return None
            self._prepared += 1
        self._prepare(self.piece(number))
        return number

    def give(self, number: int, event: Any) -> None:
        """Take a staging buffer back; it may be written after `event`. Safe inside a finaliser."""
        self._free.put((number, event))

    def __del__(self) -> None:
        with suppress(Exception):  # the interpreter may be half gone
            while not self._free.empty():
                _, event = self._free.get_nowait()
                if event is not None:
                    event.synchronize()
            for number in range(self._prepared):
                self._release(self.piece(number))
        if getattr(self, "fd", -1) >= 0:
            os.close(self.fd)


class DecoderProcess:
    """One process.

    Parameters
    ----------
    work
        A file that holds what it does, pickled. (Through the socket it would go only as fast as the
        child comes up, and one child after the other.)
    staging buffers
        Where it may work.
    """

    def __init__(self, work: int, staging_buffers: StagingBuffers) -> None:
        ours, theirs = socket.socketpair()
        arguments = (
            theirs.fileno(),
            work,
            staging_buffers.fd,
            staging_buffers.total,
            staging_buffers.spacing,
        )
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _START, *map(str, arguments)],
                pass_fds=arguments[:3],
                stdin=subprocess.DEVNULL,
                env=_environment(),
            )
        self._socket = Connection(ours.detach())
        self._end = weakref.finalize(self, _end, self._process, self._socket)
        self.up = False
        self.waiting = True  # for an answer

    def come_up(self) -> bool:
        """Whether it has come up by now; never waits."""
        if not self.up and self._socket.poll():
            self.finish()
            self.up = True
        return self.up

    def begin(self, staging_buffer: StagingBuffer, request: Any) -> None:
        """Ask for something to be done on a staging buffer."""
        try:
            self._socket.send((staging_buffer.number, request))
        except OSError as e:
            raise self._gone() from e
        self.waiting = True

    def finish(self) -> Any:
        """Wait for the answer; an exception there is raised here."""
        try:
            if not self._socket.poll(_PATIENCE):
                raise self._hung()
            error, answer = self._socket.recv()
        except (EOFError, OSError) as e:
            raise self._gone() from e
        self.waiting = False
        if error is not None:
            raise error
        return answer

    def _hung(self) -> LoaderError:
        self.close()
        return LoaderError(
            f"a process that reads Parquet files did not answer for {_PATIENCE:,.0f} s and was "
            "ended: it was stopped, or its disk does not respond"
        )

    def _gone(self) -> LoaderError:
        self.close()
        code = self._process.returncode
        why = "perhaps for lack of memory" if code == _KILLED else "see its message above"
        return LoaderError(f"a process that reads Parquet files ended with status {code}, {why}")

    @property
    def pid(self) -> int:
        """Of the process."""
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Whether it has neither ended nor been closed."""
        return self._end.alive

    def close(self) -> None:
        """End the process. May be called any number of times."""
        self._end()


def _environment() -> dict[str, str]:
    """The variables of a child: ours, and what makes it quick."""
    path = os.pathsep.join(p for p in sys.path if p)
    tuned = {
        name: between.join(filter(None, (os.environ.get(name), ours)))
        for name, (between, ours) in _TUNED.items()
    }
    return os.environ | _ONE_THREAD | tuned | {"PYTHONPATH": path}


def _end(process: subprocess.Popen[bytes], connection: Connection) -> None:
    with suppress(OSError):
        connection.close()
    process.kill()
    with suppress(subprocess.TimeoutExpired):
        process.wait(_LAST_WAIT)


class DecoderProcesses:
    """Some processes that do the same, lent to threads.

    They are started by the first `borrow`, which does not wait for them: as long as none is up,
    there is none to borrow.

    Parameters
    ----------
    work
        What they do, with the memory of a staging buffer and a request; to be pickled.
    staging buffers
        Where.
    count
        How many.
    """

    def __init__(self, work: Work, staging_buffers: StagingBuffers, count: int) -> None:
        self._work, self._staging_buffers, self.count = work, staging_buffers, count
        self._changed = threading.Condition()
        self._all: list[DecoderProcess] = []
        self._free: list[DecoderProcess] = []

    @contextmanager
    def borrow(self, most: int = 1) -> Iterator[list[DecoderProcess]]:
        """Up to so many processes that no other thread uses meanwhile; perhaps none.

        If all that are up are in use, this waits for one, a moment.
        """
        decoders = self._take(most)
        try:
            yield decoders
        finally:
            self._give(decoders)

    def _take(self, most: int) -> list[DecoderProcess]:
        with self._changed:
            if not self._all:
                self._start()
            self._free += [h for h in self._all if h.alive and not h.up and h.come_up()]
            if not self._free and self.up:
                self._changed.wait(_MOMENT)
            return [self._free.pop() for _ in range(min(most, len(self._free)))]

    def _start(self) -> None:
        with open(os.memfd_create("tabfeed-work"), "w+b") as file:
            pickle.dump(self._work, file)
            file.flush()
            self._all = [
                DecoderProcess(file.fileno(), self._staging_buffers) for _ in range(self.count)
            ]

    def _give(self, decoders: list[DecoderProcess]) -> None:
        for decoder in decoders:
            if decoder.waiting:  # interrupted, or gone: what it would answer next is not ours
                decoder.close()
        with self._changed:
            self._free += [decoder for decoder in decoders if decoder.alive]
            self._changed.notify(len(decoders))

    @property
    def up(self) -> bool:
        """Whether any is there."""
        return any(decoder.up and decoder.alive for decoder in self._all)

    def dismiss(self) -> None:
        """End those that no thread uses. The others stay; if none do, `borrow` starts anew."""
        with self._changed:
            used = [h for h in self._all if h.up and h.alive and h not in self._free]
            for decoder in self._all:
                if decoder not in used:
                    decoder.close()
            self._all, self._free = used, []


# -- in a decoder process -------------------------------------------------------------------------


def serve() -> None:
    """What the child does: work on what it is asked for, until its socket ends."""
    os.nice(_NICE)
    number, pickled, fd, total, spacing = map(int, sys.argv[1:])
    connection, memory = Connection(number), attach(fd, total)
    with suppress(EOFError, OSError, KeyboardInterrupt):
        work: Work = pickle.loads(os.pread(pickled, os.fstat(pickled).st_size, 0))
        gc.freeze()  # what is here by now stays
        connection.send((None, None))
        while True:
            staging_buffer, request = connection.recv()
            buffer = memory[staging_buffer * spacing : (staging_buffer + 1) * spacing]
            connection.send(_answer(work, buffer, request))


def _answer(work: Work, staging_buffer: Array, request: Any) -> tuple[Exception | None, Any]:
    try:
        return None, work(staging_buffer, request)
    except Exception as e:
        return e, None
