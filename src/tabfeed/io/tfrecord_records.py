"""Blocks of records: cut out of a file, verified, and walked when somebody asks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from tabfeed.io.failures import bad_file
from tabfeed.io.source import Location
from tabfeed.io.tfrecord_crc import PAD, crc32c, masked
from tabfeed.io.tfrecord_frames import FOOTER, HEADER, place, whole_frames
from tabfeed.io.tfrecord_slow import Feature, NotAnExampleError, parse_example
from tabfeed.io.tfrecord_walk import PAD_AFTER, Bytes, Ints, Walk

__all__ = ["Records", "records_of"]

# What the caches hold, and enough records that a step of the walk is more than its overhead.
_BLOCK_BYTES = 2**22
_BLOCK_RECORDS = 2**14


@dataclass(frozen=True)
class Records:
    """Some records of a file, their checksums verified.

    ``starts`` and ``ends`` are places in ``data``; ``offset`` is what to add to a place for that
    in the file.
    """

    location: Location
    data: Bytes
    starts: Ints
    ends: Ints
    offset: int

    def __len__(self) -> int:
        return len(self.starts)

    @property
    def nbytes(self) -> int:
        """Bytes in the file."""
        return int((self.ends - self.starts).sum()) + len(self) * (HEADER + FOOTER)

    @cached_property
    def walk(self) -> Walk:
        """Where the features lie."""
        return Walk(self.data, self.starts, self.ends)

    @cached_property
    def odd(self) -> dict[int, dict[str, Feature]]:
        """The records that have been read one by one."""
        return {int(row): self.parse(int(row)) for row in np.flatnonzero(self.walk.odd)}

    def parse(self, row: int) -> dict[str, Feature]:
        """Read one record."""
        try:
            return parse_example(self.data[self.starts[row] : self.ends[row]].tobytes())
        except NotAnExampleError as e:
            raise bad_file(self.location, f"cannot be read: {self.where(row)} {e}") from e

    def where(self, row: int) -> str:
        """How to name a record."""
        at = self.offset + int(self.starts[row]) - HEADER
        return f"the record at {place(self.location, at)}"


def records_of(location: Location, data: bytes, offset: int) -> Iterator[Records]:
    """Whole frames as blocks that the caches hold; `offset` is where they start in the file."""
    bounds = whole_frames(location, data, offset)
    first, count = 0, len(bounds) - 1
    while first < count:
        fit = int(np.searchsorted(bounds, bounds[first] + _BLOCK_BYTES, side="right")) - 1
        last = min(max(fit, first + 1), first + _BLOCK_RECORDS)
        low, high = int(bounds[first]), int(bounds[last])
        block = np.zeros(PAD + high - low + PAD_AFTER, np.uint8)
        block[PAD : PAD + high - low] = np.frombuffer(data, np.uint8, high - low, low)
        shift = PAD - low
        starts = bounds[first:last] + shift + HEADER
        ends = bounds[first + 1 : last + 1] + shift - FOOTER
        records = Records(location, block, starts, ends, offset - shift)
        _verify(records)
        yield records
        first = last


def _verify(records: Records) -> None:
    stored = np.ndarray((len(records.data) - 3,), "<u4", records.data, strides=(1,))[records.ends]
    wrong = masked(crc32c(records.data, records.starts, records.ends)) != stored
    if wrong.any():
        raise bad_file(
            records.location,
            f"is damaged: the checksum of {records.where(int(wrong.argmax()))} does not match",
        )
