"""Blocks decoded on the GPU itself, by pylibcudf.

Each thread reads on a stream of its own, several blocks in one call, and copies the columns side by
side into device buffers, in few calls: pylibcudf joins those of one dtype to a matrix, which torch
takes over without a copy. pylibcudf decodes into a pool of bounded size
(`tabfeed.loader.gpu.parquet.cudf_pool`).

Arrow reads any block with nulls, with the same results.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from importlib import import_module
from typing import Any

import torch

from tabfeed.budget import cpu_count
from tabfeed.loader.gpu.buffers import DeviceBuffers, WidthGroup
from tabfeed.loader.gpu.devices import on_device, why_not_driver
from tabfeed.loader.gpu.parquet.cudf_pool import Grant, Reading
from tabfeed.loader.gpu.staging import GpuBlock, GpuBlockReader
from tabfeed.loader.plan import Epoch
from tabfeed.loader.read.partition_reader import PartReader, ReadsParts
from tabfeed.trace import span

__all__ = ["CudfBlockReader", "why_not_cudf"]

Tensor = torch.Tensor


def why_not_cudf() -> str | None:
    """Why pylibcudf cannot be used; None if it can. Loads it."""
    if (reason := why_not_driver("pylibcudf")) is not None:
        return reason
    # Threads of the library that fetches pages from files: 8 were 1.5 times as fast as its default
    # of 4, and faster than 16. It reads this variable once, when it is loaded.
    os.environ.setdefault("KVIKIO_NTHREADS", str(min(8, cpu_count())))
    try:
        for name in ("pylibcudf", "pylibcudf.io", "rmm"):
            import_module(name)
    except ImportError as e:
        return f"pylibcudf cannot be imported ({e}); pip install tabfeed[gpu]"
    except Exception as e:  # an unexpected driver or library
        return f"pylibcudf cannot be imported ({type(e).__name__}: {e})"
    return None


@dataclass
class CudfBlockReader:
    """Makes blocks on a GPU from Parquet files; threads may share it.

    Parameters
    ----------
    arrow
        Reads blocks that pylibcudf must not.
    device_buffers
        The destination.
    pool_bytes
        Most memory to decode in.
    at_once
        Most calls to decode at a time.
    """

    arrow: GpuBlockReader
    device_buffers: DeviceBuffers
    pool_bytes: int
    at_once: int
    _footers: dict[str, Any] = field(default_factory=dict)
    _nulls: dict[int, bool] = field(default_factory=dict)  # whether a partition has any
    _calls: threading.Semaphore = field(init=False)

    def __post_init__(self) -> None:
        self._calls = threading.Semaphore(self.at_once)

    @property
    def parts(self) -> ReadsParts:
        """Reads partitions."""
        return self.arrow.parts

    def close(self) -> None:
        """End the processes of Arrow, if it has any."""
        self.arrow.close()

    def reading(self, parts: ReadsParts) -> CudfBlockReader:
        """The same for another reader of the same partitions."""
        if parts is self.parts:
            return self
        new = replace(self, arrow=self.arrow.reading(parts))
        vars(new).update({n: vars(self)[n] for n in ("_pool", "_calls") if n in vars(self)})
        return new

    @cached_property
    def _pool(self) -> Grant:
        return Grant(self.device_buffers.device, self.pool_bytes)

    @cached_property
    def _runs(self) -> list[tuple[WidthGroup, int, int]]:
        """Columns of one dtype side by side: their width group, the first, and the end."""
        runs: list[tuple[WidthGroup, int, int]] = []
        last = None
        for width_group in self.device_buffers.width_groups:
            for group, dtype, first in width_group.spans():
                end = first + len(group.columns)
                if last == (width_group, dtype):
                    runs[-1] = (width_group, runs[-1][1], end)
                else:
                    runs.append((width_group, first, end))
                last = (width_group, dtype)
        return runs

    def read(self, epoch: Epoch, numbers: Sequence[int]) -> list[GpuBlock]:
        """Some blocks of an epoch, decoded together: single small row groups leave a GPU idle."""
        for_arrow = [n for n in numbers if any(map(self._has_nulls, epoch.partitions(n)))]
        rest = [n for n in numbers if n not in for_arrow]
        with on_device(self.device_buffers.device):
            blocks = dict(zip(for_arrow, self.arrow.read(epoch, for_arrow), strict=True))
            if rest:
                blocks |= zip(rest, self._read(epoch, rest), strict=True)
        return [blocks[n] for n in numbers]

    def _read(self, epoch: Epoch, numbers: Sequence[int]) -> list[GpuBlock]:
        blocks = [GpuBlock(epoch.block_rows(n), self.arrow.draw(epoch, n)) for n in numbers]
        partitions = [p for n in numbers for p in epoch.partitions(n)]
        with self._pool.reading() as reading:
            if not self._fill(blocks, partitions, reading):
                return self.arrow.read(epoch, numbers)
        return blocks

    def _fill(
        self, blocks: Sequence[GpuBlock], partitions: Sequence[int], reading: Reading
    ) -> bool:
        """Decode these partitions into device buffers; False if there are nulls, or no memory.

        No thread waits: decoded memory is freed in the order of the stream that still reads it.
        """
        rows, stream = [block.rows for block in blocks], reading.stream
        try:
            with self._calls, span("read", rows=sum(rows)), torch.cuda.stream(stream):
                found = self._decoded(partitions, sum(rows), reading)
        except MemoryError:
            found = None
        if found is None:
            return False
        with span("copy", rows=sum(rows)), torch.cuda.stream(stream):
            self._copy(blocks, rows, found, stream)
        return True

    def _has_nulls(self, partition: int) -> bool:
        """Whether footers say that a partition has nulls: Arrow reads it then."""
        if partition not in self._nulls:
            parts = self.parts
            assert isinstance(parts, PartReader)
            pieces = parts.partitions[partition].pieces
            files = [(parts.dataset.fileset.files[piece.file], piece.unit) for piece in pieces]
            self._nulls[partition] = any(
                count for file, unit in files for count in file.null_counts(unit, self._columns)
            )
        return self._nulls[partition]

    @cached_property
    def _columns(self) -> list[str]:
        """The columns of device buffers, in their order."""
        return [
            c
            for width_group in self.device_buffers.width_groups
            for g, _ in width_group.groups
            for c in g.columns
        ]

    def _decoded(
        self, partitions: Sequence[int], rows: int, reading: Reading
    ) -> list[Tensor] | None:
        """Partitions as matrices; None if there are nulls."""
        columns: list[Any] = self._table(partitions, reading).columns()
        if any(c.null_count() or c.size() != rows for c in columns):
            return None
        return self._matrices(columns, reading)

    def _copy(
        self, blocks: Sequence[GpuBlock], rows: list[int], found: list[Tensor], stream: Any
    ) -> None:
        """Copy the rows of each block to a device buffer, all in one call."""
        for block, device_buffer in zip(
            blocks, self.device_buffers.take(stream, len(blocks)), strict=True
        ):
            block.device_buffer = device_buffer
        to: list[Tensor] = []
        source: list[Tensor] = []
        for (width_group, first, end), matrix in zip(self._runs, found, strict=True):
            for block in blocks:
                assert block.device_buffer is not None
                to.append(block.device_buffer.matrix(width_group, block.rows, slice(first, end)))
            source += torch.split(matrix.view(to[-1].dtype), rows, 1)
        torch._foreach_copy_(to, source, non_blocking=True)
        ready = stream.record_event()
        for block in blocks:
            assert block.device_buffer is not None
            block.device_buffer.ready = ready

    def _matrices(self, columns: list[Any], reading: Reading) -> list[Tensor]:
        at, found = 0, []
        for _, first, end in self._runs:
            found.append(self._matrix(columns[at : at + end - first], reading))
            at += end - first
        return found

    def _matrix(self, columns: list[Any], reading: Reading) -> Tensor:
        """Columns of one dtype as one tensor ``(columns, rows)``."""
        plc = import_module("pylibcudf")
        capsule = plc.interop.to_dlpack(plc.Table(columns), stream=reading.own, mr=reading.memory)
        tensor = torch.utils.dlpack.from_dlpack(capsule)
        return tensor.unsqueeze(0) if tensor.ndim == 1 else tensor.t()

    def _table(self, partitions: Sequence[int], reading: Reading) -> Any:
        io = import_module("pylibcudf.io")
        paths, groups = self._row_groups(partitions)
        options = io.parquet.ParquetReaderOptions.builder(io.SourceInfo(paths)).build()
        options.set_column_names(self._columns)
        options.set_row_groups(groups)
        footers = [self._footer(path) for path in paths]
        how = {"stream": reading.own, "mr": reading.memory, "parquet_metadatas": footers}
        return io.parquet.read_parquet(options, **how).tbl

    def _footer(self, path: str) -> Any:
        """The footer of a file, read once."""
        if path not in self._footers:
            io = import_module("pylibcudf.io")
            (footer,) = io.parquet_metadata.read_parquet_footers(io.SourceInfo([path]))
            self._footers[path] = footer
        return self._footers[path]

    def _row_groups(self, partitions: Sequence[int]) -> tuple[list[str], list[list[int]]]:
        """The files of these partitions, in order, and which row groups of each."""
        parts = self.parts
        assert isinstance(parts, PartReader)
        paths: list[str] = []
        groups: list[list[int]] = []
        last = None
        for number in partitions:
            for piece in parts.partitions[number].pieces:
                if piece.file != last:
                    file = parts.dataset.fileset.files[piece.file]
                    if file.ref is not None:
                        file.ref.check()
                    paths.append(parts.dataset.files[piece.file])
                    groups.append([])
                    last = piece.file
                groups[-1].append(piece.unit)
        return paths, groups
