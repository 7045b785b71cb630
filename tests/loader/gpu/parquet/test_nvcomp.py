"""What nvCOMP is asked to do, and what is said where it is not there; on a library of our own."""

from __future__ import annotations

import ctypes
import sys
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from tabfeed import Dataset
from tabfeed.errors import TabfeedWarning
from tabfeed.loader.gpu import build
from tabfeed.loader.gpu.parquet import encoded_blocks, nvcomp
from tabfeed.loader.gpu.parquet.encoded_blocks import why_not_unpacked
from tabfeed.loader.gpu.parquet.encoded_pages import ROWS
from tabfeed.loader.gpu.parquet.nvcomp import decompress, why_not_nvcomp
from tabfeed.loader.options import GpuOptions
from tabfeed.loader.torch import TorchAsyncItr
from tests.loader.gpu.pretend import Stream, on_gpu, pretend_gpu

CPU = torch.device("cpu")
STREAM = SimpleNamespace(cuda_stream=77)


@pytest.fixture(autouse=True)
def anew(monkeypatch):
    """Look for the library in each test, and again afterwards; TensorFlow is not there."""
    nvcomp._library.cache_clear()
    pretend_gpu(monkeypatch)
    monkeypatch.setattr(Stream, "cuda_stream", 77, raising=False)
    monkeypatch.setattr(nvcomp, "_works", set())
    monkeypatch.delitem(sys.modules, "tensorflow", raising=False)
    yield
    nvcomp._library.cache_clear()


class Function:
    """A function of a library: keeps what it is called with, and writes what the page was."""

    def __init__(self, answer=0, plain=b"rows"):
        self.answer, self.plain, self.calls, self.argtypes = answer, plain, [], None

    def __call__(self, *arguments):
        self.calls.append(arguments)
        self.write(*arguments)
        return self.answer

    def write(self, at, stored, sizes, became, pages, working, nothing, to, *_):
        where, size = (ctypes.c_int64.from_address(row).value for row in (to, sizes))
        if where:
            ctypes.memmove(where, self.plain[:size], min(size, len(self.plain)))


def pretend_library(monkeypatch, answer=0, plain=b"rows"):
    function = Function(answer, plain)
    library = SimpleNamespace(nvcompBatchedSnappyDecompressAsync=function)
    monkeypatch.setattr(ctypes, "CDLL", lambda path: library)
    return function


# -- is it there ----------------------------------------------------------------------------


def test_it_is_not_there(monkeypatch):
    def missing(path):
        raise OSError(f"{path}: cannot open shared object file")

    monkeypatch.setattr(ctypes, "CDLL", missing)
    why = why_not_nvcomp(CPU)
    assert why.startswith("nvCOMP cannot be loaded (libnvcomp.so.5: cannot open")
    assert why.endswith("; pip install tabfeed[gpu]")
    assert why_not_unpacked(CPU, [4]) == why


def test_it_is_another(monkeypatch):
    """A library of that name without what is needed of it."""
    monkeypatch.setattr(ctypes, "CDLL", lambda path: SimpleNamespace())
    assert "nvcompBatchedSnappyDecompressAsync" in why_not_nvcomp(CPU)


def test_it_is_there(monkeypatch):
    function = pretend_library(monkeypatch)
    assert why_not_nvcomp(CPU) is None
    assert len(function.argtypes) == 11


def test_it_is_tried_once(monkeypatch):
    """On a page of our own, on a stream of its own."""
    function = pretend_library(monkeypatch)
    assert why_not_nvcomp(CPU) is None
    assert why_not_nvcomp(CPU) is None
    ((*_, stream),) = function.calls
    assert stream == 77


def test_the_page_it_is_tried_with_is_one_of_snappy():
    assert pa.Codec("snappy").decompress(nvcomp._PAGE, 4, asbytes=True) == nvcomp._PLAIN


@pytest.mark.parametrize(
    ("answer", "plain", "said"),
    [
        (1000, b"rows", "RuntimeError: nvCOMP could not begin (error 1000)"),
        (0, b"", "RuntimeError: a page became b'\\x00\\x00\\x00\\x00', not b'rows'"),
        (0, b"rowe", "RuntimeError: a page became b'rowe', not b'rows'"),
    ],
)
def test_it_does_not_work(monkeypatch, answer, plain, said):
    """A driver that is too old for it: known when the loader is made, and asked again later."""
    function = pretend_library(monkeypatch, answer, plain)
    for _ in range(2):
        assert why_not_unpacked(CPU, [4]) == f"nvCOMP cannot be used ({said})"
    assert len(function.calls) == 2
    function.answer, function.plain = 0, b"rows"
    assert why_not_nvcomp(CPU) is None


def test_there_is_no_memory_to_try_it(monkeypatch):
    def refuse(device):
        raise torch.OutOfMemoryError("CUDA out of memory")

    pretend_library(monkeypatch)
    monkeypatch.setattr(torch.cuda, "Stream", refuse)
    assert why_not_nvcomp(CPU) == "nvCOMP cannot be used (OutOfMemoryError: CUDA out of memory)"


def test_a_loader_of_which_nvcomp_cannot_begin_reads_with_arrow(tmp_path, monkeypatch):
    pretend_library(monkeypatch, answer=1000)
    monkeypatch.setattr(build, "why_not_cudf", lambda: "pylibcudf is not here")
    keys = np.arange(500, dtype=np.int32)
    pq.write_table(pa.table({"c": keys, "y": keys.astype(np.float32)}), tmp_path / "a.parquet")
    loader = TorchAsyncItr(Dataset(str(tmp_path)), ["c"], labels=["y"], batch_size=50, device="cpu")
    with pytest.warns(TabfeedWarning, match="reading with Arrow: pylibcudf is not here"):
        loader.pipeline = on_gpu(loader.pipeline, CPU, GpuOptions("cudf"))
    assert [k for c, _, _ in loader for k in c[:, 0].tolist()] == keys.tolist()


