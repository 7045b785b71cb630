"""Chunks for JAX on a GPU: made there by torch, or copied in whole buffers."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

jax = pytest.importorskip("jax")
from tabfeed import Dataset  # noqa: E402
from tabfeed.errors import LoaderError, TabfeedWarning  # noqa: E402
from tabfeed.loader import Padding  # noqa: E402
from tabfeed.loader.jax import Loader, device_chunks, transfer  # noqa: E402
from tabfeed.loader.jax.transfer import WholeChunks  # noqa: E402
from tests.device.test_jax_gpu import ROWS, arrays, data, torch_on_gpu, write_files  # noqa: E402

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(jax.default_backend() != "gpu", reason="JAX finds no GPU here"),
]


@pytest.fixture(scope="module", params=["32 bits", "64 bits"])
def files(request: Any, tmp_path_factory: Any) -> Dataset:
    return write_files(tmp_path_factory.mktemp("files"), request.param)


Make = Callable[..., Loader]


@pytest.fixture(params=["torch", "whole buffers"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Who makes chunks for the GPU."""
    if request.param == "torch":
        torch_on_gpu()
    else:
        monkeypatch.setattr(device_chunks, "find_spec", lambda name: None)
    return str(request.param)


@pytest.fixture
def make(way: str) -> Make:
    """Gives loaders whose chunks are made in that way."""

    def loader(dataset: Dataset, **options: Any) -> Loader:
        made = Loader(dataset, 4096, **options)
        if options.get("device") != "cpu":
            assert_made(made, way)
        return made

    return loader


def assert_made(loader: Loader, way: str) -> None:
    choice, whole = loader.reader_choice, isinstance(loader.pipeline.stages.maker, WholeChunks)
    if way == "torch":
        assert not whole and choice.startswith("Arrow: how long steps wait")
    else:
        assert whole and choice.endswith("PyTorch, which makes batches on a GPU, is not installed")


@pytest.mark.parametrize("device", [None, "cuda", "gpu:0", 0])
def test_batches_are_on_the_gpu_by_default_and_by_name(make: Make, device: Any) -> None:
    for array in arrays(next(iter(make(data(), targets=["y"], device=device)))).values():
        assert {d.platform for d in array.devices()} == {"gpu"}


@pytest.mark.usefixtures("no_loader_threads")  # those of other loaders compile their own shapes
@pytest.mark.parametrize("shuffle", [True, False])
def test_the_gpu_gives_what_the_cpu_gives(make: Make, shuffle: bool) -> None:
    transfer._cut.clear_cache()
    on_gpu, on_cpu = (
        make(data(), targets=["y"], shuffle=shuffle, device=device) for device in ("cuda", "cpu")
    )
    for _ in range(2):
        for left, right in zip(on_gpu, on_cpu, strict=True):
            one, other = arrays(left), arrays(right)
            assert list(one) == list(other)
            assert {d.platform for a in other.values() for d in a.devices()} == {"cpu"}
            for name, array in one.items():
                assert array.dtype == other[name].dtype and array.dtype.itemsize == 4
                np.testing.assert_array_equal(array, other[name])
    assert transfer._cut._cache_size() <= 2  # whole batches, and the short last one


@pytest.mark.parametrize(
    ("kind", "number"), [("i8", 2**31), ("i8", -(2**40)), ("u8", 2**32), ("u8", 2**64 - 1)]
)
def test_what_does_not_fit_is_refused_and_named(make: Make, kind: str, number: int) -> None:
    values = np.full(ROWS, 5, kind)
    values[-1] = number
    dataset = Dataset({"a": np.arange(ROWS, dtype=kind), "b": values}, npartitions=7)
    low, high = min(number, 5), max(number, 5)
    with pytest.raises(LoaderError, match=f"column 'b' goes from {low} to {high}, beyond the 32"):
        for inputs, _ in make(dataset):
            assert inputs["b"].tolist() == [5] * len(inputs["b"])


