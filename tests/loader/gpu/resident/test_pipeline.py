"""``cache="device"``, walked on the CPU; ``tests/device`` has what needs a real GPU."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from tabfeed import Dataset
from tabfeed.errors import LoaderError, StateError, TabfeedWarning
from tabfeed.loader import EmbeddingOperator, Padding
from tabfeed.loader.torch import Loader, TorchAsyncItr
from tabfeed.testing.loader import check_loader
from tests.loader.gpu.pretend import pretend_gpu

ROWS = 270


@pytest.fixture(autouse=True)
def pretend(monkeypatch):
    pretend_gpu(monkeypatch)


def write_files(folder):
    start = 0
    for number, rows in enumerate((150, 0, 70, 50)):
        key = np.arange(start, start + rows)
        table = {
            "c": pa.array(key, pa.int32()),
            "small": pa.array(key % 100, pa.int8()),
            "x": pa.array(key * 0.5, pa.float32()),
            "y": pa.array(key % 2, pa.int64()),
            "words": pa.array([[int(k)] * (k % 3) for k in key], pa.list_(pa.int32())),
            "pair": pa.array([[k, -k] for k in key], pa.list_(pa.int64(), 2)),
            "flag": pa.array(key % 3 == 0),
        }
        pq.write_table(pa.table(table), folder / f"{number}.parquet", row_group_size=40)
        start += rows
    return Dataset(str(folder))


@pytest.fixture
def dataset(tmp_path):
    return write_files(tmp_path)


def tuples(dataset, **options):
    options = {"batch_size": 32, "shuffle": True, "cache": "device", "device": "cpu", **options}
    return TorchAsyncItr(dataset, ["c", "small"], ["x"], ["y"], **options)


def dicts(dataset, **options):
    options = {"batch_size": 32, "shuffle": True, "cache": "device", "device": "cpu", **options}
    return Loader(dataset, targets=["y"], **options)


def keys(loader):
    return [batch[0][:, 0].tolist() for batch in loader]


def flat(batches):
    return [k for batch in batches for k in batch]


def test_rows_stay_whole_and_have_their_dtypes(dataset):
    for cats, conts, y in tuples(dataset):
        assert (cats.dtype, conts.dtype, y.dtype) == (torch.int64, torch.float32, torch.float32)
        assert cats[:, 1].tolist() == (cats[:, 0] % 100).tolist()
        assert torch.equal(conts[:, 0], cats[:, 0] * 0.5) and torch.equal(
            y, (cats[:, 0] % 2).float()
        )


@pytest.mark.parametrize("shuffle", [True, False])
def test_lists_of_all_kinds(dataset, shuffle):
    seen = []
    for inputs, y in dicts(dataset, shuffle=shuffle):
        key = inputs["c"].tolist()
        assert inputs["c"].dtype == torch.int32 and inputs["flag"].dtype == torch.bool
        assert inputs["flag"].tolist() == [k % 3 == 0 for k in key]
        assert inputs["pair"].tolist() == [[k, -k] for k in key]
        assert y.tolist() == [k % 2 for k in key]
        offsets, values = inputs["words__offsets"].tolist(), inputs["words__values"]
        assert values.dtype == torch.int32 and offsets[0] == 0
        rows = [values[a:b].tolist() for a, b in pairwise(offsets)]
        assert rows == [[k] * (k % 3) for k in key]
        seen += key
    assert sorted(seen) == list(range(ROWS))


@pytest.mark.parametrize("form", ["nested", "padded"])
def test_other_forms_of_lists(dataset, form):
    for inputs, _ in dicts(dataset, lists=form):
        rows = [[k] * (k % 3) for k in inputs["c"].tolist()]
        if form == "nested":
            assert [r.tolist() for r in inputs["words"].unbind()] == rows
        else:
            assert inputs["words"][inputs["words__mask"]].tolist() == [k for r in rows for k in r]


@pytest.mark.parametrize("dense", [True, False])
def test_multi_hot_columns_of_tuples(dataset, dense):
    loader = TorchAsyncItr(
        dataset,
        ["c", "words"],
        labels=["y"],
        batch_size=50,
        shuffle=True,
        cache="device",
        device="cpu",
        sparse_names=["words"],
        sparse_max={"words": 2},
        sparse_as_dense=dense,
    )
    for (cats, hot), _, _ in loader:
        words = hot["words"] if dense else hot["words"].to_dense()
        assert words.tolist() == [([k] * (k % 3) + [0, 0])[:2] for k in cats[:, 0].tolist()]


def test_padding_and_vectors(dataset):
    vectors = np.random.default_rng(0).standard_normal((200, 3), dtype=np.float32)
    ops = [EmbeddingOperator(vectors, "c", unknown_value=7), Padding(2, -1, mask=True)]
    for inputs, _ in dicts(dataset, transforms=ops):
        key = inputs["c"].tolist()
        assert inputs["words"].tolist() == [([k] * (k % 3) + [-1, -1])[:2] for k in key]
        assert inputs["words__mask"].sum(1).tolist() == [k % 3 for k in key]
        wanted = [vectors[k].tolist() if k < 200 else [7.0] * 3 for k in key]
        assert inputs["embeddings"].tolist() == wanted


def test_in_order(dataset):
    assert flat(keys(tuples(dataset, shuffle=False))) == list(range(ROWS))
    assert keys(tuples(dataset, shuffle=False, global_size=2, global_rank=1, batch_size=16))[
        :2
    ] == [
        list(range(16, 32)),
        list(range(48, 64)),
    ]


@pytest.mark.parametrize("last", ["short", "drop", "pad", "wrap"])
@pytest.mark.parametrize("shuffle", [True, False])
def test_ranks_share_the_global_batches_of_one_process(dataset, last, shuffle):
    how = {"shuffle": shuffle, "last": last, "seed": 5}
    alone = keys(tuples(dataset, batch_size=84, **how))
    ranks = [
        keys(tuples(dataset, batch_size=21, global_size=4, global_rank=r, **how)) for r in range(4)
    ]
    together = [flat(parts) for parts in zip(*ranks, strict=True)]
    if last == "pad":  # 18 rows over 4 ranks: two come twice
        assert together[:-1] == alone[:-1] and together[-1] == alone[-1] + alone[0][:2]
    else:
        assert together == alone
    if last == "wrap":
        assert alone[-1][18:] == alone[0][:66]
    assert len(flat(alone)) == {"short": 270, "pad": 270, "drop": 252, "wrap": 336}[last]


def test_two_passes_that_load_at_the_same_time(dataset):
    loader = dicts(dataset, threads=2)
    one, other = iter(loader), iter(loader)
    for a, b in zip(one, other, strict=True):  # the same epoch: it counts from its first batch
        assert sorted(a[0]) == sorted(b[0])
        assert a[0]["words__values"].tolist() == [
            k for k in a[0]["c"].tolist() for _ in range(k % 3)
        ]


def test_a_state_goes_on_in_another_loader(dataset):
    for stop in (0, 1, 5, 9):
        loader, other = tuples(dataset), tuples(dataset, threads=1)
        batches = iter(loader)
        for _ in range(stop):
            next(batches)
        other.load_state_dict(loader.state_dict())
        rest = keys(other)
        assert rest == ([b[0][:, 0].tolist() for b in batches] or keys(loader))


def test_a_state_of_another_order_is_refused(dataset):
    here, there = tuples(dataset), tuples(dataset, cache=None)
    with pytest.raises(StateError, match='that of cache="device": go on with the same cache='):
        there.load_state_dict(here.state_dict())
    with pytest.raises(StateError, match='another than cache="device"'):
        here.load_state_dict(there.state_dict())


def test_too_large_is_told_before_anything_is_read(dataset):
    with pytest.raises(
        LoaderError,
        match=r'cache="device" needs .* MB on the GPU for 270 rows, and '
        r"device_memory allows 0.001 MB: raise device_memory",
    ):
        tuples(dataset, device_memory=1000)


def test_a_gpu_without_room_after_all(dataset, monkeypatch):
    def full(*args, **options):
        raise torch.cuda.OutOfMemoryError("CUDA out of memory")

    loader = tuples(dataset)
    monkeypatch.setattr(torch, "empty", full)
    with pytest.raises(LoaderError, match="more than is free: free some"):
        next(iter(loader))


def test_extras_are_refused(dataset):
    with pytest.raises(LoaderError, match=r"extras=\('x',\) are not tensors: leave them out"):
        dicts(dataset, extras=["x"])


def test_without_a_gpu(dataset, monkeypatch):
    monkeypatch.undo()
    with pytest.raises(LoaderError, match='and device is \'cpu\': use cache="memory" or "disk"'):
        tuples(dataset)


def test_cudf_is_not_needed_and_said_so(dataset):
    with pytest.warns(TabfeedWarning, match='with cache="device" everything is read once'):
        tuples(dataset, reader="cudf")


def test_shuffle_quality_is_that_of_a_permutation(dataset):
    assert tuples(dataset).shuffle_quality().score == 1.0


def test_every_promise_of_a_loader_holds(monkeypatch):
    def make(dataset, **options):
        options = {"device": "cpu", "cache": "device", **options}
        return TorchAsyncItr(dataset, ["key", "check"], ["x"], ["y"], **options)

    def read(batch):
        cats, conts, y = (t.numpy() for t in batch)
        return {"check": cats[:, 0], "key": cats[:, 1], "x": conts[:, 0], "y": y}

    check_loader(make, read)


# -- what is said of it ----------------------------------------------------------------------


def test_who_reads_is_said(dataset):
    said = "Arrow: all rows are read once and stay on the GPU, where batches are cut from them"
    loader = dicts(dataset)
    assert loader.reader_choice == loader.map(lambda x, y: (x, y)).reader_choice == said


def test_what_is_all_there_is_cannot_be_given_back(dataset):
    loader = dicts(dataset)
    for one in (loader, loader.map(lambda x, y: (x, y))):
        with pytest.raises(LoaderError, match='cache="device" keeps all rows on the GPU'):
            one.release_memory()
    assert sum(len(y) for _, y in loader) == ROWS
