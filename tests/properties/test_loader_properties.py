"""Whatever the sizes: every row arrives whole and exactly once, in equal steps."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from tabfeed import Dataset
from tabfeed.loader.torch import Loader, TorchAsyncItr
from tabfeed.testing.loader import check_of, make_rows, words_of


class Cut:
    """Tables of given sizes as a dataset with exactly these partitions."""

    def __new__(cls, sizes):
        dataset = Dataset(make_rows(range(sum(sizes))))
        dataset.__dict__["partitions"] = tuple(_partitions(dataset, sizes))
        return dataset


def _partitions(dataset, sizes):
    from tabfeed.io.partition import Partition, Piece

    start = 0
    for size in sizes:
        yield Partition((Piece(0, 0, start, size, whole=False),))
        start += size


def check_rows(batch):
    (cats, lists), conts, y = batch
    check, key = cats[:, 0].numpy(), cats[:, 1].numpy()
    assert np.array_equal(check, check_of(key))
    assert np.array_equal(conts[:, 0].numpy(), key * 0.5)
    assert np.array_equal(y.numpy(), key % 3)
    values, offsets = (t.tolist() for t in lists["words"])
    assert [values[a:b] for a, b in pairwise(offsets)] == [words_of(k) for k in key.tolist()]
    return key.tolist()


@given(
    sizes=st.lists(st.integers(0, 40), min_size=1, max_size=8).filter(lambda s: sum(s) > 0),
    batch=st.integers(1, 50),
    world=st.integers(1, 5),
    shuffle=st.booleans(),
    seed=st.integers(0, 5),
)
@settings(max_examples=40)
def test_every_row_arrives_whole_and_once(sizes, batch, world, shuffle, seed):
    dataset = Cut(sizes)
    seen, steps = Counter(), set()
    for rank in range(world):
        itr = TorchAsyncItr(
            dataset,
            ["key", "check", "words"],
            ["x"],
            ["y"],
            batch_size=batch,
            shuffle=shuffle,
            seed=seed,
            global_size=world,
            global_rank=rank,
            last="short",
        )
        batches = [check_rows(b) for b in itr]
        assert len(batches) == len(itr)
        steps.add(len(batches))
        seen.update(k for b in batches for k in b)
    assert len(steps) == 1
    assert seen == Counter(range(sum(sizes)))


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
        values, offsets = x["w__values"].tolist(), x["w__offsets"].tolist()
        words = [values[a:b] for a, b in pairwise(offsets)]
        for key, word, f in zip(x["key"].tolist(), words, x["f"].tolist(), strict=True):
            got[key] = word
            assert f != f if rows[key] is None else f == len(word)
    assert got == {k: row or [] for k, row in enumerate(rows)}
