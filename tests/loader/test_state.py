"""States: plain, small, checked, and good on any number of ranks."""

from __future__ import annotations

import json

import pytest

from tabfeed import Dataset
from tabfeed.errors import StateError
from tabfeed.loader.torch import Loader
from tabfeed.testing.loader import make_rows, write_rows

SIZES = (90, 31, 0, 64, 77, 12, 50)  # 324 rows


def keys(loader):
    return [x["key"].tolist() for x, _ in loader]


def ranks(dataset, world, per_rank, **options):
    return [
        Loader(dataset, per_rank, True, global_size=world, global_rank=r, **options)
        for r in range(world)
    ]


def global_batches(loaders):
    """The union over ranks of each step; every rank must have the same number of steps."""
    per_rank = [keys(loader) for loader in loaders]
    assert len({len(k) for k in per_rank}) == 1
    return [[k for rank in per_rank for k in rank[t]] for t in range(len(per_rank[0]))]


@pytest.mark.parametrize("world", [1, 2, 3, 4, 8])
@pytest.mark.parametrize("same_argument", [True, False])
def test_from_4_ranks_to_others_the_global_batches_go_on(tmp_path, world, same_argument):
    ds = write_rows(tmp_path, SIZES)
    whole = global_batches(ranks(ds, 4, 6))
    first = ranks(ds, 4, 6)
    seen = []
    iterators = [iter(loader) for loader in first]
    for _ in range(5):
        seen.append([k for it in iterators for k in next(it)[0]["key"].tolist()])
    state = json.loads(json.dumps(first[2].state_dict()))
    for loader in first:
        loader.close()
    if not same_argument and 24 % world:
        pytest.skip("24 rows do not divide evenly")
    others = ranks(ds, world, 6 if same_argument else 24 // world)
    for loader in others:
        loader.load_state_dict(state)
    rest = global_batches(others)
    assert seen + rest == whole
    assert sorted(k for b in seen + rest for k in b) == list(range(324))


def test_ranks_all_have_one_state(tmp_path):
    loaders = ranks(write_rows(tmp_path, SIZES), 3, 6)
    iterators = [iter(loader) for loader in loaders]
    for it in iterators:
        next(it)
    states = [loader.state_dict() for loader in loaders]
    assert states[0] == states[1] == states[2]
    assert len(json.dumps(states[0])) < 500


def test_a_state_is_reached_without_reading_what_was_before(tmp_path):
    ds = write_rows(tmp_path, (64,) * 20)
    loader = Loader(ds, 8, True, streams=2, buffer_size=1)
    batches = iter(loader)
    for _ in range(150):
        next(batches)
    state = loader.state_dict()
    batches.close()
    read = []

    class Watched(Loader):
        pass

    again = Watched(ds, 8, True, streams=2, buffer_size=1, threads=1, depth=1)
    inner = again.feed.recipe.reader.read
    object.__setattr__(again.feed.recipe.reader, "read", lambda e, n: read.extend(n) or inner(e, n))
    again.load_state_dict(state)
    next(iter(again))
    again.close()
    assert len(read) <= 4  # two streams, and perhaps the next chunk's


def test_the_end_of_an_epoch_is_the_beginning_of_the_next(tmp_path):
    ds = write_rows(tmp_path)
    loader = Loader(ds, 10, True)
    keys(loader)
    state = loader.state_dict()
    again = Loader(ds, 10, True)
    again.load_state_dict(state)
    assert keys(again) == keys(loader)
    assert again.epoch == 1


def test_set_epoch_of_the_loaded_epoch_keeps_the_step(tmp_path):
    ds = write_rows(tmp_path)
    loader = Loader(ds, 10, True)
    batches = iter(loader)
    next(batches)
    again = Loader(ds, 10, True)
    again.load_state_dict(loader.state_dict())
    again.set_epoch(0)
    assert keys(again) == keys(batches)


def test_the_state_brings_its_own_seed(tmp_path):
    ds = write_rows(tmp_path)
    loader = Loader(ds, 10, True, seed=7)
    batches = iter(loader)
    next(batches)
    again = Loader(ds, 10, True, seed=8)
    again.load_state_dict(loader.state_dict())
    assert keys(again) == keys(batches)


def test_what_does_not_fit_is_refused(tmp_path):
    ds = write_rows(tmp_path)
    state = Loader(ds, 10, True).state_dict()
    other = Loader(Dataset(make_rows(range(99))), 10, True)
    with pytest.raises(
        StateError, match="of a dataset of 132 rows cut otherwise than this one of 99"
    ):
        other.load_state_dict(state)
    with pytest.raises(StateError, match="batches of 10 rows over 1 ranks, this loader with 11"):
        Loader(ds, 11, True).load_state_dict(state)
    with pytest.raises(StateError, match="shuffle=True, this loader with False"):
        Loader(ds, 10).load_state_dict(state)
    with pytest.raises(StateError, match="not the state of a tabfeed loader"):
        Loader(ds, 10, True).load_state_dict({"epoch": 3})
    with pytest.raises(StateError, match="format 99"):
        Loader(ds, 10, True).load_state_dict({**state, "tabfeed_loader": 99})
    with pytest.raises(StateError, match="stands at step 1000"):
        Loader(ds, 10, True).load_state_dict({**state, "step": 1000})
