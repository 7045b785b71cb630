"""What `gpu.py` holds tabfeed against: loaders by hand and of torch, and decoders alone."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import torch
from loader import CATS, COLUMNS, CONTS
from torch.utils.data import DataLoader, IterableDataset, TensorDataset, get_worker_info

__all__ = ["by_hand", "cudf_alone", "pyarrow_alone", "stock"]

_STREAMS: list[Any] = []
_KEPT: list[Any] = []


# -- loaders -----------------------------------------------------------------------------------


class _ByHand(IterableDataset[Any]):
    """What one writes by hand: row groups shared out to workers, shuffled within each batch."""

    def __init__(self, folder: Path, batch: int) -> None:
        self.files, self.batch = sorted(folder.glob("*.parquet")), batch

    def __iter__(self) -> Iterator[Any]:
        info = get_worker_info()
        mine = self.files[info.id :: info.num_workers] if info else self.files
        for file in mine:
            for batch in pq.ParquetFile(file).iter_batches(self.batch, columns=COLUMNS):
                order = np.random.permutation(batch.num_rows)
                names = [sorted(CATS), CONTS]
                cats, conts = (
                    np.stack([batch.column(c).to_numpy() for c in group], axis=1)[order]
                    for group in names
                )
                label = batch.column("label").to_numpy()[order]
                yield (
                    torch.from_numpy(cats).long(),
                    torch.from_numpy(conts),
                    torch.from_numpy(label).float(),
                )


def _to_gpu(batches: Iterable[Any]) -> Iterator[Any]:
    """Pinned batches, moved as one does."""
    for batch in batches:
        yield tuple(t.to("cuda", non_blocking=True) for t in batch)


def by_hand(folder: Path, batch: int) -> Iterator[Any]:
    """The above with 8 workers."""
    loader = DataLoader(_ByHand(folder, batch), batch_size=None, num_workers=8, pin_memory=True)
    return _to_gpu(loader)


def stock(folder: Path, batch: int, rows: int) -> Iterator[Any]:
    """Torch's own, item by item, over some rows in memory."""
    table = pq.ParquetFile(min(folder.glob("*.parquet"))).read_row_group(0).slice(0, rows)
    cats, conts = (
        torch.from_numpy(np.stack([table.column(c).to_numpy() for c in group], axis=1))
        for group in (sorted(CATS), CONTS)
    )
    label = torch.from_numpy(table.column("label").to_numpy().copy()).float()
    data = TensorDataset(cats.long(), conts, label)
    return _to_gpu(DataLoader(data, batch_size=batch, shuffle=True, pin_memory=True))


# -- decoders alone ----------------------------------------------------------------------------


def pyarrow_alone(folder: Path) -> int:
    """Row groups decoded by as many threads as there are cores; nothing kept."""
    footers = {f: pq.read_metadata(f) for f in sorted(folder.glob("*.parquet"))}
    units = [(f, m, g) for f, m in footers.items() for g in range(m.num_row_groups)]

    def read(unit: tuple[Path, Any, int]) -> int:
        file, footer, group = unit
        with pq.ParquetFile(file, metadata=footer, pre_buffer=False) as reader:
            return int(reader.read_row_group(group, columns=COLUMNS, use_threads=False).num_rows)

    with ThreadPoolExecutor(os.cpu_count()) as threads:
        return sum(threads.map(read, units))


def cudf_alone(folder: Path, threads: int = 4) -> int:
    """Whole files decoded on the GPU, a stream a thread; nothing kept."""
    import pylibcudf as plc
    import rmm
    from rmm.pylibrmm.stream import Stream

    own = threading.local()
    before = rmm.mr.get_current_device_resource()
    pool = rmm.mr.CudaAsyncMemoryResource(release_threshold=2**34)  # not the loader's small one
    rmm.mr.set_current_device_resource(pool)
    _KEPT.append(pool)

    def read(file: Path) -> int:
        if not hasattr(own, "stream"):
            own.stream = Stream()
            _STREAMS.append(own.stream)
        source = plc.io.SourceInfo([str(file)])
        options = plc.io.parquet.ParquetReaderOptions.builder(source).build()
        table = plc.io.parquet.read_parquet(options, stream=own.stream).tbl
        own.stream.synchronize()
        return int(table.num_rows())

    try:
        with ThreadPoolExecutor(threads) as workers:
            return sum(workers.map(read, sorted(folder.glob("*.parquet"))))
    finally:
        rmm.mr.set_current_device_resource(before)
