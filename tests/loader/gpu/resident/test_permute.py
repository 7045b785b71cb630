"""The permutation of all rows: what it is made of, and that it is one."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tabfeed.loader.gpu.resident.permute import epoch_words, index_dtype, permutation
from tabfeed.loader.plan import Plan

CPU = torch.device("cpu")


def splitmix(z):
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


def by_hand(rows, words):
    """The same in NumPy's unsigned integers; the order is that of signed keys."""
    numbers = np.arange(rows, dtype=np.uint64)
    keys = splitmix(numbers * np.uint64(0x9E3779B97F4A7C15) + np.uint64(words[0]))
    keys = splitmix(keys ^ np.uint64(words[1]))
    return np.argsort(keys.view(np.int64), kind="stable")


def test_splitmix_is_that_of_the_books():
    # The first outputs of splitmix64 seeded with 0, as its authors publish them.
    with np.errstate(over="ignore"):
        states = np.arange(1, 4, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    assert splitmix(states).tolist() == [
        0xE220A8397B1DCDAF,
        0x6E789E6AA1B965F4,
        0x06C45D188009454F,
    ]


@pytest.mark.parametrize("rows", [1, 2, 50, 5001])
@pytest.mark.parametrize("at_once", [1, 300, 2**22])
def test_it_is_the_order_of_the_keys(rows, at_once):
    at_once = max(at_once, rows // 50)
    words = (2**64 - 5, 2**63 + 11)
    got = permutation(rows, words, CPU, at_once=at_once)
    assert got.dtype == torch.int32
    assert got.tolist() == by_hand(rows, words).tolist()


def test_epochs_and_seeds_differ_and_repeat():
    plan = Plan((500, 500), 10, seed=3)
    words = [epoch_words(plan.epoch(e)) for e in (0, 1)]
    words += [epoch_words(Plan((500, 500), 10, seed=s).epoch(0)) for s in (4, -1)]
    assert len(set(words)) == 4
    assert epoch_words(Plan((1000,), 7, seed=3).epoch(0)) == words[0]  # of the cut, nothing depends


def test_every_place_is_as_likely():
    """Where the first of 8 rows goes, over 2000 epochs: chi-square with 7 degrees of freedom."""
    plan = Plan((8,), 1)
    where = [int(permutation(8, epoch_words(plan.epoch(e)), CPU)[0]) for e in range(2000)]
    counts = np.bincount(where, minlength=8)
    assert ((counts - 250) ** 2 / 250).sum() < 24.3  # one in a thousand


def test_numbers_are_as_wide_as_they_must_be():
    assert index_dtype(2**31 - 1) == torch.int32
    assert index_dtype(2**31) == torch.int64
