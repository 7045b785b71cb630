"""Random columns for any range of rows.

Each column has its own stream of 64-bit words, keyed by (seed, table, column), and row ``i`` is
made from word ``i``. A stream can jump, so rows 5,000,000 to 5,250,000 are made without the five
million before them: chunks are independent of each other, and of the number of threads, files and
row groups.

Words become values by integer arithmetic, correctly rounded float operations and look-ups in two
small tables. ``exp`` and ``log`` are used only to make these tables, since their last bit can
differ between processors. The price: the normal distribution is the sum of four uniform ones (no
value beyond 3.47 standard deviations), and the log-uniform one is linear within each of 1,024
cells.

Properties of an *id* (the genres of movie 7, the worth of ad 12) are not drawn but hashed from the
id, so they are the same in every row, chunk and seed, without a table.

Here NumPy arrays also become Arrow arrays of types that NumPy lacks: strings, lists, nulls.
Everything works on whole arrays; there are no loops over rows.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

Words = npt.NDArray[np.uint64]
Ids = npt.NDArray[np.int32]
Floats = npt.NDArray[np.float32]
Mask = npt.NDArray[np.bool_]

_CELLS = 1024


def bits(seed: int, key: tuple[int, ...], start: int, stop: int) -> Words:
    """Words `start` to `stop` of the stream that `seed` and `key` name.

    Examples
    --------
    >>> whole = bits(7, (0, 1), 0, 10)
    >>> bool((bits(7, (0, 1), 4, 10) == whole[4:]).all())
    True
    """
    stream = np.random.PCG64DXSM(np.random.SeedSequence(seed, spawn_key=key))
    stream.advance(start)
    words: Words = stream.random_raw(stop - start)
    return words


def uniform(words: Words) -> Floats:
    """Uniform in [0, 1), from the upper half of each word."""
    unit: Floats = (words >> np.uint64(40)).astype(np.float32)
    unit *= np.float32(2**-24)
    return unit


def normal(words: Words) -> Floats:
    """Approximately standard normal, between -3.47 and 3.47."""
    return standard(bell(words))


def bell(words: Words) -> npt.NDArray[np.int32]:
    """The sum of a word's four quarters: 0 to 262,140, bell-shaped."""
    quarters = words.view(np.uint16).reshape(-1, 4)
    total: npt.NDArray[np.int32] = quarters[:, 0].astype(np.int32)
    for i in (1, 2, 3):
        total += quarters[:, i]
    return total


def standard(bells: npt.NDArray[np.int32]) -> Floats:
    """Values of `bell`, shifted and scaled to mean 0 and variance 1."""
    value: Floats = bells.astype(np.float32)
    value -= np.float32(2 * 65535)
    value *= np.float32(1 / 37837.23)
    return value


def chance(words: Words, probability: float) -> Mask:
    """True with this probability, which must be below 1."""
    hit: Mask = words < np.uint64(int(probability * 2**64))
    return hit


def spread(words: Words, count: int) -> Ids:
    """Uniform over ``0 .. count - 1``."""
    scaled = (words >> np.uint64(32)) * np.uint64(count)
    return (scaled >> np.uint64(32)).astype(np.int32)


def pick(words: Words, weights: tuple[float, ...]) -> Ids:
    """``0 .. len(weights) - 1`` in proportion to the weights."""
    edges = np.cumsum(weights[:-1]) / sum(weights)
    return np.searchsorted(edges.astype(np.float32), uniform(words), side="right").astype(np.int32)


def log_uniform(words: Words, count: int, *, flat: int = 1) -> Ids:
    """``0 .. count - 1``, small ones more often: the logarithm of ``value + flat`` is uniform.

    Parameters
    ----------
    words
        One for each value.
    count
        How many values there are.
    flat
        About how many of the smallest values are equally frequent; a larger `flat` makes
        the head less heavy.

    Examples
    --------
    >>> ids = log_uniform(bits(0, (0,), 0, 10_000), 1023)
    >>> int((ids < 31).sum())  # half of them, since log2(32) is half of log2(1024)
    5028
    """
    low, width = _cells(count, flat)
    halves = words.view(np.uint32)
    cell = (words >> np.uint64(54)).view(np.int64)
    value: Floats = (halves[..., 0::2] >> np.uint32(8)).astype(np.float32)
    value *= np.float32(2**-24)
    value *= width.take(cell)
    value += low.take(cell)
    ids: Ids = value.astype(np.int32)
    return np.minimum(ids, np.int32(count - 1), out=ids)


