"""Partitions, decoded when a block needs them.

`PartReader` reads one partition: file to table, table through the user's transforms, table to
arrays; a few columns at a time where the files allow it. `NullWatch` warns, once for each column,
that nulls become NaN: as soon as footers of Parquet files count them, else when they are read.

Threads that decode are as many as there are cores; connections are as many as the network wants. So
`ReadAhead` requests the bytes of the remote partitions that come next early, up to a budget, in the
order in which they will be needed; a thread that reads one finds it there or on its way.
"""

from __future__ import annotations

import threading
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tabfeed.arguments import explain
from tabfeed.errors import ColumnNotFoundError, LoaderError, TabfeedWarning
from tabfeed.io.dataset import Dataset
from tabfeed.io.partition import Partition
from tabfeed.io.storage.fetch import Fetch
from tabfeed.lazy import cached_property
from tabfeed.loader.read.arrow_columns import Layout, Part, is_plain, make_part, plain_array
from tabfeed.trace import span

if TYPE_CHECKING:
    from tabfeed.io.formats.parquet.file import ParquetFile

Array = npt.NDArray[Any]
TableFunction = Callable[[pa.Table], pa.Table]
_SIDE_BY_SIDE = 8  # partitions that a thread has open at once; more would be too small to matter
_MOST_CHUNKS = 50_000  # of a footer: each takes 3 microseconds to look at


class ReadsParts(Protocol):
    """Anything that gives a partition by its number."""

    def read(self, number: int) -> Part:
        """One partition, decoded."""
        ...

    def pieces(self, number: int) -> Iterator[Part]:
        """The same, a few columns at a time."""
        ...


def columns_read(layout: Layout, transforms: Sequence[TableFunction]) -> list[str] | None:
    """What to read: what the first transform says it needs, or all (None); what a batch has."""
    if not transforms:
        return list(layout.columns)
    needed: Sequence[str] | None = getattr(transforms[0], "columns", None)
    return None if needed is None else list(needed)


