"""Processes that work on staging buffers, memory which they share with this one.

Many threads of one process wait for each other: for the GIL, and for the kernel, which
hands out memory to one thread of a process at a time. And the time they hold the GIL is
missing where a training loop launches its kernels. So a thread here asks a `DecoderProcess`, a
process of its own, and waits for its answer without the GIL.

The child is a plain ``python`` with nothing but a socket to us: neither forked, which a process
with GPU threads does not survive, nor started through the user's main module. It ends when its
socket does, hence when this process ends, however that comes about. One that dies is an error in
the thread that asked. It is nice to others: what it does is needed later, the training loop's
next kernel now.
"""

from __future__ import annotations

import gc
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
from typing import Any

import numpy.typing as npt

from tabfeed.errors import LoaderError
from tabfeed.loader.read.staging import StagingBuffer, StagingBuffers, attach

__all__ = ["DecoderProcess", "DecoderProcesses", "serve"]

Array = npt.NDArray[Any]
Work = Callable[[Array, Any], Any]
_START = "from tabfeed.loader.read.decoder_processes import serve; serve()"
_KILLED = -9
_NICE = 5
_MOMENT = 0.05
_PATIENCE = 300.0  # for an answer: a block takes milliseconds, from the slowest of disks seconds
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
