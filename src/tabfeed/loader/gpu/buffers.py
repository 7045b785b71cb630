"""Memory on a GPU for blocks, and the streams that fill and read it.

One allocation for each width of column holds all blocks: *device buffers* of ``(columns, rows)``,
one after the other. So one call gathers rows of any number of blocks, by one list of positions.
That list is computed in host memory, where the permutations of blocks are drawn, and copied: four
bytes a row, in one call. Few calls matter: each one releases the GIL and must get it back from the
threads that read, which takes longer than the GPU needs for the work.

A device buffer is written on one stream and read on another, the one that makes chunks. The event
after the last read stays with the device buffer; the stream that writes it next waits for that
event. No thread waits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from tabfeed.errors import LoaderError
from tabfeed.loader.plan import CopyRun
from tabfeed.loader.read.arrow_columns import Group
from tabfeed.loader.tensors.scripted import lay_copy_runs

__all__ = [
    "DeviceBuffer",
    "DeviceBuffers",
    "WidthGroup",
    "page_locked",
    "torch_dtype",
    "width_groups_of",
]

Tensor = torch.Tensor
Array = npt.NDArray[Any]
_BY_WIDTH = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_PATIENCE = 60.0  # seconds to wait for a free device buffer
_LARGE = 2**31  # values: more need 64 bits to number them


def torch_dtype(dtype: np.dtype[Any]) -> torch.dtype:
    """The torch dtype of a NumPy dtype."""
    return torch.from_numpy(np.empty(0, dtype)).dtype


@dataclass(frozen=True)
class WidthGroup:
    """Groups whose columns are of one width, and therefore share memory.

    Attributes
    ----------
    width
        Bytes of a value.
    groups
        Each with its dtype in blocks, in order.
    """

    width: int
    groups: tuple[tuple[Group, np.dtype[Any]], ...]

    @property
    def columns(self) -> int:
        """How many columns there are."""
        return sum(len(group.columns) for group, _ in self.groups)

    def spans(self) -> list[tuple[Group, np.dtype[Any], int]]:
        """Each group, its dtype in blocks, and its first column."""
        out, at = [], 0
        for group, dtype in self.groups:
            out.append((group, dtype, at))
            at += len(group.columns)
        return out


def width_groups_of(
    groups: Sequence[Group], dtypes: dict[str, np.dtype[Any]]
) -> tuple[WidthGroup, ...]:
    """The groups by the width of their columns.

    Examples
    --------
    >>> one = Group("ids", ("a", "b"), np.dtype(np.int64))
    >>> two = Group("numbers", ("x",), np.dtype(np.float32))
    >>> dtypes = {"ids": np.dtype(np.int32), "numbers": np.dtype(np.float32)}
    >>> [(found.width, found.columns) for found in width_groups_of([one, two], dtypes)]
    [(4, 3)]
    """
    by_width: dict[int, list[tuple[Group, np.dtype[Any]]]] = {}
    for group in groups:
        dtype = dtypes[group.name]
        by_width.setdefault(dtype.itemsize, []).append((group, dtype))
    # The widest first: what follows is then aligned, however many columns there are.
    return tuple(
        WidthGroup(width, tuple(by_width[width])) for width in sorted(by_width, reverse=True)
    )


class DeviceBuffer:
    """Memory for a block; it is reused once nothing refers to this object."""

    def __init__(self, device_buffers: DeviceBuffers, number: int) -> None:
        self._device_buffers, self.number = device_buffers, number
        self.ready: Any = None  # the event after it was filled
        self.awaited = False  # whether the stream that reads it already waits for that event
        self.used: Any = None  # the event after the last read

    def matrix(self, width_group: WidthGroup, rows: int, columns: slice | None = None) -> Tensor:
        """Some columns of its first rows in a width group."""
        return self._device_buffers.view(self.number, width_group, rows, columns)

    def __del__(self) -> None:
        self._device_buffers.give(self.number, self.used or self.ready)


class DeviceBuffers:
    """A fixed number of device buffers on a GPU, which are reused.

    Parameters
    ----------
    device
        The GPU.
    width_groups
        The columns of a device buffer.
    rows
        Rows of a device buffer.
    count
        How many device buffers.
    stream
        The stream that reads them, on which their memory is allocated.
    """

    def __init__(
        self,
        device: torch.device,
        width_groups: Sequence[WidthGroup],
        rows: int,
        count: int,
        stream: Any,
    ) -> None:
        self.device, self.rows = device, rows
        with torch.cuda.stream(stream):
            self.width_groups = {
                p: torch.empty((count, p.columns, rows), dtype=_BY_WIDTH[p.width], device=device)
                for p in width_groups
            }
            event = stream.record_event()
        self._views: dict[Any, Tensor] = {}
        self._addresses: dict[int, Array] = {}
        self._in_order = torch.arange(rows, dtype=torch.int32)
        self._free: SimpleQueue[tuple[int, Any]] = SimpleQueue()  # may be filled in a finaliser
        for number in range(count):
            self._free.put((number, event))

    def take(self, stream: Any, count: int = 1) -> list[DeviceBuffer]:
        """Device buffers that work queued on `stream` from now on may write."""
        taken = [self._next() for _ in range(count)]
        for event in {event for _, event in taken if event is not None}:
            stream.wait_event(event)
        return [device_buffer for device_buffer, _ in taken]

    def _next(self) -> tuple[DeviceBuffer, Any]:
        """A free device buffer, and the event after which it may be written."""
        try:
            number, event = self._free.get(timeout=_PATIENCE)
        except Empty:
            raise LoaderError(
                f"no device buffer became free within {_PATIENCE:.0f} s; raise device_memory"
            ) from None
        return DeviceBuffer(self, number), event

    def give(self, number: int, event: Any) -> None:
        """Take a device buffer back, writable after `event`. Safe inside a finaliser."""
        self._free.put((number, event))

    def view(
        self, number: int, width_group: WidthGroup, rows: int, columns: slice | None
    ) -> Tensor:
        """The first rows of a device buffer: some columns of a width group."""
        key = (number, width_group, rows, columns and (columns.start, columns.stop))
        if key not in self._views:
            whole = self.width_groups[width_group][number]
            if columns is not None:
                whole = whole[columns]
            if rows != self.rows:  # one of a few odd blocks
                return whole[..., :rows]
            self._views[key] = whole
        return self._views[key]

    def addresses(self, number: int) -> Array:
        """The address of each column of a device buffer, in the order of width groups."""
        if number not in self._addresses:
            self._addresses[number] = np.concatenate(
                [
                    memory[number].data_ptr() + np.arange(p.columns) * self.rows * p.width
                    for p, memory in self.width_groups.items()
                ]
            )
        return self._addresses[number]

    def places(
        self, copy_runs: Sequence[tuple[DeviceBuffer, Array | None, CopyRun]], rows: int
    ) -> Tensor:
        """For each width group, the position of each of a chunk's rows.

        Row ``r`` of device buffer ``s`` is at ``s * columns * rows + r`` of a width group; its
        columns are `rows` values apart from there.

        Parameters
        ----------
        copy_runs
            Each with its device buffer, and the permutation of its block, if there is one.
        rows
            Rows of the chunk.
        """
        places = page_locked((len(self.width_groups), rows), self._index)
        firsts = [
            [s.number * p.columns * self.rows for s, _, _ in copy_runs] for p in self.width_groups
        ]
        orders = [
            self._in_order if order is None else torch.from_numpy(order)
            for _, order, _ in copy_runs
        ]
        lay_copy_runs(places, orders, firsts, [list(copy_run) for _, _, copy_run in copy_runs])
        return places

    @property
    def _index(self) -> Any:
        """A dtype large enough to number all values."""
        most = max(width_group.numel() for width_group in self.width_groups.values())
        return torch.int64 if most >= _LARGE else torch.int32

    def columns(self, width_group: WidthGroup, dtype: np.dtype[Any], columns: range) -> Tensor:
        """Some columns of one dtype of all device buffers: ``(columns, positions)``."""
        whole = self.width_groups[width_group].view(-1).view(torch_dtype(dtype))
        last = whole.numel() - (width_group.columns - 1) * self.rows
        return whole.as_strided((len(columns), last), (self.rows, 1), columns.start * self.rows)


def page_locked(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Page-locked memory, from which a GPU copies asynchronously."""
    return torch.empty(shape, dtype=dtype, pin_memory=True)
