"""CRC32C of many records at once, in NumPy.

TFRecord files carry a CRC32C ("Castagnoli") of every length and of every record. Python has no
CRC32C, and neither has any library tabfeed is built on. A CRC is linear over bits, so a register
fed four bytes is two lookups in tables of 65,536 entries; here all records of a block take that
step together, right-aligned so that they end together: leading zeros leave an empty register
empty. What starting from all ones instead of zero adds depends on the length alone and comes from a
table. Long records are cut into pieces of 4 KiB, which are joined in the end.

That costs one to two nanoseconds a byte on one thread, without the GIL. A library written in C
needs 0.15 microseconds a record and next to nothing a byte, which for small records is a fifth of
the time that reading them takes: not worth a dependency.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import numpy.typing as npt

__all__ = ["PAD", "crc32c", "crc32c_of_words", "masked"]

U32 = npt.NDArray[np.uint32]
Ints = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]

PAD = 64
"""Bytes that must lie before the first record in a buffer; their values do not matter."""

_POLYNOMIAL = np.uint32(0x82F63B78)
_ONES = np.uint32(0xFFFFFFFF)
_PIECE = 4096
_LOCKSTEP = 8192
_LOW = np.uint32(0xFFFF)
_HIGH = np.uint32(16)


def masked(crc: U32) -> U32:
    """As TFRecord files store it: rotated and moved, so that a CRC of CRCs is still of use."""
    return ((crc >> np.uint32(15)) | (crc << np.uint32(17))) + np.uint32(0xA282EAD8)


def crc32c(data: Bytes, starts: Ints, ends: Ints) -> U32:
    """The CRC32C of each of the ranges ``data[start:end]``; `PAD` bytes lie before the first.

    Examples
    --------
    >>> data = np.frombuffer(bytes(PAD) + b"123456789", np.uint8)
    >>> [hex(c) for c in crc32c(data, np.array([PAD, PAD]), np.array([PAD + 9, PAD]))]
    ['0xe3069283', '0x0']
    """
    counts = np.maximum(1, -(-(ends - starts) // _PIECE))
    if int(counts.max(initial=1)) == 1:
        return _finish(_started(ends - starts) ^ _registers(data, starts, ends))
    # Pieces are right-aligned: only the first of a record is shorter than the others.
    first = np.cumsum(counts) - counts
    place = np.arange(int(counts.sum())) - np.repeat(first, counts)
    piece_ends = np.repeat(ends, counts) - _PIECE * (np.repeat(counts, counts) - 1 - place)
    piece_starts = np.maximum(piece_ends - _PIECE, np.repeat(starts, counts))
    found = _registers(data, piece_starts, piece_ends)
    joined = _started(piece_ends[first] - starts) ^ found[first]
    for k in range(1, int(counts.max())):
        longer = np.flatnonzero(counts > k)
        joined[longer] = _look_up(_step(_PIECE), joined[longer]) ^ found[first[longer] + k]
    return _finish(joined)


def crc32c_of_words(words: npt.NDArray[np.uint64]) -> U32:
    """The CRC32C of each word's eight bytes, little end first.

    Examples
    --------
    >>> hex(crc32c_of_words(np.frombuffer(b"12345678", "<u8"))[0])
    '0x6087809a'
    """
    tables = _step(4)
    low = (words & np.uint64(_ONES)).astype(np.uint32)
    high = (words >> np.uint64(32)).astype(np.uint32)
    return _finish(_look_up(tables, _look_up(tables, low ^ _ONES) ^ high))


def _finish(register: U32) -> U32:
    return register ^ _ONES


# -- registers that start from zero -----------------------------------------------------


def _registers(data: Bytes, starts: Ints, ends: Ints) -> U32:
    """The register after each range of at most `_PIECE` bytes, started from zero."""
    found = np.zeros(len(starts), np.uint32)
    segments = -(-(ends - starts) // PAD)
    order = np.argsort(-segments.astype(np.int16), kind="stable")
    for low in range(0, len(order), _LOCKSTEP):
        chosen = order[low : low + _LOCKSTEP]
        found[chosen] = _lockstep(data, starts[chosen], ends[chosen], segments[chosen])
    return found


def _lockstep(data: Bytes, starts: Ints, ends: Ints, segments: Ints) -> U32:
    """Ranges, those with most segments of `PAD` bytes first; all end together."""
    register = np.zeros(len(starts), np.uint32)
    windows = np.ndarray((len(data) - PAD + 1,), f"V{PAD}", data, strides=(1,))
    remaining = int(segments[0]) if len(segments) else 0
    for left in range(remaining, 0, -1):
        active = int(np.searchsorted(-segments, -left, side="right"))
        at = ends[:active] - PAD * left
        words = windows[at].view(np.uint32).reshape(active, PAD // 4)
        new = int(np.searchsorted(-segments, -left, side="left"))
        words[new:] &= _front_masks()[starts[new:active] - at[new:]]
        _feed(register[:active], words)
    return register


def _feed(register: U32, words: U32) -> None:
    """Change each register by its row of words; indices of NumPy's own type save it a copy."""
    low, high = _step(4)
    columns = words.T.astype(np.intp, order="C")
    index = np.empty(len(register), np.intp)
    upper = np.empty(len(register), np.uint32)
    for x in columns:
        np.bitwise_xor(x, register, out=x)
        np.bitwise_and(x, 0xFFFF, out=index)
        np.right_shift(x, 16, out=x)
        np.take(low, index, out=register, mode="clip")
        np.take(high, x, out=upper, mode="clip")
        np.bitwise_xor(register, upper, out=register)


@cache
def _front_masks() -> U32:
    """Row r hides the first r bytes of a segment."""
    shown = np.arange(PAD)[None, :] >= np.arange(PAD)[:, None]
    masks = np.where(shown, 255, 0).astype(np.uint8)
    return np.frombuffer(masks.tobytes(), np.uint32).reshape(PAD, PAD // 4)


# -- tables -----------------------------------------------------------------------------


def _look_up(tables: tuple[U32, U32], register: U32) -> U32:
    low, high = tables
    found: U32 = low[register & _LOW] ^ high[register >> _HIGH]
    return found


@cache
def _step(nbytes: int) -> tuple[U32, U32]:
    """Tables that feed a register `nbytes` zero bytes, a power of two."""
    basis = _basis(nbytes)
    return _table(basis[:16]), _table(basis[16:])


@cache
def _basis(nbytes: int) -> U32:
    """What becomes of each single bit of the register after `nbytes` zero bytes."""
    if nbytes == 1:
        bits = np.uint32(1) << np.arange(32, dtype=np.uint32)
        for _ in range(8):
            bits = (bits >> np.uint32(1)) ^ (bits & np.uint32(1)) * _POLYNOMIAL
        return bits
    half = _basis(nbytes // 2)
    return _look_up((_table(half[:16]), _table(half[16:])), half)


def _table(basis: U32) -> U32:
    """The sums of all subsets of 16 values."""
    table = np.zeros(1, np.uint32)
    for value in basis:
        table = np.concatenate([table, table ^ value])
    return table


def _started(lengths: Ints) -> U32:
    """A register of ones after that many zero bytes, `_PIECE` at most."""
    return _started_table()[lengths]


@cache
def _started_table() -> U32:
    table = np.array([_ONES], np.uint32)
    while len(table) <= _PIECE:
        table = np.concatenate([table, _look_up(_step(len(table)), table)])
    return table
