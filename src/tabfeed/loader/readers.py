"""Partitions, decoded when a chunk needs them, shared while others do, kept if asked.

`PartReader` reads one partition: file to table, table through the user's transforms, table to
arrays. `SharedParts` belongs to one pass over the data: whatever chunk comes first reads a
partition; a thread that would wait for it reads the partition that is needed next instead; and
it goes when the last chunk that needs it is done.

The loader cuts finer than a `Dataset` does where it can: by row group, since several
partitions are open at once and their sum is what takes memory.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Protocol

import pyarrow as pa

from tabfeed.errors import ColumnNotFoundError, LoaderError
from tabfeed.io.dataset import Dataset
from tabfeed.io.fetch import Fetch
from tabfeed.io.parquet import ParquetFile
from tabfeed.io.partition import Partition, Piece
from tabfeed.loader.columns import Layout, Part, make_part
from tabfeed.loader.read_ahead import ReadAhead
from tabfeed.trace import span

__all__ = ["PartReader", "ReadsParts", "SharedParts", "cut_fine"]

_TICK = 0.5
TableFunction = Callable[[pa.Table], pa.Table]


class ReadsParts(Protocol):
    """Anything that gives a partition by its number."""

    def read(self, number: int) -> Part:
        """One partition, decoded."""
        ...


def cut_fine(dataset: Dataset, most_rows: int) -> tuple[list[Partition], list[int]]:
    """The dataset's partitions by row group, and those above `most_rows` in slices.

    Where filters or functions apply to whole partitions, these stay as they are.
    """
    parts, lens = list(dataset.partitions), list(dataset.partition_lens)
    if dataset._maps or any(p.rows != n for p, n in zip(parts, lens, strict=True)):
        return parts, lens
    pieces = [s for part in parts for piece in part.pieces for s in _slices(piece, most_rows)]
    return [Partition((p,)) for p in pieces], [p.rows or 0 for p in pieces]


def _slices(piece: Piece, most_rows: int) -> list[Piece]:
    rows = piece.rows or 0
    if rows <= most_rows:
        return [piece]
    count = -(-rows // most_rows)
    bounds = [rows * i // count for i in range(count + 1)]
    return [
        replace(piece, start=piece.start + low, rows=high - low, whole=False)
        for low, high in pairwise(bounds)
    ]


def reads_own_memory(dataset: Dataset) -> bool:
    """Whether each read decodes into fresh memory that nobody else looks at."""
    return not dataset._maps and all(isinstance(f, ParquetFile) for f in dataset._files.files)


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
    """

    dataset: Dataset
    partitions: Sequence[Partition]
    lens: Sequence[int]
    layout: Layout
    transforms: tuple[TableFunction, ...] = ()

    @property
    def remote(self) -> bool:
        """Whether it helps to `begin` a partition before it is read."""
        return self.dataset._files.remote

    @property
    def _columns(self) -> list[str] | None:
        """What to read: what the first transform says it needs, or all; what a batch has."""
        if not self.transforms:
            return list(self.layout.columns)
        needed: Sequence[str] | None = getattr(self.transforms[0], "columns", None)
        return None if needed is None else list(needed)

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
        for transform in self.transforms:
            with span("transform", rows=table.num_rows, what=transform):
                table = self._apply(transform, table, number)
        if table.num_rows != self.lens[number]:
            raise LoaderError(
                f"{self._where(number)} has {table.num_rows} rows where {self.lens[number]} were "
                "expected: the files changed, or a transform drops or adds rows; write such data "
                "with Dataset.to_parquet first"
            )
        for name in self.layout.columns:
            if name not in table.column_names:
                raise ColumnNotFoundError(name, table.column_names, where=self._where(number))
        try:
            with span("convert", rows=table.num_rows):
                return make_part(table, self.layout)
        except LoaderError as e:
            raise LoaderError(f"{self._where(number)}: {e}") from e

    def _apply(self, transform: TableFunction, table: pa.Table, number: int) -> pa.Table:
        try:
            result = transform(table)
        except Exception as e:
            if hasattr(e, "add_note"):  # from Python 3.11
                e.add_note(f"raised by a transform, on {self._where(number)}")
            raise
        if isinstance(result, pa.Table):
            return result
        if hasattr(result, "to_arrow"):
            return result.to_arrow()
        raise LoaderError(
            f"a transform must give an Arrow table; {transform!r} gave {type(result).__name__}"
        )

    def _where(self, number: int) -> str:
        pieces = self.partitions[number].pieces
        files = self.dataset.files
        if not pieces:
            return f"partition {number}"
        return f"partition {number} ({files[pieces[0].file]}, row group {pieces[0].unit})"


