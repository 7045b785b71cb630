"""A block: some partitions, decoded into buffers shaped ``(columns, rows)``, their rows permuted.

Each column is gathered by the block's permutation right after it was decoded, while it is in the
processor's cache, into memory that is used again and again. Measured on two cores: taking one
column after the other this way costs less than decoding a row group in one call and leaving it
where it is, since fresh memory costs page faults. `numpy.take` with ``out=`` and a mode other than
"raise" releases the GIL, so several threads fill several blocks at once; no index is
out of range, and "wrap" takes a seventh less time than "clip".

Columns of plain numbers go straight from the file to their place, one after the other: the less
Python there is between two of them the better, since decoding drives it out of the cache. Those of
several partitions go side by side, so that none of these is ever decoded as a whole.

Rows that are not shuffled need no blocks of their own: see `tabfeed.loader.assemble.chunk`.

Columns keep the dtype of the file where all of a group agree on one that the batch's dtype can
hold: half the memory, and the cast comes for free with the copy into a batch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tabfeed.errors import LoaderError
from tabfeed.loader.plan import Epoch
from tabfeed.loader.read.arrow_columns import Group, Layout, Lists, Part, fits, numpy_dtype
from tabfeed.loader.read.buffers import BufferPool, Scratch
from tabfeed.loader.read.partition_reader import PartReader, ReadsParts
from tabfeed.schema import Schema
from tabfeed.trace import span

Array = npt.NDArray[Any]
Index = npt.NDArray[np.int64]
_LARGE = 2**18  # bytes of an array that lies in Arrow's memory
_AT_ONCE = 2**18  # values of lists that are gathered at a time


@dataclass(frozen=True)
class Block:
    """Rows of some partitions, in the order of the epoch.

    Attributes
    ----------
    rows
        How many.
    matrices
        ``(columns, rows)`` by group.
    fixed
        Lists of one length, ``(rows, length)``, by name.
    lists
        Ragged columns.
    extras
        Columns that pass through as Arrow arrays.
    """

    rows: int
    matrices: dict[str, Array] = field(default_factory=dict)
    fixed: dict[str, Array] = field(default_factory=dict)
    lists: dict[str, Lists] = field(default_factory=dict)
    extras: dict[str, pa.Array] = field(default_factory=dict)


def block_dtypes(layout: Layout, schema: Schema | None) -> dict[str, np.dtype[Any]]:
    """The dtype each group has in a block.

    Parameters
    ----------
    layout
        What a batch is made of.
    schema
        The columns as they come from the files; None if something changes them on the way.
    """
    if schema is None:
        return {group.name: group.dtype for group in layout.groups}
    types = {column.name: column.dtype for column in schema}
    return {group.name: _group_dtype(group, types) for group in layout.groups}


def _group_dtype(group: Group, types: Mapping[str, pa.DataType | None]) -> np.dtype[Any]:
    names = {types[name]: name for name in group.columns}
    found = {None if arrow is None else numpy_dtype(arrow, name) for arrow, name in names.items()}
    dtype = found.pop() if len(found) == 1 else None
    # Integers that may have nulls become floats, not the other way round.
    if dtype is None or dtype.kind != group.dtype.kind or dtype.itemsize > group.dtype.itemsize:
        return group.dtype
    return dtype


class ReadsBlocks(Protocol):
    """Anything that gives blocks of an epoch, made of the partitions that `parts` reads."""

    parts: ReadsParts

    def read(self, epoch: Epoch, numbers: Sequence[int]) -> Sequence[Any]:
        """Some blocks of an epoch."""
        ...

    def reading(self, parts: ReadsParts) -> ReadsBlocks:
        """The same for another reader of the same partitions."""
        ...

    def close(self) -> None:
        """End processes that read for it and are not in use; if need be they are started again."""
        ...


@dataclass
class BlockReader:
    """Makes blocks of one layout; threads may share it.

    Parameters
    ----------
    parts
        Reads partitions.
    layout
        What a batch is made of.
    dtypes
        The dtype of each group in a block.
    gives_back
        Whether Arrow is to give memory back after each block, which its allocator would keep: where
        rows differ in size, what one left free does not fit the next.
    """

    parts: ReadsParts
    layout: Layout
    dtypes: dict[str, np.dtype[Any]]
    pool: BufferPool = field(default_factory=BufferPool)
    scratch: Scratch = field(default_factory=Scratch)
    gives_back: bool = False

    def read(self, epoch: Epoch, numbers: Sequence[int]) -> list[Block]:
        """Some blocks of an epoch."""
        return [self._read(epoch, number) for number in numbers]

    def _read(self, epoch: Epoch, number: int) -> Block:
        rows, index = epoch.block_rows(number), None
        if epoch.plan.shuffle:
            with span("plan"):
                index = self.scratch.get("order", rows, np.int64)
                epoch.permutations.into(number, index)
        return self.fill(epoch.partitions(number), rows, index)

    def reading(self, parts: ReadsParts) -> BlockReader:
        """The same for another reader of the same partitions."""
        return replace(self, parts=parts)

    def close(self) -> None:
        """Nothing to do: it reads in the threads that call it."""

    def fill(
        self,
        partitions: Sequence[int],
        rows: int,
        index: Index | None,
        matrices: dict[str, Array] | None = None,
    ) -> Block:
        """These partitions, end to end and then in the order of `index`, in `matrices` if given."""
        if matrices is None:
            groups, empty = self.layout.groups, self.pool.empty
            matrices = {g.name: empty((len(g.columns), rows), self.dtypes[g.name]) for g in groups}
        block = Block(rows, matrices)
        if isinstance(self.parts, PartReader):
            columns = self.parts.straight(partitions, self.layout.columns)
            if columns is not None:
                self._fill_straight(block, partitions, columns, index)
                return block
        *small, last = partitions  # the last one is what makes a block large enough
        before = [self.parts.read(n) for n in small]
        for piece in self.parts.pieces(last):
            with span("gather", rows=rows):
                self._fill(block, [*(part for part in before if part.rows), piece], index)
        if self.gives_back:
            del before, piece
            pa.default_memory_pool().release_unused()
        return block

    def _fill_straight(
        self,
        block: Block,
        partitions: Sequence[int],
        columns: Iterator[tuple[tuple[str, pa.ChunkedArray], ...]],
        index: Index | None,
    ) -> None:
        """The same for columns that are plain numbers, with as little Python as can be."""
        parts = cast(PartReader, self.parts)
        outs: dict[str, list[tuple[Array, np.dtype[Any]]]] = {}
        for group in self.layout.groups:
            for name, out in zip(group.columns, block.matrices[group.name], strict=True):
                outs.setdefault(name, []).append((out, group.dtype))
        for found in columns:
            name = found[0][0]
            with span("gather", rows=block.rows):
                for out, dtype in outs[name]:
                    sources = [
                        parts.plain(number, column, name, dtype)
                        for number, (_, column) in zip(partitions, found, strict=True)
                    ]
                    if out.dtype != dtype:
                        _check_dtype(sources, out, name)
                    self._gather(sources, index, out)

    def _fill(self, block: Block, parts: Sequence[Part], index: Index | None) -> None:
        """Put the columns that the last of these parts has, from all of them, into the block."""
        if not parts:
            return
        for group in self.layout.groups:
            for row, name in enumerate(group.columns):
                if name in parts[-1].scalars:
                    arrays = [p.scalars[name] for p in parts]
                    out = block.matrices[group.name][row]
                    if out.dtype != group.dtype:
                        _check_dtype(arrays, out, name)
                    self._gather(arrays, index, out)
        for name, width, dtype in self.layout.fixed:
            if name in parts[-1].scalars:
                out = block.fixed[name] = self.pool.empty((block.rows, width), dtype)
                source = _laid([p.scalars[name] for p in parts])
                out[:] = source if index is None else np.take(source, index, axis=0)
        for name, dtype in self.layout.lists:
            if name in parts[-1].lists:
                joined = join_lists([p.lists[name] for p in parts], dtype)
                block.lists[name] = gather_lists(joined, index, dtype)
        for name in self.layout.extras:
            if name in parts[-1].extras:
                arrays = [p.extras[name] for p in parts]
                laid = arrays[0] if len(arrays) == 1 else pa.concat_arrays(arrays)
                block.extras[name] = laid if index is None else laid.take(pa.array(index))

    def _gather(self, arrays: Sequence[Array], index: Index | None, out: Array) -> None:
        """Lay arrays end to end, gather, cast."""
        if index is None:
            np.concatenate(arrays, out=out, casting="unsafe")
            return
        source = arrays[0]
        if len(arrays) > 1:
            source = self.scratch.get("laid", len(out), np.result_type(*arrays))
            np.concatenate(arrays, out=source)
        if source.dtype == out.dtype:
            source.take(index, out=out, mode="wrap")
        else:
            gathered = self.scratch.get("gathered", len(out), source.dtype)
            source.take(index, out=gathered, mode="wrap")
            np.copyto(out, gathered, casting="unsafe")


def _laid(arrays: Sequence[Array]) -> Array:
    return arrays[0] if len(arrays) == 1 else np.concatenate(arrays)


def _check_dtype(arrays: Sequence[Array], out: Array, name: str) -> None:
    """A column must fit the dtype that its block was made for, else a cast could lose something."""
    for array in arrays:
        whole = array.dtype.kind == out.dtype.kind == "i"
        if array.dtype != out.dtype and not (whole and fits(array, out.dtype)):
            raise LoaderError(
                f"column {name!r} is {array.dtype} where the dataset says {out.dtype}; the files "
                "changed: open the dataset again"
            )


# -- rows of different lengths --------------------------------------------------------------------


def _empty(shape: tuple[int, ...], dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """An array of Arrow's memory if it is large: the C library keeps what is of ever new sizes."""
    nbytes = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    if nbytes < _LARGE:
        return np.empty(shape, dtype)
    array: npt.NDArray[Any] = np.frombuffer(pa.allocate_buffer(nbytes), np.uint8)
    return array.view(dtype).reshape(shape)


