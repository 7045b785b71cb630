"""A model that takes all memory of the GPU in mid-epoch. To be run alone: it does take it."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from tabfeed import Dataset
from tabfeed.errors import TabfeedWarning
from tabfeed.loader.torch import TorchAsyncItr

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no NVIDIA GPU here"),
]
# Chunks of half a million rows: so many bytes that torch asks for memory for each of them.
CATS, CONTS = [f"c{i}" for i in range(4)], [f"x{i}" for i in range(8)]


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    folder, random = tmp_path_factory.mktemp("data"), np.random.default_rng(0)
    rows = 40 * 80_000
    table = {c: random.integers(0, 10**6, rows, dtype=np.int32) for c in CATS}
    table |= {c: random.standard_normal(rows, dtype=np.float32) for c in CONTS}
    table["y"] = random.integers(0, 2, rows).astype(np.float32)
    pq.write_table(pa.table(table), folder / "rows.parquet", row_group_size=80_000)
    return Dataset(str(folder), part_size=80_000 * 60)


def take_all():
    """Tensors until there is no room for another megabyte."""
    taken, size = [], 2**33
    while size >= 2**20:
        try:
            taken.append(torch.empty(size, dtype=torch.uint8, device="cuda"))
        except torch.OutOfMemoryError:
            size //= 2
    return taken


def on_host(tensor):
    """Column by column, which lie there without gaps: anything else would take memory first."""
    if tensor.dim() == 1:
        return tensor.cpu()
    return torch.stack([column.cpu() for column in tensor.unbind(1)], dim=1)


@pytest.mark.parametrize("reader", ["arrow", "cudf", "auto"])
def test_the_loader_gives_its_share_up_and_goes_on(dataset, reader):
    host, gpu = (
        TorchAsyncItr(dataset, CATS, CONTS, ["y"], batch_size=65_536, shuffle=True, **options)
        for options in ({"device": "cpu"}, {"device": "cuda", "reader": reader})
    )
    taken, seen = [], 0
    with pytest.warns(TabfeedWarning, match="no memory left on the GPU"):
        for one, other in zip(host, gpu, strict=True):
            assert all(torch.equal(a, on_host(b)) for a, b in zip(one, other, strict=True))
            seen += 1
            if seen == 10:
                taken = take_all()
    assert seen == len(host) and taken
    assert "given up its own" in gpu.reader_choice
    del taken
    torch.cuda.empty_cache()


@pytest.fixture
def small_gpu():
    """Have torch find so many bytes more than are in use, and no others."""
    total = torch.cuda.get_device_properties(0).total_memory

    def set_free(nbytes):
        torch.cuda.empty_cache()
        torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_reserved() + nbytes) / total)

    yield set_free
    torch.cuda.set_per_process_memory_fraction(1.0)


@pytest.mark.parametrize("reader", ["arrow", "cudf", "auto"])
def test_a_step_that_finds_no_memory_can_have_the_loaders(dataset, reader, small_gpu):
    host, gpu = (
        TorchAsyncItr(dataset, CATS, CONTS, ["y"], batch_size=65_536, shuffle=True, **options)
        for options in ({"device": "cpu"}, {"device": "cuda", "reader": reader})
    )
    free = 4 * 10**8

    def step(nbytes):
        torch.empty(nbytes, dtype=torch.uint8, device="cuda")

    for number, (one, other) in enumerate(zip(host, gpu, strict=True)):
        assert all(torch.equal(a, on_host(b)) for a, b in zip(one, other, strict=True))
        if number == 10:
            held = torch.cuda.memory_allocated()  # all of it the loader's
            small_gpu(free)
            with pytest.raises(torch.OutOfMemoryError):
                step(free + held // 2)
            gpu.release_memory()
            step(free + held // 2)
    assert number == len(host) - 1
    assert "as requested, batches are made in host memory" in gpu.reader_choice
