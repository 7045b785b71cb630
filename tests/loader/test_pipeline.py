"""A pipeline never changes; where a loader stands is in its state."""

from __future__ import annotations

import pickle
from dataclasses import FrozenInstanceError, replace
from itertools import islice, pairwise

import numpy as np
import pytest

from tabfeed import Dataset
from tabfeed.loader.build import Steps, build_pipeline, dict_layout
from tabfeed.loader.options import LoaderOptions


def keys(chunk):
    """The batches of a chunk, as lists of keys."""
    column = chunk.columns["key"].tolist()
    return [column[low:high] for low, high in pairwise(chunk.bounds.tolist())]


@pytest.fixture
def pipeline():
    dataset = Dataset({"key": np.arange(1000)}, npartitions=4)
    options = LoaderOptions(batch_size=50, shuffle=True, threads=2)
    return build_pipeline(dataset, dict_layout(dataset.schema, ["key"]), options, keys, Steps())


def test_a_pipeline_cannot_be_changed(pipeline):
    with pytest.raises(FrozenInstanceError):
        pipeline.plan = replace(pipeline.plan, chunk=1)


def test_states_of_one_pipeline_are_independent(pipeline):
    one, other = pipeline.start(), pipeline.start()
    first, second = list(one), list(one)
    assert first != second
    assert sorted(np.concatenate(first)) == sorted(np.concatenate(second)) == list(range(1000))
    assert list(other) == first == list(pipeline) == list(pipeline)
    assert (one.epoch, one.rows_given, other.epoch, other.rows_given) == (1, 2000, 0, 1000)
    assert len(pipeline) == len(one) == 20


def test_a_state_goes_over_to_another_pipeline_of_the_same_rows(pipeline):
    state, plain = pipeline.start(), pipeline.start()
    begun = list(islice(state, 7))
    chunk = pipeline.plan.chunk // 2 or 2
    state.go_over(replace(pipeline, plan=replace(pipeline.plan, chunk=chunk)))
    assert state.pipeline.plan.chunk == chunk != pipeline.plan.chunk
    plain.load_state_dict(state.state_dict())
    assert begun == list(pipeline)[:7]
    assert list(plain) == list(pipeline)[7:]
    assert list(state) == list(plain)  # the next epoch, in chunks of either size


def test_a_copy_stands_where_the_state_stood(pipeline):
    state = pipeline.start()
    list(islice(state, 3))
    finishing = state.finishing(keys)
    finishing.load_state_dict(state.state_dict())
    assert list(finishing) == list(pipeline)[3:]
    options = replace(pipeline.options, threads=1)
    dataset = Dataset({"key": np.arange(100)}, npartitions=2)
    made = build_pipeline(dataset, dict_layout(dataset.schema, ["key"]), options, keys, Steps())
    state = made.start()
    list(state)
    copied = pickle.loads(pickle.dumps(state))
    assert copied.state_dict() == state.state_dict() and copied.rows_given == 100
    assert list(copied) == list(state)
