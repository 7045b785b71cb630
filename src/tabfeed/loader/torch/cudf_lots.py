"""Lots decoded on the GPU itself, by pylibcudf.

Each thread reads on a stream of its own; columns of the table that comes are gathered, by the lot's
permutation, straight into the lot's matrices. What pylibcudf decodes lies in a pool of bounded
size; the thread waits for its stream before a table goes, without the interpreter lock.

Whatever is not plain numbers in local Parquet files, and any lot with nulls, is left to Arrow,
whose results are the same.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from importlib import import_module
from itertools import accumulate
from typing import Any

import numpy as np
import torch

from tabfeed.errors import MissingExtraError
from tabfeed.io.dataset import Dataset
from tabfeed.loader.columns import Layout
from tabfeed.loader.plan import Epoch
from tabfeed.loader.readers import PartReader, ReadsParts
from tabfeed.loader.torch.gpu_lots import GpuLot, GpuLotReader
from tabfeed.trace import span

__all__ = ["CudfLotReader", "why_not_cudf"]

Tensor = torch.Tensor
_STREAMS: dict[str, deque[tuple[Any, Any]]] = {}  # by device: pairs that nobody uses at the moment


def why_not_cudf(parts: ReadsParts, layout: Layout, dtypes: dict[str, np.dtype[Any]]) -> str | None:
    """Why pylibcudf cannot read these partitions; None if it can."""
    if not isinstance(parts, PartReader):
        return "partitions are cached"
    if parts.transforms:
        return "transforms= need Arrow tables"
    if layout.lists or layout.fixed or layout.extras:
        return "there are list or text columns"
    if not _plain(parts.dataset, layout, dtypes):
        return "the files are not local Parquet files of plain numbers"
    if any(not piece.whole for part in parts.partitions for piece in part.pieces):
        return "row groups are too large for the budget and are read in slices"
    try:
        import_module("pylibcudf")
    except ImportError as e:
        return f"pylibcudf cannot be imported ({e}); pip install tabfeed[gpu]"
    return None


def _plain(dataset: Dataset, layout: Layout, dtypes: dict[str, np.dtype[Any]]) -> bool:
    return dataset.is_plain_parquet and all(
        dataset.schema[name].dtype is not None
        and np.dtype(dataset.schema[name].dtype.to_pandas_dtype()) == dtypes[group.name]
        for group in layout.groups
        for name in group.columns
    )


class _Pool:
    """The memory pylibcudf decodes into, and the streams of threads."""

    def __init__(self, device: torch.device, nbytes: int) -> None:
        try:
            rmm = import_module("rmm")
        except ImportError as e:
            raise MissingExtraError("gpu", "reading Parquet on the GPU") from e
        self.device = device
        # What pylibcudf needs in passing comes from the device's current resource. Unpooled, each
        # allocation there would stop the whole GPU; one that the user has chosen stays.
        if type(rmm.mr.get_current_device_resource()) is rmm.mr.CudaMemoryResource:
            size = nbytes // 256 * 256
            pool = rmm.mr.PoolMemoryResource(
                rmm.mr.CudaMemoryResource(), initial_pool_size=size, maximum_pool_size=size
            )
            rmm.mr.set_current_device_resource(pool)
        self._streams = _STREAMS.setdefault(str(device), deque())

    @contextmanager
    def stream(self) -> Iterator[tuple[Any, Any]]:
        """A stream for one reading, as rmm and as torch see it.

        Streams are never given up: memory is kept by the stream that used it last, and one that
        ended with its thread would take the process down.
        """
        try:
            pair = self._streams.pop()
        except IndexError:
            pair = self._new_stream()
        try:
            yield pair
        finally:
            self._streams.append(pair)

    def _new_stream(self) -> tuple[Any, Any]:
        stream = import_module("rmm.pylibrmm.stream").Stream()
        handle = int(stream.__cuda_stream__()[1])
        view = torch.cuda.ExternalStream(handle, device=self.device)  # type: ignore[no-untyped-call]
        return stream, view


@dataclass
class CudfLotReader:
    """Makes lots on a GPU from Parquet files; threads may share it.

    Parameters
    ----------
    arrow
        Reads what pylibcudf must not.
    pool_bytes
        Most memory for what is being decoded.
    at_once
        Most lots to decode at a time.
    """

    arrow: GpuLotReader
    pool_bytes: int
    at_once: int

    @property
    def parts(self) -> ReadsParts:
        """Reads partitions."""
        return self.arrow.parts

    def reading(self, parts: ReadsParts) -> CudfLotReader:
        """The same for another reader of the same partitions."""
        new = replace(self, arrow=self.arrow.reading(parts))
        vars(new).update({n: vars(self)[n] for n in ("_pool", "_turns") if n in vars(self)})
        return new

    @cached_property
    def _pool(self) -> _Pool:
        return _Pool(self.arrow.blocks.device, self.pool_bytes)

    @cached_property
    def _turns(self) -> threading.Semaphore:
        return threading.Semaphore(self.at_once)

    def read(self, epoch: Epoch, numbers: Sequence[int]) -> list[GpuLot]:
        """Some lots of an epoch, decoded in one go: small row groups alone leave a GPU idle."""
        with span("plan"):
            orders = [epoch.permutation(n) for n in numbers]
        partitions = [p for n in numbers for p in epoch.partitions(n)]
        rows = [epoch.lot_rows(n) for n in numbers]
        with self._turns, self._pool.stream() as (own, stream):
            columns = self._columns(partitions, sum(rows), own)
            if columns is not None:
                return self._lots(columns, rows, orders, stream)
        return self.arrow.read(epoch, numbers)

    def _columns(self, partitions: Sequence[int], rows: int, own: Any) -> list[Any] | None:
        """The decoded columns; None if there are nulls in them, or no memory at the moment."""
        try:
            with span("read", rows=rows):
                columns: list[Any] = self._table(partitions, own).columns()
        except MemoryError:
            return None
        fine = all(c.null_count() == 0 and c.size() == rows for c in columns)
        return columns if fine else None

    def _lots(
        self, columns: list[Any], rows: Sequence[int], orders: Sequence[Any], stream: Any
    ) -> list[GpuLot]:
        device = self._pool.device
        with span("gather", rows=sum(rows)), torch.cuda.stream(stream):
            wholes = [torch.as_tensor(c.data(), device=device) for c in columns]
            ends = list(accumulate(rows))
            lots = [
                self._lot(wholes, range(end - count, end), order, stream)
                for end, count, order in zip(ends, rows, orders, strict=True)
            ]
            stream.synchronize()  # before the table's memory goes back to its pool
        return lots

    def _lot(self, wholes: Sequence[Tensor], rows: range, order: Any, stream: Any) -> GpuLot:
        """One of the lots that were decoded together."""
        lot = GpuLot(self.arrow.blocks, self.arrow.blocks.take(stream), len(rows))
        lot.matrices, places = self.arrow.shape.carve(lot.block, len(rows))
        if order is not None:
            held = self.arrow.pinned.empty((len(rows),), np.int32)
            held[:] = order
            places.copy_(torch.from_numpy(held), non_blocking=True)
            lot.held = held  # until the copy is done
        outs = [row for g in self.arrow.shape.groups for row in lot.matrices[g.name]]
        for out, whole in zip(outs, wholes, strict=True):
            source = whole.view(out.dtype)[rows.start : rows.stop]
            if order is None:
                out.copy_(source)
            else:
                torch.index_select(source, 0, places, out=out)
        lot.ready = stream.record_event()
        return lot

    def _table(self, partitions: Sequence[int], stream: Any) -> Any:
        io = import_module("pylibcudf.io")
        paths, groups = self._row_groups(partitions)
        options = io.parquet.ParquetReaderOptions.builder(io.SourceInfo(paths)).build()
        options.set_column_names([c for g in self.arrow.shape.groups for c in g.columns])
        options.set_row_groups(groups)
        return io.parquet.read_parquet(options, stream=stream).tbl

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
                    paths.append(parts.dataset.files[piece.file])
                    groups.append([])
                    last = piece.file
                groups[-1].append(piece.unit)
        return paths, groups
