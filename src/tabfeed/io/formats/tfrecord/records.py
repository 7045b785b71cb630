"""The records of a TFRecord file: where they are, as units, and verified in blocks.

A record is in a frame:

::

    8 bytes   length of the record, little end first
    4 bytes   masked CRC32C of those eight
    n bytes   the record
    4 bytes   masked CRC32C of the record

Nothing in the file says where frames start, so they are found by hopping from one to the next; a
hop is one read of eight bytes, and the checksums of the lengths are verified for many frames at
once. Looking for something that resembles a frame in the middle of a file would be quicker, but a
record may itself hold a TFRecord file.

google-crc32c computes the checksums: NumPy takes as long for records of a hundred bytes, and 27
times as long for those of 50 kB. Only for the lengths, of eight bytes each, tables in NumPy are
quicker than a call for each.

Compressed files are compressed as a whole, with gzip or
zlib whatever their names say; the first bytes tell, since a plain file starts with a frame.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass, fields
from functools import cache

import google_crc32c
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tabfeed.errors import BadFileError
from tabfeed.io.formats.text.stream import Text
from tabfeed.io.formats.tfrecord.values import Feature, NotAnExampleError, parse_example
from tabfeed.io.formats.tfrecord.walk import PAD_AFTER, Bytes, Ints, Walk
from tabfeed.io.storage.files import FileRef, bad_file, reading
from tabfeed.lazy import cached_property

__all__ = [
    "FOOTER",
    "HEADER",
    "Records",
    "Unit",
    "find_units",
    "frame_starts",
    "is_header",
    "records_of",
    "refuse_bomb",
    "unpacked",
    "whole_frames",
]

HEADER = 12
FOOTER = 4
_LONGEST = 2**31 - 1  # what a protocol buffer may have
_ALWAYS_READ = 2**27  # bytes of a record, however small the compressed file is
_WINDOW = 2**22
_PACKED_WINDOW = 2**18  # less of a damaged stream is lost
# What the caches hold, and enough records that a step of the walk is more than its overhead.
_BLOCK_BYTES = 2**22
_BLOCK_RECORDS = 2**14
_length = struct.Struct("<Q").unpack_from
_Checksums = npt.NDArray[np.uint32]


# -- compression ------------------------------------------------------------------------


@dataclass(frozen=True)
class _Plain(FileRef):
    """A file that is not compressed, whatever its name says."""

    @property
    def compressed(self) -> bool:
        return False


@dataclass(frozen=True)
class _Deflated(FileRef):
    """A file compressed with gzip or zlib, whatever its name says."""

    @property
    def compressed(self) -> bool:
        return True

    def stream(self) -> pa.NativeFile:
        return pa.CompressedInputStream(self.open(), "gzip")  # which takes zlib's header as well


def unpacked(ref: FileRef) -> FileRef:
    """The same file, its compression detected from its first bytes."""
    with reading(ref), ref.open() as file:
        start = bytes(file.read(HEADER))
    kind: type[FileRef] | None = None
    if is_header(start) or not start:
        kind = _Plain
    elif _is_deflated(start):
        kind = _Deflated
    elif ref.compressed:
        return ref
    if kind is None:
        raise bad_file(ref, f"is not a TFRecord file: it starts with {start!r}")
    return kind(**{f.name: getattr(ref, f.name) for f in fields(ref)})


def is_header(start: bytes) -> bool:
    """Whether these bytes start a frame: a length and the right checksum of it."""
    return len(start) >= HEADER and not _first_bad_header(start, np.zeros(1, np.int64))[0]


def _is_deflated(start: bytes) -> bool:
    gzip = start[:2] == b"\x1f\x8b"
    zlib = len(start) > 1 and start[0] & 15 == 8 and int.from_bytes(start[:2], "big") % 31 == 0
    return gzip or zlib


# -- hopping ----------------------------------------------------------------------------


def frame_starts(data: bytes, position: int = 0) -> tuple[Ints, int]:
    """Where the frames start whose headers lie in `data`, and where the next one would.

    Only lengths are looked at; the last frame may end beyond `data`.
    """
    starts = []
    last = len(data) - HEADER
    while position <= last:
        starts.append(position)
        position += _length(data, position)[0] + HEADER + FOOTER
    return np.array(starts, np.int64), position


def _first_bad_header(data: bytes, starts: Ints) -> tuple[bool, int]:
    """Whether a header among these is wrong, and which is the first."""
    words = np.ndarray((max(0, len(data) - 7),), "<u8", data, strides=(1,))[starts]
    wrong = (_crc32c_of_lengths(words) != _stored(data, starts + 8)) | (words > np.uint64(_LONGEST))
    first = int(wrong.argmax()) if len(wrong) else 0
    return bool(len(wrong) and wrong[first]), first


# -- checksums --------------------------------------------------------------------------


def _stored(data: bytes, places: Ints) -> _Checksums:
    """The checksums at these places; files hold them rotated and moved."""
    masked = np.ndarray((max(0, len(data) - 3),), "<u4", data, strides=(1,))[places]
    moved: _Checksums = masked - np.uint32(0xA282EAD8)
    return (moved >> np.uint32(17)) | (moved << np.uint32(15))


def _crc32c_of_lengths(words: npt.NDArray[np.uint64]) -> _Checksums:
    """The CRC32C of each word: what each of its bytes adds to that of zeros, looked up."""
    of_zeros, tables = _crc32c_tables()
    found = np.full(len(words), of_zeros)
    for table, values in zip(tables, words.view(np.uint8).reshape(-1, 8).T, strict=True):
        found ^= table[values]
    return found


@cache
def _crc32c_tables() -> tuple[np.uint32, _Checksums]:
    """The CRC32C of eight zeros, and what each value of each of the bytes changes of it."""
    rows = [
        [google_crc32c.value(bytes(i) + bytes([value]) + bytes(7 - i)) for value in range(256)]
        for i in range(8)
    ]
    found = np.array(rows, np.uint32)
    return found[0, 0], found ^ found[0, 0]


def whole_frames(ref: FileRef, data: bytes, offset: int) -> Ints:
    """Where the frames of `data` start, and where the last ends; their headers are verified.

    Parameters
    ----------
    ref
        The file, for the message.
    data
        Whole frames, without a gap.
    offset
        Where they start in the file.
    """
    starts, end = frame_starts(data)
    bad, first = _first_bad_header(data, starts)
    if bad:
        raise bad_length(ref, offset + int(starts[first]))
    if end != len(data):
        raise cut_short(ref, offset + int(starts[-1] if len(starts) else 0))
    return np.append(starts, end)


def bad_length(ref: FileRef, offset: int) -> BadFileError:
    """The error for a frame that does not start as one."""
    return bad_file(
        ref,
        f"is damaged at {place(ref, offset)}: the length of a record is expected there, and "
        "its checksum does not match",
    )


def cut_short(ref: FileRef, offset: int) -> BadFileError:
    """The error for a file that ends within a frame."""
    return bad_file(
        ref,
        f"is cut short: the record at {place(ref, offset)} is not all there",
    )


def refuse_bomb(ref: FileRef, offset: int, length: int) -> None:
    """Refuse a record of a compressed file that is far larger than the file."""
    if ref.compressed and length > max(_ALWAYS_READ, 100 * ref.size):
        raise bad_file(
            ref,
            f"has a record of {length:,} bytes at {place(ref, offset)}, over a hundred times "
            "the size of the file",
            remedy="Decompress the file, if it is not meant to exhaust memory",
        )


def place(ref: FileRef, offset: int) -> str:
    """An offset's name in errors; in a compressed file it counts decompressed bytes."""
    return f"byte {offset:,}" + (" (decompressed)" if ref.compressed else "")


