"""Whatever the sizes: every row arrives whole and exactly once, in equal steps, at every door."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tabfeed import Dataset
from tabfeed.io import Partition, Piece
from tabfeed.loader.torch import DLDataLoader, Loader, TorchAsyncItr
from tabfeed.testing.loader import check_of, make_rows, words_of

sizes_of_parts = st.lists(st.integers(0, 40), min_size=1, max_size=8).filter(lambda s: sum(s) > 0)


def cut(sizes):
    """Rows as a dataset with exactly these partitions; each seventh has no `gap`."""
    rows = make_rows(range(sum(sizes)))
    gap = pa.array([None if k % 7 == 0 else k * 2.0 for k in range(sum(sizes))], pa.float32())
    dataset = Dataset(rows.append_column("gap", gap))
    starts = np.cumsum([0, *sizes[:-1]]).tolist()
    dataset.__dict__["partitions"] = tuple(
        Partition((Piece(0, 0, start, size, whole=False),))
        for start, size in zip(starts, sizes, strict=True)
    )
    return dataset


# -- the doors, each with a function that gives a batch's columns by name --------------------


def lists_of(values, offsets):
    values, offsets = np.asarray(values).tolist(), np.asarray(offsets).tolist()
    return [values[a:b] for a, b in pairwise(offsets)]


def tuples(dataset, **options):
    return TorchAsyncItr(dataset, ["key", "check", "words"], ["x", "gap"], ["y"], **options)


def read_tuples(batch):
    (cats, lists), conts, y = batch
    return {
        "check": cats[:, 0],
        "key": cats[:, 1],
        "x": conts[:, 0],
        "gap": conts[:, 1],
        "y": y,
        "words": lists_of(*lists["words"]),
    }


def wrapped(dataset, **options):
    return DLDataLoader(tuples(dataset, **options))


def dicts(dataset, **options):
    return Loader(dataset, targets=["y"], **options)


def jax_dicts(dataset, **options):
    jax_loader = pytest.importorskip("tabfeed.loader.jax")
    return jax_loader.Loader(dataset, targets=["y"], **options)


def read_dicts(batch):
    inputs, y = batch
    words = lists_of(inputs["words__values"], inputs["words__offsets"])
    return {n: inputs[n] for n in ("key", "check", "x", "gap")} | {"y": y, "words": words}


DOORS: dict[str, Any] = {
    "TorchAsyncItr": (tuples, read_tuples),
    "DLDataLoader": (wrapped, read_tuples),
    "Loader": (dicts, read_dicts),
    "jax": (jax_dicts, read_dicts),
}
every_door = pytest.mark.parametrize("door", DOORS)


def keys_of(columns):
    """The keys of a batch, every other column of which must be that of its row."""
    key = np.asarray(columns["key"]).astype(np.int64)
    assert np.array_equal(columns["check"], check_of(key))
    assert np.array_equal(columns["x"], key * 0.5)
    assert np.array_equal(columns["y"], key % 3)
    gap = np.where(key % 7 == 0, np.nan, key * 2.0)
    assert np.array_equal(columns["gap"], gap, equal_nan=True)
    assert columns["words"] == [words_of(k) for k in key.tolist()]
    return key.tolist()


def batches(loader, read):
    return [keys_of(read(batch)) for batch in loader]


@every_door
@given(
    sizes=sizes_of_parts,
    batch=st.integers(1, 50),
    world=st.integers(1, 5),
    shuffle=st.booleans(),
    seed=st.integers(0, 5),
)
@settings(max_examples=20)
def test_every_row_arrives_whole_and_once(door, sizes, batch, world, shuffle, seed):
    make, read = DOORS[door]
    dataset = cut(sizes)
    seen, steps = Counter(), set()
    for rank in range(world):
        loader = make(
            dataset,
            batch_size=batch,
            shuffle=shuffle,
            seed=seed,
            global_size=world,
            global_rank=rank,
            last="short",
        )
        got = batches(loader, read)
        assert len(got) == len(loader)
        steps.add(len(got))
        seen.update(k for b in got for k in b)
    assert len(steps) == 1
    assert seen == Counter(range(sum(sizes)))


@every_door
@given(
    sizes=sizes_of_parts,
    batch=st.integers(1, 20),
    shuffle=st.booleans(),
    stop=st.integers(0, 1000),
)
@settings(max_examples=15)
def test_a_state_gives_the_batches_that_were_to_come(door, sizes, batch, shuffle, stop):
    make, read = DOORS[door]
    dataset, how = cut(sizes), {"batch_size": batch, "shuffle": shuffle}
    whole = make(dataset, **how)
    expected = batches(whole, read) + batches(whole, read)
    first = make(dataset, **how)
    got, passing = [], iter(first)
    for _ in range(stop % len(first)):
        got.append(keys_of(read(next(passing))))
    again = make(dataset, **how)
    again.load_state_dict(first.state_dict())
    assert got + batches(again, read) + batches(again, read) == expected


@given(
    sizes=sizes_of_parts,
    batch=st.integers(1, 12),
    world=st.integers(1, 4),
    last=st.sampled_from(["drop", "pad", "wrap"]),
    shuffle=st.booleans(),
)
@settings(max_examples=40)
def test_ranks_stay_equal_however_the_epoch_ends(sizes, batch, world, last, shuffle):
    rows, step = sum(sizes), batch * world
    if last == "drop" and rows < step:
        return
    ranks = []
    for rank in range(world):
        place = {"global_size": world, "global_rank": rank, "last": last}
        loader = Loader(cut(sizes), batch, shuffle, targets=["y"], **place)
        ranks.append(batches(loader, read_dicts))
    shapes = [[len(b) for b in rank] for rank in ranks]
    assert all(shape == shapes[0] for shape in shapes)
    seen = Counter(k for rank in ranks for b in rank for k in b)
    if last == "drop":
        assert set(seen.values()) == {1} and seen.total() == rows // step * step
    else:
        assert set(seen) == set(range(rows))
        most = world - 1 if last == "pad" else step - 1
        assert 0 <= seen.total() - rows <= most
    if last == "wrap":
        assert set(shapes[0]) == {batch}


@given(
    columns=st.lists(
        st.lists(st.one_of(st.none(), st.lists(st.integers(-5, 5), max_size=4)), min_size=1),
        min_size=1,
        max_size=4,
    ),
    batch=st.integers(1, 7),
    shuffle=st.booleans(),
)
@settings(max_examples=40)
def test_lists_and_nulls_stay_with_their_rows(columns, batch, shuffle):
    rows = [row for part in columns for row in part]
    data = pa.table(
        {
            "key": np.arange(len(rows)),
            "w": pa.array(rows, pa.list_(pa.int16())),
            "f": pa.array([None if r is None else float(len(r)) for r in rows], pa.float32()),
        }
    )
    dataset = Dataset(data, npartitions=min(len(columns), len(rows)))
    got = {}
    for x, _ in Loader(dataset, batch, shuffle):
        words = lists_of(x["w__values"], x["w__offsets"])
        for key, word, f in zip(x["key"].tolist(), words, x["f"].tolist(), strict=True):
            got[key] = word
            assert f != f if rows[key] is None else f == len(word)
    assert got == {k: row or [] for k, row in enumerate(rows)}
