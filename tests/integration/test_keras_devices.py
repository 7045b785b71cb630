"""Keras's loader on GPUs, pretended here, and on a Keras without its private adapter."""

from __future__ import annotations

import importlib.util
import sys
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

keras = pytest.importorskip("keras")

from tabfeed.errors import LoaderError  # noqa: E402
from tabfeed.loader.keras import (  # noqa: E402
    KerasSequenceLoader,
    adapter,
    backends,
    sequence,
)
from tabfeed.loader.keras.columns import Identity  # noqa: E402
from tabfeed.loader.options import GpuOptions  # noqa: E402
from tests.integration.test_keras_fit import as_numpy, compiled, dataset, loader  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")


def whole_buffers(device: str | None, options: GpuOptions) -> backends.Tensors:
    """What is done where tensors lie on a GPU, tried here."""
    found = backends.find_tensors(device, options)
    if keras.backend.backend() == "jax":
        from tabfeed.loader.jax.transfer import JaxTransfer, in_whole_chunks

        columns = JaxTransfer(column=(1,)).columns
        return replace(found, columns=columns, on_device=in_whole_chunks)
    from tabfeed.loader.tensors.device import TorchTransfer

    return replace(found, columns=TorchTransfer("cpu").columns)


class OnTorch:
    """Chunks whose buffers are tensors already, as they are when made on a GPU."""

    def __init__(self, maker: Any) -> None:
        self.maker = maker

    def make(self, *args: Any) -> Any:
        import torch

        chunks = self.maker.make(*args)
        for chunk in chunks:
            chunk.matrices = {name: torch.from_numpy(m) for name, m in chunk.matrices.items()}
        return chunks


def placed(device: str | None, options: GpuOptions) -> backends.Tensors:
    """The same, with a feed that makes chunks elsewhere."""

    def place(feed: Any) -> Any:
        recipe = replace(feed.stages, maker=OnTorch(feed.stages.maker))
        return type(feed)(recipe, feed.plan, feed.options)

    return replace(whole_buffers(device, options), on_device=place)


@pytest.mark.skipif(keras.backend.backend() != "torch", reason="of torch, and walked for JAX")
def test_what_is_said_of_a_gpu_is_heard_there(monkeypatch: pytest.MonkeyPatch) -> None:
    from tabfeed.loader.gpu import build
    from tabfeed.loader.tensors.device import TorchTransfer

    heard = []
    monkeypatch.setattr(backends, "_lies_in", lambda device: "cuda:0")
    monkeypatch.setattr(TorchTransfer, "columns", TorchTransfer("cpu").columns)

    def made(stages: Any, plan: Any, options: Any, *, device: Any, gpu: GpuOptions) -> Any:
        heard.append((device, gpu))
        from tabfeed.loader.pipeline import Pipeline

        return Pipeline(stages, plan, options)

    monkeypatch.setattr(build, "gpu_pipeline", made)
    loader(reader="cudf", device_memory="300MB")
    ((device, options),) = heard
    assert str(device) == "cuda:0" and options == GpuOptions("cudf", "300MB")


def two_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the backend find two of them."""
    if keras.backend.backend() == "torch":
        import torch

        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
        monkeypatch.setattr(backends, "_lies_in", str)
    elif keras.backend.backend() == "jax":
        import jax

        gpus = [SimpleNamespace(platform="gpu", id=number) for number in range(2)]
        monkeypatch.setattr(jax, "local_devices", lambda backend: gpus)
    else:
        monkeypatch.setattr(
            keras.distribution, "list_devices", lambda kind: [f"{kind}:0", f"{kind}:1"]
        )


def test_gpus_by_name_and_by_number(monkeypatch: pytest.MonkeyPatch) -> None:
    two_gpus(monkeypatch)
    named = "cuda:1" if keras.backend.backend() == "torch" else "gpu:1"
    for device in (1, np.int64(1), "gpu:1"):
        assert backends.find_device(device) == named
    assert backends.find_device(None) is None
    for device in (2, "gpu:2"):
        with pytest.raises(LoaderError, match=r"device is .*, but there are 2 .*, from 0 on"):
            backends.find_device(device)


@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="TensorFlow's own names")
def test_names_that_tensorflow_has_for_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    two_gpus(monkeypatch)
    for name in ("/GPU:1", "/device:GPU:1", "/job:localhost/replica:0/task:0/device:GPU:1"):
        assert backends.find_device(name) == name
        with pytest.raises(LoaderError, match="there are 2 of that kind, from 0 on"):
            backends.find_device(f"{name[:-1]}2")


@pytest.mark.skipif(keras.backend.backend() == "tensorflow", reason="it copies to a GPU itself")
@pytest.mark.parametrize("how", [whole_buffers, placed])
def test_columns_cut_from_whole_buffers_are_the_same(
    monkeypatch: pytest.MonkeyPatch, how: Any
) -> None:
    if how is placed and keras.backend.backend() != "torch":
        pytest.skip("only torch makes chunks on the GPU")
    expected = as_numpy(loader())
    monkeypatch.setattr(sequence, "find_tensors", how)
    found = as_numpy(loader())
    assert [len(b["y"]) for b in found] == [64] * 15 + [40]
    for left, right in zip(expected, found, strict=True):
        assert list(left) == list(right)
        for name, value in left.items():
            assert value.dtype == right[name].dtype
            np.testing.assert_array_equal(value, right[name])
    weighted = loader(class_weight={1: 3.0})
    for _, y, weights in weighted:
        y, weights = (keras.ops.convert_to_numpy(t) for t in (y, weights))
        np.testing.assert_array_equal(weights, np.where(y[:, 0] == 1, 3.0, 1.0))
    limited = KerasSequenceLoader(
        dataset(), 64, label_names=["y"], feature_columns=[Identity("C", 9)]
    )
    with pytest.raises(LoaderError, match="column 'C' has the id 9"):
        list(limited)


def test_a_keras_without_its_private_adapter(monkeypatch: pytest.MonkeyPatch) -> None:
    """The loader is then any `PyDataset`, and trains as well."""
    monkeypatch.setitem(sys.modules, "keras.src.trainers.data_adapters.data_adapter", None)
    spec = importlib.util.spec_from_file_location("adapter_alone", adapter.__file__)
    assert spec is not None and spec.loader is not None
    alone = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(alone)
    monkeypatch.undo()
    assert not issubclass(alone.KerasBase, adapter.DataAdapter)
    source = loader()
    plain = alone.KerasBase(source.pipeline, source._raw)
    for name in ("fields", "roles", "class_weight"):
        setattr(plain, name, getattr(source, name))
    trained = compiled()
    history = trained.fit(plain, epochs=2, verbose=0).history
    assert len(history["loss"]) == 2
    assert trained.evaluate(plain, verbose=0)[0] == pytest.approx(
        trained.evaluate(loader(), verbose=0)[0], rel=1e-5
    )
    plain.close()
