"""The IterableDataset of `torch_parquet.py`, apart so that workers can import it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from torch.utils.data import IterableDataset, get_worker_info

from benchmarks.harness.contender import Case
from benchmarks.peers._common import arrow_files, arrow_s3

Arrays = dict[str, Any]


class RowGroups(IterableDataset[Any]):
    """Yields the rows of a batch, and the batch."""

    def __init__(self, case: Case, finish: Callable[[Arrays, Case], Any]) -> None:
        self.case, self.finish, self.server = case, finish, arrow_s3(case)
        self.units = [
            (file, group)
            for file in arrow_files(case)
            for group in range(pq.read_metadata(file, filesystem=self.server).num_row_groups)
        ]
        self.epoch = 0

    def __iter__(self) -> Iterator[tuple[int, Any]]:
        self.epoch += 1
        units = np.array(self.units, dtype=object)
        if self.case.shuffle:
            units = np.random.default_rng(self.epoch).permutation(units)
        info = get_worker_info()
        mine = units if info is None else units[info.id :: info.num_workers]
        return self._shuffled(mine) if self.case.shuffle else self._in_order(mine)

    def _in_order(self, units: Any) -> Iterator[tuple[int, Any]]:
        for file in dict.fromkeys(file for file, _ in units):
            groups = [group for name, group in units if name == file]
            with self._open(file) as reader:
                for batch in reader.iter_batches(self.case.batch, groups, self.case.columns):
                    yield batch.num_rows, self.finish(self._arrays(batch), self.case)

    def _shuffled(self, units: Any) -> Iterator[tuple[int, Any]]:
        for file, group in units:
            with self._open(file) as reader:
                table = reader.read_row_group(group, columns=self.case.columns)
            cut = self._shuffled_lists if self.case.lists else self._shuffled_rows
            yield from cut(table)

    def _shuffled_rows(self, table: pa.Table) -> Iterator[tuple[int, Any]]:
        whole = self.finish(self._arrays(table), self.case)
        for index in torch.randperm(table.num_rows).split(self.case.batch):
            if isinstance(whole, dict):
                yield len(index), {n: t.index_select(0, index) for n, t in whole.items()}
            else:
                yield len(index), tuple(t.index_select(0, index) for t in whole)

    def _shuffled_lists(self, table: pa.Table) -> Iterator[tuple[int, Any]]:
        table = table.take(pa.array(np.random.permutation(table.num_rows)))
        for start in range(0, table.num_rows, self.case.batch):
            batch = table.slice(start, self.case.batch)
            yield batch.num_rows, self.finish(self._arrays(batch), self.case)

    def _open(self, file: str) -> pq.ParquetFile:
        """Remote ranges are fetched together, ahead."""
        return pq.ParquetFile(file, filesystem=self.server, pre_buffer=self.server is not None)

    def _arrays(self, batch: pa.Table | pa.RecordBatch) -> Arrays:
        out: Arrays = {}
        for name in self.case.columns:
            column = batch.column(name)
            if name in self.case.lists:
                whole = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
                out[f"{name}__values"] = whole.flatten().to_numpy()
                out[f"{name}__offsets"] = whole.offsets.to_numpy()
            else:
                out[name] = column.to_numpy()
        return out
