"""The plan is arithmetic: every promise about order and steps is checked here without data."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tabfeed.errors import ArgumentError
from tabfeed.loader.plan import LAST, CopyRun, Plan
from tabfeed.loader.shuffle_quality import shuffle_quality

SIZES = st.lists(st.integers(0, 23), min_size=1, max_size=9).filter(lambda s: sum(s) > 0)


ANY_END = st.sampled_from(LAST)


@st.composite
def plans(draw, last=ANY_END):
    ranks = draw(st.integers(1, 5))
    return Plan(
        sizes=tuple(draw(SIZES)),
        batch=ranks * draw(st.integers(1, 9)),
        streams=draw(st.integers(1, 9)),
        chunk=draw(st.integers(1, 4)),
        shuffle=draw(st.booleans()),
        seed=draw(st.integers(-3, 3)),
        ranks=ranks,
        last=draw(last),
        block=draw(st.integers(1, 40)),
    )


def block_rows(epoch, block):
    """(partition, row) of a lot, as permuted."""
    sizes = epoch.plan.sizes
    laid = [(part, row) for part in epoch.partitions(block) for row in range(sizes[part])]
    index = epoch.permutation(block)
    return laid if index is None else [laid[i] for i in index]


def rows_of(epoch, chunk):
    """(partition, row) in the order of delivery; every place must be filled once."""
    places = {}
    for s in chunk.copy_runs:
        assert s.steps > 0 and s.width > 0
        rows = block_rows(epoch, s.block)
        for i in range(s.steps):
            for j in range(s.width):
                place = s.position + i * s.dst_stride + j
                assert place not in places
                places[place] = rows[s.start + i * s.src_stride + j]
    assert sorted(places) == list(range(chunk.rows))
    return [places[i] for i in range(chunk.rows)]


def batches(plan, epoch=0, rank=0, world=1):
    out = []
    for number in range(plan.chunks):
        chunk = plan.epoch(epoch).chunk(number, rank, world)
        assert chunk.first_step == len(out)
        rows = rows_of(plan.epoch(epoch), chunk)
        out += [rows[a:b] for a, b in zip(chunk.bounds[:-1], chunk.bounds[1:], strict=True)]
    return out


def everything(plan):
    return [(p, r) for p, size in enumerate(plan.sizes) for r in range(size)]


@given(plans(), st.integers(1, 9))
def test_the_order_does_not_depend_on_the_size_of_chunks(plan, chunk):
    assert batches(plan) == batches(replace(plan, chunk=chunk))


@given(plans(st.sampled_from(["short"])), st.integers(1, 7))
@settings(max_examples=150, deadline=None)
def test_over_all_ranks_every_row_comes_exactly_once(plan, world):
    per_rank = [batches(plan, 1, rank, world) for rank in range(world)]
    assert {len(b) for b in per_rank} == {plan.steps}
    seen = Counter(row for rank in per_rank for batch in rank for row in batch)
    assert seen == Counter(everything(plan))


@given(plans(), st.integers(1, 7))
@settings(max_examples=150, deadline=None)
def test_the_union_over_ranks_is_the_same_for_every_world_size(plan, world):
    whole = batches(plan)
    per_rank = [batches(plan, 0, rank, world) for rank in range(world)]
    for step, batch in enumerate(whole):
        assert [row for rank in per_rank for row in rank[step]] == batch
        assert len(batch) == plan.step_rows(step)


@given(plans())
@settings(max_examples=150, deadline=None)
def test_counts_known_beforehand_are_those_that_come(plan):
    for rank in range(plan.ranks):
        got = [len(b) for b in batches(plan, 0, rank, plan.ranks)]
        assert len(got) == plan.steps
        assert got == [plan.rank_rows(t, rank, plan.ranks) for t in range(plan.steps)]
        for step in range(plan.steps + 1):
            assert plan.rows_before(step, rank, plan.ranks) == sum(got[:step])
    assert plan.delivered == sum(plan.step_rows(t) for t in range(plan.steps))


@given(plans(st.sampled_from(["pad", "wrap"])))
@settings(max_examples=100, deadline=None)
def test_pad_and_wrap_leave_no_row_out_and_no_rank_short(plan):
    per_rank = [batches(plan, 0, rank, plan.ranks) for rank in range(plan.ranks)]
    for step in range(plan.steps):
        assert len({len(rank[step]) for rank in per_rank}) == 1
    seen = Counter(row for rank in per_rank for batch in rank for row in batch)
    if plan.rows >= 2 * plan.streams:
        assert set(seen) == set(everything(plan))
    extra = seen.total() - plan.rows
    assert extra < (plan.ranks if plan.last == "pad" else plan.batch)


@given(plans(st.just("drop")))
@settings(max_examples=50, deadline=None)
def test_drop_gives_full_batches_without_repeats(plan):
    got = batches(plan)
    assert [len(b) for b in got] == [plan.batch] * (plan.rows // plan.batch)
    assert max(Counter(row for b in got for row in b).values(), default=1) == 1


@given(plans(st.just("short")), st.integers(1, 6))
@settings(max_examples=100, deadline=None)
def test_last_use_is_never_too_early(plan, world):
    epoch = plan.epoch(2)
    for rank in range(world):
        last = epoch.last_use(rank, world)
        for number in range(plan.chunks):
            for copy_run in epoch.chunk(number, rank, world).copy_runs:
                assert last[copy_run.block] >= number


@given(plans(), st.integers(0, 40), st.integers(1, 40))
@settings(max_examples=100, deadline=None)
def test_runs_of_a_stream_are_as_long_as_asked_and_none_is_empty(plan, start, rows):
    epoch = plan.epoch(1)
    for stream in range(plan.streams):
        runs = epoch.stream_runs(stream, start, start + rows)
        assert sum(run.stop - run.start for run in runs) == rows
        assert all(0 <= run.start < run.stop <= epoch.block_rows(run.block) for run in runs)


def test_in_order_one_process_reads_the_files_as_they_are():
    plan = Plan(sizes=(3, 0, 4), batch=2, chunk=2, shuffle=False)
    assert [r for b in batches(plan) for r in b] == everything(plan)
    assert plan.epoch(0).permutation(0) is None
    assert plan.epoch(0).chunk(1).copy_runs == (
        CopyRun(block=1, start=1, src_stride=2, steps=1, width=2, position=0, dst_stride=2),
        CopyRun(block=1, start=3, src_stride=1, steps=1, width=1, position=2, dst_stride=1),
    )


@given(plans())
@settings(max_examples=100, deadline=None)
def test_small_partitions_are_permuted_together(plan):
    epoch = plan.epoch(1)
    blocks = len(epoch.starts) - 1
    joined = [epoch.partitions(block) for block in range(blocks)]
    assert [p for block in joined for p in block] == epoch.order.tolist()
    for block, parts in enumerate(joined):
        rows = sum(plan.sizes[p] for p in parts)
        assert rows == epoch.starts[block + 1] - epoch.starts[block]
        assert rows >= plan.block or block == blocks - 1
        assert rows - plan.sizes[parts[-1]] < plan.block


def test_a_batch_takes_rows_from_all_over_a_block():
    plan = Plan(sizes=(1000,) * 4, batch=40, streams=2, chunk=1)
    rows = [row for part, row in batches(plan)[0]]
    assert min(rows) < 200 and max(rows) > 800


def test_partitions_and_rows_are_reordered_every_epoch():
    plan = Plan(sizes=(50,) * 8, batch=20, streams=2, chunk=3)
    first, second, again = batches(plan, 0), batches(plan, 1), batches(plan, 0)
    assert first == again
    assert first != second
    assert plan.epoch(0).order.tolist() != plan.epoch(1).order.tolist()
    assert plan.epoch(0).order.tolist() != sorted(plan.epoch(0).order.tolist())


def test_another_seed_is_another_order():
    orders = {tuple(Plan((9,) * 5, 4, seed=s).epoch(0).order.tolist()) for s in range(5)}
    assert len(orders) > 1


def test_a_batch_mixes_as_many_partitions_as_there_are_streams():
    plan = Plan(sizes=(100,) * 16, batch=40, streams=8, chunk=2)
    for batch in batches(plan):
        assert len({part for part, _ in batch}) >= 8


def test_the_last_short_batch_is_shuffled_with_the_rest():
    plan = Plan(sizes=(100,) * 4, batch=70, streams=4, chunk=9)
    last = batches(plan)[-1]
    assert len(last) == 50
    assert len({part for part, _ in last}) == 4


def test_no_rank_gets_an_empty_last_batch():
    plan = Plan(sizes=(1001,), batch=200, ranks=2)
    sizes = [[len(b) for b in batches(plan, 0, rank, 2)] for rank in range(2)]
    assert sizes == [[100] * 4 + [50, 50], [100] * 4 + [51, 50]]
    assert plan.empty_batch(2) is None
    assert Plan(sizes=(3,), batch=8, ranks=4).empty_batch(4) == 0
    assert [Plan(sizes=(10,), batch=8).empty_batch(world) for world in (2, 3)] == [None, 1]


def test_ranks_together_read_the_data_once_and_a_little():
    plan = Plan(sizes=tuple(range(90, 130)), batch=64, streams=8, chunk=2, ranks=4)
    for epoch in range(5):
        reads = Counter()
        for rank in range(4):
            parts = {
                copy_run.block
                for c in range(plan.chunks)
                for copy_run in plan.epoch(epoch).chunk(c, rank, 4).copy_runs
            }
            reads.update(parts)
        assert reads.total() <= len(plan.sizes) + 3


def test_neighbouring_streams_meet_at_their_border():
    """A partition shared by two streams is needed at one time, not at two distant ones."""
    plan = Plan(sizes=(30,) * 21, batch=16, streams=8, chunk=1)
    epoch = plan.epoch(3)
    where: dict[int, list[int]] = {}
    for number in range(plan.chunks):
        for copy_run in epoch.chunk(number).copy_runs:
            where.setdefault(copy_run.block, []).append(number)
    spans = [max(w) - min(w) for w in where.values()]
    assert max(spans) < plan.chunks // 2


def test_a_distant_chunk_costs_no_replay():
    plan = Plan(sizes=(1_000_000,) * 10_000, batch=65_536, streams=8, chunk=4)
    chunk = plan.epoch(7).chunk(plan.chunks - 2)
    assert chunk.rows == 4 * 65_536
    assert sum(s.steps * s.width for s in chunk.copy_runs) == chunk.rows


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch": 0}, "batch is 0; it must be 1 or more"),
        ({"batch": 1, "ranks": 0}, "ranks is 0"),
        ({"batch": 1, "last": "maybe"}, "last is 'maybe'; it must be one of short, drop"),
    ],
)
def test_bad_options_are_named(options, message):
    with pytest.raises(ArgumentError, match=message):
        Plan(sizes=(1,), **options)


@pytest.mark.parametrize(
    ("last", "rows"),
    [
        ("short", [0, 10, 20, 27]),
        ("drop", [0, 10, 20]),
        ("pad", [0, 10, 20, 28]),
        ("wrap", [0, 10, 20, 30]),
    ],
)
def test_rows_before_a_global_batch(last, rows):
    plan = Plan((20, 7), 10, ranks=2, last=last)
    assert [plan.rows_until(step) for step in range(plan.steps + 1)] == rows


def test_rows_before_the_last_two_batches_that_share():
    plan = Plan((21,), 10, ranks=2)  # one row is left for two ranks
    assert [plan.rows_until(step) for step in range(4)] == [0, 10, 16, 21]


def test_how_many_blocks_there_are():
    assert Plan((5, 3, 1, 1), 4, block=4, shuffle=False).epoch(0).blocks == 3
    assert Plan((5, 3), 4).epoch(0).blocks == 2


@given(plans(), st.integers(1, 4))
@settings(max_examples=100, deadline=None)
def test_chunks_of_a_block_are_those_that_have_rows_of_it(plan, world):
    plan = replace(plan, streams=world)  # one for each rank, and those of even number go forwards
    epoch = plan.epoch(1)
    for rank in range(0, world, 2 if plan.shuffle else 1):
        found = {}
        for number in range(plan.chunks):
            for copy_run in epoch.chunk(number, rank, world).copy_runs:
                found.setdefault(copy_run.block, set()).add(number)
        for block, chunks in found.items():
            said = epoch.chunks_of(block, rank, world)
            if plan.last in ("short", "drop") and plan.batch % world == 0:
                assert chunks <= set(said) <= set(range(min(chunks) - 1, max(chunks) + 2))
            assert said.start >= 0 and said.stop <= plan.chunks


def test_a_chunk_is_told_without_its_bounds():
    chunk = Plan((8,), 4, chunk=2, shuffle=False).epoch(0).chunk(0)
    assert "first_step=0" in repr(chunk) and "bounds" not in repr(chunk)
    assert (chunk.steps, chunk.rows) == (2, 8)


def test_from_file_order_to_uniform():
    sizes = (1000,) * 32
    in_order = shuffle_quality(Plan(sizes, batch=100, chunk=1, shuffle=False))
    one = shuffle_quality(Plan(sizes, batch=100, streams=1, chunk=50))
    eight = shuffle_quality(Plan(sizes, batch=100, streams=8, chunk=50))
    whole = shuffle_quality(Plan(sizes, batch=100, streams=1, block=32_000))
    assert in_order.score < 0.1
    assert in_order.score < one.score < eight.score < whole.score + 0.05
    assert whole.score > 0.95
    assert "shuffle quality" in str(eight)
