"""Columns in the dtypes of their files: what a GPU that decodes files puts into blocks.

Arrow casts columns on their way into a block if those of a group differ in dtype. A GPU decodes
them as they are, and casts when rows become batches: integer labels become floats there, ids of 32
bits become 64. So a group whose columns differ is split into *pieces*, one for each dtype, and
joined again in the batch.

Where a cast could change values, Arrow decodes, since it checks them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from tabfeed.io.dataset import Dataset
from tabfeed.io.formats.parquet.file import ParquetFile
from tabfeed.loader.gpu.parquet.encoded_pages import UnsupportedError, may_have_nulls
from tabfeed.loader.read.arrow_columns import Group, Layout, is_plain
from tabfeed.loader.read.blocks import BlockReader
from tabfeed.loader.read.partition_reader import PartReader
from tabfeed.schema import ColumnSchema
from tabfeed.schema.dtypes import format_type

__all__ = ["BlockSource", "GroupPiece", "as_in_files"]

_LONG, _SHORT = np.dtype(np.int64), np.dtype(np.int32)
_MOST_CHECKED = 4_000  # row groups: each of them takes 5 microseconds a column
_CAST = {np.dtype(name) for name in ("i1", "i2", "i4", "i8", "u1", "f4", "f8")}  # by torch


class GroupPiece(NamedTuple):
    """Some columns of a group: its name, which of its rows they are, and how many it has."""

    group: str
    rows: tuple[int, ...]
    of: int


class BlockSource(NamedTuple):
    """How blocks are read for a GPU.

    Attributes
    ----------
    reader
        Reads them; each of its groups has one dtype.
    pieces
        Those of its groups that are only part of a batch's group, by name.
    """

    reader: BlockReader
    pieces: Mapping[str, GroupPiece] = MappingProxyType({})

    @property
    def joining(self) -> int:
        """Bytes of a row that are copied again when pieces are joined."""
        groups = [g for g in self.reader.layout.groups if g.name in self.pieces]
        return sum(len(group.columns) * group.dtype.itemsize for group in groups)


def as_in_files(reader: BlockReader, *, narrow: bool = False) -> BlockSource:
    """The same rows in the dtypes of their files; `UnsupportedError` if a GPU cannot decode them.

    Parameters
    ----------
    reader
        Reads them as Arrow decodes them.
    narrow
        Whether integers of 64 bits become 32, if footers say that all of them fit.
    """
    parts, layout = reader.parts, reader.layout
    if not isinstance(parts, PartReader):
        raise UnsupportedError("partitions are cached")
    if parts.transforms:
        raise UnsupportedError("transforms= need Arrow tables")
    if layout.rest.columns:
        raise UnsupportedError("there are list or text columns")
    if not parts.dataset.is_plain_parquet:
        raise UnsupportedError("the dataset is not plain local Parquet files")
    found = [_split(g, _dtypes(g, parts.dataset, narrow)) for g in layout.groups]
    if any(not piece.whole for part in parts.partitions for piece in part.pieces):
        raise UnsupportedError("row groups are too large for the budget and are read in slices")
    groups = tuple(group for pieces in found for group, _, _ in pieces)
    dtypes = {group.name: dtype for pieces in found for group, dtype, _ in pieces}
    made = replace(reader, layout=Layout(groups, matrices=layout.matrices), dtypes=dtypes)
    if not layout.matrices:  # columns are delivered one by one: nothing is joined
        return BlockSource(made)
    pieces = {g.name: piece for pieces in found for g, _, piece in pieces if piece is not None}
    return BlockSource(made, pieces)


def _split(
    group: Group, dtypes: Sequence[np.dtype[Any]]
) -> list[tuple[Group, np.dtype[Any], GroupPiece | None]]:
    """A group for each dtype, and which columns of the whole group they are.

    Examples
    --------
    >>> group = Group("labels", ("click", "price", "buy"), np.dtype(np.float32))
    >>> int8, float32 = np.dtype(np.int8), np.dtype(np.float32)
    >>> parts = _split(group, [int8, float32, int8])
    >>> [(part.name, part.columns, piece.rows) for part, _, piece in parts]
    [('labels, int8', ('click', 'buy'), (0, 2)), ('labels, float32', ('price',), (1,))]
    >>> [(part.name, piece) for part, _, piece in _split(group, [int8, int8, int8])]
    [('labels', None)]
    """
    kinds = list(dict.fromkeys(dtypes))
    if len(kinds) == 1:
        return [(group, kinds[0], None)]
    out: list[tuple[Group, np.dtype[Any], GroupPiece | None]] = []
    for dtype in kinds:
        rows = tuple(row for row, found in enumerate(dtypes) if found == dtype)
        columns = tuple(group.columns[row] for row in rows)
        part = Group(f"{group.name}, {dtype}", columns, group.dtype)
        out.append((part, dtype, GroupPiece(group.name, rows, len(group.columns))))
    return out


def _dtypes(group: Group, dataset: Dataset, narrow: bool) -> list[np.dtype[Any]]:
    """The dtypes of a group's columns in their files."""
    found = []
    for name in group.columns:
        dtype = _file_dtype(dataset.schema[name], group.dtype)
        if dtype.kind in "iu" and group.dtype.kind == "f" and _may_have_nulls(dataset, name):
            raise UnsupportedError(
                f"column {name!r} has integers and nulls, or footers do not rule nulls out"
            )
        if narrow and dtype == _LONG and _are_short(dataset, name):
            dtype = _SHORT
        found.append(dtype)
    return found


def _file_dtype(column: ColumnSchema, wanted: np.dtype[Any]) -> np.dtype[Any]:
    arrow = column.dtype
    if arrow is None or not (pa.types.is_primitive(arrow) and _is_number(arrow)):
        raise UnsupportedError(f"column {column.name!r} is {arrow and format_type(arrow)}")
    dtype: np.dtype[Any] = np.dtype(arrow.to_pandas_dtype())
    if dtype != wanted and not (dtype in _CAST and is_plain(arrow, wanted)):
        raise UnsupportedError(f"column {column.name!r} is {dtype}, which Arrow casts to {wanted}")
    return dtype


def _is_number(arrow: pa.DataType) -> bool:
    kinds = (pa.types.is_integer, pa.types.is_floating, pa.types.is_boolean)
    return any(kind(arrow) for kind in kinds)


def _may_have_nulls(dataset: Dataset, name: str) -> bool:
    """Whether a column may have nulls, by its footers."""
    return any(
        may_have_nulls(*file.chunks_in(unit, [name])[0])
        for file in _files(dataset)
        for unit in range(file.metadata.num_row_groups)
    )


def _are_short(dataset: Dataset, name: str) -> bool:
    """Whether all numbers of a column fit into 32 bits, by its footers."""
    files, limits = _files(dataset), np.iinfo(_SHORT)
    if sum(file.metadata.num_row_groups for file in files) > _MOST_CHECKED:
        return False
    found = (chunk.statistics for file in files for chunk in file.chunks(name) if chunk.num_values)
    return all(
        facts is not None
        and facts.has_min_max
        and limits.min <= facts.min <= facts.max <= limits.max
        for facts in found
    )


def _files(dataset: Dataset) -> list[ParquetFile]:
    return [file.row_groups for file in dataset.fileset.files if file.row_groups]
