"""Files of text whose rows are lines: CSV and JSON lines.

A unit is a range of bytes that holds whole rows. In an uncompressed file the ranges are even and
found without reading (`LineRanges`), so their rows are not counted. In a compressed file, and in
one whose quoted fields hold line ends, one pass over the text finds the ranges when they are first
needed, and counts their rows as well.

The format (`TextFormat`) turns the text of whole rows into columns. Its types were fixed
when the file was opened, so every unit comes out with the same ones.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Protocol

import pyarrow as pa

from tabfeed.io.align import rebatch
from tabfeed.io.formats.base import StreamedFile
from tabfeed.io.formats.text.stream import (
    LONGEST_ROW,
    Head,
    Text,
    at_line,
    changed_length,
    no_line_end,
    read_exactly,
)
from tabfeed.io.storage.files import FileRef, reading

__all__ = ["TextFile", "TextFormat"]

_SMALLEST_PIECE = 2**14
_COUNTED = 2**20  # of text; units as a whole would stay with the allocator
_SMALLEST_UNIT = 2**18  # of text: opening and seeking would cost more than they save


class TextFormat(Protocol):
    """How the text of whole rows becomes columns. Threads share it; it pickles."""

    @property
    def schema(self) -> pa.Schema:
        """The columns, their types fixed."""
        ...

    def decode(self, text: bytes, columns: Sequence[str]) -> pa.Table:
        """The columns of some rows, one column at least, in the order of `columns`."""
        ...

    def count(self, text: bytes) -> int:
        """How many rows."""
        ...

    def last_row_end(self, text: bytes) -> int:
        """Where the last whole row ends; 0 if none does. `text` starts where a row does."""
        ...


class LineRanges:
    """Even ranges of uncompressed text; each cut moves to the next line end when it is needed.

    Parameters
    ----------
    ref
        The file.
    start
        Where its rows begin, after a byte order mark and a header line.
    block_size
        Bytes a range covers, about.
    """

    def __init__(self, ref: FileRef, start: int, block_size: int) -> None:
        self.ref = ref
        self.start = start
        self.size = ref.size - start
        self.count = max(1, round(self.size / block_size)) if self.size > 0 else 0
        self._bounds: dict[int, int] = {0: start, self.count: ref.size}

    def divided(self, by: int) -> LineRanges:
        """The same text in `by` times as many ranges; every old cut is one of the new."""
        new = copy.copy(self)
        new.count = self.count * by
        found = self._bounds.copy()  # other threads may be finding more
        new._bounds = {index * by: offset for index, offset in found.items()}
        return new

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[int, int]:
        """Where a range starts and ends; empty if one line fills several ranges."""
        return self._bound(index), self._bound(index + 1)

    def nbytes(self, index: int) -> int:
        """Bytes of a range, about; nothing is read."""
        return self._nominal(index + 1) - self._nominal(index)

    def _nominal(self, index: int) -> int:
        return self.start + self.size * index // self.count

    def _bound(self, index: int) -> int:
        if index not in self._bounds:
            with reading(self.ref):
                self._bounds[index] = self._next_line(self._nominal(index) - 1)
        return self._bounds[index]

    def _next_line(self, offset: int) -> int:
        """Where the line after the one that holds `offset` starts."""
        step, position = 2**16, offset
        with self.ref.open() as file:
            while position < self.ref.size:
                if position - offset > LONGEST_ROW:
                    raise no_line_end(self.ref)
                file.seek(position)
                data = read_exactly(file.read, step)
                if (found := data.find(b"\n")) >= 0:
                    return min(position + found + 1, self.ref.size)
                if not data:
                    break
                position += len(data)
                step = min(step * 4, 2**24)
        return self.ref.size


class _ScannedRanges:
    """Ranges found by a pass over the text, with their rows."""

    def __init__(self, text: Text, start: int, block_size: int, form: TextFormat) -> None:
        self.rows: list[int] = []
        self._bounds = [start]
        for rows in text.rows(start, block_size, form.last_row_end):
            count = at_line(text, self._bounds[-1], rows, form.last_row_end, form.count)
            self.rows.append(count)
            self._bounds.append(self._bounds[-1] + len(rows))

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> tuple[int, int]:
        return self._bounds[index], self._bounds[index + 1]

    def nbytes(self, index: int) -> int:
        return self._bounds[index + 1] - self._bounds[index]


class TextFile(StreamedFile):
    """A file of rows as text; a `DataFile`.

    Parameters
    ----------
    ref
        The file.
    form
        Its format.
    head
        Its first rows, without a header line.
    block_size
        Bytes of text a unit covers.
    scan
        Whether units can only be found by reading from the start.
    """

    def __init__(
        self,
        ref: FileRef,
        form: TextFormat,
        head: Head,
        *,
        block_size: int,
        scan: bool,
    ) -> None:
        super().__init__(form.schema, ref)
        self._form = form
        self._text = Text(ref)
        self._start = head.offset
        self._block_size = block_size
        self._ranges: LineRanges | _ScannedRanges | None = None
        self._counts: list[int | None] = []
        if not scan:
            self._ranges = LineRanges(ref, head.offset, block_size)
            self._counts = [None] * self._ranges.count
        self._measure(head.text)

    def _measure(self, text: bytes) -> None:
        """How much memory each column takes for a byte of text, and how long a row is."""
        sample = self._decode(self._start, text, self.schema.names)
        size = max(1, len(text))
        self._widths: dict[str, float] = {
            n: sample.column(n).nbytes / size for n in self.schema.names
        }
        self._row_bytes = size / max(1, sample.num_rows)

    @property
    def _units(self) -> LineRanges | _ScannedRanges:
        if self._ranges is None:
            with self._lock:
                if self._ranges is None:
                    self._ranges = _ScannedRanges(
                        self._text, self._start, self._block_size, self._form
                    )
        return self._ranges

    @property
    def unit_rows(self) -> Sequence[int | None]:
        """Rows of each unit; None for uncounted ones of an uncompressed file."""
        units = self._units
        return units.rows if isinstance(units, _ScannedRanges) else self._counts

    def count(self, unit: int) -> int:
        """Rows of a unit, counted once."""
        units = self._units
        if isinstance(units, _ScannedRanges):
            return units.rows[unit]
        rows = self._counts[unit]
        if rows is None:
            cut, count = self._form.last_row_end, self._form.count
            pieces = self._pieces(unit)
            rows = sum(at_line(self._text, start, text, cut, count) for start, text in pieces)
            self._counts[unit] = rows
        return rows

    def _pieces(self, unit: int) -> Iterator[tuple[int, bytes]]:
        """The text of a unit, a little at a time: where it starts, and whole rows."""
        start, end = self._units[unit]
        for rows in self._text.rows(start, _COUNTED, self._form.last_row_end, left=end - start):
            yield start, rows
            start += len(rows)
        if unit == len(self._units) - 1:
            with self._text.at(end) as read:
                if read(1):
                    raise changed_length(self.ref)

    def nbytes(self, unit: int, columns: Sequence[str]) -> int:
        """Estimate: the unit's text, times the memory that text of the first rows took."""
        share = sum(self._widths[c] for c in columns)
        return max(1, int(self._units.nbytes(unit) * share))

    def in_smaller_units(self, nbytes: int) -> tuple[TextFile, int]:
        """The same file in units of at most `nbytes`, of text and in memory, unless counted.

        Slices of counted units are read for less.
        """
        units = self._ranges
        if not isinstance(units, LineRanges) or None not in self._counts:
            return self, 1
        most = max(_SMALLEST_UNIT, nbytes / max(1.0, sum(self._widths.values())))
        by = math.ceil(units.size / units.count / most)
        if by <= 1:
            return self, 1
        new = copy.copy(self)
        new._ranges = units.divided(by)
        new._counts = [None] * new._ranges.count
        return new, by

    def read(self, units: Sequence[int], columns: Sequence[str]) -> pa.Table:
        """Whole units, decoded on the calling thread without the GIL."""
        wanted = list(columns) or self.schema.names[:1]  # a table without a column has no rows
        tables = [pa.schema([self.schema.field(c) for c in wanted]).empty_table()]
        tables += [
            self._decode(self._units[u][0], text, wanted)
            for u in units
            if (text := self._read_text(u))
        ]
        return pa.concat_tables(tables).select(list(columns))

    def batches(self, unit: int, columns: Sequence[str], rows: int) -> Iterator[pa.RecordBatch]:
        """A unit in batches of `rows` rows; no more of it is in memory than a few of them."""
        wanted = list(columns) or self.schema.names[:1]
        size = max(_SMALLEST_PIECE, int(rows * self._row_bytes))
        start, end = self._units[unit]
        for batch in rebatch(self._stream(start, end, size, wanted), rows):
            yield batch.select(list(columns))

    def _stream(
        self, start: int, end: int, size: int, columns: Sequence[str]
    ) -> Iterator[pa.Table]:
        for rows in self._text.rows(start, size, self._form.last_row_end, left=end - start):
            yield self._decode(start, rows, columns)
            start += len(rows)

    def _decode(self, offset: int, rows: bytes, columns: Sequence[str]) -> pa.Table:
        decode = partial(self._form.decode, columns=columns)
        return at_line(self._text, offset, rows, self._form.last_row_end, decode)

    def _read_text(self, unit: int) -> bytes:
        start, end = self._units[unit]
        last = unit == len(self._units) - 1
        if start == end and not last:
            return b""
        with self._text.at(start) as read:
            text = read(end - start + last)  # a byte more at the end: nothing should be there
        if len(text) != end - start:
            raise changed_length(self.ref)
        return text
