"""`Padding` and `EmbeddingOperator` for chunks on a GPU, bit for bit as on the CPU.

A table of vectors is copied to the GPU once, with one more row at its end: the vector of unknown
ids. So a lookup is one gather. Columns of a chunk that are still in host memory (lists) are copied
to the GPU once, and later operators find them there.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch

from tabfeed.errors import ColumnNotFoundError, LoaderError
from tabfeed.loader.assemble.batch_ops import BatchOp, EmbeddingOperator, Padding, op_bytes
from tabfeed.loader.assemble.chunk import Chunk
from tabfeed.loader.gpu.buffers import torch_dtype
from tabfeed.loader.read.arrow_columns import Layout, Lists
from tabfeed.loader.tensors.cut import as_tensor, as_words, filling, numpy_dtype, pad_ragged

__all__ = ["GpuEmbedding", "GpuOps", "GpuPadding"]

Tensor = torch.Tensor
_BLOCK = 2**26  # bytes of a table that are copied at a time


class GpuPadding:
    """`Padding` of a chunk on a GPU."""

    def __init__(self, op: Padding, device: torch.device) -> None:
        self.op, self.device = op, device

    def __call__(self, chunk: Chunk) -> None:
        """Replace ragged columns of a chunk."""
        op, columns = self.op, cast(dict[str, Any], chunk.columns)
        for name in op.columns if op.columns is not None else list(chunk.lists):
            if name not in chunk.lists:
                raise ColumnNotFoundError(name, chunk.lists, where="the ragged columns")
            lists = chunk.lists.pop(name)
            values = as_tensor(lists.values, self.device)
            offsets = as_tensor(lists.offsets, self.device)
            fill = filling(op.padding_value, numpy_dtype(values.dtype))
            columns[name] = pad_ragged(values, offsets, op.padding_size, fill)
            if op.mask:
                along = torch.arange(op.padding_size, device=values.device)
                columns[f"{name}__mask"] = along < offsets.diff()[:, None]


class _Table:
    """Vectors on a GPU, and the ids of their rows where those are not row numbers."""

    def __init__(self, op: EmbeddingOperator, device: torch.device) -> None:
        matrix, ids, order = op.tables
        self.rows = len(matrix)
        self.dtype = torch_dtype(_native(matrix.dtype))
        shape = (self.rows + 1, op.dimension)
        table = torch.empty(shape, dtype=self.dtype, device=device)
        self.words = as_words(table)
        step = max(1, _BLOCK // max(1, matrix.itemsize * op.dimension))
        for low in range(0, self.rows, step):
            block = np.array(matrix[low : low + step], dtype=_native(matrix.dtype))
            table[low : low + len(block)].copy_(torch.from_numpy(block))
        self.words[self.rows :].fill_(filling(op.unknown_value, _native(matrix.dtype)))
        self.ids = None if ids is None else as_tensor(ids.astype(np.int64), device)
        self.order = None if order is None else as_tensor(order.astype(np.int64), device)

    def look_up(self, keys: Tensor) -> Tensor:
        """The vectors of some ids, one behind the other."""
        found = self.words.index_select(0, self._places(keys.reshape(-1)))
        return found.view(self.dtype).view(*keys.shape, self.words.shape[1])

    def _places(self, keys: Tensor) -> Tensor:
        """The row of each id; the last row if it is unknown."""
        # From 2**63 on an unsigned id becomes negative, hence unknown.
        unsigned = keys.dtype == torch.uint64
        numbers = keys.view(torch.int64) if unsigned else keys.to(torch.int64)
        if self.ids is None or self.order is None:
            known = (numbers >= 0) & (numbers < self.rows)
            return numbers.where(known, self.rows)
        at = torch.searchsorted(self.ids, numbers).clamp_(max=self.rows - 1)
        known = self.ids[at] == numbers
        if unsigned:
            known &= numbers >= 0
        return self.order[at].where(known, self.rows)


class GpuEmbedding:
    """`EmbeddingOperator` of a chunk on a GPU; threads may share it."""

    def __init__(self, op: EmbeddingOperator, device: torch.device) -> None:
        self.op, self.device = op, device
        self._lock = threading.Lock()
        self._table: _Table | None = None

    def __call__(self, chunk: Chunk) -> None:
        """Add the vectors of a chunk's ids."""
        key, name = self.op.lookup_key, self.op.embedding_name
        if key in chunk.lists:
            lists = chunk.lists[key]
            values: Any = as_tensor(lists.values, self.device)
            chunk.lists[key] = Lists(values, lists.offsets)
            chunk.lists[name] = Lists(cast(Any, self._look_up(values)), lists.offsets)
        elif key in chunk.columns:
            columns = cast(dict[str, Any], chunk.columns)
            columns[key] = as_tensor(columns[key], self.device)
            columns[name] = self._look_up(columns[key])
        else:
            raise ColumnNotFoundError(key, [*chunk.columns, *chunk.lists], where="the batch")

    def _look_up(self, keys: Tensor) -> Tensor:
        if keys.is_floating_point() or keys.dtype == torch.bool:
            kind = numpy_dtype(keys.dtype)
            raise LoaderError(f"column {self.op.lookup_key!r} is {kind}; ids must be integers")
        with self._lock:
            if self._table is None:
                self._table = _Table(self.op, self.device)
        return self._table.look_up(keys)


@dataclass(frozen=True)
class GpuOps:
    """Operators of chunks on a GPU, and the memory they need.

    Attributes
    ----------
    ops
        The operators.
    row_bytes
        What they add to a row of a chunk, about.
    table_bytes
        What their tables take.
    """

    ops: tuple[BatchOp, ...] = ()
    row_bytes: int = 0
    table_bytes: int = 0

    @classmethod
    def of(cls, ops: Sequence[BatchOp], layout: Layout, device: torch.device) -> GpuOps | None:
        """The same operators for a GPU; None if one of them works on the CPU only."""
        if not all(_known(op) for op in ops):
            return None
        tables = 0
        for matrix, ids, _ in (op.tables for op in ops if isinstance(op, EmbeddingOperator)):
            tables += matrix.nbytes + (0 if ids is None else 16 * len(ids))
        there = tuple(_KINDS[type(op)](op, device) for op in ops)
        return cls(there, op_bytes(ops, layout), tables)


_KINDS: dict[type, Callable[[Any, torch.device], BatchOp]] = {
    Padding: GpuPadding,
    EmbeddingOperator: GpuEmbedding,
}


def _known(op: BatchOp) -> bool:
    """Whether the GPU has the same operator, with the same results."""
    if not isinstance(op, EmbeddingOperator):
        return type(op) in _KINDS
    matrix, ids, _ = op.tables
    numeric = matrix.dtype.kind in "fiub" and matrix.itemsize in (1, 2, 4, 8)
    integers = ids is None or (ids.dtype.kind in "iu" and ids.dtype != np.uint64)
    return type(op) in _KINDS and numeric and integers


def _native(dtype: np.dtype[Any]) -> np.dtype[Any]:
    return dtype.newbyteorder("=")
