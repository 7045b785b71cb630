"""What `Padding` and `EmbeddingOperator` add to a row, for whoever divides memory by rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tabfeed.loader.batch_ops import BatchOp, EmbeddingOperator, Padding
from tabfeed.loader.columns import Layout

__all__ = ["op_bytes"]


def op_bytes(ops: Sequence[BatchOp], layout: Layout) -> int:
    """Bytes that operators add to a row of a layout, about; 0 for one that is not known.

    Examples
    --------
    >>> import numpy as np
    >>> layout = Layout(lists=(("words", np.dtype(np.int32)),), lengths=(("words", 3),))
    >>> op_bytes([Padding(5, mask=True)], layout)
    25
    >>> op_bytes([EmbeddingOperator(np.eye(4, dtype=np.float32), lookup_key="words")], layout)
    48
    """
    added, widths = 0, _Widths.of(layout)
    for op in ops:
        if isinstance(op, Padding):
            added += widths.pad(op)
        elif isinstance(op, EmbeddingOperator):
            added += widths.look_up(op)
    return added


@dataclass(frozen=True)
class _Widths:
    """Values in a row of each list column, and their size; how many are ragged."""

    values: dict[str, int]
    sizes: dict[str, int]
    ragged: set[str]

    @classmethod
    def of(cls, layout: Layout) -> _Widths:
        ragged = {name: layout.length(name) for name, _ in layout.lists}
        sizes = {name: dtype.itemsize for name, dtype in layout.lists}
        return cls(ragged | {n: width for n, width, _ in layout.fixed}, sizes, set(ragged))

    def pad(self, op: Padding) -> int:
        """Bytes that padding adds to a row; from now on its columns have their new width."""
        names = self.ragged & set(self.ragged if op.columns is None else op.columns)
        self.ragged.difference_update(names)
        self.values.update(dict.fromkeys(names, op.padding_size))
        return sum((self.sizes[n] + bool(op.mask)) * op.padding_size for n in names)

    def look_up(self, op: EmbeddingOperator) -> int:
        """Bytes that vectors add to a row."""
        size = op.dimension * op.tables[0].itemsize
        count = self.values.get(op.lookup_key, 1)
        self.values[op.embedding_name], self.sizes[op.embedding_name] = count, size
        if op.lookup_key in self.ragged:
            self.ragged.add(op.embedding_name)
        return count * size
