"""Streams of units that stay open between slices.

Slices of one unit are mostly read in order. A stream that is left open where one slice ended gives
the next without decoding again what is before it, as long as the open streams take little memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pyarrow as pa

__all__ = ["OpenStreams", "UnitStream"]

_MOST_BYTES = 16 * 2**20
Key = tuple[int, int, tuple[str, ...]]  # file, unit, columns


class UnitStream:
    """A unit that is being streamed, and its next row."""

    def __init__(self, key: Key, batches: Iterator[pa.RecordBatch]) -> None:
        self.key, self.at, self.held = key, 0, 0
        self._batches = batches
        self._rest: pa.RecordBatch | None = None

    def take(self, start: int, rows: int | None) -> Iterator[pa.RecordBatch]:
        """Rows from `start` on, which is not before `at`; all the rest by default."""
        end = None if rows is None else start + rows
        while end is None or self.at < end:
            batch, self._rest = self._rest or next(self._batches, None), None
            if batch is None:
                return
            first, self.at = self.at, self.at + batch.num_rows
            if self.at <= start:
                continue
            low = max(0, start - first)
            if end is not None and self.at > end:
                self._rest, self.at = batch.slice(end - first), end
                batch = batch.slice(0, end - first)
            yield batch.slice(low)


class OpenStreams:
    """The streams of a `FileSet` that are open; threads share it, and none is pickled.

    Parameters
    ----------
    keeps
        Whether to keep any; not where slices are read in random order.
    """

    def __init__(self, keeps: bool = True) -> None:
        self._keeps = keeps
        self._streams: list[UnitStream] = []

    def resume(self, key: Key, start: int) -> UnitStream | None:
        """Take the open stream of a unit that is closest before a row; None if there is none."""
        fit = [s for s in list(self._streams) if s.key == key and s.at <= start]
        if not fit:
            return None
        closest = max(fit, key=lambda s: s.at)
        try:
            self._streams.remove(closest)
        except ValueError:  # another thread was faster
            return None
        return closest

    def keep(self, stream: UnitStream, held: int) -> None:
        """Keep a stream that holds so many bytes; the oldest are closed if all hold too much."""
        stream.held = held
        if self._keeps:
            self._streams.append(stream)
        while sum(s.held for s in list(self._streams)) > _MOST_BYTES:
            with suppress(IndexError):
                self._streams.pop(0)

    def __reduce__(self) -> tuple[Any, ...]:
        return OpenStreams, (self._keeps,)
