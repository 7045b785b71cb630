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
from tabfeed.loader.torch.gpu_buffers import Slab
from tabfeed.loader.torch.gpu_lots import GpuLot, GpuLotReader
from tabfeed.trace import span

__all__ = ["CudfLotReader", "why_not_cudf"]

Tensor = torch.Tensor
_POOLS: list[Any] = []  # the one of ours that is in use
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
        current = rmm.mr.get_current_device_resource()
        if type(current) is rmm.mr.CudaMemoryResource or current in _POOLS:
            size = nbytes // 256 * 256
            pool = rmm.mr.PoolMemoryResource(
                rmm.mr.CudaMemoryResource(), initial_pool_size=size, maximum_pool_size=size
            )
            _POOLS[:] = [pool]
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
        return _Pool(self.arrow.slabs.device, self.pool_bytes)

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
            slab = self._filled(partitions, sum(rows), own, stream)
        if slab is None:
            return self.arrow.read(epoch, numbers)
        starts = [end - count for end, count in zip(accumulate(rows), rows, strict=True)]
        return [
            GpuLot(slab, start, count, order)
            for start, count, order in zip(starts, rows, orders, strict=True)
        ]

    def _filled(self, partitions: Sequence[int], rows: int, own: Any, stream: Any) -> Slab | None:
        """A slab with these partitions; None if they have nulls, or memory is short."""
        try:
            with span("read", rows=rows):
                columns: list[Any] = self._table(partitions, own).columns()
        except MemoryError:
            return None
        if any(c.null_count() or c.size() != rows for c in columns):
            return None
        slab = self.arrow.slabs.take(stream)
        with span("gather", rows=rows), torch.cuda.stream(stream):
            at = 0
            for plane in self.arrow.planes:
                out = slab.matrix(plane)
                found = columns[at : at + plane.columns]
                values = [torch.as_tensor(c.data(), device=out.device) for c in found]
                torch.stack([v.view(out.dtype) for v in values], out=out[:, :rows])
                at += plane.columns
            slab.ready = stream.record_event()
            stream.synchronize()  # before the table's memory goes back to its pool
        return slab

    def _table(self, partitions: Sequence[int], stream: Any) -> Any:
        io = import_module("pylibcudf.io")
        paths, groups = self._row_groups(partitions)
        options = io.parquet.ParquetReaderOptions.builder(io.SourceInfo(paths)).build()
        options.set_column_names(
            [c for plane in self.arrow.planes for g, _ in plane.groups for c in g.columns]
        )
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
