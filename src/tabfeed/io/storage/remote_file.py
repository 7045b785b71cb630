"""A remote object as the file that Arrow's readers expect.

Ranges that are known beforehand, as those of a Parquet row group are, are fetched together and
handed to Arrow without a copy. Anything else is fetched when it is read, and where reading
goes on from where it stopped, the next stretch is fetched meanwhile.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from tabfeed.io.storage.fetch import Fetch, Range, begin
from tabfeed.io.storage.files import FileRef

__all__ = ["open_remote"]

_SMALLEST = 2**16  # less is not worth a request
_AHEAD = 32 * 2**20


def open_remote(ref: FileRef, ranges: Sequence[Range] = ()) -> pa.NativeFile:
    """The object for random access; `ranges` are fetched at once."""
    return pa.PythonFile(RemoteFile(ref, ranges), mode="r")


@dataclass(frozen=True)
class _Window:
    """A stretch of the object, here or on its way."""

    range: Range
    fetch: Fetch

    def upto(self, start: int, stop: int) -> pa.Buffer | None:
        """The bytes from `start` up to the end of this window; None if `start` is outside."""
        if not self.range.start <= start < self.range.stop:
            return None
        return self.fetch.get(start, min(stop, self.range.stop))


class RemoteFile:
    """What `pyarrow.PythonFile` wraps: not for threads to share.

    Parameters
    ----------
    ref
        The object.
    ranges
        What will be read.
    """

    closed = False

    def __init__(self, ref: FileRef, ranges: Sequence[Range] = ()) -> None:
        self._ref = ref
        self._declared = begin(ref, ranges) if ranges else None
        self._windows: list[_Window] = []  # where reading is, and what comes after it
        self._position = 0
        self._last_stop = -1

    def readable(self) -> bool:
        """Yes."""
        return True

    def seekable(self) -> bool:
        """Yes."""
        return True

    def tell(self) -> int:
        """The position."""
        return self._position

    def seek(self, offset: int, whence: int = 0) -> int:
        """Move the position."""
        base = (0, self._position, self._ref.size)[whence]
        self._position = base + offset
        return self._position

    def read(self, nbytes: int = -1) -> bytes:
        """Bytes from the position on."""
        return bytes(self.read_buffer(nbytes))

    def read_buffer(self, nbytes: int = -1) -> pa.Buffer:
        """The same without a copy; Arrow looks for this method."""
        start, size = self._position, self._ref.size
        stop = size if nbytes is None or nbytes < 0 else min(size, start + nbytes)
        if stop <= start:
            return pa.py_buffer(b"")
        data = None if self._declared is None else self._declared.get(start, stop)
        if data is None:
            data = self._stretch(start, stop)
        self._position = self._last_stop = stop
        return data

    def _stretch(self, start: int, stop: int) -> pa.Buffer:
        """Read bytes outside the prefetched ranges, window by window."""
        onwards = start == self._last_stop
        pieces: list[pa.Buffer] = []
        at = start
        while at < stop:
            pieces.append(self._piece(at, stop, onwards))
            at += pieces[-1].size
        return pieces[0] if len(pieces) == 1 else pa.py_buffer(b"".join(map(memoryview, pieces)))

    def _piece(self, start: int, stop: int, onwards: bool) -> pa.Buffer:
        for number, window in enumerate(self._windows):
            data = window.upto(start, stop)
            if data is not None:
                self._windows = self._windows[number:]
                break
        else:
            window = self._window(self._around(start, stop))
            self._windows = [window]
            data = window.upto(start, stop)
        assert data is not None
        if onwards and len(self._windows) < 2 and window.range.stop < self._ref.size:
            size = min(_AHEAD, 2 * window.range.size)
            self._windows.append(self._window(Range(window.range.stop, window.range.stop + size)))
        return data

    def _around(self, start: int, stop: int) -> Range:
        """At least `_SMALLEST` bytes; at the end of the file, where footers are, backwards."""
        high = min(self._ref.size, max(stop, start + _SMALLEST))
        return Range(max(0, min(start, high - _SMALLEST)), high)

    def _window(self, wanted: Range) -> _Window:
        inside = Range(wanted.start, min(wanted.stop, self._ref.size))
        return _Window(inside, begin(self._ref, [inside]))

    def close(self) -> None:
        """Let go of the bytes."""
        self._declared = None
        self._windows = []
        self.closed = True

    def flush(self) -> None:
        """Nothing to do."""
