"""Memory on a GPU for lots, and the streams that fill and read it.

All lots lie in one piece of memory for each width of column: *slabs* of ``(columns, rows)`` one
after the other. So rows of any number of lots are gathered in one call, by one list of numbers:
few calls matter, since every call of every thread queues for the interpreter.

A slab is written on the stream of the thread that reads lots and read on the one stream that puts
chunks together. The event after the last such reading travels with the slab; whoever writes it next
waits for that, on the GPU, not in the program.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from tabfeed.errors import LoaderError
from tabfeed.loader.columns import Group

__all__ = ["Plane", "Slab", "Slabs", "ThreadStreams", "pinned_bytes", "planes_of", "torch_dtype"]

Tensor = torch.Tensor
_BY_WIDTH = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_PATIENCE = 60.0


def torch_dtype(dtype: np.dtype[Any]) -> torch.dtype:
    """The same in torch's terms."""
    return torch.from_numpy(np.empty(0, dtype)).dtype


def pinned_bytes(nbytes: int) -> Any:
    """Page-locked memory, from which a GPU copies while the program goes on."""
    return torch.empty(nbytes, dtype=torch.uint8, pin_memory=True).numpy()


class ThreadStreams(threading.local):
    """A stream for each thread: reading on one stream for all was measured half as fast."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._own: Any = None

    def get(self) -> Any:
        """The stream of this thread."""
        if self._own is None:
            self._own = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]
        return self._own


@dataclass(frozen=True)
class Plane:
    """Groups whose columns are of one width, and therefore share memory.

    Attributes
    ----------
    width
        Bytes of a value.
    groups
        Each with its dtype in lots, in order.
    """

    width: int
    groups: tuple[tuple[Group, np.dtype[Any]], ...]

    @property
    def columns(self) -> int:
        """How many columns there are."""
        return sum(len(group.columns) for group, _ in self.groups)

    def split(self, matrix: Any) -> dict[str, Any]:
        """The rows of a ``(columns, rows)`` matrix that belong to each group."""
        out, at = {}, 0
        for group, _ in self.groups:
            out[group.name] = matrix[at : at + len(group.columns)]
            at += len(group.columns)
        return out


def planes_of(groups: Sequence[Group], dtypes: dict[str, np.dtype[Any]]) -> tuple[Plane, ...]:
    """The groups by the width of their columns.

    Examples
    --------
    >>> one = Group("ids", ("a", "b"), np.dtype(np.int64))
    >>> two = Group("numbers", ("x",), np.dtype(np.float32))
    >>> dtypes = {"ids": np.dtype(np.int32), "numbers": np.dtype(np.float32)}
    >>> [(plane.width, plane.columns) for plane in planes_of([one, two], dtypes)]
    [(4, 3)]
    """
    by_width: dict[int, list[tuple[Group, np.dtype[Any]]]] = {}
    for group in groups:
        dtype = dtypes[group.name]
        by_width.setdefault(dtype.itemsize, []).append((group, dtype))
    return tuple(Plane(width, tuple(found)) for width, found in sorted(by_width.items()))


class Slab:
    """A place for some lots; free again when nothing refers to it."""

    def __init__(self, slabs: Slabs, number: int) -> None:
        self._slabs, self.number = slabs, number
        self.ready: Any = None  # the event after it was filled
        self.used: Any = None  # the event after it was read last

    def matrix(self, plane: Plane) -> Tensor:
        """Its ``(columns, rows)`` in a plane."""
        return self._slabs.planes[plane][self.number]

    def __del__(self) -> None:
        self._slabs.give(self.number, self.used or self.ready)


class Slabs:
    """A fixed number of slabs on a GPU, used again and again.

    Parameters
    ----------
    device
        The GPU.
    planes
        What lies in a slab.
    rows
        Rows of a slab.
    count
        How many slabs.
    stream
        The stream that reads them; their memory is asked for in its name.
    """

    def __init__(
        self, device: torch.device, planes: Sequence[Plane], rows: int, count: int, stream: Any
    ) -> None:
        self.device, self.rows = device, rows
        with torch.cuda.stream(stream):
            self.planes = {
                p: torch.empty((count, p.columns, rows), dtype=_BY_WIDTH[p.width], device=device)
                for p in planes
            }
            event = stream.record_event()
        self._free: deque[tuple[int, Any]] = deque((n, event) for n in range(count))

    def take(self, stream: Any) -> Slab:
        """A slab that work queued on `stream` from now on may write."""
        end = time.monotonic() + _PATIENCE
        while True:
            try:
                number, event = self._free.popleft()
                break
            except IndexError:
                if time.monotonic() > end:
                    raise LoaderError(
                        "no memory for the next rows came free on the GPU; give more device_memory"
                    ) from None
                time.sleep(0.001)
        if event is not None:
            stream.wait_event(event)
        return Slab(self, number)

    def give(self, number: int, event: Any) -> None:
        """Take a slab back; it may be written after `event`. Safe inside a finaliser."""
        self._free.append((number, event))

    def gathered(self, plane: Plane, places: Tensor) -> Tensor:
        """``(columns, places)``: the rows at these places, of whichever slabs.

        Row ``r`` of slab ``s`` is at place ``s * columns * rows + r``: seen from there, its columns
        lie `rows` values apart.
        """
        whole = self.planes[plane].view(-1)
        last = whole.numel() - (plane.columns - 1) * self.rows
        return whole.as_strided((plane.columns, last), (self.rows, 1)).index_select(1, places)