class NullWatch:
    """Warns of nulls, once for each column; threads may share it.

    Examples
    --------
    >>> watch = NullWatch()
    >>> with warnings.catch_warnings(record=True) as said:
    ...     warnings.simplefilter("always")
    ...     watch.warn({"price": 3}, "partition 0")
    ...     watch.warn({"price": 5}, "partition 1")
    >>> print(*(warning.message for warning in said))
    nulls become NaN: 3 in column 'price', in partition 0; fill them first (FillMissing), or leave \
out those rows (Dropna)
    """

    def __init__(self) -> None:
        self._warned: set[str] = set()
        self._lock = threading.Lock()
        self._silent = False

    def warn(self, counts: Mapping[str, int], where: str, *, stacklevel: int = 2) -> None:
        """Warn of columns of which it has not warned yet.

        Parameters
        ----------
        counts
            The nulls of each column.
        where
            What has so many: a partition, or the files.
        stacklevel
            As for `warnings.warn`.
        """
        with self._lock:
            new = {n: c for n, c in counts.items() if c and n not in self._warned}
            self._warned.update(new)
        if new and not self._silent:
            found = ", ".join(f"{count:,} in column {name!r}" for name, count in new.items())
            warnings.warn(
                f"nulls become NaN: {found}, in {where}; fill them first (FillMissing), or leave "
                "out those rows (Dropna)",
                TabfeedWarning,
                stacklevel=stacklevel + 1,
            )

    def warn_from_footers(self, dataset: Dataset, layout: Layout, *, stacklevel: int = 2) -> None:
        """Warn of all columns whose nulls the footers of the files count, if that takes no time."""
        names = [c for g in layout.groups if g.dtype.kind == "f" for c in g.columns]
        table = dataset.table
        if table.maps or table.partitioning.condition is not None or not names:
            return
        files = table.files.files
        units = {(piece.file, piece.unit) for part in table.partitions for piece in part.pieces}
        if len(units) * len(names) > _MOST_CHUNKS:
            return
        counts = dict.fromkeys(names, 0)
        for number, unit in units:
            file = files[number]
            there = table.files.own_columns(number, names)
            for name, count in zip(there, file.null_counts(unit, there), strict=True):
                counts[name] += count or 0
        self.warn(counts, "the files", stacklevel=stacklevel + 1)

    def silence(self) -> None:
        """Warn no more."""
        self._silent = True

    def __getstate__(self) -> dict[str, Any]:
        return {"_warned": set(self._warned), "_silent": self._silent}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__()  # type: ignore[misc]
        vars(self).update(state)


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

    def begin(self, number: int) -> list[Fetch]:
        """Begin to fetch a partition, as long as the result is held."""
        return self.dataset.begin_read(self.partitions[number], self._columns)

    def read(self, number: int) -> Part:
        """One partition, decoded."""
        part = self.partitions[number]
        # Text columns that the first transform would rather have dictionary-encoded.
        encoded = getattr(self.transforms[0], "dictionary", ()) if self.transforms else ()
        table = self.dataset.read(part, self._columns, dictionary=encoded)
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
    ) -> Iterator[tuple[tuple[str, pa.ChunkedArray], ...]] | None:
        """Columns of partitions, side by side, as the files have them: name and values of each.

        None where anything is to be done to them. The same as `pieces`, with less Python.
        """
        if not self.are_plain or not 0 < len(numbers) <= _SIDE_BY_SIDE:
            return None
        units = [self._stored(number) for number in numbers]
        if None in units:
            return None
        found = cast("list[tuple[ParquetFile, int]]", units)
        first, unit = found[0]
        groups = list(first.groups_of([unit], columns, self.at_once // len(numbers)))
        return zip(*(file.columns(unit, groups) for file, unit in found), strict=True)

    def _stored(self, number: int) -> tuple[ParquetFile, int] | None:
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
            self.nulls.warn({name: column.null_count}, self._where(number))
        return array

    @cached_property
    def are_plain(self) -> bool:
        """Whether a batch has nothing but numbers that lie in files, and no cast can spoil."""
        layout = self.layout
        if self.transforms or layout.lists or layout.fixed or layout.extras:
            return False
        types = {column.name: column.dtype for column in self.dataset.schema}
        return self.dataset.is_plain_parquet and all(
            is_plain(types[name], group.dtype) for group in layout.groups for name in group.columns
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
        self.nulls.warn(nulls, self._where(number))
        return part

    def _apply(self, transform: TableFunction, table: pa.Table, number: int) -> pa.Table:
        try:
            result = transform(table)
        except Exception as e:
            explain(e, f"a transform, on {self._where(number)}")
            raise
        return made_table(result, transform)

    def _where(self, number: int) -> str:
        return describe_partition(self.dataset, self.partitions[number], number)


def made_table(result: Any, transform: TableFunction) -> pa.Table:
    """What a transform returned as a table, checked as what is read from files is."""
    from tabfeed.io.formats.memory import refuse_bad_text

    if not isinstance(result, pa.Table) and hasattr(result, "to_arrow"):
        result = result.to_arrow()
    if not isinstance(result, pa.Table):
        raise LoaderError(
            f"a transform must give an Arrow table; {transform!r} gave {type(result).__name__}"
        )
    name = getattr(transform, "__name__", type(transform).__name__)  # a repr may take long
    refuse_bad_text(result, f"what {name} returned")
    return result


def describe_partition(dataset: Dataset, partition: Partition, number: int) -> str:
    """A partition in words, with the file and row group it begins with."""
    if not partition.pieces:
        return f"partition {number}"
    first = partition.pieces[0]
    return f"partition {number} ({dataset.files[first.file]}, row group {first.unit})"


# -- remote partitions ----------------------------------------------------------------------------


class BeginsParts(ReadsParts, Protocol):
    """A reader that can begin to fetch partitions before they are read."""

    remote: bool

    def begin(self, number: int) -> Sequence[Any]:
        """Begin to fetch a partition, as long as the result is held; each has ``nbytes``."""
        ...


def reading_ahead(reader: Any, coming: Iterable[int], budget: int) -> Any:
    """The reader for one epoch; where that helps, a `ReadAhead` of these partitions."""
    if not getattr(reader, "remote", False):
        return reader
    return ReadAhead(reader, coming, budget)


class ReadAhead:
    """Reads partitions, the next ones begun already.

    Parameters
    ----------
    reader
        Reads a partition.
    order
        The partitions, about in the order in which they will be read.
    budget
        Most bytes to have fetched and not yet decoded; one partition at least.
    """

    def __init__(self, reader: BeginsParts, order: Iterable[int], budget: int) -> None:
        self._reader = reader
        self._coming = deque(order)
        self._left = budget
        self._held: dict[int, tuple[Sequence[Any], int]] = {}
        self._lock = threading.Lock()
        self._closed = False
        self._top_up()

    def read(self, number: int) -> Part:
        """A partition."""
        try:
            return self._reader.read(number)
        finally:
            self._release(number)

    def pieces(self, number: int) -> Iterator[Part]:
        """The same, a few columns at a time."""
        try:
            yield from self._reader.pieces(number)
        finally:
            self._release(number)

    def _release(self, number: int) -> None:
        with self._lock:
            _, nbytes = self._held.pop(number, ((), 0))
            self._left += nbytes
        self._top_up()

    def _top_up(self) -> None:
        """Begin what fits, and always one."""
        with self._lock:
            while self._coming and not self._closed and (self._left > 0 or not self._held):
                number = self._coming.popleft()
                begun = self._reader.begin(number)
                if begun:
                    nbytes = sum(fetch.nbytes for fetch in begun)
                    self._held[number] = (begun, nbytes)
                    self._left -= nbytes

    def close(self) -> None:
        """Fetch nothing more, let go of what is here. Takes no lock: it may run in a finaliser."""
        self._closed = True
        self._held = {}
