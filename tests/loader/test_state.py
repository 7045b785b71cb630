"""States: plain, small, checked, and good on any number of ranks."""

from __future__ import annotations

import contextlib
import copy
import io
import json
import pickle

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from tabfeed import Dataset
from tabfeed.errors import ArgumentError, StateError, TabfeedWarning
from tabfeed.loader.torch import DLDataLoader, Loader
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
    inner = again.pipeline.stages.reader.read
    object.__setattr__(
        again.pipeline.stages.reader, "read", lambda e, n: read.extend(n) or inner(e, n)
    )
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
    with pytest.warns(TabfeedWarning, match=r"began, with seed=7, not with seed=8 as given") as w:
        again.load_state_dict(loader.state_dict())
    assert w[0].filename == __file__
    assert "seed 7" in again._repr_html_()
    assert keys(again) == keys(batches)
    with pytest.warns(TabfeedWarning, match="seed=7, not with seed=8"):
        iter(again).load_state_dict(loader.state_dict())
    Loader(ds, 10, True).load_state_dict(loader.state_dict())  # which was given no seed
    in_order = Loader(ds, 10, seed=7).state_dict()
    Loader(ds, 10, seed=8).load_state_dict(in_order)  # draws nothing


def test_the_state_brings_its_own_last_batch(tmp_path):
    ds = write_rows(tmp_path)
    state = Loader(ds, 10, drop_last=True).state_dict()
    for options, last in (({"last": "pad"}, "pad"), ({"last": "short"}, "short")):
        again = Loader(ds, 10, **options)
        with pytest.warns(TabfeedWarning, match=f"last='drop', not with last='{last}' as given"):
            again.load_state_dict(state)
        assert len(again) == len(keys(again)) == 13
    for options in ({}, {"last": "drop"}, {"drop_last": True}):
        Loader(ds, 10, **options).load_state_dict(state)
    whole = Loader(ds, 10, True, seed=3).state_dict()
    with pytest.warns(TabfeedWarning, match=r"with seed=3, .* and with last='short', not with "):
        Loader(ds, 10, True, seed=4, drop_last=True).load_state_dict(whole)


def test_a_state_of_other_ranks_says_what_comes(tmp_path):
    ds = write_rows(tmp_path)  # 132 rows
    state = ranks(ds, 4, 6)[0].state_dict()
    for world, sizes in ((1, {24}), (2, {12}), (5, {4, 5})):
        loaders = ranks(ds, world, 6)
        for loader in loaders:
            loader.load_state_dict(state)
            for _ in range(2):  # in the next epoch as well
                batches = keys(loader)
                assert len(batches) == len(loader) == 6
                assert {len(keys) for keys in batches[:-1]} == {loader.batch_size}
                assert f"132 rows, 6 batches of {loader.batch_size}, " in repr(loader)
        assert {loader.batch_size for loader in loaders} == sizes


def test_what_does_not_fit_is_refused(tmp_path):
    ds = write_rows(tmp_path)
    state = Loader(ds, 10, True).state_dict()
    other = Loader(Dataset(make_rows(range(99))), 10, True)
    with pytest.raises(
        StateError, match="of a dataset of 132 rows cut otherwise than this one of 99"
    ):
        other.load_state_dict(state)
    with pytest.raises(StateError, match="batches of 10 rows on 1 ranks, this loader with 11"):
        Loader(ds, 11, True).load_state_dict(state)
    with pytest.raises(StateError, match="shuffle=True, this loader with False"):
        Loader(ds, 10).load_state_dict(state)
    with pytest.raises(StateError, match="not the state of a tabfeed loader"):
        Loader(ds, 10, True).load_state_dict({"epoch": 3})
    with pytest.raises(StateError, match="format 99"):
        Loader(ds, 10, True).load_state_dict({**state, "tabfeed_loader": 99})
    with pytest.raises(StateError, match="stands at step 1000"):
        Loader(ds, 10, True).load_state_dict({**state, "step": 1000})


