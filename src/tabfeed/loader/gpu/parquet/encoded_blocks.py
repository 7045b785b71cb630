"""Encoded blocks: bytes of files, read into staging buffers as they are, for the GPU to decode.

The CPU only reads, without the GIL: a thread copies as fast as the disk or the page cache allows.
The pages of a row group are found once, from their headers: by other processes, since there are
hundreds of pages, and parsing them takes Python long. Blocks that the GPU cannot decode are read by
Arrow into the same staging buffers.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from importlib import import_module
from typing import NamedTuple

import numpy as np
import torch

from tabfeed.io.formats.parquet.file import ParquetFile
from tabfeed.io.partition import Piece
from tabfeed.io.storage.fetch import Range
from tabfeed.io.storage.files import FileRef
from tabfeed.loader.gpu.buffers import width_groups_of
from tabfeed.loader.gpu.devices import on_device
from tabfeed.loader.gpu.parquet.encoded_pages import (
    Extent,
    Kind,
    Pages,
    Search,
    UnsupportedError,
    Wanted,
    extent_of,
    find_in_staging,
)
from tabfeed.loader.gpu.parquet.nvcomp import why_not_nvcomp
from tabfeed.loader.gpu.parquet.unpack import EncodedBlock, EncodedGroup
from tabfeed.loader.gpu.staging import GpuBlock, GpuBlockReader
from tabfeed.loader.plan import Epoch
from tabfeed.loader.read.blocks import BlockReader
from tabfeed.loader.read.decoder_processes import DecoderProcesses, StagingBuffer
from tabfeed.loader.read.partition_reader import PartReader, ReadsParts
from tabfeed.trace import span

__all__ = ["EncodedBlockReader", "EncodedRow", "encoded_row", "kinds_of", "why_not_unpacked"]

_SAMPLE = 64  # row groups whose footers are sampled
_FEW_UNSUPPORTED = 8  # one in so many may be unsupported: if more are, another reader is faster
_LEAST_CUT = 2**23  # bytes that a thread reads: with fewer it gains nothing
_MOST_THREADS = 8
_MOST_KNOWN = 2**14  # row groups whose pages are remembered: 16 kB each, if pages are short


class EncodedRow(NamedTuple):
    """Most bytes of a row, as it is in a file and decompressed."""

    encoded: float
    decompressed: float


class _Known(NamedTuple):
    """The bytes and pages of a row group."""

    extent: Extent
    pages: Pages


def why_not_unpacked(device: torch.device, kinds: Sequence[Kind]) -> str | None:
    """Why a GPU cannot decode pages; None if it can. Loads the libraries for it.

    Parameters
    ----------
    device
        The GPU.
    kinds
        The kinds of values.
    """
    if (reason := why_not_nvcomp(device)) is not None:
        return reason
    if "tensorflow" in sys.modules and "triton" not in sys.modules:
        # Both contain LLVM, and loading the second one crashes the process.
        return "TensorFlow is loaded, and Triton cannot share a process with it"
    try:
        # That a later version of Triton will change. A temporary filter would apply to all threads.
        warnings.filterwarnings("ignore", module=r"triton\b")
        import_module("tabfeed.loader.gpu.parquet.page_kernel").load(device, kinds)
    except Exception as e:  # no compiler, or a driver that is too old
        return f"Triton cannot be used ({type(e).__name__}: {e})"
    return None


def encoded_row(reader: BlockReader) -> EncodedRow:
    """How large rows are in their files, by a sample; `UnsupportedError` if none can be decoded.

    A few row groups may be unsupported, because of a null for example: Arrow reads those.
    """
    parts, wanted = reader.parts, _wanted(reader)
    assert isinstance(parts, PartReader)
    numbers = range(0, len(parts.partitions), -(-len(parts.partitions) // _SAMPLE) or 1)
    pieces = [piece for n in numbers for piece in parts.partitions[n].pieces if piece.rows]
    if not pieces:
        raise UnsupportedError("there are no rows")
    found, unsupported = [], []
    for piece in pieces:
        try:
            found.append((extent_of(_file(parts, piece), piece.unit, wanted), piece.rows))
        except UnsupportedError as e:
            unsupported.append(e)
    if len(unsupported) > len(pieces) // _FEW_UNSUPPORTED:
        raise unsupported[0]
    return EncodedRow(
        max(extent.encoded / (rows or 1) for extent, rows in found),
        max(extent.decompressed / (rows or 1) for extent, rows in found),
    )


def kinds_of(reader: BlockReader) -> list[Kind]:
    """The kinds of values; a kernel is launched for each."""
    return list(dict.fromkeys(kind for _, kind in _columns(reader)))


def _wanted(reader: BlockReader) -> list[Wanted]:
    """The columns of device buffers, in their order."""
    kinds = kinds_of(reader)
    return [Wanted(name, kind, kinds.index(kind)) for name, kind in _columns(reader)]


def _columns(reader: BlockReader) -> Iterator[tuple[str, Kind]]:
    assert isinstance(reader.parts, PartReader)
    schema = reader.parts.dataset.schema
    for width_group in width_groups_of(reader.layout.groups, reader.dtypes):
        for name in (name for group, _ in width_group.groups for name in group.columns):
            dtype = schema[name].dtype
            stored = np.dtype(dtype.to_pandas_dtype()).itemsize if dtype is not None else 0
            yield name, Kind(max(4, stored), width_group.width)


@dataclass
class EncodedBlockReader:
    """Reads bytes of files into staging buffers; threads may share it.

    Parameters
    ----------
    arrow
        Reads blocks that the GPU cannot decode.
    finders
        How many processes find pages; 0 if the threads themselves do.
    workers_per_block
        How many threads read the bytes of one row group.
    """

    arrow: GpuBlockReader
    finders: int = 0
    workers_per_block: int = 1
    _known: dict[tuple[int, int], _Known] = field(default_factory=dict)
    _unsupported: set[tuple[int, int]] = field(default_factory=set)
    _verified: set[int] = field(default_factory=set)

    @property
    def parts(self) -> ReadsParts:
        """Reads partitions."""
        return self.arrow.parts

    def reading(self, parts: ReadsParts) -> EncodedBlockReader:
        """The same for another reader of the same partitions."""
        return self if parts is self.parts else replace(self, arrow=self.arrow.reading(parts))

    @cached_property
    def _finders(self) -> DecoderProcesses | None:
        return (
            DecoderProcesses(find_in_staging, self.arrow.staging_buffers, self.finders)
            if self.finders
            else None
        )

    @cached_property
    def _threads(self) -> Executor | None:
        return (
            ThreadPoolExecutor(_MOST_THREADS, "tabfeed-read")
            if self.workers_per_block > 1
            else None
        )

    @cached_property
    def _wanted(self) -> list[Wanted]:
        return _wanted(self.arrow.host)

    def read(self, epoch: Epoch, numbers: Sequence[int]) -> list[GpuBlock]:
        """Some blocks of an epoch."""
        with on_device(self.arrow.device):
            return [self._read(epoch, number) for number in numbers]

    def close(self) -> None:
        """End processes and threads that are idle; they are started again when needed."""
        if self._finders is not None:
            self._finders.dismiss()
        vars(self).pop("_threads", None)  # they end when no read uses them any more
        self.arrow.close()

    def _read(self, epoch: Epoch, number: int) -> GpuBlock:
        with suppress(UnsupportedError, OSError):  # this frees a staging buffer that was taken
            return self._encoded(epoch, number)
        (block,) = self.arrow.read(epoch, [number])  # which reports damage
        return block

    def _encoded(self, epoch: Epoch, number: int) -> GpuBlock:
        partitions, rows = epoch.partitions(number), epoch.block_rows(number)
        staging_buffer, groups = self.arrow.staging_buffers.take(), []
        at = first = decompressed = 0
        extents = []
        for piece in self._pieces(partitions):
            with span("read", rows=piece.rows or 0):
                extent, pages = self._fetch(piece, staging_buffer, at)
            groups.append(EncodedGroup(at, first, pages))
            extents.append(extent)
            at, first = at + extent.encoded, first + (piece.rows or 0)
            decompressed += pages.room
        if first != rows or len({extent.compressed for extent in extents}) != 1:
            raise UnsupportedError("rows are missing, or only some of them are compressed")
        encoded = EncodedBlock(
            groups,
            encoded=at,
            decompressed=decompressed,
            compressed=extents[0].compressed,
            verified=self._verified.issuperset(partitions),
            mark_verified=partial(self._verified.update, partitions),
            read_by_arrow=lambda: self.arrow.read(epoch, [number])[0],
            name=self._name(partitions),
        )
        return GpuBlock(
            rows, self.arrow.draw(epoch, number), staging_buffer=staging_buffer, encoded=encoded
        )

    def _fetch(self, piece: Piece, staging_buffer: StagingBuffer, at: int) -> _Known:
        """Read the bytes of a row group into a staging buffer, and find its pages."""
        key, file = (piece.file, piece.unit), _file(self.parts, piece)
        known = self._known.get(key)
        if known is not None:
            self._read_bytes(file.ref, known.extent, staging_buffer, at)
            return known
        if key in self._unsupported:
            raise UnsupportedError("the row group was found unsupported before")
        try:
            extent = extent_of(file, piece.unit, self._wanted)
            self._read_bytes(file.ref, extent, staging_buffer, at)
            known = _Known(extent, self._find(staging_buffer, Search(at, extent, piece.rows or 0)))
        except UnsupportedError:
            self._unsupported.add(key)
            raise
        if len(self._known) < _MOST_KNOWN:
            self._known[key] = known
        if (
            self._finders is not None
            and len(self._known) + len(self._unsupported) >= self._row_groups
        ):
            self._finders.dismiss()  # the pages of all row groups are found
        return known

    @cached_property
    def _row_groups(self) -> int:
        """How many there are."""
        partitions = self.parts.partitions if isinstance(self.parts, PartReader) else ()
        return len({(piece.file, piece.unit) for part in partitions for piece in part.pieces})

    def _read_bytes(
        self, ref: FileRef, extent: Extent, staging_buffer: StagingBuffer, at: int
    ) -> None:
        """Read the bytes of a row group."""
        memory = staging_buffer.memory[at : at + extent.encoded].data
        if len(memory) < extent.encoded:
            raise UnsupportedError("a row group is larger than expected")
        file = os.open(ref.path, os.O_RDONLY)
        try:
            facts = os.fstat(file)
            ref.check(facts)
            if facts.st_size != ref.size > 0:
                raise UnsupportedError("a file has changed since it was opened")
            cuts = _cuts_of(
                extent.runs, max(_LEAST_CUT, -(-extent.encoded // self.workers_per_block))
            )
            self._read_all(partial(_read_cut, file, memory), cuts)
        finally:
            os.close(file)

    def _read_all(self, read: Callable[[_Cut], None], cuts: Iterable[_Cut]) -> None:
        """Read cuts of a file, in parallel if there are threads; returns after all have ended."""
        if self._threads is None:
            for cut in cuts:
                read(cut)
            return
        begun = [self._threads.submit(read, cut) for cut in cuts]
        wait(begun)  # also if one fails: next, the file is closed and the staging buffer reused
        for future in begun:
            future.result()

    def _find(self, staging_buffer: StagingBuffer, search: Search) -> Pages:
        """Find pages, in another process; in this one until they have started."""
        while self._finders is not None:
            with self._finders.borrow() as decoders:
                if decoders:
                    decoders[0].begin(staging_buffer, search)
                    found: Pages = decoders[0].finish()
                    return found
            if not self._finders.up:
                break
        return find_in_staging(staging_buffer.memory, search)

    def _pieces(self, partitions: Sequence[int]) -> Iterator[Piece]:
        parts = self.parts
        if not isinstance(parts, PartReader):
            raise UnsupportedError("partitions are cached")
        for number in partitions:
            yield from parts.partitions[number].pieces

    def _name(self, partitions: Sequence[int]) -> str:
        parts = self.parts
        assert isinstance(parts, PartReader)
        return next((parts.dataset.files[p.file] for p in self._pieces(partitions)), "no file")


def _file(parts: ReadsParts, piece: Piece) -> ParquetFile:
    """The file of a row group."""
    assert isinstance(parts, PartReader)
    file = parts.dataset.fileset.files[piece.file].row_groups
    if file is None or not piece.whole:
        raise UnsupportedError("not a whole row group of a Parquet file")
    return file


class _Cut(NamedTuple):
    """Some bytes of a file, and their destination."""

    start: int
    stop: int
    to: int


def _cuts_of(runs: Sequence[Range], most: int) -> Iterator[_Cut]:
    """Cuts of at most so many bytes, of runs that are read one behind the other.

    Examples
    --------
    >>> [tuple(cut) for cut in _cuts_of([Range(4, 10), Range(20, 23)], 4)]
    [(4, 8, 0), (8, 10, 4), (20, 23, 6)]
    """
    done = 0
    for run in runs:
        for start in range(run.start, run.stop, most):
            stop = min(start + most, run.stop)
            yield _Cut(start, stop, done)
            done += stop - start


def _read_cut(file: int, memory: memoryview, cut: _Cut) -> None:
    """Read bytes of a file to their place."""
    start, stop, to = cut
    while start < stop:
        count = os.preadv(file, [memory[to : to + stop - start]], start)
        if not count:
            raise UnsupportedError("a file is shorter than its footer says")
        start, to = start + count, to + count
