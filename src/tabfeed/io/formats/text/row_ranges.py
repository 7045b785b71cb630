"""The text of a file, and how it is cut into ranges that hold whole rows.

`Text` is a file's bytes after decompression, readable from any offset. An uncompressed
file is simply sought in. A compressed one can only be read forwards, so `Text` keeps the
few streams it has opened and resumes the one that has come closest: reading ranges in
order costs one pass, reading them at random costs half a pass each on average. A stream
belongs to one reader at a time, so no lock is held while anything is read.

`LineRanges` cuts uncompressed text evenly, without reading it: each cut is moved to the
next line end when somebody asks for it. `Text.rows` cuts text as it streams by.

Where rows end in text whose quoted fields may hold line ends.

A quote opens a field only where a field starts: after a separator, a line end, or at the
very start; anywhere else it is a character like any other (``5" disk``). A doubled quote
inside a quoted field stands for one. These are the rules of Arrow's parser; whoever cuts
by other rules hands it half a row.

Text without quotes is cut by its last line end. Text with quotes is walked field by
quoted field, in Python: slow (about half a microsecond a quoted field), and needed only
for files read with ``newlines_in_values=True``.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

from tabfeed.errors import BadFileError
from tabfeed.io.storage.file_ref import FileRef, bad_file, reading

__all__ = [
    "LONGEST_ROW",
    "LineRanges",
    "Text",
    "changed_length",
    "first_row_end",
    "inside_quotes",
    "last_line_end",
    "last_row_end",
    "no_line_end",
]


@lru_cache(maxsize=16)
def _quoted_field(sep: str) -> re.Pattern[bytes]:
    """A quoted field from its opening to its closing quote, or to the end if none closes it."""
    start = rb"(?:\A|(?<=[\r\n" + re.escape(sep.encode()) + rb"]))"
    return re.compile(start + rb'"[^"]*(?:""[^"]*)*(?P<closed>")?')


def _outside(text: bytes, sep: str) -> Iterator[tuple[int, int]]:
    """The stretches of text between quoted fields."""
    start = 0
    for field in _quoted_field(sep).finditer(text):
        yield start, field.start()
        start = field.end()
    yield start, len(text)


def first_row_end(text: bytes, sep: str) -> int:
    r"""Where the first row ends, its line end included; all of the text if none ends.

    Examples
    --------
    >>> first_row_end(b'1,"a\nb"\n2,c\n', ",")
    8
    """
    for start, end in _outside(text, sep):
        if (found := text.find(b"\n", start, end)) >= 0:
            return found + 1
    return len(text)


def last_row_end(text: bytes, sep: str) -> int:
    r"""Where the last whole row ends; 0 if none does.

    Examples
    --------
    >>> last_row_end(b'1,"a\nb"\n2,"c\n', ",")
    8
    """
    if b'"' not in text:
        return text.rfind(b"\n") + 1
    last = 0
    for start, end in _outside(text, sep):
        last = text.rfind(b"\n", start, end) + 1 or last
    return last


def inside_quotes(text: bytes, sep: str) -> bool:
    r"""Whether the text ends inside a quoted field.

    Examples
    --------
    >>> inside_quotes(b'1,"a\n', ","), inside_quotes(b'5" disk,1\n', ",")
    (True, False)
    """
    fields = _quoted_field(sep).finditer(text)
    return any(field["closed"] is None for field in fields)  # only the last one can be open


LONGEST_ROW = 256 * 2**20
"""Bytes without a line end after which a file is taken not to be text.