def begun(ds, taken=3, **options):
    """A loader of 14 batches that goes on from a state, and the batches that are left."""
    loader = Loader(ds, 10, True, **options)
    batches = iter(loader)
    for _ in range(taken):
        next(batches)
    state, rest = loader.state_dict(), keys(batches)
    again = Loader(ds, 10, True, **options)
    again.load_state_dict(state)
    assert len(rest) == 14 - taken
    return again, rest


@pytest.mark.parametrize(
    "derive",
    [
        lambda loader: loader.map(lambda x, y: (x, y)),
        lambda loader: loader.map(lambda x, y: (x, y)).map(lambda x, y: (x, y)),
        copy.copy,
        copy.deepcopy,
        lambda loader: pickle.loads(pickle.dumps(loader)),
        lambda loader: DLDataLoader(loader),
        lambda loader: DLDataLoader(loader.map(lambda x, y: (x, y))),
        lambda loader: DataLoader(loader, batch_size=None),
    ],
    ids=["map", "maps", "copy", "deepcopy", "pickle", "DLDataLoader", "map in it", "DataLoader"],
)
def test_what_is_derived_from_a_loader_stands_where_it_stood(tmp_path, derive):
    loader, rest = begun(write_rows(tmp_path))
    derived = derive(loader)
    state = getattr(derived, "state_dict", loader.state_dict)()
    assert state == loader.state_dict()
    assert len(derived) == 14
    assert keys(derived) == rest
    if derived is not loader:
        second = keys(derived)  # the next epoch, whole
        assert len(second) == 14 and second[: len(rest)] != rest


def test_an_end_of_an_epoch_is_derived_too(tmp_path):
    loader = Loader(write_rows(tmp_path), 10, True)
    keys(loader)
    mapped = loader.map(lambda x, y: (x, y))
    assert mapped.epoch == loader.epoch
    assert keys(mapped) == keys(loader)


def test_worker_processes_go_on_with_what_map_derived(tmp_path):
    ds = write_rows(tmp_path)
    whole = DLDataLoader(Loader(ds, 10, True), num_workers=2, multiprocessing_context="fork")
    batches = iter(whole)
    for _ in range(3):
        next(batches)
    state, rest = whole.state_dict(), keys(batches)
    loader = Loader(ds, 10, True)
    loader.load_state_dict(state)
    mapped = loader.map(lambda x, y: (x, y))
    again = DLDataLoader(mapped, num_workers=2, multiprocessing_context="fork")
    assert keys(again) == rest


