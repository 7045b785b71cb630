"""What happens on a GPU with little memory, on the second of several, and with another driver."""

from __future__ import annotations

import ctypes
import sys
import warnings
from contextlib import contextmanager
from threading import Thread
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from tabfeed import Dataset
from tabfeed.errors import TabfeedWarning
from tabfeed.loader.gpu import build
from tabfeed.loader.gpu.build import block_reader, memory_for
from tabfeed.loader.gpu.delivery import GpuStages
from tabfeed.loader.gpu.devices import free_bytes, on_device, why_not_driver
from tabfeed.loader.gpu.memory_plan import StagingPlan
from tabfeed.loader.gpu.parquet.cudf_blocks import CudfBlockReader, why_not_cudf
from tabfeed.loader.gpu.parquet.encoded_blocks import EncodedBlockReader
from tabfeed.loader.gpu.staging import GpuBlock, GpuBlockReader, copy_to_device
from tabfeed.loader.options import GpuOptions
from tabfeed.loader.torch import TorchAsyncItr
from tests.loader.gpu.pretend import on_gpu, pretend_gpu


def gpu_with(monkeypatch, free, reserved=0, allocated=0):
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (free, 10**11))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: reserved)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: allocated)
    known = SimpleNamespace(total_memory=10**11)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: known)


def test_what_torch_keeps_unused_is_free(monkeypatch):
    gpu_with(monkeypatch, 100, reserved=70, allocated=30)
    assert free_bytes(torch.device("cuda")) == 140


def test_a_quarter_of_what_is_free_stays_so(monkeypatch):
    cuda = torch.device("cuda")
    gpu_with(monkeypatch, 5 * 10**10)
    assert memory_for(GpuOptions(), cuda) == 10**9
    assert memory_for(GpuOptions(device_memory="2GB"), cuda) == 2 * 10**9
    assert memory_for(GpuOptions(device_memory=0.25), cuda) == 25 * 10**9
    gpu_with(monkeypatch, 10**8)
    for given in (None, "2GB", 0.25):
        assert memory_for(GpuOptions(device_memory=given), cuda) == 75 * 10**6


@pytest.mark.parametrize(
    ("device_memory", "buffer_size", "allowed"),
    [
        (None, 0.06, 6 * 10**9),
        (None, "200MB", 2 * 10**8),
        ("3GB", "200MB", 3 * 10**9),
        (0.01, 0.06, 10**9),
    ],
)
def test_a_size_of_buffers_is_an_older_name(monkeypatch, device_memory, buffer_size, allowed):
    gpu_with(monkeypatch, 5 * 10**10)
    options = GpuOptions(device_memory=device_memory)
    assert memory_for(options, torch.device("cuda"), buffer_size) == allowed


@pytest.fixture
def loader():
    data = Dataset({"c": list(range(500)), "y": [0.5] * 500})
    return TorchAsyncItr(data, ["c"], labels=["y"], batch_size=50, shuffle=True, device="cpu")


def test_less_free_memory_means_smaller_chunks_and_the_same_batches(loader, monkeypatch):
    pretend_gpu(monkeypatch, free=10**8)
    cpu = torch.device("cpu")
    wide = on_gpu(loader.pipeline, cpu, GpuOptions("arrow"))
    pretend_gpu(monkeypatch, free=10**6)
    tight = on_gpu(loader.pipeline, cpu, GpuOptions("arrow"))
    assert isinstance(wide.stages, GpuStages) and isinstance(tight.stages, GpuStages)
    assert tight.plan.chunk < wide.plan.chunk
    for one, other in zip(wide, tight, strict=True):
        assert torch.equal(one[0], other[0])


def test_without_pylibcudf_arrow_serves_and_it_is_said_once(tmp_path, monkeypatch):
    pretend_gpu(monkeypatch)
    monkeypatch.setitem(sys.modules, "pylibcudf", None)
    table = pa.table({"c": range(500), "y": pa.array([0.5] * 500, pa.float32())})
    pq.write_table(table, tmp_path / "a.parquet")
    loader = TorchAsyncItr(Dataset(str(tmp_path)), ["c"], labels=["y"], batch_size=50, device="cpu")
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        loader.pipeline = on_gpu(loader.pipeline, torch.device("cpu"), GpuOptions("cudf"))
        for _ in range(2):
            assert [y for c, _, _ in loader for y in c[:, 0].tolist()] == list(range(500))
    assert [w.category for w in told] == [TabfeedWarning]  # once, and for two epochs
    assert "reading with Arrow: pylibcudf cannot be imported" in str(told[0].message)
    assert "pip install tabfeed[gpu]" in str(told[0].message)


