"""How arrays reach a device of JAX: what is done for a GPU, walked on the CPU."""

from __future__ import annotations

import pickle
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

jax = pytest.importorskip("jax")

from tabfeed import Dataset  # noqa: E402
from tabfeed.errors import ArgumentError, LoaderError, TabfeedWarning  # noqa: E402
from tabfeed.loader import EmbeddingOperator, Padding  # noqa: E402
from tabfeed.loader.jax import (  # noqa: E402
    Loader,
    device_chunks,
    transfer,
)
from tabfeed.loader.jax.transfer import (  # noqa: E402
    JaxTransfer,
    WholeChunks,
    find_device,
)
from tabfeed.loader.options import GpuOptions  # noqa: E402

ROWS = 1000


def table() -> pa.Table:
    n = np.arange(ROWS)
    return pa.table(
        {
            "c": n,  # 64 bits wide, which JAX is not
            "d": (n * 7 % 100).astype(np.int32),
            "x": (n * 0.5).astype(np.float32),
            "words": [[int(k)] * (k % 4) for k in n],
            "name": [f"n{k}" for k in n],
            "y": n % 2,
        }
    )


def load(**options: Any) -> Loader:
    data = Dataset(table(), npartitions=5)
    return Loader(data, 64, targets=["y"], extras=["name"], **options)


@pytest.fixture
def as_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(JaxTransfer, "remote", property(lambda carrier: True))