# -- units ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Unit:
    """A run of whole frames; or, with an error, the rest of a file that cannot be cut."""

    start: int
    end: int
    rows: int
    error: BadFileError | None = None


def find_units(text: Text, block_size: int) -> list[Unit]:
    """Runs of frames of about `block_size` bytes, found in one pass over the file.

    What follows a damaged length, or is cut short, is a unit of its own that carries the error.
    """
    units: list[Unit] = []
    start = end = rows = 0
    error: BadFileError | None = None
    try:
        for ends in _frame_ends(text):
            while len(ends):
                fit = int(np.searchsorted(ends, start + block_size, side="right"))
                fit = 1 if fit == rows == 0 else fit  # a unit has one frame at least
                if fit:
                    rows, end, ends = rows + fit, int(ends[fit - 1]), ends[fit:]
                if len(ends):
                    units.append(Unit(start, end, rows))
                    start, rows = end, 0
    except BadFileError as e:
        error = e
    if rows:
        units.append(Unit(start, end, rows))
    if error is not None:
        units.append(Unit(end, end, 0, error))
    return units


def _frame_ends(text: Text) -> Iterator[Ints]:
    """Where successive frames end, window by window; raises where no frame can be made out.

    A frame counts when its last byte has been seen: the file may be cut short. `begun` is the
    one that has not been seen to its end.
    """
    size = _PACKED_WINDOW if text.ref.compressed else _WINDOW
    base = position = 0
    begun: int | None = None
    data = b""
    while True:
        with text.at(base + len(data)) as read:
            more = read(size)
        data += more
        reach = base + len(data)
        if not more:
            break
        if position > reach:
            continue
        starts, following = frame_starts(data, position - base)
        bad, first = _first_bad_header(data, starts)
        marks = np.append(starts, following) + base  # the first is the end of what came before
        if bad:
            marks = marks[: first + 1]
        whole = marks[0 if begun is not None else 1 :]
        yield whole[whole <= reach]
        if bad:
            raise bad_length(text.ref, int(marks[-1]))
        position = base + following
        begun = base + int(starts[-1]) if position > reach else None
        if position > reach:  # the rest of the frame is passed over, but for its last bytes
            data, base = b"", max(reach, position - FOOTER)
        else:
            data, base = data[position - base :], position
    if begun is not None or data:
        raise cut_short(text.ref, base if begun is None else begun)