# -- the current device of threads -----------------------------------------------------------


class Current:
    """Which GPU is the current one, as torch would have it."""

    def __init__(self, monkeypatch):
        self.number = 0
        monkeypatch.setattr(torch.cuda, "device", self.switch)

    @contextmanager
    def switch(self, device):
        before, self.number = self.number, torch.device(device).index
        try:
            yield
        finally:
            self.number = before


def test_a_gpu_is_current_for_as_long_as_it_is_used(monkeypatch):
    current = Current(monkeypatch)
    with on_device(torch.device("cuda:2")):
        assert current.number == 2
        with on_device(torch.device("cpu")):
            assert current.number == 2
    assert current.number == 0


@pytest.mark.parametrize("encoded", [True, False])
def test_threads_lock_memory_on_the_gpu_of_the_loader(monkeypatch, encoded):
    """On the first one each process would take half a gigabyte."""
    current, seen = Current(monkeypatch), []
    monkeypatch.setattr(build, "lock_pages", lambda memory: seen.append(current.number))
    monkeypatch.setattr(build, "unlock_pages", lambda memory: seen.append(-current.number))
    plan = StagingPlan(1000, 2, 1, 1, encoded=encoded)
    reader = block_reader(plan, None, (), torch.device("cuda:3"))
    arrow = reader.arrow if encoded else reader
    assert type(reader) is (EncodedBlockReader if encoded else GpuBlockReader)
    assert arrow.device == torch.device("cuda:3")
    thread = Thread(target=arrow.staging_buffers.take)
    thread.start()
    thread.join()
    assert seen == [3] and current.number == 0
    del reader, arrow
    assert seen == [3, -3]


@pytest.mark.parametrize("kind", [GpuBlockReader, EncodedBlockReader])
def test_threads_read_with_the_gpu_of_the_loader_as_theirs(monkeypatch, kind):
    current, seen = Current(monkeypatch), []
    monkeypatch.setattr(kind, "_read", lambda self, epoch, n: seen.append((n, current.number)))
    reader = GpuBlockReader(None, (), None, device=torch.device("cuda:1"))
    reader = reader if kind is GpuBlockReader else EncodedBlockReader(reader)
    reader.read(None, [5, 6])
    assert seen == [(5, 1), (6, 1)] and current.number == 0


def test_blocks_are_copied_with_it_as_the_current_one(monkeypatch):
    current, seen = Current(monkeypatch), []
    block = GpuBlock(1, encoded="bytes")

    def unpack(blocks):
        seen.append(current.number)
        blocks[0].device_buffer = "there"

    copy_to_device([block], SimpleNamespace(device=torch.device("cuda:1")), None, unpack)
    assert seen == [1] and current.number == 0


def test_pylibcudf_reads_with_it_as_the_current_one(monkeypatch):
    current, seen = Current(monkeypatch), []
    device_buffers = SimpleNamespace(device=torch.device("cuda:1"))
    arrow = SimpleNamespace(read=lambda epoch, numbers: seen.append(current.number) or [])
    epoch = SimpleNamespace(partitions=lambda number: [])
    reader = CudfBlockReader(arrow, device_buffers, 100, 2)
    monkeypatch.setattr(reader, "_read", lambda epoch, n: seen.append(current.number) or ["lot"])
    assert reader.read(epoch, [5]) == ["lot"]
    assert seen == [1, 1] and current.number == 0


# -- drivers, and packages that are broken ---------------------------------------------------


def pretend_driver(monkeypatch, version, failed=0):
    """A driver that says it is for this CUDA; none at all if it is None."""

    def answer(pointer):
        pointer._obj.value = version
        return failed

    def load(name):
        if version is None:
            raise OSError(f"{name}: cannot open shared object file")
        return SimpleNamespace(cuDriverGetVersion=answer)

    monkeypatch.setattr(ctypes, "CDLL", load)


