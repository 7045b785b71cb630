"""Processes that decode Parquet into memory which they share with this one.

Many threads of one process that decode wait for each other: for the interpreter, and for the
kernel, which hands out memory to one thread of a process at a time. And what they take of the
interpreter is missing where a training loop launches its kernels. So a thread here asks a
`Decoder`, a process of its own, for some partitions, and waits, without the interpreter lock, until
they lie on a desk.

The child is a plain ``python`` with nothing but a socket to us: neither forked, which a process
with GPU threads does not survive, nor started through the user's main module. It ends when its
socket does, hence when this process ends, however that comes about. One that dies is an error in
the thread that asked. It is nice to others: what it decodes is needed later, the training loop's
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
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib import import_module
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import numpy.typing as npt

from tabfeed.errors import LoaderError
from tabfeed.loader.columns import Group, Layout
from tabfeed.loader.desks import Desk, Desks, attach
from tabfeed.loader.lots import LotReader
from tabfeed.loader.quick_fill import quick_fill
from tabfeed.loader.readers import PartReader

__all__ = ["Decoder", "Decoders", "Order", "Spot", "serve"]

Array = npt.NDArray[Any]
_START = "from tabfeed.loader.decoders import serve; serve()"
_KILLED = -9
_NICE = 5
_ONE_THREAD = {"POLARS_MAX_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}


@dataclass(frozen=True)
class Spot:
    """Where on a desk the columns of a group go: ``(columns, rows)`` from `offset` bytes on."""

    group: str
    offset: int
    columns: int
    dtype: np.dtype[Any]

    def on(self, desk: Array, rows: int) -> Array:
        """That part of a desk."""
        end = self.offset + self.columns * rows * self.dtype.itemsize
        return desk[self.offset : end].view(self.dtype).reshape(self.columns, rows)


@dataclass(frozen=True)
class Order:
    """What to lay on a desk.

    Attributes
    ----------
    partitions
        Which, end to end.
    rows
        How many rows they have.
    spots
        Where their columns go.
    quick
        Whether they were read and verified before; see `tabfeed.loader.quick_fill`.
    """

    partitions: Sequence[int]
    rows: int
    spots: Sequence[Spot]
    quick: bool = False


# -- here -------------------------------------------------------------------------------------


class Decoder:
    """One process.

    Parameters
    ----------
    reader
        A file that holds the reader of partitions, pickled. (Through the socket it would go only
        as fast as the child comes up, and one child after the other.)
    desks
        Where it may lay them.
    """

    def __init__(self, reader: int, desks: Desks) -> None:
        ours, theirs = socket.socketpair()
        arguments = (theirs.fileno(), reader, desks.fd, desks.total, desks.spacing)
        path = os.pathsep.join(p for p in sys.path if p)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _START, *map(str, arguments)],
                pass_fds=arguments[:3],
                stdin=subprocess.DEVNULL,
                env=os.environ | _ONE_THREAD | {"PYTHONPATH": path},
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

    def begin(self, desk: Desk, order: Order) -> None:
        """Ask for some partitions, on a desk."""
        self._send((desk.number, order))
        self.waiting = True

    def _send(self, what: Any) -> None:
        try:
            self._socket.send(what)
        except OSError as e:
            raise self._gone() from e

    def finish(self) -> None:
        """Wait until what was asked for is done; an exception there is raised here."""
        try:
            answer = self._socket.recv()
        except (EOFError, OSError) as e:
            raise self._gone() from e
        self.waiting = False
        if answer is not None:
            raise answer

    def _gone(self) -> LoaderError:
        self.close()
        code = self._process.wait()
        why = "perhaps for want of memory" if code == _KILLED else "its own words are above"
        return LoaderError(f"a process that decodes Parquet files ended with status {code}, {why}")

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


def _end(process: subprocess.Popen[bytes], connection: Connection) -> None:
    with suppress(OSError):
        connection.close()
    process.kill()
    process.wait()


class Decoders:
    """Some decoders, lent to threads one at a time.

    They are started by the first `borrow`, which does not wait for them: as long as none is up,
    or all are at work, there is none to borrow.

    Parameters
    ----------
    reader
        Reads partitions.
    desks
        Where to lay them.
    count
        How many processes.
    """

    def __init__(self, reader: LotReader, desks: Desks, count: int) -> None:
        self._reader, self._desks, self.count = reader, desks, count
        self._lock = threading.Lock()
        self._all: list[Decoder] = []
        self._free: list[Decoder] = []

    @contextmanager
    def borrow(self) -> Iterator[Decoder | None]:
        """A process that nobody else uses meanwhile; None if there is none at the moment."""
        decoder = self._take()
        try:
            yield decoder
        finally:
            if decoder is not None:
                self._give(decoder)

    def _take(self) -> Decoder | None:
        with self._lock:
            if not self._all:
                self._start()
            self._free += [d for d in self._all if d.alive and not d.up and d.come_up()]
            return self._free.pop() if self._free else None

    def _start(self) -> None:
        reader = self._reader
        lean = LotReader(reader.parts, Layout(reader.layout.groups), reader.dtypes)
        with open(os.memfd_create("tabfeed-reader"), "w+b") as file:
            pickle.dump(lean, file)
            file.flush()
            self._all = [Decoder(file.fileno(), self._desks) for _ in range(self.count)]

    @property
    def up(self) -> bool:
        """Whether any is there to read."""
        return any(decoder.up and decoder.alive for decoder in self._all)

    def _give(self, decoder: Decoder) -> None:
        if decoder.waiting:  # interrupted, or gone: what it would answer next is not ours
            decoder.close()
        else:
            self._free.append(decoder)

    def close(self) -> None:
        """End all processes."""
        with self._lock:
            for decoder in self._all:
                decoder.close()
            self._free = []

    @staticmethod
    def can_read(reader: LotReader) -> bool:
        """Whether another process can have this reader, at little cost, and read the same."""
        parts = reader.parts
        return (
            hasattr(os, "memfd_create")
            and isinstance(parts, PartReader)
            and not parts.transforms
            and parts.dataset.is_plain_parquet
        )


# -- there ------------------------------------------------------------------------------------


def serve() -> None:
    """What the child does: read what it is asked for, until its socket ends."""
    os.nice(_NICE)
    number, pickled, fd, total, spacing = map(int, sys.argv[1:])
    connection, memory = Connection(number), attach(fd, total)
    with suppress(EOFError, OSError, KeyboardInterrupt):
        size = os.fstat(pickled).st_size
        reader: LotReader = pickle.loads(os.pread(pickled, size, 0))
        import_module("polars")  # now, rather than when the second epoch begins
        gc.freeze()  # what is here by now stays
        connection.send(None)
        while True:
            desk, order = connection.recv()
            place = memory[desk * spacing : (desk + 1) * spacing]
            connection.send(_answer(reader, place, order))


def _answer(reader: LotReader, desk: Array, order: Order) -> Exception | None:
    parts, groups = reader.parts, reader.layout.groups
    matrices = {s.group: s.on(desk, order.rows) for s in order.spots}
    try:
        assert isinstance(parts, PartReader)
        if not (order.quick and _quickly(parts, groups, order.partitions, matrices)):
            reader.fill(order.partitions, order.rows, None, matrices)
    except Exception as e:
        return e
    return None


def _quickly(
    parts: PartReader, groups: Sequence[Group], partitions: Sequence[int], matrices: Any
) -> bool:
    return len(partitions) == 1 and quick_fill(parts, groups, partitions[0], matrices)
