from collections import namedtuple

import numpy as np
import pytest

from tabfeed.profile.collect.batch_sizes import RowCounter, batch_bytes, batch_rows
from tabfeed.profile.collect.limits import halve
from tabfeed.profile.collect.sums import Bins, Curve


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


def test_a_curve_never_grows_beyond_its_size() -> None:
    curve = Curve(most=100)
    for i in range(10_000):
        curve.add(i, float(i))
    assert 50 <= len(curve.points) <= 100
    steps = np.diff([t for t, _ in curve.points])
    assert (steps == steps[0]).all()
    assert curve.points[0] == (0, 0.0)
    assert curve.points[-1][0] > 9_000


def test_bins_keep_every_amount() -> None:
    bins = Bins(width=10, most=8)
    random = np.random.default_rng(0)
    total = 0.0
    for start in range(0, 5_000, 7):
        amount = float(random.random())
        bins.add("a", start, start + int(random.integers(0, 60)), amount)
        total += amount
    assert max(bins.sums["a"]) < 8
    assert sum(bins.sums["a"].values()) == pytest.approx(total)
