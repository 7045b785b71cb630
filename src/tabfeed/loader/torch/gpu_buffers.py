"""Memory on a GPU for lots, and the streams that fill and read it.

All lots lie in one piece of memory for each width of column: *slabs* of ``(columns, rows)`` one
after the other. So rows of any number of lots are gathered in one call, by one list of numbers,
which itself takes a handful of calls, however many lots there are. Few calls matter: each of them
hands the interpreter over, and that takes longer than the GPU needs for the work.

A slab is written on one stream and read on another, the one that puts chunks together. The event
after the last such reading travels with the slab; whoever writes it next waits for that, on the
GPU, not in the program.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from tabfeed.errors import LoaderError
from tabfeed.loader.columns import Group
from tabfeed.loader.plan import Strip

__all__ = ["Plane", "Slab", "Slabs", "planes_of", "segments", "torch_dtype"]

Tensor = torch.Tensor
Array = npt.NDArray[Any]
_BY_WIDTH = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_PATIENCE = 60.0
_LARGE = 2**31  # values: more need 64 bits to number them


def torch_dtype(dtype: np.dtype[Any]) -> torch.dtype:
    """The same in torch's terms."""
    return torch.from_numpy(np.empty(0, dtype)).dtype


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

    def spans(self) -> list[tuple[Group, np.dtype[Any], int]]:
        """Each group, its dtype in lots, and its first column."""
        out, at = [], 0
        for group, dtype in self.groups:
            out.append((group, dtype, at))
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
    # The widest first: what follows is then aligned, however many columns there are.
    return tuple(Plane(width, tuple(by_width[width])) for width in sorted(by_width, reverse=True))


class Slab:
    """A place for a lot; free again when nothing refers to it."""

    def __init__(self, slabs: Slabs, number: int) -> None:
        self._slabs, self.number = slabs, number
        self.ready: Any = None  # the event after it was filled
        self.used: Any = None  # the event after it was read last

    def matrix(self, plane: Plane, rows: int, columns: slice | None = None) -> Tensor:
        """Some columns of its first rows in a plane."""
        return self._slabs.view(self.number, plane, rows, columns)

    def order(self, rows: int) -> Tensor:
        """Its permutation: row ``i`` of the lot is row ``order[i]`` in file order."""
        return self._slabs.view(self.number, None, rows, None)

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
            # In file order until somebody writes another.
            self.orders = torch.arange(rows, dtype=torch.int32, device=device).repeat(count, 1)
            event = stream.record_event()
        self._views: dict[Any, Tensor] = {}
        self._seen: dict[tuple[Plane, range], Tensor] = {}
        self._order = self.orders.view(-1)
        self._counted: dict[int, Tensor] = {}  # chunks are of one size, and perhaps a last one
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

    def view(self, number: int, plane: Plane | None, rows: int, columns: slice | None) -> Tensor:
        """The first rows of a slab: some columns of a plane, or its permutation."""
        key = (number, plane, rows, columns and (columns.start, columns.stop))
        if key not in self._views:
            whole = self.orders[number] if plane is None else self.planes[plane][number]
            if columns is not None:
                whole = whole[columns]
            if rows != self.rows:  # one of a few odd lots
                return whole[..., :rows]
            self._views[key] = whole
        return self._views[key]

    def runs(self, strips: Sequence[tuple[Slab, Strip]]) -> Tensor:
        """What `places` needs to know of strips, in page-locked memory: to be carried in passing.

        Row ``r`` of slab ``s`` is at ``s * columns * rows + r`` of a plane: seen from there, its
        columns lie `rows` values apart.
        """
        widths, shifts, slabs = segments(strips, self.rows)
        bases = [slabs * (plane.columns * self.rows) for plane in self.planes]
        table = np.stack([widths, shifts, *bases]).astype(self._index)
        return torch.from_numpy(table).pin_memory()

    def places(self, runs: Tensor, rows: int) -> list[Tensor]:
        """For each plane, where in it the row of each place of a chunk lies."""
        widths, shifts, *bases = runs.to(self.device, non_blocking=True).unbind()
        number = torch.repeat_interleave(widths, output_size=rows)
        sources = shifts.index_select(0, number).add_(self._numbers(rows))
        order = self._order.index_select(0, sources)
        return [base.index_select(0, number).add_(order) for base in bases]

    @property
    def _index(self) -> Any:
        """A dtype that can number all values."""
        most = max(plane.numel() for plane in self.planes.values())
        return np.int64 if most >= _LARGE else np.int32

    def _numbers(self, rows: int) -> Tensor:
        """From 0 on."""
        if rows not in self._counted:
            self._counted[rows] = torch.arange(rows, dtype=torch.int32, device=self.device)
        return self._counted[rows]

    def gathered(self, plane: Plane, columns: range, places: Tensor) -> Tensor:
        """``(columns, places)``: the rows at these places, of whichever slabs."""
        if (plane, columns) not in self._seen:
            whole = self.planes[plane].view(-1)
            last = whole.numel() - (plane.columns - 1) * self.rows
            shape, first = (len(columns), last), columns.start * self.rows
            self._seen[plane, columns] = whole.as_strided(shape, (self.rows, 1), first)
        return self._seen[plane, columns].index_select(1, places)


def segments(strips: Sequence[tuple[Slab, Strip]], rows: int) -> tuple[Array, Array, Array]:
    """Strips as runs of rows, in the order of their places, which they fill without a gap.

    Parameters
    ----------
    strips
        Each with the slab it is of.
    rows
        Of a slab.

    Returns
    -------
    tuple
        Of each run: how many rows; how much to add to a place to get its row, all slabs counted
        as one; and the number of its slab.

    Examples
    --------
    Two slabs of 100 rows give two rows each to either of two batches:

    >>> from types import SimpleNamespace as Stub
    >>> rows = Strip(lot=5, start=0, pitch=2, steps=2, width=2, place=0, stride=4)
    >>> more = Strip(lot=7, start=10, pitch=2, steps=2, width=2, place=2, stride=4)
    >>> strips = [(Stub(number=1), more), (Stub(number=0), rows)]
    >>> [part.tolist() for part in segments(strips, 100)]
    [[2, 2, 2, 2], [0, 108, -2, 106], [0, 1, 0, 1]]
    """
    fields = np.array([(slab.number, *strip[1:]) for slab, strip in strips], np.int64)
    each = np.repeat(fields, fields[:, 3], axis=0)
    slab, start, pitch, _, width, place, stride = each.T
    ends = np.cumsum(fields[:, 3])
    step = np.arange(len(each)) - np.repeat(ends - fields[:, 3], fields[:, 3])
    place = place + step * stride
    source = slab * rows + start + step * pitch
    order = np.argsort(place, kind="stable")
    return width[order], (source - place)[order], slab[order]
