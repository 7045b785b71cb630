"""The text of a file: its bytes after decompression, readable from any offset, and its first rows.

An uncompressed file is simply sought in. A compressed one can only be read forwards, so `Text`
keeps the few streams it has opened and resumes the closest one that lies before: reading ranges in
order costs one pass, reading them at random costs half a pass each on average. A stream belongs to
one reader at a time, so no lock is held while anything is read.
"""

from __future__ import annotations

import re
import threading
from bisect import bisect_left
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

from tabfeed.errors import BadFileError
from tabfeed.io.storage.files import FileRef, bad_file, reading

T = TypeVar("T")

__all__ = [
    "INFER_BYTES",
    "LONGEST_ROW",
    "Head",
    "Text",
    "at_line",
    "changed_length",
    "last_line_end",
    "no_line_end",
    "read_exactly",
    "read_head",
]

INFER_BYTES = 2**20
"""Bytes at the start of a file from which its types are inferred."""

LONGEST_ROW = 256 * 2**20
"""Bytes without a line end after which a file is taken not to be text.

So a line of text takes at most twice this of memory, and no more of a compressed file is unpacked.
"""

_BOM = b"\xef\xbb\xbf"
_IDLE_STREAMS = 4
_SKIP_BYTES = 2**20


class _Stream:
    """A decompressing stream and its position."""

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
        """A function that reads on from `offset`: exactly so many bytes, unless the file ends."""
        with reading(self.ref):
            if self.ref.compressed:
                with self._stream_at(offset) as stream:
                    yield lambda n: read_exactly(stream.read, n)
            else:
                with self.ref.open() as file:
                    file.seek(offset)
                    yield lambda n: read_exactly(file.read, n)

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
        except OSError:  # damaged: don't reuse the stream
            stream.close()
            raise
        finally:
            self._give_back(stream)

    def _take(self, offset: int) -> _Stream | None:
        """The idle stream closest before `offset`."""
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
    text = Text(ref if ref.compressed else ref.just_pinned())  # rows are read, and checked, again
    while True:
        with text.at(0) as read:
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


def read_exactly(read: Callable[[int], bytes], nbytes: int) -> bytes:
    """Read until `nbytes` have come or the file ends; one read may give fewer bytes."""
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


def no_line_end(ref: FileRef) -> BadFileError:
    """The error for a file that is not made of lines."""
    return bad_file(ref, f"is not lines of text: no line end within {LONGEST_ROW:,} bytes")


def changed_length(ref: FileRef) -> BadFileError:
    """The error for a file whose length changed while it was read."""
    return bad_file(
        ref,
        "has changed its length since it was opened",
        remedy="Let whoever writes it finish, then open it again",
    )