@pytest.mark.parametrize("shuffle", [True, False])
def test_batches_cut_on_the_device_are_those_cut_before(
    shuffle: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = list(load(shuffle=shuffle))
    monkeypatch.setattr(JaxTransfer, "remote", property(lambda carrier: True))
    monkeypatch.setattr(transfer, "cpu_count", lambda: 16 if shuffle else 2)
    loader = load(shuffle=shuffle, device="cpu")
    assert isinstance(loader.pipeline.stages.maker, WholeChunks)
    found = list(loader)
    assert [len(y) for _, y in found] == [64] * 15 + [40]
    for (left, left_y), (right, right_y) in zip(expected, found, strict=True):
        names = ["c", "d", "x", "words__offsets", "words__values", "name"]
        assert list(left) == list(right) == names
        assert left["name"] == right["name"]
        pairs = [(left[n], right[n]) for n in left if n != "name"] + [(left_y, right_y)]
        for a, b in pairs:
            assert isinstance(b, jax.Array) and a.dtype == b.dtype
            np.testing.assert_array_equal(a, b)


def pretend_torch_makes_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Walk on the CPU what is done where both torch and JAX see a GPU."""
    torch = pytest.importorskip("torch")
    from tabfeed.loader.gpu.build import gpu_pipeline
    from tabfeed.loader.jax import torch_chunks
    from tests.loader.gpu.pretend import pretend_gpu

    pretend_gpu(monkeypatch)
    monkeypatch.setattr(JaxTransfer, "remote", property(lambda carrier: True))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    here = torch.device("cpu")
    monkeypatch.setattr(
        torch_chunks,
        "gpu_pipeline",
        lambda *parts, device, gpu, held: gpu_pipeline(*parts, device=here, gpu=gpu, held=held),
    )


@pytest.fixture
def torch_makes_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend_torch_makes_chunks(monkeypatch)


def narrow() -> Dataset:
    """Columns as JAX has them."""
    return Dataset(table().select(["d", "x"]), npartitions=5)


def same(one: Any, other: Any) -> bool:
    pairs = zip(one, other, strict=True)
    return all(np.array_equal(a[name], b[name]) for (a, _), (b, _) in pairs for name in a)


@pytest.mark.parametrize("shuffle", [True, False])
def test_chunks_that_torch_makes_are_the_same(torch_makes_chunks: None, shuffle: bool) -> None:
    from tabfeed.loader.gpu.delivery import GpuStages

    files = narrow()
    plain = Loader(files, 64, shuffle, sharding=jax.sharding.SingleDeviceSharding(jax.devices()[0]))
    loader = Loader(files, 64, shuffle, targets=["x"])
    assert isinstance(loader.pipeline.stages, GpuStages)
    for _ in range(2):
        for (left, _), (right, x) in zip(plain, loader, strict=True):
            assert isinstance(right["d"], jax.Array) and right["d"].dtype == np.int32
            np.testing.assert_array_equal(left["d"], right["d"])
            np.testing.assert_array_equal(left["x"], x)
    again = pickle.loads(pickle.dumps(loader.state))
    assert not isinstance(again.pipeline.stages, GpuStages)
    assert len(list(again)) == len(loader)


def test_readers_and_memory_are_torchs(torch_makes_chunks: None) -> None:
    from tabfeed.loader.gpu.delivery import GpuStages

    files = narrow()
    plain = Loader(files, 64, True, device_memory=3200)
    assert isinstance(plain.pipeline.stages.maker, WholeChunks)
    assert 'give device_memory="' in plain.reader_choice
    auto = Loader(files, 64, True)
    assert auto.reader_choice.startswith("Arrow: how long steps wait")
    with pytest.warns(TabfeedWarning, match="reading with Arrow: "):
        asked = Loader(files, 64, True, reader="cudf")
    assert isinstance(asked.pipeline.stages, GpuStages) and same(plain, asked)
    with pytest.raises(ArgumentError, match="reader is 'duck'"):
        Loader(files, 64, reader="duck")


def test_memory_is_given_up_if_there_is_none_left(
    torch_makes_chunks: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    from tabfeed.loader.gpu import gather, memory_plan

    monkeypatch.setattr(memory_plan, "_CHUNK_ROWS", 2 * 64)
    files = narrow()
    small = {"shuffle": True, "buffer_size": 1}  # chunks
    plain, loader = Loader(files, 64, device_memory=3200, **small), Loader(files, 64, **small)
    real, calls = gather.gather_all, []

    def failing(*arguments: Any) -> Any:
        calls.append(None)
        if len(calls) > 3:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB")
        return real(*arguments)

    monkeypatch.setattr(gather, "gather_all", failing)
    with pytest.warns(TabfeedWarning, match="no memory left on the GPU"):
        assert same(plain, loader)
    assert isinstance(loader.pipeline.stages.maker, WholeChunks)
    assert "given up its own" in loader.reader_choice
    assert len(calls) == 4 and same(plain, loader)


def why_torch_makes_none(case: str, monkeypatch: pytest.MonkeyPatch) -> tuple[dict[str, Any], str]:
    """Options for which chunks are made in host memory, and the reason given."""
    import torch

    from tabfeed.loader.jax import dicts

    if case == "no torch":
        monkeypatch.setattr(device_chunks, "find_spec", lambda name: None)
        return {"columns": ["d"]}, "PyTorch, which makes batches on a GPU, is not installed"
    if case == "no CUDA":
        monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
        return {"columns": ["d"]}, "PyTorch, which makes batches on a GPU, does not see this one"
    if case == "sharding":
        monkeypatch.setattr(dicts, "_has_own_memory", lambda transfer, sharding: True)
        here = jax.sharding.SingleDeviceSharding(jax.devices()[0])
        reason = "sharding= spreads batches over devices from host memory"
        return {"columns": ["d"], "sharding": here}, reason
    if case == "Padding":
        options = {"columns": ["d", "words"], "transforms": Padding(2)}
        return options, "Padding works in host memory for JAX"
    if case == "EmbeddingOperator":
        op = EmbeddingOperator(np.eye(100, dtype=np.float32), "d")
        options = {"columns": ["d"], "transforms": op}
        return options, "EmbeddingOperator works in host memory for JAX"
    if case == "lists":
        return {"columns": ["d", "words"]}, "there are list or text columns"
    return {"columns": ["words"]}, "there are only list or text columns"


CASES = ["no torch", "no CUDA", "sharding", "Padding", "EmbeddingOperator", "lists", "only lists"]


@pytest.mark.parametrize("case", CASES)
def test_what_torch_does_not_make_says_why(
    torch_makes_chunks: None, monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    options, reason = why_torch_makes_none(case, monkeypatch)
    data = Dataset(table(), npartitions=5)
    loader = Loader(data, 50, **options)
    said = f"Arrow: batches are made in host memory and copied: {reason}"
    assert loader.reader_choice == said
    with pytest.warns(TabfeedWarning) as caught:
        asked = Loader(data, 50, reader="cudf", **options)
    assert [str(w.message) for w in caught] == [f"reading with Arrow: {reason}"]
    assert caught[0].filename == __file__ and asked.reader_choice == said
    assert len(list(loader)) == len(list(asked)) == ROWS // 50


def test_where_ids_are_looked_at_torch_makes_no_chunks(torch_makes_chunks: None) -> None:
    """As Keras does for feature columns with so many buckets."""
    from tabfeed.loader.jax.torch_chunks import made_by_torch

    pipeline = Loader(narrow(), 64, device_memory=3200).pipeline
    pipeline = pipeline.finishing(SimpleNamespace(asks=True))
    with pytest.raises(device_chunks.NotOnDeviceError, match="ids are compared with the sizes of"):
        made_by_torch(pipeline, JaxTransfer(), (), GpuOptions(), lambda share: pipeline)


@pytest.mark.parametrize(
    "said", ["CUDA out of memory. Tried", "RESOURCE_EXHAUSTED: Out of memory allocating 5 bytes."]
)
def test_memory_that_jax_itself_does_not_find(
    torch_makes_chunks: None, monkeypatch: pytest.MonkeyPatch, said: str
) -> None:
    plain, loader = list(Loader(narrow(), 64, True)), Loader(narrow(), 64, True)
    real, failed = JaxTransfer._to_device, []

    def failing(carrier: JaxTransfer, matrices: Any) -> Any:
        if not isinstance(matrices[0], np.ndarray):
            failed.append(None)
            raise RuntimeError(said)
        return real(carrier, matrices)

    monkeypatch.setattr(JaxTransfer, "_to_device", failing)
    with pytest.warns(TabfeedWarning, match="no memory left on the GPU"):
        assert same(plain, loader)
    assert len(failed) == 1


class Later:
    """A value that the GPU has not come to yet."""

    def is_ready(self) -> bool:
        return False

    def block_until_ready(self) -> None:
        return None


def test_memory_that_is_given_back_is_not_kept_for_jax(
    torch_makes_chunks: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tabfeed.loader.gpu import memory_plan

    monkeypatch.setattr(memory_plan, "_CHUNK_ROWS", 2 * 64)
    monkeypatch.setattr(transfer, "_first_value", lambda whole: Later())
    plain, loader = Loader(narrow(), 64, device="cpu"), Loader(narrow(), 64, buffer_size=1)
    held, batches = loader.pipeline.stages.finish.transfer._cutting, iter(loader)
    found = [next(batches) for _ in range(9)]
    assert 0 < len(held) <= 2
    loader.release_memory()
    assert not held
    assert same(plain, found + list(batches)) and not held


def test_an_error_ends_a_pass(torch_makes_chunks: None, monkeypatch: pytest.MonkeyPatch) -> None:
    from tabfeed.loader.gpu import memory_plan

    monkeypatch.setattr(memory_plan, "_CHUNK_ROWS", 2 * 64)
    numbers = np.arange(ROWS)
    numbers[300] = 2**40
    batches = iter(Loader(Dataset({"a": numbers}, npartitions=5), 64, buffer_size=1))
    with pytest.raises(LoaderError, match="column 'a' goes from"):
        list(batches)
    assert next(batches, None) is None


def test_a_rank_without_rows(torch_makes_chunks: None) -> None:
    few = Dataset({"a": np.arange(3, dtype=np.int32)})
    found = []
    for rank in range(4):
        (batch,) = Loader(few, 4, global_size=4, global_rank=rank, last="short")
        found.append(batch[0]["a"].tolist())
    assert sorted(found) == [[], [0], [1], [2]]


def test_a_larger_buffer_is_more_memory(as_on_a_gpu: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_chunks, "_memory", lambda device: (40_000, 40_000))
    for larger in ({"device_memory": 25_000}, {"buffer_size": 25_000}):
        assert len(list(Loader(narrow(), 500, **larger))) == 2
    with pytest.raises(LoaderError, match="3 batches of 500 rows"):
        Loader(narrow(), 500)


def test_each_of_several_devices_has_a_share(monkeypatch: pytest.MonkeyPatch) -> None:
    class Spread:
        """Over four devices, of which the second has least memory."""

        device_set = addressable_devices = (80, 40, 60, 80)

        def shard_shape(self, shape: tuple[int]) -> tuple[int]:
            return (shape[0] // 4,)

    monkeypatch.setattr(device_chunks, "_memory", lambda device: (device, device // 2))
    assert device_chunks._device_share(JaxTransfer(), Spread()) == (40, 20, 0.25)


@pytest.mark.parametrize("given", [{"device_memory": 20_000}, {"device_memory": 0.5}])
def test_copies_keep_within_memory(
    as_on_a_gpu: None, monkeypatch: pytest.MonkeyPatch, given: dict[str, Any]
) -> None:
    monkeypatch.setattr(device_chunks, "find_spec", lambda name: None)  # there is no torch
    monkeypatch.setattr(device_chunks, "_memory", lambda device: (40_000, 36_000))
    small, plain = Loader(narrow(), 64, True, **given), Loader(narrow(), 64, True, device="cpu")
    assert small.pipeline.plan.chunk == 3  # steps of 64 rows of 8 bytes, there and cut from there
    assert (small.pipeline.options.ahead + 2) * 3 * 64 * 2 * 8 <= 20_000
    assert same(plain, small)


def test_vectors_count_as_well(as_on_a_gpu: None) -> None:
    op = EmbeddingOperator(np.eye(100, dtype=np.float32), "d")
    loader = Loader(narrow(), 64, transforms=op, device_memory=180_000)
    assert loader.pipeline.plan.chunk == 1  # 64 rows of 408 bytes


def test_too_little_memory_for_copies(as_on_a_gpu: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_chunks, "_memory", lambda device: (40_000, 2_000))
    with pytest.raises(LoaderError, match="3 batches of 64 rows take about"):
        Loader(narrow(), 64)


@pytest.mark.usefixtures("no_loader_threads")  # those of other loaders compile their own shapes
def test_what_cuts_is_compiled_once_for_a_size_of_batch(as_on_a_gpu: None) -> None:
    """Whatever chunks there are, the last and shorter one too."""
    transfer._cut.clear_cache()
    data = Dataset({"a": np.arange(70_000, dtype=np.int32)}, npartitions=9)
    loader = Loader(data, 999, buffer_size=20_000)
    assert [len(x["a"]) for x, _ in loader] == [999] * 70 + [70]
    assert transfer._cut._cache_size() == 2


def test_small_chunks_do_not_change_what_was_given(as_on_a_gpu: None) -> None:
    rows = 64 * 150
    data = Dataset({"a": np.arange(rows, dtype=np.int32)}, npartitions=3)
    loader = Loader(data, 64, True, buffer_size=4_000)
    kept = [x["a"] for _ in range(2) for x, _ in loader]
    np.testing.assert_array_equal(np.sort(np.concatenate(kept)), np.repeat(np.arange(rows), 2))


def test_padding_works_before_the_device(as_on_a_gpu: None) -> None:
    data = Dataset({"a": np.arange(3), "w": [[1], [2, 3], []]})
    (batch, _) = next(iter(Loader(data, 3, transforms=Padding(2))))
    assert batch["w"].tolist() == [[1, 0], [2, 3], [0, 0]]
    assert batch["a"].tolist() == [0, 1, 2]


def test_devices_by_name() -> None:
    first = jax.devices("cpu")[0]
    assert find_device(None) is None
    assert find_device("cpu") is find_device("cpu:0") is find_device(first) is first
    with pytest.raises(ArgumentError, match="device is 'cpu:x'; it must be like \"cuda\""):
        find_device("cpu:x")


def test_a_carrier_goes_to_another_process_by_the_name_of_its_device() -> None:
    one = JaxTransfer(jax.devices("cpu")[0], (1,))
    one.columns([np.zeros((1, 4), np.int32)], (0, 2, 4))
    again = pickle.loads(pickle.dumps(one))
    assert (again.device, again.column) == (one.device, one.column)
    assert pickle.loads(pickle.dumps(JaxTransfer())).device is None
