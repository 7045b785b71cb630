"""Lots unpacked by the GPU itself: bytes of files in, rows in slabs out.

The bytes of a file wait on a desk, as compressed as they lie in the file. When a chunk needs a lot
they are copied, their pages decompressed (by nvCOMP) and their values written to their places (by
a kernel of ours), all queued on one stream, in a handful of calls however many lots there are. The
program waits for nothing, but for the first time that it sees a lot: then it asks whether all pages
were as their headers promise. If not, Arrow reads the lot, and says what is wrong with it.

Streams take turns, so that one copies while another decompresses: pages are decompressed side by
side, each of them slowly, and that takes as long for many lots as for one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from tabfeed.errors import LoaderError
from tabfeed.loader.gpu import buffers
from tabfeed.loader.gpu.buffers import DeviceBuffer, DeviceBuffers
from tabfeed.loader.gpu.devices import on_device
from tabfeed.loader.gpu.parquet.encoded_pages import ROWS, Kind, Pages
from tabfeed.loader.gpu.parquet.nvcomp import decompress
from tabfeed.loader.gpu.staging import GpuBlock
from tabfeed.loader.tensors.scripted import copy_all, fill_table
from tabfeed.trace import span

__all__ = ["DecodeStreams", "EncodedBlock", "EncodedGroup", "Unpacker"]

Array = npt.NDArray[Any]
Tensor = torch.Tensor
_OVER = 64  # bytes behind the last page that a kernel may read, and not use


class EncodedGroup(NamedTuple):
    """A row group on a desk: where its bytes begin there, its first row in the lot, its pages."""

    at: int
    first: int
    pages: Pages


@dataclass(frozen=True)
class EncodedBlock:
    """What lies on a desk, if that is bytes of files.

    Attributes
    ----------
    groups
        Row groups, in order.
    packed, plain
        How many bytes that is, and will be decompressed.
    compressed
        Whether pages are.
    sound
        Whether all its pages were once seen to be as promised.
    approve
        To be called when they were.
    again
        Reads the same lot in another way.
    name
        The file it is of, or the first of them.
    """

    groups: Sequence[EncodedGroup]
    packed: int
    plain: int
    compressed: bool
    sound: bool
    approve: Callable[[], None]
    again: Callable[[], GpuBlock]
    name: str


class DecodeStreams(NamedTuple):
    """How much is unpacked at a time: how many streams, and bytes that each may have."""

    streams: int
    packed: int
    plain: int


class _Lane:
    """A stream, memory for what is on its way, and how many pages were not as promised so far."""

    def __init__(self, device: torch.device, lanes: DecodeStreams) -> None:
        self.stream: Any = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        with torch.cuda.stream(self.stream):
            self.packed, self.plain = (
                torch.empty(nbytes + _OVER, dtype=torch.uint8, device=device)
                for nbytes in (lanes.packed, lanes.plain)
            )
            self.failed = torch.zeros(1, dtype=torch.int32, device=device)
        self.told = buffers.page_locked((1,), torch.int32).zero_()

    def tell(self) -> tuple[Tensor, Tensor]:
        """How many pages had failed before, and have now, once what is queued is done."""
        before, self.told = self.told, buffers.page_locked((1,), torch.int32)
        self.told.copy_(self.failed, non_blocking=True)
        return before, self.told


class _Asked(NamedTuple):
    """Whether all pages of some lots are as promised: whether more had failed after an event.

    It knows their files, not the lots, which would keep their slabs from being used again.
    """

    event: Any
    told: tuple[Tensor, Tensor]
    files: Sequence[str]

    @property
    def sound(self) -> bool:
        """The answer; waits for it."""
        self.event.synchronize()
        before, after = self.told
        return int(before) == int(after)


class Unpacker:
    """Unpacks lots into slabs; one thread at a time.

    Parameters
    ----------
    slabs
        Where to.
    lanes
        How much at a time.
    kinds
        Those that values are of.
    """

    def __init__(self, slabs: DeviceBuffers, lanes: DecodeStreams, kinds: Sequence[Kind]) -> None:
        self.slabs, self.lanes, self.kinds = slabs, lanes, kinds
        with on_device(slabs.device):
            self._lanes = deque(_Lane(slabs.device, lanes) for _ in range(lanes.streams))
        planes = list(slabs.planes)
        self._widths = np.repeat([p.width for p in planes], [p.columns for p in planes])
        self._asked: deque[_Asked] = deque()

    def __call__(self, lots: Sequence[GpuBlock]) -> None:
        """Queue the unpacking of packed lots.

        A lot of which something is wrong, or that is too large, is not packed any more afterwards,
        but still to be copied.
        """
        self._look_back()
        with span("copy", rows=sum(lot.rows for lot in lots)):
            asked = [(self._unpack(part), part) for part in self._parts(lots)]
        for question, part in asked:
            if all(_packed(lot).sound for lot in part):
                self._asked.append(question)
            else:
                self._answer(question, part)

    def _parts(self, lots: Sequence[GpuBlock]) -> Iterator[list[GpuBlock]]:
        """As many lots as go into a lane, and so on."""
        part: list[GpuBlock] = []
        packed = plain = 0
        for lot in lots:
            what = _packed(lot)
            if what.packed > self.lanes.packed or what.plain > self.lanes.plain:
                _read_again(lot)
                continue
            packed, plain = packed + what.packed, plain + what.plain
            if part and (
                packed > self.lanes.packed
                or plain > self.lanes.plain
                or what.compressed != _packed(part[0]).compressed
            ):
                yield part
                part, packed, plain = [], what.packed, what.plain
            part.append(lot)
        if part:
            yield part

    def _unpack(self, lots: list[GpuBlock]) -> _Asked:
        """Queue the unpacking of as many lots as go into a lane, in as few calls as can be."""
        lane = self._lanes[0]
        self._lanes.rotate()
        with torch.cuda.stream(lane.stream):
            slabs = self.slabs.take(lane.stream, len(lots))
            table = copy_all(lane.packed, _bytes_of(lots), self._table(lots, slabs, lane))
            copied = lane.stream.record_event()
            compressed = _packed(lots[0]).compressed
            if compressed:
                decompress(table, lane.stream)
            self._decode(table, lane.failed, self.kinds, compressed)
            told = lane.tell()
            event = lane.stream.record_event()
        for lot, slab in zip(lots, slabs, strict=True):
            assert lot.desk is not None
            lot.desk.used, lot.desk = copied, None
            lot.slab, slab.ready = slab, event
        return _Asked(event, told, [_packed(lot).name for lot in lots])

    @cached_property
    def _decode(self) -> Callable[..., None]:
        decode: Callable[..., None] = import_module("tabfeed.loader.gpu.parquet.page_kernel").decode
        return decode

    def _table(self, lots: list[GpuBlock], slabs: list[DeviceBuffer], lane: _Lane) -> Tensor:
        """The `ROWS` of all pages, addresses in place of offsets."""
        known, places, starts, count = [], [], [], 0
        packed, plain = lane.packed.data_ptr(), lane.plain.data_ptr()
        for lot, slab in zip(lots, slabs, strict=True):
            what, columns = _packed(lot), self.slabs.addresses(slab.number)
            for group in what.groups:
                at, pages = packed + group.at, group.pages
                known.append([*map(torch.from_numpy, (pages.table, pages.column, pages.coded))])
                places.append(torch.from_numpy(columns + group.first * self._widths))
                starts.append([at, plain if what.compressed else at])
                plain += pages.room
                count += len(pages.column)
            packed += what.packed
        table = buffers.page_locked((len(ROWS), count), torch.int64)
        fill_table(table, known, places, starts)
        return table

    def _answer(self, question: _Asked, lots: Sequence[GpuBlock]) -> None:
        """Wait for what was asked, and have lots that are not sound read again."""
        if question.sound:
            for lot in lots:
                _packed(lot).approve()
            return
        for lot in lots:
            _read_again(lot)

    def _look_back(self) -> None:
        """Whether all is well with what was queued before, as far as that is known."""
        while self._asked and self._asked[0].event.query():
            question = self._asked.popleft()
            if not question.sound:
                raise LoaderError(
                    "pages are not what they were when they were first read: "
                    + ", ".join(sorted(set(question.files)))
                )


def _packed(lot: GpuBlock) -> EncodedBlock:
    assert isinstance(lot.packed, EncodedBlock)
    return lot.packed


def _bytes_of(lots: Sequence[GpuBlock]) -> list[Tensor]:
    """What lies on their desks."""
    return [torch.from_numpy(lot.desk.memory[: _packed(lot).packed]) for lot in lots if lot.desk]


def _read_again(lot: GpuBlock) -> None:
    """Have a lot on its desk as rows."""
    new = _packed(lot).again()
    lot.desk, lot.host, lot.packed, lot.slab = new.desk, new.host, None, None
