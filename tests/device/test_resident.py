"""``cache="device"`` on a real GPU: every promise of a loader, its memory, its streams."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from tabfeed import Dataset
from tabfeed.errors import LoaderError
from tabfeed.loader import EmbeddingOperator, Padding
from tabfeed.loader.torch import Loader, TorchAsyncItr
from tabfeed.testing.loader import check_loader, words_of

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no NVIDIA GPU here"),
]
ROWS = 120_000
CUDA = torch.device("cuda")


def write_files(folder):
    for number, key in enumerate(np.array_split(np.arange(ROWS), 3)):
        table = {
            "key": key.astype(np.int32),
            "small": (key % 100).astype(np.int8),
            "x": (key * 0.5).astype(np.float32),
            "y": (key % 2).astype(np.float32),
        }
        pq.write_table(pa.table(table), folder / f"{number}.parquet", row_group_size=15_000)
    return Dataset(str(folder))


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    return write_files(tmp_path_factory.mktemp("resident"))


def load(dataset, **options):
    options = {"batch_size": 4096, "shuffle": True, "cache": "device", "device": "cuda", **options}
    return TorchAsyncItr(dataset, ["key", "small"], ["x"], ["y"], **options)


def whole(batch):
    cats, conts, y = batch
    assert all(t.is_cuda for t in batch)
    assert torch.equal(cats[:, 1], cats[:, 0] % 100)
    assert torch.equal(conts[:, 0], cats[:, 0] * 0.5) and torch.equal(y, (cats[:, 0] % 2).float())
    return cats[:, 0].tolist()


def test_ranks_share_the_batches_of_one_process(dataset):
    alone = [whole(b) for b in load(dataset, batch_size=8192, drop_last=True)]
    ranks = [
        [whole(b) for b in load(dataset, drop_last=True, global_size=2, global_rank=r)]
        for r in range(2)
    ]
    assert [a + b for a, b in zip(*ranks, strict=True)] == alone


def test_a_state_goes_on(dataset):
    loader, other = load(dataset), load(dataset)
    batches = iter(loader)
    for _ in range(7):
        next(batches)
    other.load_state_dict(loader.state_dict())
    assert [whole(b) for b in batches] == [whole(b) for b in other]


def test_batches_that_are_read_late_are_whole(dataset):
    """Each batch is dropped at once, and read only much later by a slow stream."""
    got = []
    for batch in load(dataset, batch_size=2048):
        torch.cuda._sleep(20_000_000)
        got.append(tuple(t.clone() for t in batch))
        del batch
        junk = [torch.full((2048, 5), -1, device="cuda") for _ in range(4)]
        del junk
    torch.cuda.synchronize()
    assert sorted(key for batch in got for key in whole(batch)) == list(range(ROWS))


def test_too_large_is_told_when_it_is_made(dataset):
    with pytest.raises(LoaderError, match=r"GPU for 120,000 rows, and device_memory allows 1 MB"):
        load(dataset, device_memory="1MB")


def take_all():
    """Tensors until there is no room for another megabyte."""
    taken, size = [], 2**33
    while size >= 2**20:
        try:
            taken.append(torch.empty(size, dtype=torch.uint8, device="cuda"))
        except torch.OutOfMemoryError:
            size //= 2
    return taken


def test_no_memory_left_in_mid_training(tmp_path):
    """An epoch begins with an order of all rows, for which there is no room; later there is."""
    rows = 3_000_000
    key = np.arange(rows, dtype=np.int32)
    table = {"key": key, "small": key, "x": key.astype(np.float32), "y": key.astype(np.float32)}
    pq.write_table(pa.table(table), tmp_path / "a.parquet", row_group_size=500_000)
    loader = load(Dataset(str(tmp_path)), batch_size=65_536)
    assert loader.reader_choice.startswith("Arrow: all rows are read once and stay on the GPU")
    assert sum(len(y) for _, _, y in loader) == rows
    taken = take_all()
    with pytest.raises(
        LoaderError, match="the GPU has no memory left for the next batches"
    ) as told:
        for batch in loader:
            del batch
    assert isinstance(told.value.__cause__, torch.OutOfMemoryError)
    del taken, told
    torch.cuda.empty_cache()
    assert sum(len(y) for _, _, y in loader) == rows


def test_lists_padding_and_vectors(tmp_path):
    key = np.arange(20_000)
    table = {
        "key": key,
        "words": [[int(k)] * (k % 4) for k in key],
        "pair": pa.array([[k, -k] for k in key], pa.list_(pa.int64(), 2)),
        "y": key.astype(np.float32),
    }
    pq.write_table(pa.table(table), tmp_path / "a.parquet", row_group_size=3000)
    vectors = np.random.default_rng(0).standard_normal((15_000, 4)).astype(np.float32)
    there = torch.from_numpy(vectors).cuda()

    def make(**options):
        return Loader(
            Dataset(str(tmp_path)),
            1024,
            True,
            targets=["y"],
            cache="device",
            device="cuda",
            **options,
        )

    for inputs, _ in make():
        keys, lengths = inputs["key"], inputs["words__offsets"].diff()
        assert torch.equal(lengths, keys % 4)
        assert torch.equal(inputs["words__values"], torch.repeat_interleave(keys, lengths))
        assert torch.equal(inputs["pair"], torch.stack([keys, -keys], 1))
    ops = [EmbeddingOperator(vectors, "key", unknown_value=2), Padding(3, -1)]
    for inputs, _ in make(transforms=ops):
        keys = inputs["key"]
        known = keys < 15_000
        assert torch.equal(inputs["embeddings"][known], there[keys[known]])
        assert (inputs["embeddings"][~known] == 2).all()
        assert torch.equal((inputs["words"] != -1).sum(1), keys % 4)


@pytest.mark.parametrize("kind", ["tuples", "dicts"])
def test_every_promise_of_a_loader_holds(kind):
    def tuples(dataset, **options):
        options = {"device": "cuda", "cache": "device", **options}
        return TorchAsyncItr(dataset, ["key", "check"], ["x"], ["y"], **options)

    def dicts(dataset, **options):
        options = {"device": "cuda", "cache": "device", **options}
        return Loader(dataset, targets=["y"], **options)

    def read_tuples(batch):
        cats, conts, y = (t.cpu().numpy() for t in batch)
        return {"check": cats[:, 0], "key": cats[:, 1], "x": conts[:, 0], "y": y}

    def read_dicts(batch):
        inputs, y = batch
        found = {name: t.cpu().numpy() for name, t in inputs.items()}
        offsets, values = found.pop("words__offsets"), found.pop("words__values")
        found["words"] = np.split(values, offsets[1:-1])
        return found | {"y": y.cpu().numpy()}

    assert words_of(7) == [70, 71, 72]
    check_loader(*((tuples, read_tuples) if kind == "tuples" else (dicts, read_dicts)))