@pytest.mark.parametrize("there", [True, False])
def test_it_is_looked_for_where_pip_puts_it(monkeypatch, tmp_path, there):
    place = tmp_path / "nvidia" / "libnvcomp"
    if there:
        (place / "lib64").mkdir(parents=True)
        (place / "lib64" / "libnvcomp.so.5").touch()
    spec = SimpleNamespace(submodule_search_locations=[str(tmp_path / "no"), str(place)])
    monkeypatch.setattr(nvcomp, "find_spec", lambda name: spec)
    opened = []
    library = SimpleNamespace(nvcompBatchedSnappyDecompressAsync=Function())
    monkeypatch.setattr(ctypes, "CDLL", lambda path: (opened.append(path), library)[1])
    assert why_not_nvcomp(CPU) is None
    wanted = str(place / "lib64" / "libnvcomp.so.5") if there else "libnvcomp.so.5"
    assert opened == [wanted]


def test_no_package_of_nvidia_at_all(monkeypatch):
    monkeypatch.setattr(nvcomp, "find_spec", lambda name: None)
    pretend_library(monkeypatch)
    assert why_not_nvcomp(CPU) is None


# -- what it is asked -----------------------------------------------------------------------


def test_the_rows_of_the_table_are_its_arguments(monkeypatch):
    function = pretend_library(monkeypatch)
    table = torch.zeros((len(ROWS), 5), dtype=torch.int64)
    decompress(table, STREAM)

    def row(name):
        return table[ROWS.index(name)].data_ptr()

    (arguments,) = function.calls
    *before, options, wrong, stream = arguments
    # Where pages lie, their bytes, room for each, what each became, how many; no memory of its own
    # and none of its bytes; where they go.
    wanted = [row("at"), row("stored"), row("bytes"), row("became"), 5, None, 0, row("to")]
    assert before == wanted
    assert (wrong, stream) == (row("wrong"), 77)
    assert isinstance(options, nvcomp._Options)


def test_options_are_64_bytes_of_zeros():
    assert bytes(nvcomp._Options()) == bytes(64)


def test_addresses_reach_the_library_whole():
    """As nvCOMP declares it: pointers and sizes of 64 bits, options by value, an int back."""
    pointer, size, seen = ctypes.c_void_p, ctypes.c_size_t, []
    kinds = [pointer] * 4 + [size, pointer, size, pointer, nvcomp._Options, pointer, pointer]
    native = ctypes.CFUNCTYPE(ctypes.c_int, *kinds)(lambda *given: seen.append(given) or 0)
    library = SimpleNamespace(nvcompBatchedSnappyDecompressAsync=native)
    table = torch.zeros((len(ROWS), 3), dtype=torch.int64)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(nvcomp, "_library", lambda: library)
        decompress(table, SimpleNamespace(cuda_stream=2**40 + 8))
    ((at, *_, to, options, wrong, stream),) = seen
    assert (at, to) == (table[0].data_ptr(), table[2].data_ptr())
    assert (wrong, stream) == (table[-1].data_ptr(), 2**40 + 8)
    assert bytes(options) == bytes(64)


def test_an_error_is_told(monkeypatch):
    pretend_library(monkeypatch, answer=11)
    table = torch.zeros((len(ROWS), 1), dtype=torch.int64)
    with pytest.raises(RuntimeError, match=r"nvCOMP could not begin \(error 11\)"):
        decompress(table, STREAM)


# -- and Triton -----------------------------------------------------------------------------


def test_tensorflow_came_first(monkeypatch):
    pretend_library(monkeypatch)
    monkeypatch.setitem(sys.modules, "tensorflow", SimpleNamespace())
    monkeypatch.delitem(sys.modules, "triton", raising=False)
    monkeypatch.setattr(encoded_blocks, "import_module", lambda name: pytest.fail(name))
    why = "TensorFlow is loaded, and Triton cannot share a process with it"
    assert why_not_unpacked(CPU, [4]) == why


def test_the_kernel_cannot_be_loaded(monkeypatch):
    def missing(name):
        raise ModuleNotFoundError("No module named 'triton'")

    pretend_library(monkeypatch)
    monkeypatch.setattr(encoded_blocks, "import_module", missing)
    assert why_not_unpacked(CPU, [4]) == (
        "Triton cannot be used (ModuleNotFoundError: No module named 'triton')"
    )


def test_the_kernel_cannot_be_compiled(monkeypatch):
    def load(device, widths):
        raise RuntimeError("no ptxas")

    pretend_library(monkeypatch)
    monkeypatch.setattr(encoded_blocks, "import_module", lambda name: SimpleNamespace(load=load))
    assert why_not_unpacked(CPU, [4]) == "Triton cannot be used (RuntimeError: no ptxas)"


def test_the_kernel_is_loaded_for_its_planes(monkeypatch):
    loaded = []
    kernel = SimpleNamespace(load=lambda *given: loaded.append(given))
    pretend_library(monkeypatch)
    monkeypatch.setattr(encoded_blocks, "import_module", lambda name: kernel)
    assert why_not_unpacked(CPU, [8, 4]) is None
    assert loaded == [(CPU, [8, 4])]
