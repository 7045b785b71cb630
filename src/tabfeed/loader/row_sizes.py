"""What the rows of a dataset take, by the sizes that its files tell, and partitions cut by it.

Nothing is read for it. The loader cuts finer than a `Dataset` does where it can: by row group,
since several partitions are open at once and their sum is what takes memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, groupby
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy.typing as npt
import pyarrow as pa

from tabfeed.display import megabytes
from tabfeed.errors import LoaderError
from tabfeed.io.dataset import Dataset
from tabfeed.io.fileset import FileSet
from tabfeed.io.partition import Partition, Piece, slices_of
from tabfeed.loader.host_memory import RowBytes
from tabfeed.loader.options import LoaderOptions
from tabfeed.loader.read.arrow_columns import Layout
from tabfeed.schema import ColumnSchema

if TYPE_CHECKING:
    from tabfeed.io.memory_needs import MapSizes

_COLUMN_BYTES = 4 * 2**20  # of a column that is read in slices, where the file does not tell
_SAMPLED = 16  # row groups, for how long lists are
_BATCH_BYTES = 12 * 2**20  # of rows that are decoded at a time, and put together


class FineCut(NamedTuple):
    """Partitions as a loader reads them: their rows, and their bytes where rows differ in size."""

    partitions: list[Partition]
    rows: list[int]
    nbytes: list[int] | None = None

    @property
    def slices(self) -> list[Piece]:
        """Those that are not whole row groups."""
        return [piece for part in self.partitions for piece in part.pieces if not piece.whole]


def cut_fine(
    dataset: Dataset, most_rows: int, most_bytes: int = 0, columns: Sequence[str] = ()
) -> FineCut:
    """The dataset's partitions by row group, and those that are too large in slices.

    Where filters or functions apply to whole partitions, these stay as they are. Row groups that
    the dataset cut in slices by default are whole here if they may be: to read a
    slice, all that lies before it must be decoded too.

    Parameters
    ----------
    dataset
        What to cut.
    most_rows
        Rows that a partition may have, where all rows are of one size.
    most_bytes, columns
        Bytes that these columns of it may have, where they are not.
    """
    table = dataset.table
    files, parts, lens = table.files, list(table.partitions), list(table.partition_lens)
    if table.partitioning.condition is None and not files.skips.allowed:  # text is counted by now
        parts = [Partition(tuple(files.counted(part.pieces))) for part in parts]
    if table.maps or any(p.rows != n for p, n in zip(parts, lens, strict=True)):
        return FineCut(parts, lens)
    sizes, most = _Sizes(files, columns), most_bytes if columns else most_rows
    given: Iterable[Piece] = (piece for part in parts for piece in part.pieces)
    if dataset.cut_by_default:
        given = _rejoined(given, files, lambda piece: sizes.of(piece) <= most)
    pieces = [s for p in given for s in slices_of(p, sizes.of(p), most, sizes.rows)]
    nbytes = [sizes.of(piece) for piece in pieces] if columns else None
    return FineCut([Partition((p,)) for p in pieces], [p.rows or 0 for p in pieces], nbytes)


def cut_mapped(
    dataset: Dataset, most_rows: int, most_bytes: int = 0, columns: Sequence[str] = ()
) -> Dataset:
    """The dataset with those partitions cut that are too large, where it is filtered or mapped.

    Parameters as for `cut_fine`. The others stay whole: a filter or a function is called for each.
    """
    table = dataset.table
    files = table.files
    if (not table.maps and table.partitioning.condition is None) or not table.cut_freely:
        return dataset
    sizes, most = _Sizes(files, columns), most_bytes if columns else most_rows
    parts: list[Partition] = []
    for part in table.partitions:
        pieces = files.counted(part.pieces)
        if sum(sizes.of(piece) / most for piece in pieces) <= 1:
            parts.append(part)
        else:
            cut = (slices_of(p, sizes.of(p), most, sizes.rows) for p in pieces)
            parts += [Partition((piece,)) for slices in cut for piece in slices]
    if len(parts) == table.npartitions:
        return dataset
    return dataset.with_partitions(parts)


class _Sizes:
    """Bytes of pieces and of their rows; without columns, rows of pieces.

    What is known of a unit is kept until the next.
    """

    def __init__(self, files: FileSet, columns: Sequence[str]) -> None:
        self._files, self._columns = files, list(columns)
        self._unit: tuple[int, int] | None = None
        self._weights: npt.NDArray[Any] | None = None

    def of(self, piece: Piece) -> int:
        """Bytes of a piece."""
        if not self._columns:
            return piece.rows or 0
        nbytes = self._files.nbytes(piece, self._columns) or 0
        rows = self._files.files[piece.file].unit_rows[piece.unit] or 0
        if piece.whole or not rows:
            return nbytes
        weights = self.rows(piece)
        if weights is not None:
            return int(weights.sum())
        return nbytes * (piece.rows or 0) // rows

    def rows(self, piece: Piece) -> npt.NDArray[Any] | None:
        """Bytes of each row of a piece; None if they are alike."""
        if not self._columns:
            return None
        unit = (piece.file, piece.unit)
        if unit != self._unit:
            rows = self._files.files[piece.file].unit_rows[piece.unit]
            whole = Piece(piece.file, piece.unit, 0, rows)
            self._unit, self._weights = unit, self._files.row_bytes(whole, self._columns)
        if self._weights is None or piece.rows is None:
            return None
        return self._weights[piece.start : piece.start + piece.rows]


def _rejoined(
    pieces: Iterable[Piece], files: FileSet, fits: Callable[[Piece], bool]
) -> Iterator[Piece]:
    """Slices that are a row group that fits, as that; the rest as they are."""
    for (index, unit), run in groupby(pieces, key=lambda p: (p.file, p.unit)):
        slices, file = list(run), files.files[index]
        ends = list(accumulate((p.rows or 0 for p in slices), initial=0))
        follow = all(p.start == end for p, end in zip(slices, ends, strict=False))
        whole = file.row_groups and follow and ends[-1] == file.count(unit)
        if whole and fits(joined := Piece(index, unit, 0, ends[-1])):
            yield joined
        else:
            yield from slices


# -- sizes of rows --------------------------------------------------------------------------------


@dataclass(frozen=True)
class RowSizes:
    """What rows take.

    Attributes
    ----------
    dataset, columns
        What is read, and which columns of its files.
    row
        About what a row takes.
    weighed
        Whether rows differ in size as they are read, and are cut by their bytes.
    uneven
        Whether they do so then, or once functions were applied.
    transformed
        Whether functions are applied to them.
    growth
        What functions add to a row, in rows as they are read.
    """

    dataset: Dataset
    columns: list[str]
    row: RowBytes
    weighed: bool
    uneven: bool
    transformed: bool
    growth: float

    @classmethod
    def of(
        cls,
        dataset: Dataset,
        columns: list[str],
        layout: Layout,
        *,
        transformed: bool,
        seen: MapSizes | None = None,
    ) -> RowSizes:
        """Those of a dataset's columns, and of what functions make of them, which is beside them.

        Parameters
        ----------
        dataset, columns
            What is read.
        layout
            What a batch is made of.
        transformed
            Whether functions are applied to what is read.
        seen
            What they made of some rows, if that is known.
        """
        weighed = bool(_varying(dataset.fileset, columns))
        growth = float(transformed) if seen is None else seen.added / max(1.0, seen.source)
        uneven = weighed
        if weighed:
            decoded = int(_mean_bytes(dataset, columns) * (1 + growth))
        elif seen is not None:
            decoded = int(seen.source + seen.added)
            uneven = any(name in seen.varying for name in layout.columns)
        else:
            wanted = set(layout.columns)
            known = [column for column in dataset.schema if column.name in wanted]
            decoded = sum(_width(column, layout) for column in known) or layout.row_bytes
        row = RowBytes(decoded, layout.row_bytes)
        return cls(dataset, columns, row, weighed, uneven, transformed, growth)

    def cut(self, options: LoaderOptions) -> tuple[Dataset, FineCut]:
        """The dataset and its partitions, none larger than memory allows.

        Less where rows differ in size or functions are applied: all columns of a partition are
        there at once then.
        """
        nbytes = options.budget // (10 if self.uneven or self.transformed else 6)
        rows = max(1, nbytes // self.row.decoded)
        most = max(1, int(nbytes / (1 + self.growth)))  # to read: what is made of it is beside it
        by = self.columns if self.weighed else ()
        dataset = cut_mapped(self.dataset, rows, most, by)
        return dataset, cut_fine(dataset, rows, most, by)

    def held(self, slices: Iterable[Piece]) -> int:
        """What a thread holds while it reads a slice of a row group: some pages of each column."""
        most = 0
        files = self.dataset.fileset
        for number, unit in {(piece.file, piece.unit) for piece in slices}:
            own = files.own_columns(number, self.columns)
            most = max(most, files.files[number].held(unit, own) or 0)
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
                    f"{self.dataset.files[piece.file]} takes {megabytes(nbytes)}, most of it in "
                    f"column {self.largest_column([piece])!r}, and is there twice while it is "
                    f"read: raise host_memory, which is {megabytes(budget)}, to "
                    f"{megabytes(3 * nbytes)}"
                )


def _varying(files: FileSet, columns: Iterable[str]) -> list[str]:
    """Those columns of the files whose values differ in size once decoded."""
    from tabfeed.io.formats.parquet.row_sizes import varies

    types = {field.name: field.type for field in files.schema}
    found = (name for name in columns if name in types and varies(types[name]))
    return [name for name in found if not pa.types.is_dictionary(types[name])]


def _mean_bytes(dataset: Dataset, columns: Sequence[str]) -> int:
    """About what a row of these columns takes once decoded, by all row groups."""
    files = dataset.fileset
    units = {(p.file, p.unit) for part in dataset.partitions for p in part.pieces}
    counts = [files.files[file].unit_rows[unit] for file, unit in units]
    known = sum(count or 0 for count in counts)
    rows = dataset.num_rows if None in counts else known
    pieces = (Piece(file, unit, 0, None) for file, unit in units)
    return sum(files.nbytes(piece, columns) or 0 for piece in pieces) // max(1, rows)


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


def with_lengths(
    layout: Layout, dataset: Dataset, columns: Sequence[str] = (), seen: MapSizes | None = None
) -> Layout:
    """The layout with what is known of its lists and extras.

    How many values a row of each ragged column has, or bytes one of `extras`: as some row groups
    tell, or as functions made some rows, in which case `columns` are those read for them.
    """
    if seen is not None:
        return replace(layout, lengths=tuple(_made_lengths(dataset, layout, columns, seen)))
    if dataset.mapped or not (layout.lists or layout.extras):
        return layout
    return replace(layout, lengths=tuple(_lengths(dataset, layout)))


def _made_lengths(
    dataset: Dataset, layout: Layout, columns: Sequence[str], seen: MapSizes
) -> Iterator[tuple[str, int]]:
    """By what functions made of some rows, scaled to the rows that the files tell of."""
    scale = 1.0
    if _varying(dataset.fileset, columns):
        scale = _mean_bytes(dataset, columns) / max(1.0, seen.source)
    for name in layout.extras:
        if name in seen.varying:
            yield name, max(1, int(seen.columns[name] * scale))
    for name, dtype in layout.lists:
        if name in seen.columns:
            values = seen.columns[name] * scale / seen.widths.get(name, dtype.itemsize)
            yield name, max(1, round(values))


def _lengths(dataset: Dataset, layout: Layout) -> Iterator[tuple[str, int]]:
    parts, files = dataset.partitions, dataset.fileset
    some = (part.pieces[0] for part in parts[:: max(1, len(parts) // _SAMPLED)])
    pieces = [p for p in some if p.whole or files.files[p.file].row_groups is not None]
    rows = sum((p.rows or 0) if p.whole else files.files[p.file].count(p.unit) for p in pieces)
    if not rows:
        return
    for name in _varying(files, layout.extras):
        nbytes = sum(files.nbytes(piece, [name]) or 0 for piece in pieces)
        yield name, max(1, nbytes // rows)
    for name, _ in layout.lists:
        width = _value_bytes(dataset.schema.get(name))
        if width is not None:
            nbytes = sum(files.nbytes(piece, [name]) or 0 for piece in pieces)
            yield name, max(1, round(nbytes / rows / width))


def _value_bytes(column: ColumnSchema | None) -> int | None:
    """Bytes of a value of a list column; None if it is none, or its values differ in size."""
    if column is None or not column.is_list or column.leaf_dtype is None:
        return None
    try:
        return max(1, int(column.leaf_dtype.bit_width) // 8)
    except ValueError:  # text
        return None
