"""Every promise of a loader, for JAX."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

jax = pytest.importorskip("jax")

from tabfeed import Dataset  # noqa: E402
from tabfeed.errors import LoaderError  # noqa: E402
from tabfeed.loader.jax import Loader  # noqa: E402
from tabfeed.testing.loader import check_loader  # noqa: E402


def read(batch):
    inputs, y = batch
    assert all(isinstance(a, jax.Array) for a in [*inputs.values(), y])
    values, offsets = np.asarray(inputs["words__values"]), np.asarray(inputs["words__offsets"])
    words = [values[a:b].tolist() for a, b in pairwise(offsets)]
    return {n: np.asarray(inputs[n]) for n in ("key", "check", "x")} | {
        "y": np.asarray(y),
        "words": words,
    }


def test_promises():
    check_loader(lambda dataset, **options: Loader(dataset, targets=["y"], **options), read)


def test_a_sharding_spreads_the_rows_over_the_devices():
    mesh = jax.sharding.Mesh(np.array(jax.devices()), ("rows",))
    sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("rows"))
    rows = 8 * len(jax.devices())
    loader = Loader(Dataset({"x": np.arange(rows)}), rows // 2, sharding=sharding)
    batches = list(loader)
    assert [b["x"].sharding for b, _ in batches] == [sharding, sharding]
    assert np.concatenate([b["x"] for b, _ in batches]).tolist() == list(range(rows))


def test_ids_beyond_32_bits_are_refused():
    loader = Loader(Dataset({"x": np.array([1, 2**40])}), 2)
    with pytest.raises(LoaderError, match="column 'x' goes from 1 to 1099511627776, beyond the 32"):
        next(iter(loader))
