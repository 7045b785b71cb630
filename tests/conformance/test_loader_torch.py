"""Every promise of a loader, for the three torch doors."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch

from tabfeed.loader.torch import DLDataLoader, Loader, TorchAsyncItr
from tabfeed.testing.loader import check_loader


def split(values, offsets):
    return [values[a:b].tolist() for a, b in pairwise(offsets)]


def make_tuples(dataset, **options):
    return TorchAsyncItr(dataset, ["key", "check", "words"], ["x"], ["y"], **options)


def read_tuples(batch):
    (cats, lists), conts, y = batch
    assert cats.dtype == torch.int64 and cats.device.type == "cpu"
    assert conts.dtype == y.dtype == torch.float32
    assert conts.shape == (len(y), 1)
    words = split(*lists["words"])
    return {"check": cats[:, 0], "key": cats[:, 1], "x": conts[:, 0], "y": y, "words": words}


def make_dicts(dataset, **options):
    return Loader(dataset, targets=["y"], **options)


def read_dicts(batch):
    inputs, y = batch
    assert inputs["key"].dtype == torch.int64 and inputs["check"].dtype == torch.int32
    assert inputs["x"].dtype == torch.float32 and inputs["wide"].dtype == torch.float64
    assert np.array_equal(inputs["wide"] * 2, inputs["x"])
    words = split(inputs["words__values"], inputs["words__offsets"])
    return {n: inputs[n] for n in ("key", "check", "x")} | {"y": y, "words": words}


class Wrapped:
    """A `DLDataLoader`, with the one thing the suite asks beyond a torch DataLoader."""

    def __init__(self, dataset, **options):
        self.itr = make_tuples(dataset, **options)
        self.loader = DLDataLoader(self.itr, batch_size=None, num_workers=0)
        self.state_dict, self.load_state_dict = self.loader.state_dict, self.loader.load_state_dict

    def __iter__(self):
        return iter(self.loader)

    def __len__(self):
        return len(self.loader)

    def close(self):
        self.itr.close()


@pytest.mark.parametrize(
    ("make", "read"),
    [(make_tuples, read_tuples), (make_dicts, read_dicts), (Wrapped, read_tuples)],
    ids=["TorchAsyncItr", "Loader", "DLDataLoader"],
)
def test_promises(make, read):
    check_loader(make, read)


def test_in_memory_data_too():
    def make(dataset, **options):
        from tabfeed import Dataset

        return make_dicts(Dataset(dataset.to_arrow(), npartitions=5), **options)

    check_loader(make, read_dicts, skip=["check_work_is_in_the_background"])


@pytest.mark.parametrize("cache", ["memory", "disk"])
def test_with_a_cache(cache, monkeypatch, tmp_path_factory):
    def make(dataset, **options):  # each begins with nothing kept
        monkeypatch.setenv("TABFEED_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
        return make_dicts(dataset, cache=cache, **options)

    check_loader(make, read_dicts)
