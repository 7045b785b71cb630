"""TensorFlow's loader and memory: whose memory a tensor uses, and how much TensorFlow may take."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

tf = pytest.importorskip("tensorflow")
import keras  # noqa: E402

if keras.backend.backend() != "tensorflow":
    pytest.skip("needs Keras on TensorFlow", allow_module_level=True)

from tabfeed import Dataset, budget  # noqa: E402
from tabfeed.errors import (  # noqa: E402
    ArgumentError,
    LoaderError,
    TabfeedWarning,
)
from tabfeed.loader.keras import sequence as keras_loader  # noqa: E402
from tabfeed.loader.keras.tf_data import as_tensor  # noqa: E402
from tabfeed.loader.options import GpuOptions  # noqa: E402
from tabfeed.loader.tensorflow import (  # noqa: E402
    configure_tensorflow,
)
from tests.loader.test_tensorflow import identity, ids, make  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")


def address(tensor: Any) -> int:
    return np.asarray(memoryview(tensor)).ctypes.data


def test_arrays_are_shared_where_tensorflow_can_use_them() -> None:
    buffer = np.zeros(64 + 4096, np.uint8)
    start = -buffer.ctypes.data % 64
    aligned = buffer[start : start + 4096].view(np.int32).reshape(-1, 1)
    assert address(as_tensor(aligned)) == aligned.ctypes.data
    for other in (aligned[1:], aligned[::2], aligned[:0]):
        tensor = as_tensor(other)
        assert tensor.shape == other.shape and not tf.reduce_any(tensor * 2 != other * 2)
    aligned.flags.writeable = False
    assert address(as_tensor(aligned)) != aligned.ctypes.data


def whole_columns(matrices: Sequence[Any], bounds: Sequence[int]) -> list[list[Any]]:
    """Columns cut from whole buffers, as where tensors lie on another device."""
    wholes = [tf.constant(matrix[:, :, None]) for matrix in matrices]
    return [
        [column for whole in wholes for column in tf.unstack(whole[:, low:high])]
        for low, high in pairwise(bounds)
    ]


def test_whole_buffers_give_the_same_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    options: dict[str, Any] = {"cat_names": ["C", "D", "T"], "cont_names": ["I", "V"]}
    options.update(shuffle=True, label_names=["y", "z"])
    plain = make(**options)
    found = replace(keras_loader.find_tensors(None, GpuOptions()), columns=whole_columns)
    monkeypatch.setattr(keras_loader, "find_tensors", lambda device, options: found)
    whole = make(**options)
    assert whole.pipeline.stages.maker.layout.matrices
    for (x, y), (other_x, other_y) in zip(plain, whole, strict=True):
        assert list(x) == list(other_x) and x["T"].to_list() == other_x["T"].to_list()
        for name in "CDIV":
            assert x[name].dtype == other_x[name].dtype
            assert np.array_equal(x[name], other_x[name])
        assert all(np.array_equal(a, b) for a, b in zip(y, other_y, strict=True))
    assert ids(whole.as_tf_dataset()) == ids(plain)
    with pytest.raises(LoaderError, match="column 'C' has the id 5"):
        list(make(cat_names=None, feature_columns=[identity("C", 5)]))


def test_buffer_size_is_obeyed(monkeypatch: pytest.MonkeyPatch) -> None:
    source = Dataset({"C": np.arange(100_000), "y": np.zeros(100_000)}, npartitions=4)
    row = 8 + 4
    loose, tight = make(source, 100), make(source, 100, buffer_size=100 * row * 7)
    assert loose.pipeline.plan.chunk > 7 and tight.pipeline.plan.chunk == 7
    found = budget.GpuMemory(total=100 * row * 100, free=1)
    monkeypatch.setattr(budget, "gpu_memory", lambda: found)
    assert make(source, 100, buffer_size=0.06).pipeline.plan.chunk == 6
    monkeypatch.setattr(budget, "gpu_memory", lambda: None)
    assert make(source, 100, buffer_size=0.5).pipeline.plan.chunk == loose.pipeline.plan.chunk


class FakeGpu:
    """What `configure_tensorflow` sees of TensorFlow."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, started: bool = False) -> None:
        self.limits: list[int] = []
        self.started = started
        monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind: ["GPU:0"])
        monkeypatch.setattr(tf.config, "set_logical_device_configuration", self.limit)
        half_free = budget.GpuMemory(80 * 2**30, 40 * 2**30)
        monkeypatch.setattr("tabfeed.loader.tensorflow.gpu_memory", lambda n: half_free)

    def limit(self, gpu: str, devices: list[Any]) -> None:
        if self.started:
            raise RuntimeError("Virtual devices cannot be modified after being initialized")
        self.limits += [d.memory_limit for d in devices]


@pytest.mark.parametrize(("value", "megabytes"), [("8192", 8192), ("0.5", 20 * 1024)])
def test_memory_allocation(monkeypatch: pytest.MonkeyPatch, value: str, megabytes: int) -> None:
    gpu = FakeGpu(monkeypatch)
    monkeypatch.setenv("TF_MEMORY_ALLOCATION", value)
    configure_tensorflow()
    assert gpu.limits == [megabytes]


def test_the_import_limits_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = FakeGpu(monkeypatch)
    monkeypatch.setenv("TF_MEMORY_ALLOCATION", "100")
    importlib.reload(sys.modules["tabfeed.loader.tensorflow"])
    assert gpu.limits == [100]


def test_memory_allocation_too_late_or_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    FakeGpu(monkeypatch, started=True)
    monkeypatch.setenv("TF_MEMORY_ALLOCATION", "0.5")
    with pytest.warns(TabfeedWarning, match="TensorFlow has started"):
        configure_tensorflow()
    for wrong in ("half", "-1", "0"):
        monkeypatch.setenv("TF_MEMORY_ALLOCATION", wrong)
        with pytest.raises(ArgumentError, match=f"TF_MEMORY_ALLOCATION is '{wrong}'"):
            configure_tensorflow()
