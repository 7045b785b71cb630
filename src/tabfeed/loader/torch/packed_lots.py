"""Lots for a GPU that unpacks them itself: bytes of files, read onto desks as they are.

Reading is then all that the computer does, and it takes no interpreter: a thread copies as fast as
the disk or the page cache gives. What pages there are in a row group is found out once, from their
headers. What a GPU cannot unpack, Arrow reads onto the same desks.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from importlib import import_module
from typing import Any, NamedTuple

import numpy as np
import torch

from tabfeed.io.parquet import ParquetFile
from tabfeed.io.partition import Piece
from tabfeed.io.ranges import Range
from tabfeed.io.source import Location
from tabfeed.loader.columns import Layout
from tabfeed.loader.plan import Epoch
from tabfeed.loader.readers import PartReader, ReadsParts
from tabfeed.loader.torch.gpu_buffers import planes_of
from tabfeed.loader.torch.gpu_lots import GpuLot, GpuLotReader
from tabfeed.loader.torch.nvcomp import why_not_nvcomp
from tabfeed.loader.torch.packed_pages import (
    Pages,
    Stretch,
    UnfitError,
    Wanted,
    find_pages,
    stretch_of,
)
from tabfeed.loader.torch.unpack import PackedGroup, PackedLot
from tabfeed.trace import span

__all__ = ["PackedLotReader", "PackedRow", "packed_row", "why_not_unpacked"]

_SAMPLE = 64  # row groups looked at before any is read
_MOST_KNOWN = 2**14  # row groups whose pages are remembered: 16 kB each, if pages are short


class PackedRow(NamedTuple):
    """Most bytes of a row, as it lies in a file and decompressed."""

    packed: float
    plain: float


class _Known(NamedTuple):
    """What was found out about a row group."""

    stretch: Stretch
    pages: Pages


def why_not_unpacked(device: torch.device, widths: Sequence[int]) -> str | None:
    """Why a GPU cannot unpack pages; None if it can. Loads what is needed for that.

    Parameters
    ----------
    device
        The GPU.
    widths
        Bytes of a value, for each plane.
    """
    if (reason := why_not_nvcomp()) is not None:
        return reason
    if "tensorflow" in sys.modules and "triton" not in sys.modules:
        # Both bring LLVM, and the second to be loaded takes the process down.
        return "TensorFlow is loaded, with which Triton cannot share a process"
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of what a later version of Triton will do
            import_module("tabfeed.loader.torch.page_kernel").load(device, widths)
    except Exception as e:  # a compiler that is not there, a driver that is too old
        return f"Triton cannot be used ({type(e).__name__}: {e})"
    return None


def packed_row(parts: ReadsParts, layout: Layout, dtypes: dict[str, np.dtype[Any]]) -> PackedRow:
    """How large rows are in their files, judging by some; `UnfitError` if not to be unpacked."""
    if not isinstance(parts, PartReader):
        raise UnfitError("partitions are cached")
    wanted = _wanted(layout, dtypes)
    numbers = range(0, len(parts.partitions), -(-len(parts.partitions) // _SAMPLE) or 1)
    pieces = [piece for n in numbers for piece in parts.partitions[n].pieces if piece.rows]
    if not pieces:
        raise UnfitError("there are no rows")
    found = [(stretch_of(_file(parts, p), p.unit, wanted), p.rows) for p in pieces]
    return PackedRow(
        max(stretch.packed / (rows or 1) for stretch, rows in found),
        max(stretch.plain / (rows or 1) for stretch, rows in found),
    )


def _wanted(layout: Layout, dtypes: dict[str, np.dtype[Any]]) -> list[Wanted]:
    """The columns that lie in slabs, in their order."""
    return [
        Wanted(name, plane.width, number)
        for number, plane in enumerate(planes_of(layout.groups, dtypes))
        for group, _ in plane.groups
        for name in group.columns
    ]


@dataclass
class PackedLotReader:
    """Reads bytes of files onto desks; threads may share it.

    Parameters
    ----------
    arrow
        Reads what the GPU does not unpack.
    """

    arrow: GpuLotReader
    _known: dict[tuple[int, int], _Known] = field(default_factory=dict)
    _unfit: set[tuple[int, int]] = field(default_factory=set)
    _sound: set[int] = field(default_factory=set)

    @property
    def parts(self) -> ReadsParts:
        """Reads partitions."""
        return self.arrow.parts

    def reading(self, parts: ReadsParts) -> PackedLotReader:
        """The same for another reader of the same partitions."""
        return self if parts is self.parts else replace(self, arrow=self.arrow.reading(parts))

    @cached_property
    def _wanted(self) -> list[Wanted]:
        return _wanted(self.arrow.host.layout, self.arrow.host.dtypes)

    def read(self, epoch: Epoch, numbers: Sequence[int]) -> list[GpuLot]:
        """Some lots of an epoch."""
        return [self._read(epoch, number) for number in numbers]

    def _read(self, epoch: Epoch, number: int) -> GpuLot:
        with suppress(UnfitError, OSError):  # a desk that was taken is free again behind this
            return self._packed(epoch, number)
        (lot,) = self.arrow.read(epoch, [number])  # which says what is wrong, if it is
        return lot

    def _packed(self, epoch: Epoch, number: int) -> GpuLot:
        partitions, rows = epoch.partitions(number), epoch.lot_rows(number)
        desk, groups = self.arrow.desks.take(), []
        memory = desk.memory.data
        at = first = plain = 0
        stretches = []
        for piece in self._pieces(partitions):
            with span("read", rows=piece.rows or 0):
                stretch, pages = self._fetch(piece, memory[at:])
            groups.append(PackedGroup(at, first, pages))
            stretches.append(stretch)
            at, first, plain = at + stretch.packed, first + (piece.rows or 0), plain + pages.room
        if first != rows or len({stretch.compressed for stretch in stretches}) != 1:
            raise UnfitError("not all rows are there, or some are compressed and some are not")
        packed = PackedLot(
            groups,
            packed=at,
            plain=plain,
            compressed=stretches[0].compressed,
            sound=self._sound.issuperset(partitions),
            approve=partial(self._sound.update, partitions),
            again=lambda: self.arrow.read(epoch, [number])[0],
            name=self._name(partitions),
        )
        return GpuLot(rows, self.arrow.draw(epoch, number), desk=desk, packed=packed)

    def _fetch(self, piece: Piece, memory: memoryview) -> _Known:
        """Read a row group into memory, and find its pages."""
        key, file = (piece.file, piece.unit), _file(self.parts, piece)
        known = self._known.get(key)
        if known is not None:
            _read_runs(file.location, known.stretch.runs, memory)
            return known
        if key in self._unfit:
            raise UnfitError("it was not fit before")
        try:
            known = self._find(piece, file, memory)
        except UnfitError:
            self._unfit.add(key)
            raise
        if len(self._known) < _MOST_KNOWN:
            self._known[key] = known
        return known

    def _find(self, piece: Piece, file: ParquetFile, memory: memoryview) -> _Known:
        """The same for the first time."""
        stretch = stretch_of(file, piece.unit, self._wanted)
        if stretch.packed > len(memory):
            raise UnfitError("a row group is larger than expected")
        _read_runs(file.location, stretch.runs, memory)
        return _Known(stretch, find_pages(memory[: stretch.packed], stretch, piece.rows or 0))

    def _pieces(self, partitions: Sequence[int]) -> Iterator[Piece]:
        parts = self.parts
        if not isinstance(parts, PartReader):
            raise UnfitError("partitions are cached")
        for number in partitions:
            yield from parts.partitions[number].pieces

    def _name(self, partitions: Sequence[int]) -> str:
        parts = self.parts
        assert isinstance(parts, PartReader)
        return next((parts.dataset.files[p.file] for p in self._pieces(partitions)), "no file")


def _file(parts: ReadsParts, piece: Piece) -> ParquetFile:
    """The file of a row group."""
    assert isinstance(parts, PartReader)
    file = parts.dataset.fileset.files[piece.file]
    if not isinstance(file, ParquetFile) or not piece.whole:
        raise UnfitError("not a whole row group of a Parquet file")
    return file


def _read_runs(location: Location, runs: Sequence[Range], memory: memoryview) -> None:
    """Read stretches of a file one behind the other."""
    file = os.open(location.path, os.O_RDONLY)
    try:
        if os.fstat(file).st_size != location.size > 0:
            raise UnfitError("a file has changed since it was opened")
        done = 0
        for start, stop in runs:
            while start < stop:
                count = os.preadv(file, [memory[done : done + stop - start]], start)
                if not count:
                    raise UnfitError("a file is shorter than its footer says")
                start, done = start + count, done + count
    finally:
        os.close(file)
