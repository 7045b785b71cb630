"""Which batches of several passes a GPU makes, and how others are copied there."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch

from tabfeed.loader.gpu.delivery import GpuStages
from tabfeed.loader.tensors.device import TorchTransfer
from tests.device.test_gpu_passes import batches, same, write_files

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no NVIDIA GPU here"),
]


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    return write_files(tmp_path_factory.mktemp("rows"))


READERS = ["arrow", "cudf", "auto"]


@pytest.mark.parametrize("reader", READERS)
def test_a_pass_that_lies_open_does_not_hold_up_the_next(dataset, reader):
    if reader == "cudf":
        pytest.importorskip("pylibcudf")
    wanted, loader = list(batches(dataset, "cpu")), batches(dataset, "cuda", reader=reader)
    old = iter(loader)
    first = [next(old) for _ in range(3)]
    loader.set_epoch(0)
    assert same(wanted, loader)
    assert isinstance(loader.pipeline.stages, GpuStages)
    assert same(wanted, first + list(old))


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("saved", [{"global_size": 4, "batch_size": 1024}, {"streams": 9}])
def test_a_state_of_other_ranks_or_streams(dataset, reader, saved):
    if reader == "cudf":
        pytest.importorskip("pylibcudf")
    if "global_size" in saved:
        saved = {"global_rank": 2, **saved}
    before = batches(dataset, "cpu", **saved)
    started = iter(before)
    for _ in range(50):
        next(started)
    host, gpu = (
        batches(dataset, "cpu", streams=2),
        batches(dataset, "cuda", streams=2, reader=reader),
    )
    for loader in (host, gpu):
        loader.load_state_dict(before.state_dict())
    assert isinstance(gpu.pipeline.stages, GpuStages)
    for _ in range(2):
        assert same(host, gpu)


@pytest.mark.parametrize("stream", [False, True])
def test_batches_that_are_copied_are_there_when_they_are_read(dataset, stream):
    """On a stream of the model's own too, which does not wait for the default one."""
    wanted = list(batches(dataset, "cpu"))
    loader = batches(dataset, "cuda", device_memory="1MB")
    assert not isinstance(loader.pipeline.stages, GpuStages)
    assert "made in host memory and copied" in loader.reader_choice
    found = []
    with torch.cuda.stream(torch.cuda.Stream() if stream else torch.cuda.default_stream()):
        for batch in loader:
            torch.cuda._sleep(1_000_000)
            found.append([t.clone() for t in batch])
            del batch
        torch.cuda.synchronize()
    assert same(wanted, found)


def test_threads_share_a_carrier():
    transfer = TorchTransfer("cuda")
    arrays = [np.full(1_000_000, i, np.int32) for i in range(64)]
    with ThreadPoolExecutor(8) as threads:
        for i, moved in enumerate(threads.map(transfer, arrays)):
            assert moved.is_cuda and int(moved.min()) == int(moved.max()) == i