class SharedParts:
    """Partitions for the chunks of one pass over the data.

    Parameters
    ----------
    reader
        Reads a partition.
    last_use
        The last chunk that needs each partition.
    first_chunk
        Where this pass begins.
    """

    def __init__(self, reader: ReadsParts, last_use: dict[int, int], first_chunk: int = 0) -> None:
        self._reader = reader
        self._last_use = last_use
        self._changed = threading.Condition()
        self._parts: dict[int, Part | BaseException] = {}
        self._reading: set[int] = set()
        self._upcoming = deque(sorted(last_use, key=last_use.__getitem__))
        self._early: int | None = None  # read before any chunk asked for it; one at a time
        self._low = first_chunk  # every chunk before this one is done
        self._done: set[int] = set()
        self._closed = False

    def get(self, numbers: Iterable[int]) -> dict[int, Part]:
        """These partitions, read here unless another thread has them or is reading them."""
        wanted = list(dict.fromkeys(numbers))
        found: dict[int, Part] = {}
        while len(found) < len(wanted):
            missing = [n for n in wanted if n not in found]
            number = self._collect_or_claim(missing, found)
            if number is not None:
                self._read(number)
        return found

    def _collect_or_claim(self, missing: list[int], found: dict[int, Part]) -> int | None:
        """Take what is there; name one to read, or wait if others are reading all of them."""
        with self._changed:
            if self._closed:
                raise LoaderError("the loader was closed")
            there = [n for n in missing if n in self._parts]
            for number in there:
                part = self._parts[number]
                if isinstance(part, BaseException):
                    raise part
                found[number] = part
                if number == self._early:
                    self._early = None
            free = [n for n in missing if n not in found and n not in self._reading]
            if free:
                self._reading.add(free[0])
                return free[0]
            if len(there) == len(missing):
                return None
            if self._early is None and (early := self._needed_next()) is not None:
                self._early = early
                self._reading.add(early)
                return early
            with span("share"):
                self._changed.wait(_TICK)
        return None

    def _needed_next(self) -> int | None:
        """The partition that a later chunk needs first and nobody has begun to read."""
        while self._upcoming:
            number = self._upcoming.popleft()
            begun = number in self._parts or number in self._reading
            if not begun and self._last_use[number] >= self._low:
                return number
        return None

    def _read(self, number: int) -> None:
        try:
            part: Part | BaseException = self._reader.read(number)
        except BaseException as e:
            part = e
        with self._changed:
            self._parts[number] = part
            self._reading.discard(number)
            self._changed.notify_all()

    def done(self, chunk: int) -> None:
        """A chunk has what it needs: partitions that no later chunk needs may go."""
        with self._changed:
            self._done.add(chunk)
            while self._low in self._done:
                self._done.remove(self._low)
                self._low += 1
            low = self._low
            for number in [n for n in self._parts if self._last_use.get(n, low - 1) < low]:
                del self._parts[number]

    def close(self) -> None:
        """Read nothing more; a thread that asks gets an error. Waits for nothing."""
        self._closed = True
        if isinstance(self._reader, ReadAhead):
            self._reader.close()