def test_batches_that_are_kept_stay_as_they_were(make: Make, way: str) -> None:
    """Buffers go round; one that is still being copied must not."""
    little = {"device_memory": "25MB"} if way == "torch" else {"buffer_size": "300KB"}
    loader = make(data(), targets=["y"], shuffle=True, **little)
    kept = [batch for _ in range(3) for batch in loader]
    seen = np.sort(np.concatenate([arrays(batch)["c"] for batch in kept]))
    np.testing.assert_array_equal(seen, np.repeat(np.arange(ROWS), 3))


def test_steps_that_are_queued_see_their_own_batch(make: Make) -> None:
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
    for inputs, _ in make(data(), targets=["y"], shuffle=True):
        idle = slow(idle, inputs["x"].reshape(-1, 1) / ROWS)
        total = count(total, inputs["c"])
    assert int(total) == int((np.arange(ROWS) % 1000).sum())


def test_columns_that_torch_does_not_make_for_jax() -> None:
    torch_on_gpu()
    n = np.arange(ROWS)
    words = pa.ListArray.from_arrays(np.arange(0, ROWS + 1, dtype=np.int32), n)
    dataset = Dataset(pa.table({"c": n, "words": words}), npartitions=7)
    with pytest.warns(TabfeedWarning, match="there are list or text columns"):
        lists = Loader(dataset, 4096, reader="cudf")
    assert isinstance(lists.pipeline.stages.maker, WholeChunks)
    assert lists.reader_choice.endswith("and copied: there are list or text columns")
    padded = Loader(dataset, 4096, transforms=Padding(1))
    assert padded.reader_choice.endswith("Padding works in host memory for JAX")
    spread = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    sharded = Loader(dataset, 4096, columns=["c"], sharding=spread)
    assert "and copied: sharding= spreads batches" in sharded.reader_choice
    for loader in (lists, padded, sharded):
        found = np.concatenate([inputs["c"] for inputs, _ in loader])
        np.testing.assert_array_equal(found, n)


@pytest.mark.parametrize("limit", [{"device_memory": "30MB"}, {"buffer_size": "30MB"}])
def test_memory_on_the_gpu_is_bounded(files: Dataset, limit: dict[str, str]) -> None:
    torch = torch_on_gpu()
    torch.cuda.init()
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    gpu = jax.devices()[0]

    def of_torch(when: str = "current") -> int:
        return int(torch.cuda.memory_stats().get(f"active_bytes.all.{when}", 0))

    def in_use() -> int:
        return of_torch() + int(gpu.memory_stats()["bytes_in_use"])

    alone, before, held, rows = of_torch(), in_use(), 0, 0
    made = Loader(files, 4096, True, targets=["y"], **limit)
    for inputs, y in (batch for _ in range(2) for batch in made):
        held, rows = max(held, in_use() - before), rows + len(y)
        del inputs, y
    assert rows == 2 * ROWS
    assert_made(made, "torch")
    assert 10**6 < held <= 30 * 10**6
    assert 10**6 < of_torch("peak") - alone <= 30 * 10**6


@pytest.mark.parametrize("lists", [False, True])
def test_copies_keep_within_memory(monkeypatch: pytest.MonkeyPatch, lists: bool) -> None:
    monkeypatch.setattr(device_chunks, "find_spec", lambda name: None)  # torch is not installed
    rows, length, gpu = 1_000_000, 4, jax.devices()[0]
    table = {"c": pa.array(np.arange(rows, dtype=np.int32))}
    if lists:
        values = np.arange(rows * length, dtype=np.int32)
        offsets = np.arange(0, rows * length + 1, length, dtype=np.int32)
        table["w"] = pa.ListArray.from_arrays(offsets, values)
    data = Dataset(pa.table(table), npartitions=20)
    transforms = Padding(length) if lists else None
    gc.collect()
    before, held, found = gpu.memory_stats()["bytes_in_use"], 0, 0
    for inputs, _ in Loader(data, 4096, transforms=transforms, device_memory="2MB"):
        held = max(held, gpu.memory_stats()["bytes_in_use"] - before)
        found += int(inputs["c"].sum() % 2**16)
        del inputs
    assert found and 0 < held <= 2 * 10**6
