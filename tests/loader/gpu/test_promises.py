"""Every promise of a loader, its batches made as on a GPU, on one that is not there."""

from __future__ import annotations

import pytest
import torch

from tabfeed.loader.options import GpuOptions
from tabfeed.loader.torch import TorchAsyncItr
from tabfeed.testing.loader import check_loader
from tests.loader.gpu.pretend import on_gpu, pretend_gpu


@pytest.mark.parametrize("reader", ["auto", "arrow"])
def test_every_promise_of_a_loader_holds(monkeypatch, reader):
    pretend_gpu(monkeypatch)

    def make(dataset, **options):
        loader = TorchAsyncItr(dataset, ["key", "check"], ["x"], ["y"], device="cpu", **options)
        loader.pipeline = on_gpu(loader.pipeline, torch.device("cpu"), GpuOptions(reader, 10**8))
        assert loader.pipeline.stages.on_training_thread
        return loader

    def read(batch):
        cats, conts, y = (t.numpy() for t in batch)
        return {"check": cats[:, 0], "key": cats[:, 1], "x": conts[:, 0], "y": y}

    check_loader(make, read)
