"""Blocks for a GPU that unpacks them itself: bytes of files, read onto staging buffers as they are.

Reading is then all that the computer does, and it takes no interpreter: a thread copies as fast as
the disk or the page cache gives. What pages there are in a row group is found out once, from their
headers: by other processes, since there are hundreds of them, and Python takes its time. What a GPU
cannot unpack, Arrow reads onto the same staging buffers.
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

from tabfeed.io.formats.base import RowGroups
from tabfeed.io.partition import Piece
from tabfeed.io.storage.fetch import Range
from tabfeed.io.storage.file_ref import FileRef
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
from tabfeed.loader.plan.order import Epoch
from tabfeed.loader.read.blocks import BlockReader
from tabfeed.loader.read.decoder_processes import DecoderProcesses
from tabfeed.loader.read.partition_reader import PartReader, ReadsParts
from tabfeed.loader.read.staging import StagingBuffer
from tabfeed.trace import span

__all__ = ["EncodedBlockReader", "EncodedRow", "encoded_row", "kinds_of", "why_not_unpacked"]

_SAMPLE = 64  # row groups looked at before any is read
_FEW_UNFIT = 8  # one in so many may be unfit: if more are, another reader does better
_LEAST_CUT = 2**23  # bytes that a thread reads: with fewer it would only be in the way
_MOST_THREADS = 8
_MOST_KNOWN = 2**14  # row groups whose pages are remembered: 16 kB each, if pages are short


class EncodedRow(NamedTuple):
    """Most bytes of a row, as it lies in a file and decompressed."""

    encoded: float
    plain: float


class _Known(NamedTuple):
    """What was found out about a row group."""

    extent: Extent
    pages: Pages


def why_not_unpacked(device: torch.device, kinds: Sequence[Kind]) -> str | None:
    """Why a GPU cannot unpack pages; None if it can. Loads what is needed for that.

    Parameters
    ----------
    device
        The GPU.
    kinds
        Those that values are of.
    """
    if (reason := why_not_nvcomp(device)) is not None:
        return reason
    if "tensorflow" in sys.modules and "triton" not in sys.modules:
        # Both bring LLVM, and the second to be loaded takes the process down.
        return "TensorFlow is loaded, with which Triton cannot share a process"
    try:
        # Of what a later version of Triton will do; a filter for a while would be all threads'.
        warnings.filterwarnings("ignore", module=r"triton\b")
        import_module("tabfeed.loader.gpu.parquet.page_kernel").load(device, kinds)
    except Exception as e:  # a compiler that is not there, a driver that is too old
        return f"Triton cannot be used ({type(e).__name__}: {e})"
    return None


def encoded_row(reader: BlockReader) -> EncodedRow:
    """How large rows are in their files, judging by some; `UnsupportedError` if not to be unpacked.

    A few row groups may be unfit, for a null say: Arrow reads those.
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
    if len(unsupported) > len(pieces) // _FEW_UNFIT:
        raise unsupported[0]
    return EncodedRow(
        max(extent.encoded / (rows or 1) for extent, rows in found),
        max(extent.plain / (rows or 1) for extent, rows in found),
    )


def kinds_of(reader: BlockReader) -> list[Kind]:
    """What kinds of values there are; a kernel is launched for each."""
    return list(dict.fromkeys(kind for _, kind in _columns(reader)))


