"""Partitions, decoded when a lot needs them; lots, shared while chunks need them.

`PartReader` reads one partition: file to table, table through the user's transforms, table to
arrays; a few columns at a time where the files allow it. `SharedLots` belongs to one pass over the
data: whatever chunk comes first reads a lot; a thread that would wait reads one that is needed
later instead, as long as memory allows; and a lot goes when the last chunk that needs it is done.

The loader cuts finer than a `Dataset` does where it can: by row group, since several
partitions are open at once and their sum is what takes memory.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Generic, Protocol, TypeVar

import pyarrow as pa

from tabfeed.errors import ColumnNotFoundError, LoaderError
from tabfeed.io.dataset import Dataset
from tabfeed.io.fetch import Fetch
from tabfeed.io.partition import Partition, Piece
from tabfeed.loader.columns import Layout, Part, make_part
from tabfeed.trace import span

__all__ = ["PartReader", "ReadsParts", "SharedLots", "cut_fine"]

_TICK = 0.5
L = TypeVar("L")
TableFunction = Callable[[pa.Table], pa.Table]


class ReadsParts(Protocol):
    """Anything that gives a partition by its number."""

    def read(self, number: int) -> Part:
        """One partition, decoded."""
        ...

    def pieces(self, number: int) -> Iterator[Part]:
        """The same, a few columns at a time."""
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
        return self._part(table, number, self.layout)

    def pieces(self, number: int) -> Iterator[Part]:
        """The same, a few columns at a time where the files allow it."""
        if self.transforms:
            yield self.read(number)
            return
        for table in self.dataset.read_by_column(self.partitions[number], self._columns):
            yield self._part(table, number, self.layout.only(table.column_names))

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
        try:
            with span("convert", rows=table.num_rows):
                return make_part(table, layout)
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


class SharedLots(Generic[L]):
    """Lots for the chunks of one pass over the data.

    Parameters
    ----------
    read
        Reads a lot.
    last_use
        The last chunk that needs each lot.
    first_chunk
        Where this pass begins.
    early
        How many lots may be there before a chunk asks for them.
    on_close
        Called when it is closed; must not wait.
    """

    def __init__(
        self,
        read: Callable[[int], L],
        last_use: dict[int, int],
        first_chunk: int = 0,
        *,
        early: int = 1,
        on_close: Callable[[], None] | None = None,
    ) -> None:
        self._read_lot = read
        self._last_use = last_use
        self._changed = threading.Condition()
        self._lots: dict[int, L | BaseException] = {}
        self._reading: set[int] = set()
        self._upcoming = deque(sorted(last_use, key=last_use.__getitem__))
        self._early: set[int] = set()  # lots read before any chunk asked for them
        self._most_early = early
        self._low = first_chunk  # every chunk before this one is done
        self._done: set[int] = set()
        self._closed = False
        self._on_close = on_close

    def get(self, numbers: Iterable[int]) -> dict[int, L]:
        """These lots, read here unless another thread has them or is reading them."""
        wanted = list(dict.fromkeys(numbers))
        found: dict[int, L] = {}
        while len(found) < len(wanted):
            missing = [n for n in wanted if n not in found]
            number = self._collect_or_claim(missing, found)
            if number is not None:
                self._read(number)
        return found

    def _collect_or_claim(self, missing: list[int], found: dict[int, L]) -> int | None:
        """Take what is there; name one to read, or wait if others are reading all of them."""
        with self._changed:
            if self._closed:
                raise LoaderError("the loader was closed")
            there = [n for n in missing if n in self._lots]
            for number in there:
                lot = self._lots[number]
                if isinstance(lot, BaseException):
                    raise lot
                found[number] = lot
                self._early.discard(number)
            free = [n for n in missing if n not in found and n not in self._reading]
            if free:
                self._reading.add(free[0])
                return free[0]
            if len(there) == len(missing):
                return None
            if (early := self._claim_early()) is not None:
                return early
            with span("share"):
                self._changed.wait(_TICK)
        return None

    def read_ahead(self) -> bool:
        """Read a lot that a later chunk needs, if there is one and room for it; whether it was."""
        with self._changed:
            number = None if self._closed else self._claim_early()
        if number is not None:
            self._read(number)
        return number is not None

    def _claim_early(self) -> int | None:
        if len(self._early) >= self._most_early or (number := self._needed_next()) is None:
            return None
        self._early.add(number)
        self._reading.add(number)
        return number

    def _needed_next(self) -> int | None:
        """The lot that a later chunk needs first and nobody has begun to read."""
        while self._upcoming:
            number = self._upcoming.popleft()
            begun = number in self._lots or number in self._reading
            if not begun and self._last_use[number] >= self._low:
                return number
        return None

    def _read(self, number: int) -> None:
        try:
            lot: L | BaseException = self._read_lot(number)
        except BaseException as e:
            lot = e
        with self._changed:
            self._lots[number] = lot
            self._reading.discard(number)
            self._changed.notify_all()

    def done(self, chunk: int) -> None:
        """A chunk has what it needs: lots that no later chunk needs may go."""
        with self._changed:
            self._done.add(chunk)
            while self._low in self._done:
                self._done.remove(self._low)
                self._low += 1
            low = self._low
            for number in [n for n in self._lots if self._last_use.get(n, low - 1) < low]:
                del self._lots[number]

    def close(self) -> None:
        """Read nothing more; a thread that asks gets an error. Waits for nothing."""
        self._closed = True
        if self._on_close is not None:
            self._on_close()
