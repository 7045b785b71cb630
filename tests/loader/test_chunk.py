"""Gathering: the right rows, in the right dtype, copied only where they must be."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest

from tabfeed.loader.chunk import ChunkMaker
from tabfeed.loader.columns import Group, Layout, make_part
from tabfeed.loader.plan import ChunkPlan, Run

LAYOUT = Layout(
    groups=(
        Group("i", ("a", "b"), np.dtype(np.int64)),
        Group("f", ("x",), np.dtype(np.float32)),
    ),
    lists=(("w", np.dtype(np.int64)),),
    extras=("t",),
)


def parts():
    tables = []
    for first, last in [(0, 5), (5, 9)]:
        n = np.arange(first, last)
        tables.append(
            pa.table(
                {
                    "a": n.astype(np.int32),
                    "b": n * 10,
                    "x": n.astype(np.float64),
                    "w": [[k] * (k % 3) for k in n.tolist()],
                    "t": [f"t{k}" for k in n],
                }
            )
        )
    return {i: make_part(t, LAYOUT) for i, t in enumerate(tables)}


def rows(chunk):
    return [chunk.columns[c].tolist() for c in ("a", "b", "x")]


@pytest.mark.parametrize("index", [None, [8, 0, 4, 5, 1, 2, 3, 6, 7]])
def test_rows_of_several_parts(index):
    order = np.arange(9) if index is None else np.array(index)
    plan = ChunkPlan(
        0, (Run(0, 0, 5), Run(1, 0, 4)), None if index is None else order, np.array([0, 9])
    )
    (chunk,) = ChunkMaker(LAYOUT).make(plan, parts())
    assert rows(chunk) == [order.tolist(), (order * 10).tolist(), order.tolist()]
    assert chunk.columns["a"].dtype == np.int64 and chunk.columns["x"].dtype == np.float32
    values, offsets = chunk.lists["w"]
    got = [values[a:b].tolist() for a, b in pairwise(offsets)]
    assert got == [[k] * (k % 3) for k in order.tolist()]
    assert chunk.extras["t"].to_pylist() == [f"t{k}" for k in order]


def test_matrices_are_columns_by_rows():
    layout = Layout(groups=LAYOUT.groups, matrices=True)
    plan = ChunkPlan(0, (Run(1, 1, 4),), np.array([2, 0]), np.array([0, 2]))
    (chunk,) = ChunkMaker(layout).make(plan, parts())
    assert chunk.matrices["i"].tolist() == [[8, 6], [80, 60]]
    assert chunk.matrices["i"].flags.c_contiguous


def test_in_order_and_in_the_files_dtypes_nothing_moves():
    layout = Layout(groups=(Group("i", ("a",), np.dtype(np.int32)),))
    held = parts()
    plan = ChunkPlan(0, (Run(0, 1, 5), Run(1, 0, 4)), None, np.array([0, 2, 4, 6, 8]))
    chunks = ChunkMaker(layout, views=True).make(plan, held)
    assert [c.columns["a"].tolist() for c in chunks] == [[1, 2, 3, 4], [5, 6, 7, 8]]
    inside = held[0].scalars["a"]
    assert chunks[0].columns["a"].ctypes.data == inside.ctypes.data + inside.itemsize
    assert [c.bounds.tolist() for c in chunks] == [[0, 2, 4], [0, 2, 4]]


def test_a_batch_over_two_parts_is_copied_alone():
    layout = Layout(groups=(Group("i", ("a",), np.dtype(np.int32)),))
    plan = ChunkPlan(0, (Run(0, 0, 5), Run(1, 0, 4)), None, np.array([0, 3, 6, 9]))
    chunks = ChunkMaker(layout, views=True).make(plan, parts())
    assert [c.columns["a"].tolist() for c in chunks] == [[0, 1, 2], [3, 4, 5], [6, 7, 8]]


def test_an_empty_chunk():
    plan = ChunkPlan(0, (), np.empty(0, np.int64), np.array([0, 0]))
    (chunk,) = ChunkMaker(Layout(groups=LAYOUT.groups)).make(plan, parts())
    assert rows(chunk) == [[], [], []]
