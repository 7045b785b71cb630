"""Decodes encoded blocks on the GPU: bytes of files in, rows in device buffers out.

A staging buffer holds the bytes of a file as they are, compressed or not. When a chunk needs a
block, they are copied, their pages decompressed (by nvCOMP) and their values decoded (by our own
kernel), all queued on one stream, in a handful of calls for any number of blocks. The thread waits
only the first time that it decodes a block: it checks that all pages were as their headers
promise. If not, Arrow reads the block, and reports what is wrong.

Streams take turns, so that one copies while another decompresses: pages are decompressed in
parallel, each of them slowly, which takes as long for many blocks as for one.
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
_OVER = 64  # bytes behind the last page that a kernel may read without using them


class EncodedGroup(NamedTuple):
    """A row group in a staging buffer: its first byte, its first row in the block, its pages."""

    at: int
    first: int
    pages: Pages


@dataclass(frozen=True)
class EncodedBlock:
    """Describes the bytes of files in a staging buffer.

    Attributes
    ----------
    groups
        Row groups, in order.
    encoded, decompressed
        How many bytes they have, as they are and decompressed.
    compressed
        Whether pages are compressed.
    verified
        Whether all its pages were as promised when they were decoded before.
    mark_verified
        To be called when they were.
    read_by_arrow
        Reads the same block with Arrow.
    name
        Its file, or the first of them.
    """

    groups: Sequence[EncodedGroup]
    encoded: int
    decompressed: int
    compressed: bool
    verified: bool
    mark_verified: Callable[[], None]
    read_by_arrow: Callable[[], GpuBlock]
    name: str


class DecodeStreams(NamedTuple):
    """How much is decoded at a time: how many streams, and the bytes of memory of each."""

    streams: int
    encoded: int
    decompressed: int


class _DecodeStream:
    """A stream, its memory, and a count of pages that were not as promised so far."""

    def __init__(self, device: torch.device, sizes: DecodeStreams) -> None:
        self.stream: Any = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        with torch.cuda.stream(self.stream):
            self.encoded, self.decompressed = (
                torch.empty(nbytes + _OVER, dtype=torch.uint8, device=device)
                for nbytes in (sizes.encoded, sizes.decompressed)
            )
            self.failed = torch.zeros(1, dtype=torch.int32, device=device)
        self._count = buffers.page_locked((1,), torch.int32).zero_()

    def queue_count(self) -> tuple[Tensor, Tensor]:
        """Counts of failed pages before and after the queued work, valid once it is done."""
        before, self._count = self._count, buffers.page_locked((1,), torch.int32)
        self._count.copy_(self.failed, non_blocking=True)
        return before, self._count


class _Check(NamedTuple):
    """Whether all pages of some blocks are as promised: whether the count of failures has grown.

    It has the names of their files, not the blocks, which would keep their device buffers from
    being reused.
    """

    event: Any
    counts: tuple[Tensor, Tensor]
    files: Sequence[str]

    @property
    def passed(self) -> bool:
        """The result; waits for it."""
        self.event.synchronize()
        before, after = self.counts
        return int(before) == int(after)


class Unpacker:
    """Decodes encoded blocks into device buffers; one thread at a time.

    Parameters
    ----------
    device_buffers
        The destination.
    decode_streams
        How much at a time.
    kinds
        The kinds of values.
    """

    def __init__(
        self, device_buffers: DeviceBuffers, decode_streams: DecodeStreams, kinds: Sequence[Kind]
    ) -> None:
        self.device_buffers, self.decode_streams, self.kinds = device_buffers, decode_streams, kinds
        with on_device(device_buffers.device):
            self._decode_streams = deque(
                _DecodeStream(device_buffers.device, decode_streams)
                for _ in range(decode_streams.streams)
            )
        width_groups = list(device_buffers.width_groups)
        self._widths = np.repeat([p.width for p in width_groups], [p.columns for p in width_groups])
        self._checks: deque[_Check] = deque()

    def __call__(self, blocks: Sequence[GpuBlock]) -> None:
        """Queue the decoding of encoded blocks.

        A block that is damaged or too large is read by Arrow instead: it is no longer encoded
        afterwards, and still has to be copied.
        """
        self._check_earlier()
        with span("copy", rows=sum(block.rows for block in blocks)):
            checks = [(self._unpack(part), part) for part in self._parts(blocks)]
        for check, part in checks:
            if all(_encoded(block).verified for block in part):
                self._checks.append(check)
            else:
                self._verify(check, part)

    def _parts(self, blocks: Sequence[GpuBlock]) -> Iterator[list[GpuBlock]]:
        """Blocks in groups that fit the memory of a stream."""
        part: list[GpuBlock] = []
        encoded = decompressed = 0
        most = self.decode_streams
        for block in blocks:
            found = _encoded(block)
            if found.encoded > most.encoded or found.decompressed > most.decompressed:
                _read_by_arrow(block)
                continue
            encoded += found.encoded
            decompressed += found.decompressed
            if part and (
                encoded > most.encoded
                or decompressed > most.decompressed
                or found.compressed != _encoded(part[0]).compressed
            ):
                yield part
                part, encoded, decompressed = [], found.encoded, found.decompressed
            part.append(block)
        if part:
            yield part

    def _unpack(self, blocks: list[GpuBlock]) -> _Check:
        """Queue the decoding of blocks that fit the memory of a stream, in few calls."""
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
            counts = decode_stream.queue_count()
            event = decode_stream.stream.record_event()
        for block, device_buffer in zip(blocks, device_buffers, strict=True):
            assert block.staging_buffer is not None
            block.staging_buffer.used, block.staging_buffer = copied, None
            block.device_buffer, device_buffer.ready = device_buffer, event
        return _Check(event, counts, [_encoded(block).name for block in blocks])

    @cached_property
    def _decode(self) -> Callable[..., None]:
        decode: Callable[..., None] = import_module("tabfeed.loader.gpu.parquet.page_kernel").decode
        return decode

    def _table(
        self,
        blocks: list[GpuBlock],
        device_buffers: list[DeviceBuffer],
        decode_stream: _DecodeStream,
    ) -> Tensor:
        """The `ROWS` of all pages, with addresses in place of offsets."""
        known, places, starts, count = [], [], [], 0
        encoded = decode_stream.encoded.data_ptr()
        decompressed = decode_stream.decompressed.data_ptr()
        for block, device_buffer in zip(blocks, device_buffers, strict=True):
            found, columns = _encoded(block), self.device_buffers.addresses(device_buffer.number)
            for group in found.groups:
                at, pages = encoded + group.at, group.pages
                known.append([*map(torch.from_numpy, (pages.table, pages.column, pages.coded))])
                places.append(torch.from_numpy(columns + group.first * self._widths))
                starts.append([at, decompressed if found.compressed else at])
                decompressed += pages.room
                count += len(pages.column)
            encoded += found.encoded
        table = buffers.page_locked((len(ROWS), count), torch.int64)
        fill_table(table, known, places, starts)
        return table

    def _verify(self, check: _Check, blocks: Sequence[GpuBlock]) -> None:
        """Wait for a check, and have Arrow read blocks that fail it."""
        passed = check.passed
        for block in blocks:
            if passed:
                _encoded(block).mark_verified()
            else:
                _read_by_arrow(block)

    def _check_earlier(self) -> None:
        """Raise if pages that were queued before have failed, as far as known."""
        while self._checks and self._checks[0].event.query():
            check = self._checks.popleft()
            if not check.passed:
                raise LoaderError(
                    "pages have changed since they were first read: "
                    + ", ".join(sorted(set(check.files)))
                )


def _encoded(block: GpuBlock) -> EncodedBlock:
    assert isinstance(block.encoded, EncodedBlock)
    return block.encoded


def _bytes_of(blocks: Sequence[GpuBlock]) -> list[Tensor]:
    """The bytes in their staging buffers."""
    return [
        torch.from_numpy(block.staging_buffer.memory[: _encoded(block).encoded])
        for block in blocks
        if block.staging_buffer
    ]


def _read_by_arrow(block: GpuBlock) -> None:
    """Replace a block's encoded bytes by rows that Arrow decodes."""
    new = _encoded(block).read_by_arrow()
    block.staging_buffer, block.host = new.staging_buffer, new.host
    block.encoded = block.device_buffer = None