@cache
def _cells(count: int, flat: int) -> tuple[Floats, Floats]:
    """Where each cell of the log-uniform distribution begins, and how wide it is."""
    edges = flat * ((count + flat) / flat) ** (np.arange(_CELLS + 1) / _CELLS) - flat
    return edges[:-1].astype(np.float32), np.diff(edges).astype(np.float32)


def mix(ids: npt.NDArray[Any], salt: int) -> npt.NDArray[np.uint32]:
    """Scramble 32-bit ids, one to one; another salt scrambles otherwise.

    Examples
    --------
    >>> [f"{value:08x}" for value in mix(np.arange(3, dtype=np.int32), salt=1)]
    ['92ca2f0e', '36deb503', 'b4421bbb']
    """
    x = ids.astype(np.uint32)
    x ^= np.uint32(salt * 0x9E3779B9 & 0xFFFFFFFF)
    x ^= x >> np.uint32(16)
    x *= np.uint32(0x85EBCA6B)
    x ^= x >> np.uint32(13)
    x *= np.uint32(0xC2B2AE35)
    x ^= x >> np.uint32(16)
    return x


def hashed(ids: npt.NDArray[Any], salt: int) -> Words:
    """A word for each id, independent of the seed."""
    words: Words = mix(ids, 2 * salt).astype(np.uint64)
    words <<= np.uint64(32)
    words |= mix(ids, 2 * salt + 1)
    return words


def effect(ids: npt.NDArray[Any], salt: int) -> Floats:
    """The effect of each id in the hidden model: uniform in [-1, 1), independent of the seed."""
    worth: Floats = (mix(ids, salt) >> np.uint32(8)).astype(np.float32)
    worth *= np.float32(2**-23)
    worth -= np.float32(1)
    return worth


def link(score: Floats) -> Floats:
    """Map a score to a probability; like a logistic curve with heavier tails."""
    bent: Floats = score / np.sqrt(np.float32(1) + score * score)
    bent *= np.float32(0.5)
    bent += np.float32(0.5)
    return bent


def hex_strings(
    values: npt.NDArray[np.uint32], nulls: npt.NDArray[np.bool_] | None = None
) -> pa.Array:
    """Format each value as eight hex digits.

    Examples
    --------
    >>> hex_strings(np.array([10, 3735928559], np.uint32)).to_pylist()
    ['0000000a', 'deadbeef']
    """
    digits = _four_digits()
    text = np.empty((len(values), 2), np.uint32)
    text[:, 0] = digits.take(values >> np.uint32(16))
    text[:, 1] = digits.take(values & np.uint32(0xFFFF))
    offsets = np.arange(0, 8 * len(values) + 1, 8, dtype=np.int32)
    valid = None if nulls is None else pa.py_buffer(np.packbits(~nulls, bitorder="little"))
    buffers = [valid, pa.py_buffer(offsets), pa.py_buffer(text)]
    return pa.Array.from_buffers(pa.string(), len(values), buffers)


@cache
def _four_digits() -> npt.NDArray[np.uint32]:
    """The four hex digits of every 16-bit number, as the bytes of one word each."""
    text = "".join(f"{i:04x}" for i in range(1 << 16)).encode()
    return np.frombuffer(text, np.uint32)


def ragged(values: pa.Array, keep: npt.NDArray[np.bool_]) -> pa.Array:
    """Lists of the kept values of each row.

    Parameters
    ----------
    values
        The kept values, row by row.
    keep
        Which values of each row are kept, as (rows, positions).

    Examples
    --------
    >>> ragged(pa.array([1, 2, 3]), np.array([[True, True], [False, True]])).to_pylist()
    [[1, 2], [3]]
    """
    offsets = np.zeros(len(keep) + 1, np.int32)
    np.cumsum(keep.sum(axis=1), out=offsets[1:])
    return pa.ListArray.from_arrays(offsets, values)


def joined(*parts: pa.Array | str) -> pa.Array:
    """Concatenate texts and numbers in each row.

    Examples
    --------
    >>> joined("Movie ", pa.array([1, 2]), "!").to_pylist()
    ['Movie 1!', 'Movie 2!']
    """
    texts = [p if isinstance(p, str) else p.cast(pa.string()) for p in parts]
    return pc.binary_join_element_wise(*texts, "")
