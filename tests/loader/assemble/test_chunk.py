"""Putting batches together: the right rows, in the right dtype, copied only where they must be."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tabfeed import Dataset
from tabfeed.errors import BadFileError, LoaderError
from tabfeed.loader.assemble.chunk import ChunkMaker, HostBlock, InOrderBlocks, rows_follow
from tabfeed.loader.build import Steps, build_pipeline
from tabfeed.loader.host_memory import RowBytes, can_lay, make_plan
from tabfeed.loader.options import LoaderOptions, Shard
from tabfeed.loader.plan import ChunkPlan, CopyRun, Plan
from tabfeed.loader.read.arrow_columns import Group, Layout, Lists, Part
from tabfeed.loader.read.blocks import Block, BlockReader
from tests.bit_rot import rot

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
def test_rows_of_several_blocks(dtype):
    plan = ChunkPlan(0, (run(0, 0, 5, 0), run(1, 0, 4, 5)), np.array([0, 9]))
    (chunk,) = ChunkMaker(LAYOUT).make(plan, {0: block(0, 5, dtype), 1: block(5, 9, dtype)})
    check(chunk, range(9))


def test_matrices_are_columns_by_rows():
    layout = Layout(groups=LAYOUT.groups, matrices=True)
    plan = ChunkPlan(0, (run(1, 1, 3, 0),), np.array([0, 2]))
    (chunk,) = ChunkMaker(layout).make(plan, {1: block(5, 9)})
    assert chunk.matrices["i"].tolist() == [[6, 7], [60, 70]]
    assert chunk.matrices["i"].flags.c_contiguous


def test_batches_within_a_block_of_their_dtypes_are_views():
    blocks = {0: block(0, 5, np.int64), 1: block(5, 9, np.int64)}
    copy_runs = (run(0, 1, 5, 0), CopyRun(1, 0, 2, 2, 2, 4, 2))
    plan = ChunkPlan(0, copy_runs, np.array([0, 2, 4, 6, 8]))
    first, second = ChunkMaker(LAYOUT).make(plan, blocks)
    check(first, range(1, 5))
    check(second, range(5, 9))
    inside = blocks[0].matrices["i"]
    assert first.columns["a"].ctypes.data == inside.ctypes.data + inside.itemsize
    assert first.bounds.tolist() == second.bounds.tolist() == [0, 2, 4]


def test_a_batch_over_two_blocks_is_copied_alone():
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


# -- rows that are not shuffled -------------------------------------------------------------------

MATRICES = Layout(
    groups=(
        Group("cats", ("b", "a"), np.dtype(np.int64)),
        Group("conts", ("x",), np.dtype(np.float32)),
        Group("label", ("a",), np.dtype(np.float32)),
    ),
    matrices=True,
)
SIZES = st.lists(st.integers(0, 23), min_size=1, max_size=9).filter(lambda s: sum(s) > 0)


@st.composite
def ordered_plans(draw):
    ranks = draw(st.integers(1, 4))
    return Plan(
        sizes=tuple(draw(SIZES)),
        batch=ranks * draw(st.integers(1, 9)),
        streams=ranks,
        chunk=draw(st.integers(1, 4)),
        shuffle=False,
        ranks=ranks,
        last=draw(st.sampled_from(["short", "drop"])),
        block=draw(st.integers(1, 40)),
    )


class Numbers:
    """Partitions whose rows are numbered; a column at a time."""

    def __init__(self, sizes):
        self.starts = np.cumsum([0, *sizes])
        self.read_parts = []

    def pieces(self, number):
        self.read_parts.append(number)
        rows = np.arange(*self.starts[number : number + 2])
        for name, values in (("a", rows.astype(np.int32)), ("b", rows * 10), ("x", rows * 0.5)):
            yield Part(len(rows), {name: values})


def chunks_of_pass(plan, rank, first=0):
    """The chunks of a pass, as a recipe would make them, and the rows of each."""
    parts = Numbers(plan.sizes)
    reader, place, epoch = BlockReader(parts, MATRICES, {}), Shard(rank, plan.ranks), plan.epoch(0)
    blocks, maker = InOrderBlocks(reader, parts, epoch, place, first), ChunkMaker(MATRICES)
    held: dict[int, HostBlock] = {}
    for number in range(first, plan.chunks):
        wanted = epoch.chunk(number, *place)
        for copy_run in wanted.copy_runs:
            if copy_run.block not in held:
                (held[copy_run.block],) = blocks.read([copy_run.block])
        (chunk,) = maker.make(wanted, held)
        yield number, chunk
    assert max(Counter(parts.read_parts).values(), default=0) <= 1
    assert not any(block.buffers for block in held.values())  # nothing keeps what was given


@given(ordered_plans(), st.data())
@settings(max_examples=60, deadline=None)
def test_the_rows_of_every_chunk_are_those_of_the_plan(plan, data):
    first = data.draw(st.integers(0, plan.chunks - 1)) if plan.chunks else 0
    for rank in range(plan.ranks):
        place = Shard(rank, plan.ranks)
        assert rows_follow(plan, place)
        epoch = plan.epoch(0)
        for number, chunk in chunks_of_pass(plan, rank, first):
            wanted = epoch.chunk(number, *place)
            rows = []
            for s in wanted.copy_runs:
                begin = int(epoch.starts[s.block]) + s.start
                rows += range(begin, begin + s.steps * s.width)
            assert chunk.bounds.tolist() == wanted.bounds.tolist()
            assert chunk.matrices["cats"].tolist() == [[r * 10 for r in rows], rows]
            assert chunk.matrices["conts"].tolist() == [[r * 0.5 for r in rows]]
            assert chunk.matrices["label"].tolist() == [rows]
            dtypes = {name: str(m.dtype) for name, m in chunk.matrices.items()}
            assert dtypes == {"cats": "int64", "conts": "float32", "label": "float32"}


@given(ordered_plans())
@settings(max_examples=100, deadline=None)
def test_the_chunks_of_a_block(plan):
    epoch = plan.epoch(0)
    for rank in range(plan.ranks):
        place = (rank, plan.ranks)
        uses: dict[int, set[int]] = {}
        for number in range(plan.chunks):
            for copy_run in epoch.chunk(number, *place).copy_runs:
                uses.setdefault(copy_run.block, set()).add(number)
        for block, chunks in uses.items():
            found = epoch.chunks_of(block, *place)
            assert chunks <= set(found) and len(found) <= len(chunks) + 2


@pytest.mark.parametrize(
    ("changes", "world"),
    [
        ({"streams": 2}, 1),  # two runs of the data, side by side
        ({"streams": 1}, 2),  # two ranks share one
        ({"last": "wrap"}, 1),  # the first rows come again
        ({"shuffle": True}, 1),
    ],
)
def test_where_rows_do_not_follow_each_other(changes, world):
    plan = Plan((10, 10), batch=6, shuffle=False)
    assert rows_follow(plan, Shard(0, 1))
    assert not rows_follow(replace(plan, **changes), Shard(0, world))


def test_whether_blocks_may_lie_in_buffers():
    options, row = LoaderOptions(batch_size=1000, threads=2), RowBytes(decoded=40, batch=80)

    def can(layout=MATRICES, rows=10_000, row=row, **changes):
        given = replace(options, **changes)
        return can_lay(make_plan([rows] * 20, row, given), layout, row, given)

    assert can()
    assert not can(shuffle=True)
    assert not can(replace(MATRICES, lists=(("w", np.dtype(np.int64)),)))
    assert not can(replace(MATRICES, extras=("t",)))
    # Ten times as large in a batch as in the file: four blocks, and four chunks of 10,000 rows.
    wide = RowBytes(decoded=8, batch=80)
    assert can(row=wide, host_memory=8 * 800_000)
    assert not can(row=wide, host_memory=2_000_000)


# -- files ------------------------------------------------------------------------------------


@pytest.fixture
def dataset(tmp_path):
    n = np.arange(3000)
    table = pa.table(
        {
            "a": n.astype(np.int32),
            "b": (n * 10).astype(np.int16),
            "x": n.astype(np.float32),
            "gap": pa.array(n, mask=n == 1234),
        }
    )
    for part, (low, high) in enumerate([(0, 1000), (1000, 1001), (1001, 3000)]):
        pq.write_table(table[low:high], tmp_path / f"{part}.parquet", row_group_size=170)
    return Dataset(tmp_path)


def cut(chunk):
    """The matrices of each batch."""
    return [
        {name: matrix[:, low:high] for name, matrix in chunk.matrices.items()}
        for low, high in pairwise(chunk.bounds)
    ]


def pipeline_of(dataset, layout=MATRICES, steps=None, plan=None, **options):
    """A feed that reads in order, with some of its plan changed."""
    made = build_pipeline(dataset, layout, LoaderOptions(**options), cut, steps or Steps())
    assert made.stages.in_order
    return replace(made, plan=replace(made.plan, **(plan or {}))).start()


def kept(batches):
    return [{name: matrix.copy() for name, matrix in batch.items()} for batch in batches]


def same(one, other):
    assert len(one) == len(other) > 0
    for a, b in zip(one, other, strict=True):
        assert a.keys() == b.keys()
        for name in a:
            assert a[name].dtype == b[name].dtype
            np.testing.assert_array_equal(a[name], b[name])


@pytest.mark.parametrize("batch", [7, 170, 256, 3000])
@pytest.mark.parametrize("options", [{}, {"cache": "memory"}, {"threads": 1}, {"drop_last": True}])
def test_the_same_as_by_way_of_blocks(dataset, batch, options):
    options = options | {"batch_size": batch, "plan": {"chunk": 3, "block": 300}}
    pipeline, other = pipeline_of(dataset, **options), pipeline_of(dataset, **options)
    other.pipeline = replace(other.pipeline, stages=replace(other.pipeline.stages, in_order=False))
    same(kept(pipeline), kept(other))
    same(kept(pipeline), kept(other))  # again, with the memory of the first


def test_many_threads_and_small_blocks_meet_in_chunks(dataset):
    pipeline = pipeline_of(dataset, batch_size=64, threads=8, plan={"chunk": 1, "block": 1})
    for _ in range(5):
        rows = np.concatenate([batch["cats"][1] for batch in pipeline])
        np.testing.assert_array_equal(rows, np.arange(3000))


def test_through_a_transform_that_changes_types(dataset):
    def double(table):
        return table.set_column(0, "a", pa.array(np.asarray(table["a"]) * 2.0))

    pipeline = pipeline_of(dataset, batch_size=500, steps=Steps((double,)))
    rows = np.concatenate([batch["cats"][1] for batch in pipeline])
    np.testing.assert_array_equal(rows, np.arange(0, 6000, 2))


def test_it_goes_on_at_any_step(dataset):
    pipeline = pipeline_of(dataset, batch_size=256, plan={"chunk": 2})
    whole = kept(pipeline)
    for step in range(len(whole)):
        same(kept(pipeline.seek(step)), whole[step:])


def test_memory_goes_back_when_no_batch_looks_at_it(dataset):
    pipeline = pipeline_of(dataset, batch_size=256, threads=1)
    pool = pipeline.pipeline.stages.reader.pool
    batch = next(iter(pipeline))
    values = batch["cats"].copy()
    for _ in range(3):
        for _ in pipeline:
            pass
    np.testing.assert_array_equal(batch["cats"], values)  # nobody wrote over it
    before = pool.free_bytes
    del batch
    assert pool.free_bytes > before


@pytest.mark.filterwarnings("ignore:nulls become NaN")
def test_a_null_among_integers_is_told_with_its_place(dataset):
    layout = Layout(
        groups=(
            Group("cats", ("a", "gap"), np.dtype(np.int64)),
            Group("label", ("gap",), np.dtype(np.float32)),  # where it would be NaN
        ),
        matrices=True,
    )
    with pytest.raises(LoaderError, match=r"row group 1\): column 'gap' has 1 nulls"):
        list(pipeline_of(dataset, layout, batch_size=300))


def test_a_damaged_row_group_is_named(dataset, tmp_path):
    path = tmp_path / "2.parquet"
    chunk = pq.read_metadata(path).row_group(3).column(2)
    assert chunk.path_in_schema == "x"
    start = chunk.dictionary_page_offset or chunk.data_page_offset
    damaged = bytearray(path.read_bytes())
    damaged[start : start + chunk.total_compressed_size] = bytes(chunk.total_compressed_size)
    rot(path, damaged)
    with pytest.raises(BadFileError, match="row group 3, column 'x' is damaged"):
        list(pipeline_of(dataset, batch_size=300))


def test_columns_of_several_dtypes_share_a_matrix(dataset):
    (batch,) = pipeline_of(dataset, batch_size=3000)
    assert batch["cats"].dtype == np.int64
    assert batch["cats"][:, -1].tolist() == [29_990, 2_999]
