from collections import namedtuple

import numpy as np
import pytest

from tabfeed.profile.collect.batches import RowCounter, batch_bytes, batch_rows
from tabfeed.profile.collect.probe import halve


def test_rows_are_what_most_arrays_have() -> None:
    batch = {"names": np.zeros(2), "x": np.zeros((5, 3)), "y": (np.zeros(5), None)}
    assert batch_rows(batch) == 5


@pytest.mark.parametrize("batch", [None, 3, "abc", [], {}, [np.float32(1)], object()])
def test_rows_that_cannot_be_seen(batch: object) -> None:
    assert batch_rows(batch) is None


def test_batches_of_another_form_are_looked_at_again() -> None:
    count = RowCounter()
    assert count({"x": np.zeros(3)}) == 3
    assert count([np.zeros(4)]) is None  # found out here
    assert count([np.zeros(4)]) == 4


def test_the_frameworks_tensors() -> None:
    torch = pytest.importorskip("torch")
    tf = pytest.importorskip("tensorflow")
    jnp = pytest.importorskip("jax.numpy")
    batch = [torch.zeros(6, 2), tf.zeros((6, 3)), jnp.zeros((6,), dtype="int8")]
    assert batch_rows(batch) == 6
    assert batch_bytes(batch) == 6 * (8 + 12 + 1)


def test_halving_keeps_the_form() -> None:
    pair = namedtuple("pair", "a b")
    half = halve(pair(np.arange(4), {"t": (np.arange(4), "name"), "k": np.arange(3)}))
    assert type(half) is pair
    assert half.a.tolist() == [0, 1]
    assert half.b["t"][0].tolist() == [0, 1]
    assert half.b["t"][1] == "name"
    assert half.b["k"].tolist() == [0, 1, 2]
