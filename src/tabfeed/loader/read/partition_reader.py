"""Partitions, decoded when a block needs them.

`PartReader` reads one partition: file to table, table through the user's transforms, table to
arrays; a few columns at a time where the files allow it.

The loader cuts finer than a `Dataset` does where it can: by row group, since several
partitions are open at once and their sum is what takes memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate, groupby
from typing import Any, NamedTuple, Protocol, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tabfeed.errors import ColumnNotFoundError, LoaderError
from tabfeed.io.dataset import Dataset
from tabfeed.io.formats.base import RowGroups
from tabfeed.io.partition import Partition, Piece, slices_of
from tabfeed.io.storage.fetch import Fetch
from tabfeed.loader.read.arrow_columns import Layout, Part, is_plain, make_part, plain_array
from tabfeed.loader.read.nulls import NullWatch
from tabfeed.trace import span
from tabfeed.user_functions import explain

__all__ = ["FineCut", "PartReader", "ReadsParts", "columns_read", "cut_fine", "place_of"]

Array = npt.NDArray[Any]
TableFunction = Callable[[pa.Table], pa.Table]
_SIDE_BY_SIDE = 8  # partitions that a thread has open at once; more would be too small to matter


class ReadsParts(Protocol):
    """Anything that gives a partition by its number."""

    def read(self, number: int) -> Part:
        """One partition, decoded."""
        ...

    def pieces(self, number: int) -> Iterator[Part]:
        """The same, a few columns at a time."""
        ...


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
    the dataset cut in slices, since nobody said otherwise, are whole here if they may be: to read a
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
    parts, lens = list(dataset.partitions), list(dataset.partition_lens)
    if dataset.condition is None and not dataset.fileset.skips.allowed:  # text is counted by now
        parts = [Partition(tuple(dataset.fileset.counted(part.pieces))) for part in parts]
    if dataset.mapped or any(p.rows != n for p, n in zip(parts, lens, strict=True)):
        return FineCut(parts, lens)
    given: Iterable[Piece] = (piece for part in parts for piece in part.pieces)
    if not columns:
        if dataset.cut_by_default:
            given = _rejoined(given, dataset, lambda piece: (piece.rows or 0) <= most_rows)
        pieces = [s for piece in given for s in _slices(piece, most_rows)]
        return FineCut([Partition((p,)) for p in pieces], [p.rows or 0 for p in pieces])
    sizes = _Sizes(dataset, columns)
    if dataset.cut_by_default:
        given = _rejoined(given, dataset, lambda piece: sizes.of(piece) <= most_bytes)
    pieces = [s for p in given for s in slices_of(p, sizes.of(p), most_bytes, sizes.rows)]
    nbytes = [sizes.of(piece) for piece in pieces]
    return FineCut([Partition((p,)) for p in pieces], [p.rows or 0 for p in pieces], nbytes)


class _Sizes:
    """Bytes of pieces and of their rows; what is known of a unit is kept until the next."""

    def __init__(self, dataset: Dataset, columns: Sequence[str]) -> None:
        self._files, self._columns = dataset.fileset, list(columns)
        self._unit: tuple[int, int] | None = None
        self._weights: npt.NDArray[Any] | None = None

    def of(self, piece: Piece) -> int:
        """Bytes of a piece."""
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
        unit = (piece.file, piece.unit)
        if unit != self._unit:
            rows = self._files.files[piece.file].unit_rows[piece.unit]
            whole = Piece(piece.file, piece.unit, 0, rows)
            self._unit, self._weights = unit, self._files.row_bytes(whole, self._columns)
        if self._weights is None or piece.rows is None:
            return None
        return self._weights[piece.start : piece.start + piece.rows]


def _rejoined(
    pieces: Iterable[Piece], dataset: Dataset, fits: Callable[[Piece], bool]
) -> Iterator[Piece]:
    """Slices that are a row group that fits, as that; the rest as they are."""
    for (index, unit), run in groupby(pieces, key=lambda p: (p.file, p.unit)):
        slices, file = list(run), dataset.fileset.files[index]
        ends = list(accumulate((p.rows or 0 for p in slices), initial=0))
        follow = all(p.start == end for p, end in zip(slices, ends, strict=False))
        whole = file.row_groups and follow and ends[-1] == file.count(unit)
        if whole and fits(joined := Piece(index, unit, 0, ends[-1])):
            yield joined
        else:
            yield from slices


def _slices(piece: Piece, most_rows: int) -> list[Piece]:
    return slices_of(piece, piece.rows or 0, most_rows)


def columns_read(layout: Layout, transforms: Sequence[TableFunction]) -> list[str] | None:
    """What to read: what the first transform says it needs, or all (None); what a batch has."""
    if not transforms:
        return list(layout.columns)
    needed: Sequence[str] | None = getattr(transforms[0], "columns", None)
    return None if needed is None else list(needed)


@dataclass(frozen=True)
class PartReader:
    """Reads partitions of a dataset.

    Parameters
    ----------
    dataset
        Where from.
    partitions, lens
        What to read, and the rows each must have.
    layout
        What a batch is made of.
    transforms
        Functions from table to table, applied to each partition.
    at_once
        About how many bytes of columns to decode at a time. Little is best for the processor's
        cache; but each time costs a little Python, for which many threads would queue.
    nulls
        Warns of those that become NaN.
    """

    dataset: Dataset
    partitions: Sequence[Partition]
    lens: Sequence[int]
    layout: Layout
    transforms: tuple[TableFunction, ...] = ()
    at_once: int = 2**20
    nulls: NullWatch = field(default_factory=NullWatch, compare=False, repr=False)

    @property
    def remote(self) -> bool:
        """Whether it helps to `begin` a partition before it is read."""
        return self.dataset.fileset.remote

    @property
    def _columns(self) -> list[str] | None:
        return columns_read(self.layout, self.transforms)

    @property
    def _dictionary(self) -> Sequence[str]:
        """Text columns that the first transform would rather have dictionary-encoded."""
        return getattr(self.transforms[0], "dictionary", ()) if self.transforms else ()

    def begin(self, number: int) -> list[Fetch]:
        """Begin to fetch a partition, as long as the result is held."""
        return self.dataset.begin_read(self.partitions[number], self._columns)

    def read(self, number: int) -> Part:
        """One partition, decoded."""
        part = self.partitions[number]
        table = self.dataset.read(part, self._columns, dictionary=self._dictionary)
        return self._part(table, number, self.layout)

    def pieces(self, number: int) -> Iterator[Part]:
        """The same, a few columns at a time where the files allow it."""
        if self.transforms:
            yield self.read(number)
            return
        tables = self.dataset.read_by_column(
            self.partitions[number],
            self._columns,
            at_once=self.at_once,
        )
        for table in tables:
            yield self._part(table, number, self.layout.only(table.column_names))

    def straight(
        self, numbers: Sequence[int], columns: Sequence[str]
    ) -> Iterator[tuple[str, Sequence[pa.ChunkedArray]]] | None:
        """Columns of partitions, side by side, as the files have them.

        None where anything is to be done to them. The same as `pieces`, with less Python.
        """
        if not self.are_plain or not 0 < len(numbers) <= _SIDE_BY_SIDE:
            return None
        units = [self._stored(number) for number in numbers]
        if None in units:
            return None
        found = cast(list[tuple[RowGroups, int]], units)
        first, unit = found[0]
        groups = list(first.groups_of([unit], columns, self.at_once // len(numbers)))
        return _side_by_side([file.columns(unit, groups) for file, unit in found])

    def _stored(self, number: int) -> tuple[RowGroups, int] | None:
        """The row group that a partition is, if that can be read as it is stored."""
        pieces = self.partitions[number].pieces
        if len(pieces) != 1 or not pieces[0].whole:
            return None
        file = self.dataset.fileset.files[pieces[0].file].row_groups
        if file is None or not file.stored_as_given:
            return None
        return file, pieces[0].unit

    def plain(
        self, number: int, column: pa.ChunkedArray, name: str, wanted: np.dtype[Any]
    ) -> Array:
        """A column that came straight from a partition, as an array."""
        try:
            array = plain_array(column, name, wanted)
        except LoaderError as e:
            raise LoaderError(f"{self._where(number)}: {e}") from e
        if column.null_count:
            self.nulls.tell({name: column.null_count}, self._where(number))
        return array

    @cached_property
    def are_plain(self) -> bool:
        """Whether a batch has nothing but numbers that lie in files, and no cast can spoil."""
        layout, schema = self.layout, self.dataset.schema
        if self.transforms or layout.lists or layout.fixed or layout.extras:
            return False
        return self.dataset.is_plain_parquet and all(
            is_plain(schema[c].dtype, g.dtype) for g in layout.groups for c in g.columns
        )

    def _part(self, table: pa.Table, number: int, layout: Layout) -> Part:
        for transform in self.transforms:
            with span("transform", rows=table.num_rows, what=transform):
                table = self._apply(transform, table, number)
        if table.num_rows != self.lens[number]:
            raise LoaderError(
                f"{self._where(number)} has {table.num_rows} rows where {self.lens[number]} were "
                "expected: the files changed, or a transform drops or adds rows; write such data "
                "with Dataset.to_parquet first"
            )
        found = table.column_names
        for name in layout.columns:
            if name not in found:
                raise ColumnNotFoundError(name, found, where=self._where(number))
        nulls: dict[str, int] = {}
        try:
            with span("convert", rows=table.num_rows):
                part = make_part(table, layout, nulls)
        except LoaderError as e:
            raise LoaderError(f"{self._where(number)}: {e}") from e
        self.nulls.tell(nulls, self._where(number))
        return part

    def _apply(self, transform: TableFunction, table: pa.Table, number: int) -> pa.Table:
        try:
            result = transform(table)
        except Exception as e:
            explain(e, f"a transform, on {self._where(number)}")
            raise
        if isinstance(result, pa.Table):
            return result
        if hasattr(result, "to_arrow"):
            return result.to_arrow()
        raise LoaderError(
            f"a transform must give an Arrow table; {transform!r} gave {type(result).__name__}"
        )

    def _where(self, number: int) -> str:
        return place_of(self.dataset, self.partitions[number], number)


def place_of(dataset: Dataset, partition: Partition, number: int) -> str:
    """A partition in words, with the file and row group it begins with."""
    if not partition.pieces:
        return f"partition {number}"
    first = partition.pieces[0]
    return f"partition {number} ({dataset.files[first.file]}, row group {first.unit})"


def _side_by_side(
    readers: Sequence[Iterator[tuple[str, pa.ChunkedArray]]],
) -> Iterator[tuple[str, Sequence[pa.ChunkedArray]]]:
    """The same column of each, one column after the other."""
    for found in zip(*readers, strict=True):
        yield found[0][0], [column for _, column in found]
