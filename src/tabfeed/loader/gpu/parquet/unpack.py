"""Blocks unpacked by the GPU itself: bytes of files in, rows in device buffers out.

The bytes of a file wait on a staging buffer, as compressed as they lie in the file. When a chunk
needs a block they are copied, their pages decompressed (by nvCOMP) and their values written to
their places (by a kernel of ours), all queued on one stream, in a handful of calls however many
blocks there are. The program waits for nothing, but for the first time that it sees a block: then
it asks whether all pages were as their headers promise. If not, Arrow reads the block, and says
what is wrong with it.

Streams take turns, so that one copies while another decompresses: pages are decompressed side by
side, each of them slowly, and that takes as long for many blocks as for one.
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
    """What lies on a staging buffer, if that is bytes of files.

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
        Reads the same block in another way.
    name
        The file it is of, or the first of them.
    """

    groups: Sequence[EncodedGroup]
    encoded: int
    plain: int
    compressed: bool
    sound: bool
    approve: Callable[[], None]
    again: Callable[[], GpuBlock]
    name: str


class DecodeStreams(NamedTuple):
    """How much is unpacked at a time: how many streams, and bytes that each may have."""

    streams: int
    encoded: int
    plain: int


class _Lane:
    """A stream, memory for what is on its way, and how many pages were not as promised so far."""

    def __init__(self, device: torch.device, decode_streams: DecodeStreams) -> None:
        self.stream: Any = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        with torch.cuda.stream(self.stream):
            self.encoded, self.plain = (
                torch.empty(nbytes + _OVER, dtype=torch.uint8, device=device)
                for nbytes in (decode_streams.encoded, decode_streams.plain)
            )
            self.failed = torch.zeros(1, dtype=torch.int32, device=device)
        self.told = buffers.page_locked((1,), torch.int32).zero_()

    def tell(self) -> tuple[Tensor, Tensor]:
        """How many pages had failed before, and have now, once what is queued is done."""
        before, self.told = self.told, buffers.page_locked((1,), torch.int32)
        self.told.copy_(self.failed, non_blocking=True)
        return before, self.told


class _Asked(NamedTuple):
    """Whether all pages of some blocks are as promised: whether more had failed after an event.

    It knows their files, not the blocks, which would keep their device buffers from being used
    again.
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
    """Unpacks blocks into device buffers; one thread at a time.

    Parameters
    ----------
    device buffers
        Where to.
    decode streams
        How much at a time.
    kinds
        Those that values are of.
    """

    def __init__(
        self, device_buffers: DeviceBuffers, decode_streams: DecodeStreams, kinds: Sequence[Kind]
    ) -> None:
        self.device_buffers, self.decode_streams, self.kinds = device_buffers, decode_streams, kinds
        with on_device(device_buffers.device):
            self._decode_streams = deque(
                _Lane(device_buffers.device, decode_streams) for _ in range(decode_streams.streams)
            )
        width_groups = list(device_buffers.width_groups)
        self._widths = np.repeat([p.width for p in width_groups], [p.columns for p in width_groups])
        self._asked: deque[_Asked] = deque()

    def __call__(self, blocks: Sequence[GpuBlock]) -> None:
        """Queue the unpacking of packed blocks.

        A block of which something is wrong, or that is too large, is not packed any more
        afterwards, but still to be copied.
        """
        self._look_back()
        with span("copy", rows=sum(block.rows for block in blocks)):
            asked = [(self._unpack(part), part) for part in self._parts(blocks)]
        for question, part in asked:
            if all(_encoded(block).sound for block in part):
                self._asked.append(question)
            else:
                self._answer(question, part)

    def _parts(self, blocks: Sequence[GpuBlock]) -> Iterator[list[GpuBlock]]:
        """As many lots as go into a lane, and so on."""
        part: list[GpuBlock] = []
        encoded = plain = 0
        for block in blocks:
            what = _encoded(block)
            if what.encoded > self.decode_streams.encoded or what.plain > self.decode_streams.plain:
                _read_again(block)
                continue
            encoded, plain = encoded + what.encoded, plain + what.plain
            if part and (
                encoded > self.decode_streams.encoded
                or plain > self.decode_streams.plain
                or what.compressed != _encoded(part[0]).compressed
            ):
                yield part
                part, encoded, plain = [], what.encoded, what.plain
            part.append(block)
        if part:
            yield part

    def _unpack(self, blocks: list[GpuBlock]) -> _Asked:
        """Queue the unpacking of as many lots as go into a lane, in as few calls as can be."""
        decode_stream = self._decode_streams[0]
        self._decode_streams.rotate()
        with torch.cuda.stream(decode_stream.stream):
            device_buffers = self.device_buffers.take(decode_stream.stream, len(blocks))
            table = copy_all(
                decode_stream.encoded,
                _bytes_of(blocks),
                self._table(blocks, device_buffers, decode_stream),
            )
            copied = decode_stream.stream.record_event()
            compressed = _encoded(blocks[0]).compressed
            if compressed:
                decompress(table, decode_stream.stream)
            self._decode(table, decode_stream.failed, self.kinds, compressed)
            told = decode_stream.tell()
            event = decode_stream.stream.record_event()
        for block, device_buffer in zip(blocks, device_buffers, strict=True):
            assert block.staging_buffer is not None
            block.staging_buffer.used, block.staging_buffer = copied, None
            block.device_buffer, device_buffer.ready = device_buffer, event
        return _Asked(event, told, [_encoded(block).name for block in blocks])

    @cached_property
    def _decode(self) -> Callable[..., None]:
        decode: Callable[..., None] = import_module("tabfeed.loader.gpu.parquet.page_kernel").decode
        return decode

    def _table(
        self, blocks: list[GpuBlock], device_buffers: list[DeviceBuffer], decode_stream: _Lane
    ) -> Tensor:
        """The `ROWS` of all pages, addresses in place of offsets."""
        known, places, starts, count = [], [], [], 0
        encoded, plain = decode_stream.encoded.data_ptr(), decode_stream.plain.data_ptr()
        for block, device_buffer in zip(blocks, device_buffers, strict=True):
            what, columns = _encoded(block), self.device_buffers.addresses(device_buffer.number)
            for group in what.groups:
                at, pages = encoded + group.at, group.pages
                known.append([*map(torch.from_numpy, (pages.table, pages.column, pages.coded))])
                places.append(torch.from_numpy(columns + group.first * self._widths))
                starts.append([at, plain if what.compressed else at])
                plain += pages.room
                count += len(pages.column)
            encoded += what.encoded
        table = buffers.page_locked((len(ROWS), count), torch.int64)
        fill_table(table, known, places, starts)
        return table

    def _answer(self, question: _Asked, blocks: Sequence[GpuBlock]) -> None:
        """Wait for what was asked, and have lots that are not sound read again."""
        if question.sound:
            for block in blocks:
                _encoded(block).approve()
            return
        for block in blocks:
            _read_again(block)

    def _look_back(self) -> None:
        """Whether all is well with what was queued before, as far as that is known."""
        while self._asked and self._asked[0].event.query():
            question = self._asked.popleft()
            if not question.sound:
                raise LoaderError(
                    "pages are not what they were when they were first read: "
                    + ", ".join(sorted(set(question.files)))
                )


def _encoded(block: GpuBlock) -> EncodedBlock:
    assert isinstance(block.encoded, EncodedBlock)
    return block.encoded


def _bytes_of(blocks: Sequence[GpuBlock]) -> list[Tensor]:
    """What lies on their desks."""
    return [
        torch.from_numpy(block.staging_buffer.memory[: _encoded(block).encoded])
        for block in blocks
        if block.staging_buffer
    ]


def _read_again(block: GpuBlock) -> None:
    """Have a lot on its desk as rows."""
    new = _encoded(block).again()
    block.staging_buffer, block.host, block.encoded, block.device_buffer = (
        new.staging_buffer,
        new.host,
        None,
        None,
    )
