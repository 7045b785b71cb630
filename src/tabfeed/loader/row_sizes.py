"""What the rows of a dataset take, by the sizes that its files tell: nothing is read for it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa

from tabfeed.errors import LoaderError
from tabfeed.io.dataset import Dataset
from tabfeed.io.formats.parquet.file import ParquetFile
from tabfeed.io.formats.parquet.row_sizes import varies
from tabfeed.io.partition import Piece
from tabfeed.loader.host_memory import RowBytes
from tabfeed.loader.read.arrow_columns import Layout
from tabfeed.loader.read.partition_reader import FineCut
from tabfeed.schema import ColumnSchema

__all__ = ["RowSizes", "with_lengths"]

_COLUMN_BYTES = 4 * 2**20  # of a column that is read in slices, where the file does not tell
_SAMPLED = 16  # row groups, for how long lists are
_BATCH_BYTES = 12 * 2**20  # of rows that are decoded at a time, and put together


@dataclass(frozen=True)
class RowSizes:
    """What rows take.

    Attributes
    ----------
    dataset, columns
        What is read, and which columns of its files.
    row
        About what a row takes.
    uneven
        Whether rows differ in size.
    """

    dataset: Dataset
    columns: list[str]
    row: RowBytes
    uneven: bool

    @classmethod
    def of(
        cls, dataset: Dataset, columns: list[str], layout: Layout, *, transformed: bool
    ) -> RowSizes:
        """Those of a dataset's columns; of what a transform makes of them if it does."""
        uneven = any(_varies(dataset, name) for name in columns)
        if uneven:  # what a transform makes of rows is there beside them
            decoded = _mean_bytes(dataset, columns) * (1 + transformed)
        else:
            known = [dataset.schema.get(name) for name in layout.columns]
            decoded = sum(_width(c, layout) for c in known if c is not None) or layout.row_bytes
        return cls(dataset, columns, RowBytes(decoded, layout.row_bytes), uneven)

    def held(self, slices: Iterable[Piece]) -> int:
        """What a thread holds while it reads a slice of a row group: some pages of each column."""
        most = 0
        for file, unit in {(piece.file, piece.unit) for piece in slices}:
            source = self.dataset.fileset.files[file]
            if isinstance(source, ParquetFile):
                most = max(most, sum(source.held(unit, self.columns)))
        return (most or _COLUMN_BYTES * len(self.columns)) + _BATCH_BYTES

    def largest_column(self, pieces: Iterable[Piece] | None = None) -> str:
        """The column with the most bytes, in these pieces or in all row groups."""
        if pieces is None:
            parts = self.dataset.partitions
            pieces = {(p.file, p.unit): p for part in parts for p in part.pieces}.values()
        files, units = self.dataset.fileset, list(pieces)
        return max(self.columns, key=lambda name: sum(files.nbytes(u, [name]) or 0 for u in units))

    def refuse_large_rows(self, cut: FineCut, budget: int) -> None:
        """Refuse rows that cannot be held: as decoded, and in a batch."""
        for part, rows, nbytes in zip(cut.partitions, cut.rows, cut.nbytes or [], strict=True):
            if rows == 1 and 2 * nbytes > budget:
                piece = part.pieces[0]
                raise LoaderError(
                    f"row {piece.start:,} of row group {piece.unit} of "
                    f"{self.dataset.files[piece.file]} takes {nbytes / 1e6:,.1f} MB, most of it in "
                    f"column {self.largest_column([piece])!r}, and is there twice while it is "
                    f"read: raise host_memory, which is {budget / 1e6:,.1f} MB, to at least "
                    f"{3 * nbytes / 1e6:,.0f} MB"
                )


def _varies(dataset: Dataset, name: str) -> bool:
    """Whether the values of a column differ in size once decoded."""
    dtype = dataset.fileset.schema.field(name).type
    return varies(dtype) and not pa.types.is_dictionary(dtype)


def _mean_bytes(dataset: Dataset, columns: Sequence[str]) -> int:
    """About what a row of these columns takes once decoded, by all row groups."""
    units = {(p.file, p.unit) for part in dataset.partitions for p in part.pieces}
    files = dataset.fileset.files
    counts = [files[file].unit_rows[unit] for file, unit in units]
    known = sum(count or 0 for count in counts)
    rows = dataset.num_rows if None in counts else known
    pieces = (Piece(file, unit, 0, None) for file, unit in units)
    return sum(dataset.fileset.nbytes(piece, columns) or 0 for piece in pieces) // max(1, rows)


def _width(column: ColumnSchema, layout: Layout) -> int:
    """About what a value of a column takes once decoded, by its type."""
    leaf = column.leaf_dtype
    try:
        width = max(1, leaf.bit_width // 8) if leaf is not None else 8
    except ValueError:  # text and the like
        width = 32
    if not column.is_list:
        return width
    low, high = column.value_count or (0, None)
    many = layout.length(column.name) if high is None else -(-(low + high) // 2)
    return width * many + 8


def with_lengths(layout: Layout, dataset: Dataset) -> Layout:
    """The layout with what some row groups tell of its lists and extras.

    How many values a row of each ragged column has, or bytes one of `extras`. Transforms are taken
    to leave that as it is, for columns that are in the files as well.
    """
    return layout if dataset.mapped else replace(layout, lengths=tuple(_lengths(dataset, layout)))


def _lengths(dataset: Dataset, layout: Layout) -> Iterator[tuple[str, int]]:
    parts = dataset.partitions if layout.lists or layout.extras else []
    files = dataset.fileset.files
    some = (part.pieces[0] for part in parts[:: max(1, len(parts) // _SAMPLED)])
    pieces = [p for p in some if p.whole or isinstance(files[p.file], ParquetFile)]
    rows = sum((p.rows or 0) if p.whole else files[p.file].count(p.unit) for p in pieces)
    own = dataset.fileset.schema.names
    for name in layout.extras:
        if rows and name in own and _varies(dataset, name):
            nbytes = sum(dataset.fileset.nbytes(piece, [name]) or 0 for piece in pieces)
            yield name, max(1, nbytes // rows)
    for name, _ in layout.lists:
        width = _value_bytes(dataset.schema.get(name))
        if rows and width is not None:
            nbytes = sum(dataset.fileset.nbytes(piece, [name]) or 0 for piece in pieces)
            yield name, max(1, round(nbytes / rows / width))


def _value_bytes(column: ColumnSchema | None) -> int | None:
    """Bytes of a value of a list column; None if it is none, or its values differ in size."""
    if column is None or not column.is_list or column.leaf_dtype is None:
        return None
    try:
        return max(1, int(column.leaf_dtype.bit_width) // 8)
    except ValueError:  # text
        return None
