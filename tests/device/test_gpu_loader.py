"""The loader on a GPU: the promises of every loader, equal readers, its budget, its streams."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from tabfeed import Dataset
from tabfeed.errors import ArgumentError, LoaderError, TabfeedError
from tabfeed.loader.torch import Loader, TorchAsyncItr
from tabfeed.testing.loader import check_loader

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no NVIDIA GPU here"),
]
CATS = [f"c{i}" for i in range(5)]
CONTS = [f"x{i}" for i in range(3)]


def write_files(folder, codec):
    """Rows in pages that tabfeed unpacks on the GPU, and in such that pylibcudf does."""
    random = np.random.default_rng(0)
    for number in range(3):
        rows = 40_000 + 1000 * number
        table = {c: random.integers(0, 10**6, rows, dtype=np.int32) for c in CATS}
        table |= {c: random.standard_normal(rows, dtype=np.float32) for c in CONTS}
        table["y"] = random.integers(0, 2, rows).astype(np.float32)
        file = folder / f"{number}.parquet"
        pq.write_table(pa.table(table), file, row_group_size=15_000, compression=codec)
    return Dataset(str(folder))


@pytest.fixture(scope="module", params=["snappy", "none", "zstd"])
def dataset(tmp_path_factory, request):
    return write_files(tmp_path_factory.mktemp("gpu"), request.param)


def batches(dataset, device, **options):
    options = {"batch_size": 4096, "shuffle": True, **options}
    return TorchAsyncItr(dataset, CATS, CONTS, ["y"], device=device, **options)


def needs_cudf(reader):
    if reader == "cudf":
        pytest.importorskip("pylibcudf")


def same(one, other):
    return all(torch.equal(a.cpu(), b.cpu()) for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize("reader", ["arrow", "cudf", "auto"])
@pytest.mark.parametrize("shuffle", [True, False])
def test_the_gpu_gives_what_the_cpu_gives(dataset, reader, shuffle):
    needs_cudf(reader)
    host = batches(dataset, "cpu", shuffle=shuffle)
    gpu = batches(dataset, "cuda", shuffle=shuffle, reader=reader)
    for _ in range(2):
        pairs = list(zip(host, gpu, strict=True))
        assert len(pairs) == len(host)
        assert all(same(a, b) for a, b in pairs)
        assert all(t.is_cuda for t in pairs[0][1])


@pytest.mark.parametrize("reader", ["arrow", "cudf"])
def test_a_state_goes_from_the_gpu_to_the_cpu(dataset, reader):
    needs_cudf(reader)
    gpu, host = batches(dataset, "cuda", reader=reader), batches(dataset, "cpu")
    stream = iter(gpu)
    for _ in range(7):
        next(stream)
    host.load_state_dict(gpu.state_dict())
    assert all(same(a, b) for a, b in zip(stream, host, strict=True))


@pytest.mark.parametrize("codec", ["snappy", "zstd"])
@pytest.mark.parametrize("reader", ["arrow", "cudf"])
def test_columns_are_cast_on_the_gpu(tmp_path, reader, codec):
    """Ids of several widths, fractions of several, labels that are integers: as files have them."""
    needs_cudf(reader)
    random, rows = np.random.default_rng(4), 60_000
    table = {"a": random.integers(0, 2**40, rows), "b": random.integers(0, 99, rows, np.int16)}
    table |= {"c": random.integers(-5, 10**6, rows)}  # long, and fit into 32 bits
    table |= {"x": random.standard_normal(rows, np.float32), "z": random.standard_normal(rows)}
    table |= {"n": random.integers(-(2**31), 2**31, rows, np.int32)}
    table |= {"y": random.integers(0, 2, rows, np.int32), "t": random.integers(0, 2**60, rows)}
    file = tmp_path / "rows.parquet"
    pq.write_table(pa.table(table), file, row_group_size=9000, compression=codec)
    host, gpu = (
        TorchAsyncItr(Dataset(str(file)), ["a", "b", "c"], ["x", "n", "z"], ["y", "t"],
                      batch_size=512, shuffle=True, device=device, reader=reader,
                      device_memory="100MB")
        for device in ("cpu", "cuda")
    )  # fmt: skip
    if reader == "cudf":
        assert gpu.reader_choice.startswith(("the GPU", "pylibcudf"))
    for _ in range(3):
        assert all(same(a, b) for a, b in zip(host, gpu, strict=True))


def test_a_damaged_page_is_told_as_arrow_tells_it(tmp_path):
    pytest.importorskip("pylibcudf")
    rows = np.arange(20_000, dtype=np.int32)
    table = pa.table({"c0": rows, "x0": rows.astype(np.float32), "y": rows.astype(np.float32)})
    file = tmp_path / "a.parquet"
    pq.write_table(table, file, row_group_size=10_000)
    start = pq.read_metadata(file).row_group(1).column(0).dictionary_page_offset
    data = bytearray(file.read_bytes())
    data[start + 20 : start + 200] = b"\xff" * 180  # behind the header, what snappy says first
    file.write_bytes(data)
    said = []
    for reader in ("arrow", "cudf"):
        with pytest.raises(TabfeedError) as told:
            list(TorchAsyncItr(Dataset(str(file)), ["c0"], ["x0"], ["y"], batch_size=512,
                               device="cuda", reader=reader))  # fmt: skip
        said.append(str(told.value))
    assert said[0] == said[1]


def test_too_little_memory_on_the_gpu_still_works(dataset):
    small = batches(dataset, "cuda", device_memory="1MB")
    assert all(same(a, b) for a, b in zip(batches(dataset, "cpu"), small, strict=True))


def test_nulls_lists_and_text(tmp_path):
    n = np.arange(5000)
    table = pa.table(
        {
            "c": n,
            "x": pa.array(n.astype(np.float32), mask=n % 7 == 0),
            "words": [[int(k)] * (k % 4) for k in n],
            "name": [f"n{k}" for k in n],
            "y": n.astype(np.float32),
        }
    )
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=1000)
    ds = Dataset(str(tmp_path))

    def load(device, lists):
        return Loader(ds, 512, True, targets=["y"], extras=["name"], lists=lists, device=device)

    for lists in ("ragged", "padded"):
        for (a, ya), (b, yb) in zip(load("cpu", lists), load("cuda", lists), strict=True):
            assert a.keys() == b.keys() and torch.equal(ya, yb.cpu())
            assert a["name"] == b["name"]
            for name in a.keys() - {"name"}:
                assert b[name].is_cuda
                assert torch.equal(a[name].nan_to_num(-1), b[name].cpu().nan_to_num(-1)), name


def test_bad_devices_are_told(dataset):
    with pytest.raises(LoaderError, match="there are 1 GPUs, from 0 on"):
        batches(dataset, "cuda:9")
    with pytest.raises(ArgumentError, match="reader is 'duck'; it must be one of auto"):
        batches(dataset, "cuda", reader="duck")


def test_every_promise_of_a_loader_holds_on_the_gpu():
    def make(dataset, **options):
        return TorchAsyncItr(dataset, ["key", "check"], ["x"], ["y"], device="cuda", **options)

    def read(batch):
        cats, conts, y = (t.cpu().numpy() for t in batch)
        return {"check": cats[:, 0], "key": cats[:, 1], "x": conts[:, 0], "y": y}

    check_loader(make, read)
