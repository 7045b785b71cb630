"""Keras's loader where tensors lie on a GPU; run it with KERAS_BACKEND torch and jax."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

keras = pytest.importorskip("keras")
if keras.backend.backend() == "tensorflow":
    pytest.skip("TensorFlow copies to a GPU itself", allow_module_level=True)

from tabfeed import Dataset  # noqa: E402
from tabfeed.loader.keras import KerasSequenceLoader  # noqa: E402

pytestmark = pytest.mark.gpu
ROWS = 300_000


def loader(device: str | None = None, **options: Any) -> KerasSequenceLoader:
    ids = np.arange(ROWS, dtype=np.int32)
    data = Dataset({"C": ids, "I": ids * 0.5, "y": ids % 2}, npartitions=7)
    return KerasSequenceLoader(
        data, 4096, label_names=["y"], cat_names=["C"], cont_names=["I"], device=device, **options
    )


def as_numpy(batch: Any) -> list[Any]:
    x, y = batch
    return [keras.ops.convert_to_numpy(t) for t in (x["C"], x["I"], y)]


def test_the_same_batches_as_on_the_cpu() -> None:
    on_gpu, on_cpu = loader(seed=3), loader("cpu", seed=3)
    for _ in range(2):
        for left, right in zip(on_gpu, on_cpu, strict=True):
            assert "cpu" not in str(left[1].device).lower()
            for a, b in zip(as_numpy(left), as_numpy(right), strict=True):
                assert a.dtype == b.dtype
                np.testing.assert_array_equal(a, b)


def test_batches_that_are_kept_stay_as_they_were() -> None:
    kept = [batch for _ in range(3) for batch in loader(seed=1)]
    seen = np.sort(np.concatenate([as_numpy(batch)[0][:, 0] for batch in kept]))
    np.testing.assert_array_equal(seen, np.repeat(np.arange(ROWS), 3))


@pytest.mark.skipif(keras.backend.backend() != "torch", reason="torch")
def test_threads_share_a_carrier() -> None:
    from tabfeed.loader.torch.carry import Carrier

    carry = Carrier("cuda")
    arrays = [np.full(1_000_000, i, np.int32) for i in range(64)]
    with ThreadPoolExecutor(8) as threads:
        for i, moved in enumerate(threads.map(carry, arrays)):
            assert moved.is_cuda and int(moved.min()) == int(moved.max()) == i
