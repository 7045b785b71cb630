"""``static_batch=True``: the same tensors for every batch, the same values as without."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from tabfeed import Dataset
from tabfeed.errors import LoaderError, TabfeedWarning
from tabfeed.loader import EmbeddingOperator, Padding
from tabfeed.loader.torch import DLDataLoader, Loader, TorchAsyncItr
from tests.loader.gpu.pretend import pretend_gpu


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    folder, key = tmp_path_factory.mktemp("static"), np.arange(300)
    table = {
        "a": key.astype(np.int32),
        "b": key * 2,
        "x": (key * 0.5).astype(np.float32),
        "y": (key % 2).astype(np.float32),
        "words": [[int(k)] * (k % 4) for k in key],
        "name": [f"n{k}" for k in key],
    }
    pq.write_table(pa.table(table), folder / "a.parquet", row_group_size=70)
    return Dataset(str(folder))


def tuples(dataset, **options):
    options = {"batch_size": 32, "shuffle": True, "drop_last": True, "device": "cpu", **options}
    return TorchAsyncItr(dataset, ["a", "b"], ["x"], ["y"], **options)


def dicts(dataset, **options):
    options = {"batch_size": 32, "shuffle": True, "drop_last": True, "device": "cpu", **options}
    return Loader(dataset, targets=["y"], **{"columns": ["a", "x", "y"], **options})


def addresses(batch):
    if isinstance(batch, torch.Tensor):
        return [(batch.data_ptr(), tuple(batch.shape), batch.stride(), batch.dtype)]
    if isinstance(batch, dict):
        batch = batch.values()
    return [a for item in batch if item is not None for a in addresses(item)]


def values(batch):
    if isinstance(batch, dict):
        return {name: values(item) for name, item in batch.items()}
    if isinstance(batch, tuple):
        return tuple(values(item) for item in batch)
    return batch.tolist() if isinstance(batch, torch.Tensor) else batch


@pytest.mark.parametrize("make", [tuples, dicts])
@pytest.mark.parametrize("last", [{"drop_last": True}, {"drop_last": False, "last": "wrap"}])
def test_addresses_stay_and_values_are_the_ordinary_ones(dataset, make, last):
    plain, static = make(dataset, **last), make(dataset, static_batch=True, **last)
    seen = set()
    for _ in range(2):
        for one, other in zip(plain, static, strict=True):
            assert values(one) == values(other)
            seen.add(tuple(addresses(other)))
    assert len(seen) == 1


def test_columns_of_a_matrix_stay_contiguous_and_rows_where_asked(dataset):
    cats, _, _ = next(iter(tuples(dataset, static_batch=True)))
    assert cats.stride() == (1, 32)
    cats, _, _ = next(iter(tuples(dataset, static_batch=True, row_major=True)))
    assert cats.stride() == (2, 1)


def test_a_batch_is_written_over_by_the_next_one(dataset):
    batches = iter(tuples(dataset, static_batch=True))
    first = next(batches)
    before = values(first)
    second = next(batches)
    assert values(first) == values(second) != before


def test_peek_takes_nothing_from_the_batch_in_use(dataset):
    loader = tuples(dataset, static_batch=True)
    batch = next(iter(loader))
    before = values(batch)
    loader.peek()
    assert values(batch) == before


def test_a_short_last_batch_is_refused(dataset):
    with pytest.raises(
        LoaderError,
        match=r"300 rows in batches of 32 leave 12 for the last one: give drop_last=True, .* or "
        'last="wrap"',
    ):
        tuples(dataset, static_batch=True, drop_last=False)
    with pytest.raises(LoaderError, match="needs full batches"):
        dicts(dataset, static_batch=True, drop_last=False, last="pad")
    assert len(list(tuples(dataset, static_batch=True, drop_last=False, batch_size=30))) == 10


def test_lists_of_different_lengths_are_refused(dataset):
    for form in ("ragged", "padded", "nested"):
        with pytest.raises(LoaderError, match="words has rows of different lengths: make them of"):
            dicts(dataset, static_batch=True, columns=["a", "words", "y"], lists=form)
    op = EmbeddingOperator(np.eye(9), "words", "vectors")
    with pytest.raises(LoaderError, match="words, vectors have rows of different lengths"):
        dicts(dataset, static_batch=True, columns=["words", "y"], transforms=[op])
    with pytest.raises(LoaderError, match="words has rows of different lengths"):
        TorchAsyncItr(
            dataset,
            ["words"],
            batch_size=30,
            device="cpu",
            static_batch=True,
            sparse_names=["words"],
            sparse_max={"words": 3},
        )


def test_lists_of_one_length_after_all(dataset):
    def make(**options):
        return dicts(dataset, columns=["a", "words", "y"], transforms=[Padding(3)], **options)

    for one, other in zip(make(), make(static_batch=True), strict=True):
        assert values(one) == values(other)

    def hot(**options):
        how = {"sparse_names": ["words"], "sparse_max": {"words": 3}, "sparse_as_dense": True}
        return TorchAsyncItr(dataset, ["a", "words"], batch_size=30, device="cpu", **how, **options)

    pairs = list(zip(map(values, hot()), map(values, hot(static_batch=True)), strict=True))
    assert len(pairs) == 10 and all(one == other for one, other in pairs)


def test_what_is_no_tensor_rides_along(dataset):
    for inputs, _ in dicts(dataset, static_batch=True, extras=["name"]):
        assert inputs["name"].to_pylist() == [f"n{k}" for k in inputs["a"].tolist()]


def test_a_state_of_short_batches_is_found_out(dataset):
    short = tuples(dataset, drop_last=False)
    batches = iter(short)
    for _ in range(8):
        next(batches)
    static = tuples(dataset, static_batch=True)
    with pytest.warns(TabfeedWarning, match="last='short', not with last='drop'"):
        static.load_state_dict(short.state_dict())
    with pytest.raises(LoaderError, match=r"shapes .*use drop_last=True"):
        list(static)


def test_states_go_on(dataset):
    one, other = tuples(dataset, static_batch=True), tuples(dataset, static_batch=True)
    batches = iter(one)
    for _ in range(3):
        next(batches)
    other.load_state_dict(batches.state_dict())
    assert list(map(values, batches)) == list(map(values, other))
    ahead = iter(other)
    ahead.load_state_dict(one.state_dict())
    ahead.close()


def test_functions_and_copies_have_tensors_of_their_own(dataset):
    loader = dicts(dataset, static_batch=True)
    mapped = loader.map(lambda x, y: ({"twice": x["x"] * 2}, y))
    one, other = next(iter(loader)), next(iter(mapped))
    assert not set(addresses(one)) & set(addresses(other))
    assert other[0]["twice"].tolist() == [2 * v for v in one[0]["x"].tolist()]
    for copied in (pickle.loads(pickle.dumps(loader)), copy.deepcopy(loader)):
        assert not set(addresses(next(iter(copied)))) & set(addresses(one))


def test_inside_a_dataloader(dataset):
    loader = DLDataLoader(tuples(dataset, static_batch=True))
    assert len({tuple(addresses(batch)) for batch in loader}) == 1


def test_a_worker_process_is_refused(dataset):
    loader = DLDataLoader(tuples(dataset, static_batch=True), num_workers=1)
    with pytest.raises(LoaderError, match="use num_workers=0"):
        next(iter(loader))


def test_on_data_that_stays_on_the_device(dataset, monkeypatch):
    pretend_gpu(monkeypatch)
    plain = tuples(dataset, cache="device")
    static = tuples(dataset, cache="device", static_batch=True)
    seen = set()
    for one, other in zip(plain, static, strict=True):
        assert values(one) == values(other)
        seen.add(tuple(addresses(other)))
    assert len(seen) == 1


def test_a_compiled_step_is_compiled_once(dataset):
    made = []

    def backend(module, inputs):
        made.append(len(inputs))
        return module.forward

    torch._dynamo.reset()
    step = torch.compile(lambda c, x, y: (c.sum(1) + x[:, 0] - y).sum(), backend=backend)
    plain = tuples(dataset)
    for one, other in zip(plain, tuples(dataset, static_batch=True), strict=True):
        assert step(*other) == (one[0].sum(1) + one[1][:, 0] - one[2]).sum()
    assert len(made) == 1