def slice_lists(lists: Lists, start: int, stop: int) -> Lists:
    """The rows ``[start, stop)``."""
    offsets = lists.offsets[start : stop + 1]
    return Lists(lists.values[offsets[0] : offsets[-1]], offsets - offsets[0])


def join_lists(runs: Sequence[Lists], dtype: np.dtype[Any]) -> Lists:
    """Ragged rows laid end to end, in the batch's dtype; the very values of a single run."""
    if not runs:
        return Lists(np.empty(0, dtype), np.zeros(1, np.int64))
    if len(runs) == 1:
        return runs[0]
    shifts = np.cumsum([0, *(len(r.values) for r in runs[:-1])])
    offsets = [r.offsets[1:] + shift for r, shift in zip(runs, shifts, strict=True)]
    values = np.concatenate([r.values for r in runs], dtype=dtype, casting="unsafe")
    return Lists(values, np.concatenate([[0], *offsets]).astype(np.int64))


def gather_lists(lists: Lists, index: Index | None, dtype: np.dtype[Any] | None = None) -> Lists:
    """Ragged rows in another order, copied, in a dtype if one is given.

    Some rows at a time: where each value comes from is a number of 8 bytes, of which there shall
    not be as many as there are values.

    Examples
    --------
    >>> rows = Lists(np.array([1, 2, 3, 4]), np.array([0, 2, 2, 4]))
    >>> gather_lists(rows, np.array([2, 0]))
    Lists(values=array([3, 4, 1, 2]), offsets=array([0, 2, 4]))
    """
    dtype = lists.values.dtype if dtype is None else dtype
    if index is None:
        return Lists(lists.values.astype(dtype), lists.offsets)
    lengths = np.diff(lists.offsets)[index]
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    begins = lists.offsets[:-1][index]
    values = _empty((int(offsets[-1]), *lists.values.shape[1:]), dtype)
    row = 0
    while row < len(index):
        start = int(offsets[row])
        stop = int(np.searchsorted(offsets, start + _AT_ONCE, side="right")) - 1
        if stop <= row:  # one row, longer than that
            begin, length = int(begins[row]), int(lengths[row])
            values[start : start + length] = lists.values[begin : begin + length]
            row += 1
            continue
        stop = min(stop, len(index))
        where = np.repeat(begins[row:stop] - offsets[row:stop], lengths[row:stop])
        where += np.arange(start, start + len(where))
        out = values[start : int(offsets[stop])]
        if dtype == lists.values.dtype:
            np.take(lists.values, where, axis=0, out=out, mode="clip")
        else:
            out[...] = np.take(lists.values, where, axis=0, mode="clip")
        row = stop
    return Lists(values, offsets)
