"""The JAX door where arrays lie on a GPU."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest

jax = pytest.importorskip("jax")

from tabfeed import Dataset  # noqa: E402
from tabfeed.errors import LoaderError  # noqa: E402
from tabfeed.loader.jax import Loader, carry  # noqa: E402
from tabfeed.testing.loader import check_loader  # noqa: E402

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(jax.default_backend() != "gpu", reason="JAX finds no GPU here"),
]
ROWS = 300_000


def loader(device: Any = None, **options: Any) -> Loader:
    n = np.arange(ROWS)
    data = {"c": n, "d": (n % 100).astype(np.int32), "x": (n * 0.5).astype(np.float32), "y": n % 2}
    return Loader(Dataset(data, npartitions=7), 4096, targets=["y"], device=device, **options)


def arrays(batch: Any) -> dict[str, Any]:
    inputs, y = batch
    return {**inputs, "y": y}


@pytest.mark.parametrize("device", [None, "cuda", "gpu:0", 0])
def test_batches_are_on_the_gpu_by_default_and_by_name(device: Any) -> None:
    for array in arrays(next(iter(loader(device)))).values():
        assert {d.platform for d in array.devices()} == {"gpu"}


@pytest.mark.parametrize("shuffle", [True, False])
def test_the_gpu_gives_what_the_cpu_gives(shuffle: bool) -> None:
    carry._cut.clear_cache()
    on_gpu, on_cpu = loader("cuda", shuffle=shuffle), loader("cpu", shuffle=shuffle)
    for _ in range(2):
        for left, right in zip(on_gpu, on_cpu, strict=True):
            one, other = arrays(left), arrays(right)
            assert list(one) == list(other)
            assert {d.platform for a in other.values() for d in a.devices()} == {"cpu"}
            for name, array in one.items():
                assert array.dtype == other[name].dtype
                np.testing.assert_array_equal(array, other[name])
    assert carry._cut._cache_size() <= 2  # whole batches, and the short last one


def test_batches_that_are_kept_stay_as_they_were() -> None:
    """Buffers go round; one that is still being copied must not."""
    kept = [batch for _ in range(3) for batch in loader(shuffle=True, buffer_size="300KB")]
    seen = np.sort(np.concatenate([arrays(batch)["c"] for batch in kept]))
    np.testing.assert_array_equal(seen, np.repeat(np.arange(ROWS), 3))


def test_steps_that_are_queued_see_their_own_batch() -> None:
    """The model runs behind the program; each batch is dropped as soon as its step is queued."""

    @jax.jit
    def slow(total: Any, x: Any) -> Any:
        for _ in range(20):
            x = x @ (x.T @ x) / 4096.0
        return total + x.sum() * 0

    @jax.jit
    def count(total: Any, c: Any) -> Any:
        return total + (c % 1000).sum()

    total, idle = jax.numpy.int32(0), jax.numpy.float32(0)
    for inputs, _ in loader(shuffle=True):
        idle = slow(idle, inputs["x"].reshape(-1, 1) / ROWS)
        total = count(total, inputs["c"])
    assert int(total) == int((np.arange(ROWS) % 1000).sum())


def test_a_gpu_that_is_not_there() -> None:
    with pytest.raises(LoaderError, match="device is 'cuda:99', but there are"):
        loader("cuda:99")


@pytest.mark.timeout(300)
def test_every_promise_of_a_loader_holds_on_the_gpu() -> None:
    def read(batch: Any) -> dict[str, Any]:
        found = {name: np.asarray(array) for name, array in arrays(batch).items()}
        values, offsets = found.pop("words__values"), found.pop("words__offsets")
        return {**found, "words": [values[a:b].tolist() for a, b in pairwise(offsets)]}

    check_loader(lambda dataset, **how: Loader(dataset, targets=["y"], device="cuda", **how), read)