def test_a_state_that_is_refused_changes_nothing(tmp_path):
    ds = write_rows(tmp_path)
    loader, rest = begun(ds)
    of_workers = {**loader.state_dict(), "workers": 3}
    with pytest.raises(StateError, match="3 worker processes"):
        DLDataLoader(loader).load_state_dict(of_workers)
    with pytest.raises(StateError, match="step 99"):
        loader.load_state_dict({**loader.state_dict(), "step": 99})
    assert keys(loader) == rest


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"plan.streams": 2**63}, "plan.streams of the state is 9223372036854775808; it must be"),
        ({"plan.streams": 2**40}, "plan.streams of the state is .* from 1 to 10$"),
        ({"plan.streams": 0}, "plan.streams of the state is 0"),
        ({"plan.batch": True}, "plan.batch of the state is True; it must be an integer"),
        ({"plan.batch": 10.0}, "plan.batch of the state is 10.0"),
        ({"plan.batch": "10"}, "plan.batch of the state is '10'"),
        ({"plan.batch": None}, "plan.batch of the state is None"),
        ({"plan.batch": [10]}, r"plan.batch of the state is \[10\]"),
        ({"plan.ranks": 3}, "plan.batch of the state is 10, which its plan.ranks, 3, do not"),
        ({"plan.ranks": 11}, "plan.ranks of the state is 11; it must be an integer from 1 to 10"),
        ({"plan.chunk": 0}, "plan.chunk of the state is 0"),
        ({"plan.lot": 2**62}, "plan.lot of the state is"),
        ({"plan.lot": 0}, "plan.lot of the state is 0"),
        ({"plan.seed": "7"}, "plan.seed of the state is '7'; it must be an integer$"),
        ({"plan.seed": 1.5}, "plan.seed of the state is 1.5"),
        ({"plan.shuffle": 1}, "plan.shuffle of the state is 1; it must be True or False"),
        ({"plan.whole": "no"}, "plan.whole of the state is 'no'; it must be True or False"),
        ({"plan.whole": True}, 'of an order that is that of cache="device"'),
        ({"plan.last": 3}, "plan.last of the state is 3; it must be text"),
        (
            {"plan.last": "maybe"},
            "plan.last of the state is 'maybe'; it must be one of short",
        ),
        ({"plan.depth": 3}, "the state has plan.depth, which"),
        ({"plan": 3}, "plan of the state must be a dict, not 3"),
        ({"plan": None}, "plan is missing"),
        ({"epoch": -1}, "epoch of the state is -1"),
        ({"epoch": 2**63}, "epoch of the state is"),
        ({"epoch": float("nan")}, "epoch of the state is nan"),
        ({"step": -1}, "step of the state is -1"),
        ({"step": True}, "step of the state is True"),
        ({"step": 15}, "step 15 of epoch 0; an epoch has 14 steps"),
        ({"workers": 0}, "workers of the state is 0"),
        ({"workers": 2**40}, "workers of the state is"),
        ({"rows": 133}, "a dataset of 133 rows"),
        ({"rows": -1}, "rows of the state is -1"),
        ({"data": 5}, "data of the state is 5; it must be text"),
        ({"data": "0" * 16}, "cut otherwise"),
        ({"tabfeed_loader": "3"}, "tabfeed_loader of the state is '3'"),
        ({"tabfeed_loader": 2}, "the state is of format 2; this tabfeed reads 3"),
        ({"more": 1}, "the state has more, which a loader's state has not"),
    ],
)
def test_each_key_of_a_state_is_checked(tmp_path, change, message):
    loader = Loader(write_rows(tmp_path), 10, True)
    state = json.loads(json.dumps(loader.state_dict()))
    ((path, value),) = change.items()
    *outer, key = path.split(".")
    (state[outer[0]] if outer else state)[key] = value
    if value is None and key == "plan":
        del state["plan"]
    with pytest.raises(StateError, match=message):
        loader.load_state_dict(state)
    with (
        contextlib.closing(iter(loader)) as batches,
        pytest.raises(StateError, match=message),
    ):
        batches.load_state_dict(state)


@pytest.mark.parametrize("key", ["data", "rows", "plan", "epoch", "step", "tabfeed_loader"])
def test_a_key_that_is_missing_is_named(tmp_path, key):
    loader = Loader(write_rows(tmp_path), 10, True)
    state = loader.state_dict()
    del state[key]
    with pytest.raises(StateError, match=rf"{key} is missing; give what state_dict\(\)"):
        loader.load_state_dict(state)


@pytest.mark.parametrize("key", ["batch", "streams", "chunk", "shuffle", "seed", "ranks", "last"])
def test_a_key_of_the_plan_that_is_missing_is_named(tmp_path, key):
    loader = Loader(write_rows(tmp_path), 10, True)
    state = loader.state_dict()
    del state["plan"][key]
    with pytest.raises(StateError, match=f"plan.{key} is missing"):
        loader.load_state_dict(state)


@pytest.mark.parametrize("state", [None, 3, [], "x", b"x", 1.5])
def test_what_is_no_dict_is_no_state(tmp_path, state):
    with pytest.raises(StateError, match="a loader's state must be a dict, not"):
        Loader(write_rows(tmp_path), 10, True).load_state_dict(state)


