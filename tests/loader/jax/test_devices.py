"""The device that a JAX loader's arrays go to, and what is said where there is none."""

from __future__ import annotations

import pytest

jax = pytest.importorskip("jax")
from tabfeed import Dataset  # noqa: E402
from tabfeed.errors import ArgumentError, LoaderError  # noqa: E402
from tabfeed.loader.jax import (  # noqa: E402
    Loader,
)


def test_where_there_is_no_other_memory_nothing_is_to_be_said() -> None:
    loader = Loader(Dataset({"a": [1, 2]}), 2, reader="cudf", device="cpu")
    assert loader.reader_choice == "Arrow: batches are made in host memory"


@pytest.mark.skipif(jax.default_backend() != "cpu", reason="there is a GPU")
def test_a_device_that_is_not_there() -> None:
    data = Dataset({"a": [1, 2]})
    for device in ("cuda", 0):
        with pytest.raises(LoaderError, match="but JAX finds none of that kind here, only cpu"):
            Loader(data, 2, device=device)


def test_a_device_and_a_sharding_contradict_each_other() -> None:
    sharding = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    with pytest.raises(ArgumentError, match="device and sharding both set where arrays go"):
        Loader(Dataset({"a": [1, 2]}), 2, device="cpu", sharding=sharding)
