"""Partitions of Parquet files, decoded by other processes.

A thread asks one or more of them for a block, each for a share of its columns. A process for each
staging buffer is best; where partitions are so large that memory has room for a few only, several
share one.

Partitions that Arrow has read once, and so verified, are decoded by Polars from then on. Measured
in processes of one thread each: 46 ms for a row group of 250,000 rows and 40 columns laid in its
place, where Arrow takes 64; by turns on a busy machine 23 and 39 (Snappy), 39 and 79
(uncompressed), 122 and 208 (Zstandard). In a process with several threads that decode it gains
nothing, and Polars does not survive a fork. It does not verify the checksums of pages, and says
less of a damaged file. So whatever is not as expected (a null, a dtype that cannot be cast, other
rows, an error, a file that has changed since it was opened) is left to Arrow again.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib import import_module
from typing import Any

import numpy as np
import numpy.typing as npt

from tabfeed.loader.read.arrow_columns import Group, Layout, casts
from tabfeed.loader.read.blocks import BlockReader
from tabfeed.loader.read.decoder_processes import (
    DecoderProcess,
    DecoderProcesses,
    StagingBuffer,
    StagingBuffers,
)
from tabfeed.loader.read.partition_reader import PartReader
from tabfeed.trace import span

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class StagingSlice:
    """Where in a staging buffer a group goes: ``(columns, rows)`` from `offset` bytes on."""

    group: str
    offset: int
    columns: int
    dtype: np.dtype[Any]

    def on(self, staging_buffer: Array, rows: int) -> Array:
        """That part of a staging buffer."""
        end = self.offset + self.columns * rows * self.dtype.itemsize
        return staging_buffer[self.offset : end].view(self.dtype).reshape(self.columns, rows)


@dataclass(frozen=True)
class DecodeRequest:
    """What to decode into a staging buffer.

    Attributes
    ----------
    partitions
        Which, end to end.
    rows
        How many rows they have.
    slices
        Where their columns go.
    quick
        Whether they were read and verified before; see `tabfeed.loader.read.process_blocks`.
    share
        ``(k, n)``: of all columns every `n`-th, from the `k`-th on. They differ in what they cost,
        and those next to each other less than others.
    """

    partitions: Sequence[int]
    rows: int
    slices: Sequence[StagingSlice]
    quick: bool = False
    share: tuple[int, int] = (0, 1)


# -- in this process ------------------------------------------------------------------------------


def can_decode(reader: BlockReader) -> bool:
    """Whether another process can have this reader, at little cost, and read the same."""
    parts = reader.parts
    return (
        hasattr(os, "memfd_create")
        and isinstance(parts, PartReader)
        and not parts.transforms
        and parts.dataset.is_plain_parquet
    )


def decoders_of(
    reader: BlockReader, staging_buffers: StagingBuffers, count: int
) -> DecoderProcesses:
    """Processes that decode what a reader reads.

    Parameters
    ----------
    reader
        Reads partitions.
    staging buffers
        Where to lay them.
    count
        How many processes.
    """
    lean = BlockReader(reader.parts, Layout(reader.layout.groups), reader.dtypes)
    return DecoderProcesses(_Decode(lean), staging_buffers, count)


@contextmanager
def decoding(
    decoders: Sequence[DecoderProcess], staging_buffer: StagingBuffer, request: DecodeRequest
) -> Iterator[None]:
    """Have all of a request done, each process a share of it; at ``yield`` they are at work.

    If one of them fails, the others are waited for first: they are needed again.
    """
    for number, decoder in enumerate(decoders):
        decoder.begin(staging_buffer, replace(request, share=(number, len(decoders))))
    yield
    errors: list[Exception] = []
    with span("read", rows=request.rows):
        for decoder in decoders:
            try:
                decoder.finish()
            except Exception as e:
                errors.append(e)
    if errors:
        raise errors[0]


# -- in a decoder process -------------------------------------------------------------------------


class _Decode:
    """Carries out requests, in a decoder process."""

    def __init__(self, reader: BlockReader) -> None:
        self._reader = reader
        self._shares: dict[tuple[int, int], tuple[BlockReader, dict[str, slice]]] = {}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        parts = self._reader.parts
        assert isinstance(parts, PartReader)
        parts.nulls.silence()  # the loader's own process says it, from the footers
        import_module("polars")  # now, rather than when the second epoch begins

    def __call__(self, staging_buffer: Array, request: DecodeRequest) -> None:
        if request.share not in self._shares:
            self._shares[request.share] = self._share(*request.share)
        reader, rows = self._shares[request.share]
        matrices = {
            s.group: s.on(staging_buffer, request.rows)[rows[s.group]] for s in request.slices
        }
        if request.quick and len(request.partitions) == 1:
            assert isinstance(reader.parts, PartReader)
            if quick_fill(reader.parts, reader.layout.groups, request.partitions[0], matrices):
                return
        reader.fill(request.partitions, request.rows, None, matrices)

    def _share(self, number: int, count: int) -> tuple[BlockReader, dict[str, slice]]:
        """A reader of some columns, and which those are in each group."""
        parts, groups = self._reader.parts, self._reader.layout.groups
        assert isinstance(parts, PartReader)
        rows, before = {}, 0
        for group in groups:
            rows[group.name] = slice((number - before) % count, None, count)
            before += len(group.columns)
        layout = Layout(tuple(replace(g, columns=g.columns[rows[g.name]]) for g in groups))
        return BlockReader(replace(parts, layout=layout), layout, self._reader.dtypes), rows


def quick_fill(
    parts: PartReader,
    groups: Sequence[Group],
    partition: int,
    matrices: Mapping[str, Array],
) -> bool:
    """Fill ``(columns, rows)`` matrices with a partition; False if Arrow must do it.

    Parameters
    ----------
    parts
        What to read, of a dataset that ``is_plain_parquet``.
    groups
        The columns of each matrix.
    partition
        Which.
    matrices
        By group; written in any case.
    """
    rows = parts.lens[partition]
    outs = {
        name: out
        for group in groups
        for out, name in zip(matrices[group.name], group.columns, strict=True)
    }
    frame = _frame(parts, partition, list(outs))
    if frame is None or frame.height != rows:
        return False
    return all(_laid(frame[name], out) for name, out in outs.items())


def _laid(column: Any, out: Array) -> bool:
    """Lay a column out; False if it is not as it should be."""
    if column.null_count():
        return False
    values = column.to_numpy()
    if values.dtype != out.dtype and not casts(values.dtype, out.dtype):
        return False
    out[:] = values
    return True


def _frame(parts: PartReader, partition: int, columns: list[str]) -> Any:
    """Columns of a row group as a frame; None if they cannot be had."""
    import polars as pl

    pieces = parts.partitions[partition].pieces
    file = parts.dataset.fileset.files[pieces[0].file].row_groups if len(pieces) == 1 else None
    if file is None or not pieces[0].whole:
        return None
    path, unit = parts.dataset.files[pieces[0].file], pieces[0].unit
    try:
        file.ref.check()
        lazy = pl.scan_parquet(path, glob=False, hive_partitioning=False)
        start = sum(file.unit_rows[:unit])
        frame = lazy.slice(start, file.unit_rows[unit]).select(columns).collect()
        file.ref.check()
        return frame
    except (pl.exceptions.PolarsError, OSError):
        return None
