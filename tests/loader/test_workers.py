"""Worker processes of a torch DataLoader share the rows; where they stand can be saved."""

from __future__ import annotations

import copy
import functools
import json

import pytest

from tabfeed.errors import LoaderError, StateError
from tabfeed.loader.torch import DLDataLoader, Loader
from tabfeed.testing.loader import write_rows

stateful = pytest.importorskip("torchdata.stateful_dataloader")

# torch's own remarks: of a method to come, and of more workers than this machine has cores.
pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning:torch")


def keys(batches):
    return [x["key"].tolist() for x, _ in batches]


def some(loader, count):
    """The first batches of a pass that is then left."""
    out = []
    for x, _ in loader if count else ():
        out.append(x["key"].tolist())
        if len(out) == count:
            break
    return out


def make(kind, folder, workers, **options):
    itr = Loader(folder, 10, shuffle=True, targets=["y"])
    if kind == "DLDataLoader":
        return DLDataLoader(itr, num_workers=workers, **options)
    return stateful.StatefulDataLoader(itr, batch_size=None, num_workers=workers, **options)


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    return write_rows(tmp_path_factory.mktemp("rows"))


@pytest.fixture(scope="module")
def uninterrupted(dataset):
    """Two epochs that nobody stopped, by kind and options: each starts processes only once."""

    @functools.cache
    def batches(kind, workers, **options):
        whole = make(kind, dataset, workers, **options)
        first = keys(whole)
        if kind == "stateful":
            whole.dataset.set_epoch(1)  # new workers know no epochs: torch's own custom
        epochs = [first, keys(whole)]
        assert kind == "stateful" or whole.dataset.num_rows_processed == 2 * 132
        assert epochs[0] != epochs[1]
        assert all(sorted(k for b in e for k in b) == list(range(132)) for e in epochs)
        return epochs

    return batches


@pytest.mark.parametrize("stop", [0, 5, 13, 14])
@pytest.mark.parametrize("workers", [0, 2])
def test_stateful_data_loader_goes_on_bit_for_bit(dataset, uninterrupted, workers, stop):
    first = make("stateful", dataset, workers)
    got = some(first, stop)
    state = copy.deepcopy(first.state_dict())
    again = make("stateful", dataset, workers)
    again.load_state_dict(state)
    rest = keys(again)
    again.dataset.set_epoch(1)
    assert [got + rest, keys(again)] == uninterrupted("stateful", workers)


@pytest.mark.parametrize("stop", [1, 4, 13])
@pytest.mark.parametrize("persistent", [False, True])
def test_data_loader_goes_on_bit_for_bit_and_counts_epochs(
    dataset, uninterrupted, persistent, stop
):
    options = {"workers": 2, "persistent_workers": persistent}
    first = make("DLDataLoader", dataset, **options)
    got = some(first, stop)
    state = json.loads(json.dumps(first.state_dict()))
    assert (state["epoch"], state["step"], state["workers"]) == (0, stop, 2)
    again = make("DLDataLoader", dataset, **options)
    again.load_state_dict(state)
    assert [got + keys(again), keys(again)] == uninterrupted("DLDataLoader", **options)


def test_the_end_of_an_epoch_is_the_start_of_the_next(dataset):
    whole = make("DLDataLoader", dataset, 2)
    keys(whole)
    again = make("DLDataLoader", dataset, 2)
    again.load_state_dict(whole.state_dict())
    assert keys(again) == keys(whole)


def test_living_workers_hear_of_a_new_epoch_and_of_a_state(dataset):
    loader = make("DLDataLoader", dataset, 2, persistent_workers=True)
    first, state = some(loader, 3), loader.state_dict()
    loader.set_epoch(0)
    whole = keys(loader)
    assert whole[:3] == first and len(whole) == 14
    loader.load_state_dict(state)
    assert keys(loader) == whole[3:]


def test_a_state_needs_as_many_workers(dataset):
    two = make("DLDataLoader", dataset, 2)
    some(two, 3)
    state = two.state_dict()
    for other in (0, 3):
        with pytest.raises(StateError, match="made with batches from 2 worker processes"):
            make("DLDataLoader", dataset, other).load_state_dict(state)
    one = make("DLDataLoader", dataset, 1)  # one worker gives what no worker gives
    got = some(one, 3)
    none = make("DLDataLoader", dataset, 0)
    none.load_state_dict(one.state_dict())
    assert got + keys(none) == keys(make("DLDataLoader", dataset, 0))


def test_seeds_that_only_workers_know_are_refused(tmp_path):
    itr = Loader(write_rows(tmp_path), 10, shuffle=True, seed_fn=lambda: 3)
    with pytest.raises(LoaderError, match="give seed= instead, or use num_workers=0"):
        DLDataLoader(itr, num_workers=2).state_dict()
    assert DLDataLoader(itr).state_dict()["step"] == 0


def test_an_iterator_stands_where_a_state_says(tmp_path):
    loader = Loader(write_rows(tmp_path), 10, shuffle=True)
    expected = keys(loader)
    batches = iter(Loader(write_rows(tmp_path), 10, shuffle=True))
    for _ in range(4):
        next(batches)
    state = batches.state_dict()
    rest = keys(batches)
    other = iter(Loader(write_rows(tmp_path), 10, shuffle=True))
    other.load_state_dict(state)
    assert rest == keys(other) == expected[4:]
    other.load_state_dict(batches.state_dict())  # the end of a pass has no more batches
    assert keys(other) == []