def _wanted(reader: BlockReader) -> list[Wanted]:
    """The columns that lie in slabs, in their order."""
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
    """Reads bytes of files onto staging buffers; threads may share it.

    Parameters
    ----------
    arrow
        Reads what the GPU does not unpack.
    finders
        How many processes look for pages; 0 if the threads themselves do.
    hands
        How many threads read the bytes of one row group.
    """

    arrow: GpuBlockReader
    finders: int = 0
    hands: int = 1
    _known: dict[tuple[int, int], _Known] = field(default_factory=dict)
    _unsupported: set[tuple[int, int]] = field(default_factory=set)
    _sound: set[int] = field(default_factory=set)

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
        return ThreadPoolExecutor(_MOST_THREADS, "tabfeed-read") if self.hands > 1 else None

    @cached_property
    def _wanted(self) -> list[Wanted]:
        return _wanted(self.arrow.host)

    def read(self, epoch: Epoch, numbers: Sequence[int]) -> list[GpuBlock]:
        """Some lots of an epoch."""
        with on_device(self.arrow.device):
            return [self._read(epoch, number) for number in numbers]

    def close(self) -> None:
        """End processes and threads that nobody uses; they are started again if there is need."""
        if self._finders is not None:
            self._finders.dismiss()
        vars(self).pop("_threads", None)  # they end when nobody uses them any more
        self.arrow.close()

    def _read(self, epoch: Epoch, number: int) -> GpuBlock:
        with suppress(
            UnsupportedError, OSError
        ):  # a staging buffer that was taken is free again behind this
            return self._encoded(epoch, number)
        (block,) = self.arrow.read(epoch, [number])  # which says what is wrong, if it is
        return block

    def _encoded(self, epoch: Epoch, number: int) -> GpuBlock:
        partitions, rows = epoch.partitions(number), epoch.block_rows(number)
        staging_buffer, groups = self.arrow.staging_buffers.take(), []
        at = first = plain = 0
        extents = []
        for piece in self._pieces(partitions):
            with span("read", rows=piece.rows or 0):
                extent, pages = self._fetch(piece, staging_buffer, at)
            groups.append(EncodedGroup(at, first, pages))
            extents.append(extent)
            at, first, plain = at + extent.encoded, first + (piece.rows or 0), plain + pages.room
        if first != rows or len({extent.compressed for extent in extents}) != 1:
            raise UnsupportedError(
                "not all rows are there, or some are compressed and some are not"
            )
        encoded = EncodedBlock(
            groups,
            encoded=at,
            plain=plain,
            compressed=extents[0].compressed,
            sound=self._sound.issuperset(partitions),
            approve=partial(self._sound.update, partitions),
            again=lambda: self.arrow.read(epoch, [number])[0],
            name=self._name(partitions),
        )
        return GpuBlock(
            rows, self.arrow.draw(epoch, number), staging_buffer=staging_buffer, encoded=encoded
        )

    def _fetch(self, piece: Piece, staging_buffer: StagingBuffer, at: int) -> _Known:
        """Lay the bytes of a row group on a desk, and find its pages."""
        key, file = (piece.file, piece.unit), _file(self.parts, piece)
        known = self._known.get(key)
        if known is not None:
            self._lay(file.ref, known.extent, staging_buffer, at)
            return known
        if key in self._unsupported:
            raise UnsupportedError("it was not fit before")
        try:
            extent = extent_of(file, piece.unit, self._wanted)
            self._lay(file.ref, extent, staging_buffer, at)
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
            self._finders.dismiss()  # nothing is left to be found
        return known

    @cached_property
    def _row_groups(self) -> int:
        """How many there are."""
        partitions = self.parts.partitions if isinstance(self.parts, PartReader) else ()
        return len({(piece.file, piece.unit) for part in partitions for piece in part.pieces})

    def _lay(self, ref: FileRef, extent: Extent, staging_buffer: StagingBuffer, at: int) -> None:
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
            cuts = _cuts_of(extent.runs, max(_LEAST_CUT, -(-extent.encoded // self.hands)))
            self._read_all(partial(_read_cut, file, memory), cuts)
        finally:
            os.close(file)

    def _read_all(self, read: Callable[[_Cut], None], cuts: Iterable[_Cut]) -> None:
        """Read cuts of a file, side by side if that is worth it; none is still read afterwards."""
        if self._threads is None:
            for cut in cuts:
                read(cut)
            return
        begun = [self._threads.submit(read, cut) for cut in cuts]
        wait(begun)  # also if one fails: the file is closed next, and the staging buffer another's
        for future in begun:
            future.result()

    def _find(self, staging_buffer: StagingBuffer, search: Search) -> Pages:
        """Have pages found; until processes come up, here."""
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


def _file(parts: ReadsParts, piece: Piece) -> RowGroups:
    """The file of a row group."""
    assert isinstance(parts, PartReader)
    file = parts.dataset.fileset.files[piece.file].row_groups
    if file is None or not piece.whole:
        raise UnsupportedError("not a whole row group of a Parquet file")
    return file


class _Cut(NamedTuple):
    """Some bytes of a file, and where they go."""

    start: int
    stop: int
    to: int


def _cuts_of(runs: Sequence[Range], most: int) -> Iterator[_Cut]:
    """Runs of a file that are to lie one behind the other, in cuts of at most so many bytes.

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