# -- blocks of records --------------------------------------------------------------------


@dataclass(frozen=True)
class Records:
    """Some records of a file, their checksums verified.

    ``starts`` and ``ends`` are places in ``data``; ``offset`` is what to add to a place for that
    in the file.
    """

    ref: FileRef
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
            raise bad_file(self.ref, f"cannot be read: {self.where(row)} {e}") from e

    def where(self, row: int) -> str:
        """A record's name in errors."""
        at = self.offset + int(self.starts[row]) - HEADER
        return f"the record at {place(self.ref, at)}"


def records_of(ref: FileRef, data: bytes, offset: int) -> Iterator[Records]:
    """Whole frames as blocks that the caches hold; `offset` is where they start in the file."""
    bounds = whole_frames(ref, data, offset)
    first, count = 0, len(bounds) - 1
    while first < count:
        fit = int(np.searchsorted(bounds, bounds[first] + _BLOCK_BYTES, side="right")) - 1
        last = min(max(fit, first + 1), first + _BLOCK_RECORDS)
        low, high = int(bounds[first]), int(bounds[last])
        block = np.zeros(high - low + PAD_AFTER, np.uint8)
        block[: high - low] = np.frombuffer(data, np.uint8, high - low, low)
        starts = bounds[first:last] + HEADER
        ends = bounds[first + 1 : last + 1] - FOOTER
        records = Records(ref, block, starts - low, ends - low, offset + low)
        pairs = zip(starts.tolist(), ends.tolist(), strict=True)
        found = [google_crc32c.value(data[start:end]) for start, end in pairs]
        wrong = _stored(data, ends) != np.array(found, np.uint32)
        if wrong.any():
            raise bad_file(
                ref,
                f"is damaged: the checksum of {records.where(int(wrong.argmax()))} does not match",
            )
        yield records
        first = last
