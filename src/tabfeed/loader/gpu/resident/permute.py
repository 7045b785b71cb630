"""A permutation of all rows, drawn on the device that will use it.

Every row draws a 64-bit key from its number and two words that follow from seed and epoch; sorting
the rows by key gives the permutation. Keys are integers computed from integers, and no two are
equal (each step of the mixing is invertible), so the result is the same on every rank, device and
version, which `torch.randperm` does not promise.

Rows are sorted in buckets, by the first bits of their keys. That bounds the memory needed beside
the result, and does not change the result.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from tabfeed.loader.plan import Epoch

__all__ = ["AT_ONCE", "WORKING_BYTES", "epoch_words", "index_dtype", "permutation"]

Tensor = torch.Tensor
AT_ONCE = 2**22  # rows
WORKING_BYTES = 96  # for each of them, while it is sorted
_GAMMA = 0x9E3779B97F4A7C15
_MIX = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB))  # of splitmix64


def epoch_words(epoch: Epoch) -> tuple[int, int]:
    """The two words from which an epoch's permutation is drawn."""
    sequence = np.random.SeedSequence([epoch.plan.seed % 2**64, epoch.number, 2])
    first, second = sequence.generate_state(2, np.uint64).tolist()
    return first, second


def index_dtype(rows: int) -> torch.dtype:
    """The dtype of row numbers: 32 bits where that is enough."""
    return torch.int32 if rows < 2**31 else torch.int64


def permutation(
    rows: int, words: tuple[int, int], device: torch.device, *, at_once: int = AT_ONCE
) -> Tensor:
    """The numbers from 0 to ``rows - 1`` in an order determined by `words`.

    Parameters
    ----------
    rows
        How many.
    words
        Two numbers of 64 bits.
    device
        Where to work.
    at_once
        About how many rows to sort at a time.

    Examples
    --------
    >>> one = permutation(1000, (1, 2), torch.device("cpu"))
    >>> torch.equal(one.sort().values, torch.arange(1000, dtype=torch.int32))
    True
    >>> torch.equal(one, permutation(1000, (1, 2), torch.device("cpu"), at_once=300))
    True
    """
    bits = max(0, (-(-rows // at_once) - 1).bit_length())
    draw = _Draw(rows, words, device, at_once)
    out = torch.empty(rows, dtype=index_dtype(rows), device=device)
    end = 0
    for first in range(-(2**bits) // 2, 2**bits // 2) if bits else (0,):
        keys, numbers = draw.bucket(bits, first) if bits else draw.all()
        start, end = end, end + len(keys)
        torch.index_select(numbers, 0, keys.argsort(), out=out[start:end])
    return out


@dataclass(frozen=True)
class _Draw:
    """Computes the keys of so many rows, anew at each call."""

    rows: int
    words: tuple[int, int]
    device: torch.device
    at_once: int

    def all(self) -> tuple[Tensor, Tensor]:
        """All keys, and their rows."""
        numbers = torch.arange(self.rows, dtype=index_dtype(self.rows), device=self.device)
        return self._keys(0, self.rows), numbers

    def bucket(self, bits: int, first: int) -> tuple[Tensor, Tensor]:
        """The keys whose first bits are those of a signed number, and their rows."""
        found = []
        for low in range(0, self.rows, self.at_once):
            keys = self._keys(low, min(self.rows, low + self.at_once))
            places = ((keys >> (64 - bits)) == first).nonzero().squeeze(1)
            found.append((keys[places], (places + low).to(index_dtype(self.rows))))
        return torch.cat([keys for keys, _ in found]), torch.cat([rows for _, rows in found])

    def _keys(self, low: int, high: int) -> Tensor:
        """The keys of the rows ``[low, high)``: splitmix64 twice, the second word in between."""
        keys = torch.arange(low, high, device=self.device)
        keys.mul_(_signed(_GAMMA)).add_(_signed(self.words[0]))
        _mix(keys)
        keys.bitwise_xor_(_signed(self.words[1]))
        return _mix(keys)


def _mix(keys: Tensor) -> Tensor:
    for shift, factor in _MIX:
        keys.bitwise_xor_(_shifted(keys, shift)).mul_(_signed(factor))
    return keys.bitwise_xor_(_shifted(keys, 31))


def _shifted(keys: Tensor, count: int) -> Tensor:
    """Logical shift to the right; torch itself shifts in the sign."""
    return (keys >> count).bitwise_and_((1 << (64 - count)) - 1)


def _signed(word: int) -> int:
    """The 64 bits of a word as torch's int64 has them."""
    return word - 2**64 if word >= 2**63 else word