def saved_by_torch(state):
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


@pytest.mark.parametrize("through", [lambda s: json.loads(json.dumps(s)), saved_by_torch])
@pytest.mark.parametrize("number", [int, np.int64, np.int32])
def test_a_state_goes_through_checkpoints_whatever_integers_a_loader_was_given(
    tmp_path, through, number
):
    ds = write_rows(tmp_path)
    options = {"streams": number(3), "seed": number(5), "global_size": number(2)}
    loader = Loader(ds, number(10), np.bool_(True), global_rank=number(1), **options)
    batches = iter(loader)
    next(batches)
    state, rest = through(loader.state_dict()), keys(batches)
    again = Loader(ds, 10, True, global_size=2, global_rank=1, streams=3)
    again.load_state_dict(state)
    assert again.state_dict() == state
    assert keys(again) == rest


def test_integers_of_numpy_and_torch_are_integers(tmp_path):
    loader, rest = begun(write_rows(tmp_path))
    state = loader.state_dict()
    state["step"], state["epoch"] = np.int64(3), torch.tensor(0)
    state["plan"] |= {"batch": np.array(10), "shuffle": np.bool_(True)}
    loader.load_state_dict(state)
    assert keys(loader) == rest


def test_a_state_of_an_earlier_version_loads(tmp_path):
    """As written down by version 0.1.0, of rows in files of 40, 7, 0, 23, 61, 1 and 0."""
    plan = {"batch": 10, "streams": 4, "chunk": 3276, "shuffle": True, "seed": 0, "ranks": 1}
    state = {
        "tabfeed_loader": 3,
        "data": "203a4f8b5fa83810",
        "rows": 132,
        "plan": {**plan, "last": "short", "lot": 8192},
        "epoch": 0,
        "step": 3,
    }
    ds = write_rows(tmp_path)
    loader = Loader(ds, 10, True)
    loader.load_state_dict(state)
    assert keys(loader) == keys(Loader(ds, 10, True))[3:]


@pytest.mark.parametrize("epoch", [-1, 1.5, True])
def test_an_epoch_is_a_whole_number(tmp_path, epoch):
    with pytest.raises(ArgumentError, match=f"epoch is {epoch}; it must be an integer"):
        Loader(write_rows(tmp_path), 10, True).set_epoch(epoch)


@pytest.mark.parametrize("key", ["workers", "plan.lot"])
def test_the_largest_numbers_a_state_may_have(tmp_path, key):
    loader = Loader(write_rows(tmp_path), 10, True)
    *outer, name = key.split(".")
    most = {"workers": 2**17, "lot": 2**20}[name]
    for value in (1, most):
        state = loader.state_dict()
        (state[outer[0]] if outer else state)[name] = value
        loader.load_state_dict(state)
    (state[outer[0]] if outer else state)[name] = most + 1
    with pytest.raises(StateError, match=f"{key} of the state is .* from 1 to {most}$"):
        loader.load_state_dict(state)


def test_streams_and_ranks_up_to_what_is_ever_planned(tmp_path):
    ds = write_rows(tmp_path)  # 132 rows
    loader = Loader(ds, 1000, True, streams=3)
    state = loader.state_dict()
    for streams, fits in ((132, True), (133, False)):
        state["plan"]["streams"] = streams
        with contextlib.nullcontext() if fits else pytest.raises(StateError, match="from 1 to 132"):
            loader.load_state_dict(state)
    own = Loader(ds, 1000, True, streams=500)  # what a loader plans itself is always good
    own.load_state_dict(own.state_dict())
    state["plan"] |= {"streams": 1, "ranks": 1001}
    with pytest.raises(StateError, match=r"plan\.ranks of the state is 1001; .* from 1 to 1000$"):
        loader.load_state_dict(state)