The bound of what a line of text, compressed or not, may take of memory: twice this, and no more of
a compressed file is unpacked (`text_file.read_head`, `Text.rows`).
"""

_IDLE_STREAMS = 4
_SKIP_BYTES = 2**20


class _Stream:
    """A decompressing stream, and how far it has come."""

    def __init__(self, ref: FileRef) -> None:
        self._file = ref.stream()
        self.position = 0

    def read(self, nbytes: int) -> bytes:
        data = bytes(self._file.read(nbytes))
        self.position += len(data)
        return data

    def skip_to(self, offset: int) -> None:
        while self.position < offset and self.read(min(_SKIP_BYTES, offset - self.position)):
            pass

    def close(self) -> None:
        self._file.close()


class Text:
    """A file's bytes after decompression. Threads may share it; it pickles."""

    def __init__(self, ref: FileRef) -> None:
        self.ref = ref
        self._lock = threading.Lock()
        self._idle: list[_Stream] = []

    def __getstate__(self) -> dict[str, Any]:
        return {"ref": self.ref}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["ref"])  # type: ignore[misc]

    @contextmanager
    def at(self, offset: int) -> Iterator[Callable[[int], bytes]]:
        """A function that reads on from `offset`: all the bytes asked for, or up to the end."""
        with reading(self.ref):
            if self.ref.compressed:
                with self._stream_at(offset) as stream:
                    yield lambda n: _read_exactly(stream.read, n)
            else:
                with self.ref.open() as file:
                    file.seek(offset)
                    yield lambda n: _read_exactly(file.read, n)

    def rows(
        self, offset: int, size: int, cut: Callable[[bytes], int], *, left: int | None = None
    ) -> Iterator[bytes]:
        """Read on from `offset`, in texts of about `size` bytes that end where a row ends.

        Parameters
        ----------
        offset
            Where to start; a row must start there.
        size
            Bytes to aim at; a longer row makes its text longer.
        cut
            Where the last whole row of a text ends; 0 if none does.
        left
            Bytes to read in all; up to the end of the file by default. The last text may
            lack a line end.
        """
        held = b""
        with self.at(offset) as read:
            while True:
                most = max(1, LONGEST_ROW + 1 - len(held))
                more = size - len(held) if len(held) < size else min(len(held), 2**24, most)
                data = read(more if left is None else min(more, left))
                left = None if left is None else left - len(data)
                held += data
                if not data and left:
                    raise changed_length(self.ref)
                if not data or left == 0:
                    break
                if end := cut(held):
                    yield held[:end]
                    held = held[end:]
                elif len(held) > LONGEST_ROW:
                    raise no_line_end(self.ref)
            if held:
                yield held

    @contextmanager
    def _stream_at(self, offset: int) -> Iterator[_Stream]:
        self.ref.check()  # a stream that waited here goes on in the file that it opened
        stream = self._take(offset) or _Stream(self.ref)
        try:
            stream.skip_to(offset)
            yield stream
        except OSError:  # damaged: the stream is of no use to anybody else
            stream.close()
            raise
        finally:
            self._give_back(stream)

    def _take(self, offset: int) -> _Stream | None:
        """The idle stream that has come closest to `offset`."""
        with self._lock:
            behind = [s for s in self._idle if s.position <= offset]
            best = max(behind, key=lambda s: s.position, default=None)
            if best is not None:
                self._idle.remove(best)
            return best

    def _give_back(self, stream: _Stream) -> None:
        with self._lock:
            if not stream._file.closed:
                self._idle.append(stream)
            surplus = self._idle.pop(0) if len(self._idle) > _IDLE_STREAMS else None
        if surplus is not None:
            surplus.close()


def _read_exactly(read: Callable[[int], bytes], nbytes: int) -> bytes:
    """Read until `nbytes` have come or the file ends; one read may give less than asked."""
    data = bytes(read(nbytes))
    if len(data) in (0, nbytes):
        return data
    parts = [data]
    missing = nbytes - len(data)
    while missing and (data := bytes(read(missing))):
        parts.append(data)
        missing -= len(data)
    return b"".join(parts)


def last_line_end(text: bytes) -> int:
    r"""Where the last whole line ends; 0 if no line does.

    Examples
    --------
    >>> last_line_end(b"1,2\n3,4\n5,")
    8
    """
    return text.rfind(b"\n") + 1


class LineRanges:
    """Even ranges of uncompressed text, moved to line ends when they are asked for.

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
                data = _read_exactly(file.read, step)
                if (found := data.find(b"\n")) >= 0:
                    return min(position + found + 1, self.ref.size)
                if not data:
                    break
                position += len(data)
                step = min(step * 4, 2**24)
        return self.ref.size


def no_line_end(ref: FileRef) -> BadFileError:
    """The error for a file that is not made of lines."""
    return bad_file(ref, f"is not lines of text: no line end within {LONGEST_ROW:,} bytes")


def changed_length(ref: FileRef) -> BadFileError:
    """The error for a file that somebody else is writing."""
    return bad_file(
        ref,
        "has changed its length since it was opened",
        remedy="Let whoever writes it finish, then open it again",
    )
