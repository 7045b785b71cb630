"""Putting batches together: the right rows, in the right dtype, copied only where they must be."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest

from tabfeed.loader.assemble.chunk import ChunkMaker
from tabfeed.loader.plan.order import ChunkPlan, CopyRun
from tabfeed.loader.read.arrow_columns import Group, Layout, Lists
from tabfeed.loader.read.blocks import Block

LAYOUT = Layout(
    groups=(
        Group("i", ("a", "b"), np.dtype(np.int64)),
        Group("f", ("x",), np.dtype(np.float32)),
    ),
    lists=(("w", np.dtype(np.int64)),),
    fixed=(("v", 2, np.dtype(np.int16)),),
    extras=("t",),
)


def block(first, last, dtype=np.int32):
    n = np.arange(first, last)
    lengths = n % 3
    return Block(
        len(n),
        {"i": np.stack([n, n * 10]).astype(dtype), "f": n[None].astype(np.float32)},
        {"v": np.stack([n, -n], axis=1).astype(np.int16)},
        {"w": Lists(np.repeat(n, lengths), np.concatenate([[0], np.cumsum(lengths)]))},
        {"t": pa.array([f"t{k}" for k in n])},
    )


def run(number, start, stop, place):
    width = stop - start
    return CopyRun(number, start, width, 1, width, place, width)


def check(chunk, order, dtype=np.int64):
    order = np.asarray(order)
    assert chunk.columns["a"].tolist() == order.tolist()
    assert chunk.columns["b"].tolist() == (order * 10).tolist()
    assert chunk.columns["x"].tolist() == order.tolist()
    assert chunk.columns["v"].tolist() == [[k, -k] for k in order.tolist()]
    assert chunk.columns["a"].dtype == dtype and chunk.columns["x"].dtype == np.float32
    values, offsets = chunk.lists["w"]
    got = [values[a:b].tolist() for a, b in pairwise(offsets)]
    assert got == [[k] * (k % 3) for k in order.tolist()]
    assert chunk.extras["t"].to_pylist() == [f"t{k}" for k in order]


def test_strips_of_two_streams_are_spaced():
    """Batches of three: two rows of the first lot, then one of the second."""
    copy_runs = (CopyRun(0, 0, 2, 2, 2, 0, 3), CopyRun(1, 1, 1, 2, 1, 2, 3))
    plan = ChunkPlan(0, copy_runs, np.array([0, 3, 6]))
    (chunk,) = ChunkMaker(LAYOUT).make(plan, {0: block(0, 5), 1: block(5, 9)})
    check(chunk, [0, 1, 6, 2, 3, 7])


def test_a_rank_takes_its_share_of_each_step():
    """Of three rows a step, the second."""
    plan = ChunkPlan(0, (CopyRun(0, 1, 3, 3, 1, 0, 1),), np.array([0, 1, 2, 3]))
    (chunk,) = ChunkMaker(LAYOUT).make(plan, {0: block(0, 9)})
    check(chunk, [1, 4, 7])
    (chunk,) = ChunkMaker(LAYOUT).make(plan, {0: block(0, 9, np.int64)})
    check(chunk, [1, 4, 7])


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_rows_of_several_lots(dtype):
    plan = ChunkPlan(0, (run(0, 0, 5, 0), run(1, 0, 4, 5)), np.array([0, 9]))
    (chunk,) = ChunkMaker(LAYOUT).make(plan, {0: block(0, 5, dtype), 1: block(5, 9, dtype)})
    check(chunk, range(9))


def test_matrices_are_columns_by_rows():
    layout = Layout(groups=LAYOUT.groups, matrices=True)
    plan = ChunkPlan(0, (run(1, 1, 3, 0),), np.array([0, 2]))
    (chunk,) = ChunkMaker(layout).make(plan, {1: block(5, 9)})
    assert chunk.matrices["i"].tolist() == [[6, 7], [60, 70]]
    assert chunk.matrices["i"].flags.c_contiguous


def test_batches_within_a_lot_of_their_dtypes_are_views():
    blocks = {0: block(0, 5, np.int64), 1: block(5, 9, np.int64)}
    copy_runs = (run(0, 1, 5, 0), CopyRun(1, 0, 2, 2, 2, 4, 2))
    plan = ChunkPlan(0, copy_runs, np.array([0, 2, 4, 6, 8]))
    first, second = ChunkMaker(LAYOUT).make(plan, blocks)
    check(first, range(1, 5))
    check(second, range(5, 9))
    inside = blocks[0].matrices["i"]
    assert first.columns["a"].ctypes.data == inside.ctypes.data + inside.itemsize
    assert first.bounds.tolist() == second.bounds.tolist() == [0, 2, 4]


def test_a_batch_over_two_lots_is_copied_alone():
    blocks = {0: block(0, 5, np.int64), 1: block(5, 9, np.int64)}
    plan = ChunkPlan(0, (run(0, 0, 5, 0), run(1, 0, 4, 5)), np.array([0, 3, 6, 9]))
    chunks = ChunkMaker(LAYOUT).make(plan, blocks)
    for chunk, start in zip(chunks, (0, 3, 6), strict=True):
        check(chunk, range(start, start + 3))
    shared = [
        np.shares_memory(c.columns["a"], m.matrices["i"]) for c in chunks for m in blocks.values()
    ]
    assert shared == [True, False, False, False, False, True]


def test_an_empty_chunk():
    plan = ChunkPlan(0, (), np.array([0, 0]))
    (chunk,) = ChunkMaker(Layout(groups=LAYOUT.groups)).make(plan, {})
    assert [chunk.columns[c].tolist() for c in ("a", "b", "x")] == [[], [], []]
