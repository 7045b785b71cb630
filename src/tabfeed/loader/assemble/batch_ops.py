"""What happens to a chunk between gathering and tensors: padding, pretrained vectors.

These work on whole chunks, in the background, one vectorised call for many batches.

What `Padding` and `EmbeddingOperator` add to a row, for whoever divides memory by rows.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tabfeed.errors import ArgumentError, ColumnNotFoundError, LoaderError
from tabfeed.loader.assemble.chunk import Chunk
from tabfeed.loader.read.arrow_columns import Layout, Lists

BatchOp = Callable[[Chunk], None]
Array = npt.NDArray[Any]


def pad_lists(lists: Lists, width: int, value: float = 0, *, dtype: Any = None) -> Array:
    """Ragged rows as a matrix: shorter rows filled on the right, longer ones cut.

    Examples
    --------
    >>> pad_lists(Lists(np.array([1, 2, 3, 4]), np.array([0, 3, 3, 4])), 2)
    array([[1, 2],
           [0, 0],
           [4, 0]])
    """
    lengths = np.minimum(np.diff(lists.offsets), width)
    shape = (len(lengths), width, *lists.values.shape[1:])
    out = np.full(shape, value, dtype=dtype or lists.values.dtype)
    inside = np.arange(width) < lengths[:, None]
    starts = lists.offsets[:-1]
    out[inside] = lists.values[(starts[:, None] + np.arange(width))[inside]]
    return out


class Padding:
    """Makes ragged columns rectangular.

    Parameters
    ----------
    padding_size
        Values in each row: shorter rows are filled, longer ones cut.
    padding_value
        What fills them.
    columns
        Which ragged columns; all by default.
    mask
        Whether to add ``<column>__mask``, true where a value is real.
    """

    def __init__(
        self,
        padding_size: int,
        padding_value: float = 0,
        *,
        columns: tuple[str, ...] | list[str] | None = None,
        mask: bool = False,
    ) -> None:
        if padding_size < 1:
            raise ArgumentError(f"padding_size is {padding_size}; it must be 1 or more")
        self.padding_size = padding_size
        self.padding_value = padding_value
        self.columns = None if columns is None else tuple(columns)
        self.mask = mask

    def __call__(self, chunk: Chunk) -> None:
        """Replace ragged columns of a chunk."""
        for name in self.columns if self.columns is not None else list(chunk.lists):
            if name not in chunk.lists:
                raise ColumnNotFoundError(name, chunk.lists, where="the ragged columns")
            lists = chunk.lists.pop(name)
            chunk.columns[name] = pad_lists(lists, self.padding_size, self.padding_value)
            if self.mask:
                lengths = np.diff(lists.offsets)
                chunk.columns[f"{name}__mask"] = np.arange(self.padding_size) < lengths[:, None]


class EmbeddingOperator:
    """Adds pretrained vectors, looked up by a column of ids.

    Parameters
    ----------
    embeddings
        A matrix with a vector a row, or the path of one saved with `numpy.save`.
    lookup_key
        The column that holds row numbers, or ids of `id_lookup_table`.
    embedding_name
        The name of the new column.
    id_lookup_table
        The id of each row, where ids are not row numbers; an array or a path.
    mmap
        Map the file instead of reading it.
    unknown_value
        What fills the vector of an id that is not there.

    Examples
    --------
    >>> op = EmbeddingOperator(np.eye(3, dtype=np.float32), lookup_key="item")
    >>> chunk = Chunk(np.array([0, 2]), columns={"item": np.array([2, 9])})
    >>> op(chunk)
    >>> chunk.columns["embeddings"]
    array([[0., 0., 1.],
           [0., 0., 0.]], dtype=float32)
    """

    def __init__(
        self,
        embeddings: Array | str | os.PathLike[str],
        lookup_key: str = "id",
        embedding_name: str = "embeddings",
        *,
        id_lookup_table: Array | str | os.PathLike[str] | None = None,
        mmap: bool = False,
        unknown_value: float = 0,
    ) -> None:
        self.lookup_key = lookup_key
        self.embedding_name = embedding_name
        self.unknown_value = unknown_value
        self._source = embeddings if isinstance(embeddings, np.ndarray) else Path(embeddings)
        self._mmap = mmap
        self._matrix = self._open()
        ids = None if id_lookup_table is None else _array(id_lookup_table)
        if ids is not None and len(ids) != len(self._matrix):
            raise ArgumentError(
                f"id_lookup_table has {len(ids)} ids for {len(self._matrix)} vectors"
            )
        self._order = None if ids is None else np.argsort(ids, kind="stable")
        self._ids = None if ids is None or self._order is None else ids[self._order]

    def _open(self) -> Array:
        if isinstance(self._source, np.ndarray):
            matrix = self._source
        else:
            matrix = np.load(self._source, mmap_mode="r" if self._mmap else None)
        if matrix.ndim != 2:
            raise ArgumentError(f"embeddings must have two dimensions, not {matrix.ndim}")
        return matrix

    @property
    def dimension(self) -> int:
        """Length of a vector."""
        return int(self._matrix.shape[1])

    @property
    def tables(self) -> tuple[Array, Array | None, Array | None]:
        """The vectors; ids in ascending order and the row of each, unless ids are row numbers."""
        return self._matrix, self._ids, self._order

    def __call__(self, chunk: Chunk) -> None:
        """Add the vectors of a chunk's ids."""
        if self.lookup_key in chunk.lists:
            lists = chunk.lists[self.lookup_key]
            chunk.lists[self.embedding_name] = Lists(self.look_up(lists.values), lists.offsets)
        elif self.lookup_key in chunk.columns:
            chunk.columns[self.embedding_name] = self.look_up(chunk.columns[self.lookup_key])
        else:
            names = [*chunk.columns, *chunk.lists]
            raise ColumnNotFoundError(self.lookup_key, names, where="the batch")

    def look_up(self, keys: Array) -> Array:
        """The vectors of some ids."""
        rows, known = self._rows(keys.reshape(-1))
        out = np.take(self._matrix, rows, axis=0, mode="clip")
        out[~known] = self.unknown_value
        return out.reshape(*keys.shape, self.dimension)

    def _rows(self, keys: Array) -> tuple[Array, Array]:
        if keys.dtype.kind not in "iu":
            raise LoaderError(f"column {self.lookup_key!r} is {keys.dtype}; ids must be integers")
        if self._ids is None or self._order is None:
            return keys, (keys >= 0) & (keys < len(self._matrix))
        at = np.minimum(np.searchsorted(self._ids, keys), len(self._ids) - 1)
        return self._order[at], self._ids[at] == keys

    def __getstate__(self) -> dict[str, Any]:
        state = dict(vars(self))
        if self._mmap:  # the copy maps the file itself
            del state["_matrix"]
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        if "_matrix" not in state:
            self._matrix = self._open()


def _array(source: Array | str | os.PathLike[str]) -> Array:
    return source if isinstance(source, np.ndarray) else np.load(source)


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