@pytest.fixture
def package(tmp_path, monkeypatch):
    """Makes a pylibcudf that does something when it is imported."""

    def make(code="", installed="pylibcudf_cu13-26.8.0"):
        (tmp_path / "pylibcudf").mkdir()
        (tmp_path / "pylibcudf" / "__init__.py").write_text(code)
        (tmp_path / "pylibcudf" / "io.py").touch()
        (tmp_path / "rmm.py").touch()
        (tmp_path / f"{installed}.dist-info").mkdir()

    monkeypatch.syspath_prepend(tmp_path)
    known = [name for name in sys.modules if name.partition(".")[0] in ("pylibcudf", "rmm")]
    for name in known:
        monkeypatch.delitem(sys.modules, name)
    yield make
    for name in ("pylibcudf", "pylibcudf.io", "rmm"):
        sys.modules.pop(name, None)


def test_a_driver_that_is_too_old(monkeypatch, package):
    package("raise AssertionError('it was loaded')")
    pretend_driver(monkeypatch, 12040)
    said = "the driver is for CUDA 12.4, and pylibcudf needs 13"
    assert why_not_driver("pylibcudf") == why_not_cudf() == said


@pytest.mark.parametrize("version", [13000, 13020, 14010, None])
def test_a_driver_that_will_do(monkeypatch, package, version):
    package()
    pretend_driver(monkeypatch, version)
    assert why_not_driver("pylibcudf") is None and why_not_cudf() is None


def test_a_driver_that_does_not_answer(monkeypatch, package):
    package()
    pretend_driver(monkeypatch, 0, failed=999)
    assert why_not_driver("pylibcudf") is None


@pytest.mark.parametrize("installed", ["pylibcudf-26.8.0", "pylibcudf_cuda-1.0", "other_cu13-1"])
def test_a_package_that_does_not_say_what_it_needs(monkeypatch, package, installed):
    package(installed=installed)
    pretend_driver(monkeypatch, 12040)
    assert why_not_driver("pylibcudf") is None


def test_a_package_that_is_not_there(monkeypatch):
    pretend_driver(monkeypatch, 12040)
    assert why_not_driver("no_such_package") is None


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("raise ImportError('libcudart.so.13')", "(libcudart.so.13); pip install tabfeed[gpu]"),
        ("raise RuntimeError('no CUDA driver')", "(RuntimeError: no CUDA driver)"),
        ("raise OSError('libcudf.so')", "(OSError: libcudf.so)"),
        ("import ctypes; ctypes.CDLL('x').y", "(OSError: x: cannot open shared object file)"),
    ],
)
def test_a_broken_package_is_a_reason(monkeypatch, package, code, said):
    package(code)
    pretend_driver(monkeypatch, None)
    assert why_not_cudf() == f"pylibcudf cannot be imported {said}"


def test_what_it_needs_beside_is_broken(monkeypatch, package, tmp_path):
    package()
    (tmp_path / "rmm.py").write_text("raise ValueError('no device')")
    pretend_driver(monkeypatch, 13000)
    assert why_not_cudf() == "pylibcudf cannot be imported (ValueError: no device)"


def test_with_a_broken_pylibcudf_arrow_serves_and_it_is_said_once(tmp_path, monkeypatch, package):
    pretend_gpu(monkeypatch)
    package("raise RuntimeError('the driver is not what it was')")
    monkeypatch.setattr(build, "why_not_unpacked", lambda *of: "nvCOMP is not there either")
    keys = np.arange(500, dtype=np.int32)
    (tmp_path / "data").mkdir()
    pq.write_table(pa.table({"c": keys, "y": keys / 2}), tmp_path / "data" / "a.parquet")
    loader = TorchAsyncItr(Dataset(str(tmp_path / "data")), ["c"], labels=["y"], batch_size=50,
                           device="cpu")  # fmt: skip
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        loader.pipeline = on_gpu(loader.pipeline, torch.device("cpu"), GpuOptions("cudf"))
        for _ in range(2):
            assert [k for c, _, _ in loader for k in c[:, 0].tolist()] == keys.tolist()
    (said,) = (str(w.message) for w in told)
    assert "reading with Arrow: pylibcudf cannot be imported (RuntimeError: the driver" in said
    assert loader.reader_choice.startswith("Arrow: pylibcudf cannot be imported")
