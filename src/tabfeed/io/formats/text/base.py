"""Files of text whose rows are lines: CSV and JSON lines.

A unit is a range of bytes that holds whole rows. In an uncompressed file the ranges are even and
found without reading (`LineRanges`), so their rows are not counted. In a compressed file, and in
one whose quoted fields hold line ends, one pass over the text finds the ranges when they are first
needed, and counts their rows as well.

The format (`TextFormat`) turns the text of whole rows into columns. Its types were fixed
when the file was opened, so every unit comes out with the same ones.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

import pyarrow as pa

from tabfeed.errors import BadFileError
from tabfeed.io.align import rebatch
from tabfeed.io.formats.base import StreamedFile
from tabfeed.io.formats.text.stream import (
    LONGEST_ROW,
    Text,
    changed_length,
    no_line_end,
    read_exactly,
)
from tabfeed.io.storage.file_ref import FileRef, bad_file, reading

__all__ = ["INFER_BYTES", "Head", "TextFile", "TextFormat", "at_line", "read_head"]

T = TypeVar("T")

INFER_BYTES = 2**20
"""Bytes at the start of a file from which its types are inferred."""

_SMALLEST_PIECE = 2**14
_BOM = b"\xef\xbb\xbf"


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


@dataclass(frozen=True)
class Head:
    """The first rows of a file.

    Attributes
    ----------
    text
        Whole lines, without a byte order mark.
    offset
        Where `text` starts in the file.
    complete
        Whether this is all of the file.
    """

    text: bytes
    offset: int
    complete: bool

    def skip(self, nbytes: int) -> Head:
        """The same without its first bytes."""
        return Head(self.text[nbytes:], self.offset + nbytes, self.complete)


def read_head(ref: FileRef, cut: Callable[[bytes], int]) -> Head:
    """The first rows of a file, enough to infer types from; refuses other data.

    Parameters
    ----------
    ref
        The file.
    cut
        Where the last whole row of a text ends.
    """
    size = INFER_BYTES
    while True:
        with Text(ref).at(0) as read:
            data = read(size + 1)
        if b"\0" in data:
            raise bad_file(ref, _binary(data))
        complete = len(data) <= size
        end = len(data) if complete else cut(data[:size])
        if end > data.find(b"\n") + 1 or (complete and end):  # two rows: one may be a header
            break
        if complete:
            raise bad_file(ref, "holds nothing (0 bytes of text)")
        if size >= LONGEST_ROW:
            raise no_line_end(ref)
        size = min(size * 8, LONGEST_ROW)
    offset = len(_BOM) if data.startswith(_BOM) else 0
    return Head(data[offset:end], offset, complete)


def _binary(data: bytes) -> str:
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        return "is text in UTF-16; convert it to UTF-8"
    return f"is not text: it holds zero bytes and starts with {data[:16]!r}"


def at_line(
    text: Text,
    offset: int,
    rows: bytes,
    cut: Callable[[bytes], int],
    parse: Callable[[bytes], T],
) -> T:
    """Parse rows that start at `offset`; an error names the line of the first that fails.

    The line is looked for only once there is an error: by halves, and by counting the lines before
    `offset`.
    """
    try:
        return parse(rows)
    except BadFileError as e:
        error = e

    def fails(end: int) -> bool:
        try:
            parse(rows[: cut(rows[:end])])
        except BadFileError:
            return True
        return False

    ends = [m.end() for m in re.finditer(rb"\n", rows)]
    line = _line_ends_before(text, offset) + bisect_left(ends, True, key=fails) + 1
    message = f"{error} (line {line:,})"
    raise BadFileError(message, file=error.file, column=error.column) from error


def _line_ends_before(text: Text, offset: int) -> int:
    count = 0
    with text.at(0) as read:
        while offset and (data := read(min(offset, 2**20))):
            count += data.count(b"\n")
            offset -= len(data)
    return count


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
            text, cut = self._read_text(unit), self._form.last_row_end
            rows = at_line(self._text, units[unit][0], text, cut, self._form.count) if text else 0
            self._counts[unit] = rows
        return rows

    def nbytes(self, unit: int, columns: Sequence[str]) -> int:
        """Estimate: the unit's text, times the memory that text of the first rows took."""
        share = sum(self._widths[c] for c in columns)
        return max(1, int(self._units.nbytes(unit) * share))

    def read(self, units: Sequence[int], columns: Sequence[str]) -> pa.Table:
        """Whole units, decoded on the calling thread without the GIL."""
        wanted = self._at_least_one(columns)
        tables = [self._empty(wanted)]
        tables += [
            self._decode(self._units[u][0], text, wanted)
            for u in units
            if (text := self._read_text(u))
        ]
        return pa.concat_tables(tables).select(list(columns))

    def batches(self, unit: int, columns: Sequence[str], rows: int) -> Iterator[pa.RecordBatch]:
        """A unit in batches of `rows` rows; no more of it is in memory than a few of them."""
        wanted = self._at_least_one(columns)
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
        def decode(text: bytes) -> pa.Table:
            return self._form.decode(text, columns)

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
