"""The plan that follows from options: the same on every machine, within the budget."""

from __future__ import annotations

from tabfeed.loader.host_memory import RowBytes, make_plan
from tabfeed.loader.options import LoaderOptions

ROW = RowBytes(decoded=160, batch=264)


def plan(sizes=(250_000,) * 16, **options):
    return make_plan(sizes, ROW, LoaderOptions(**{"batch_size": 4096, "shuffle": True, **options}))


def test_streams_and_chunk_do_not_depend_on_the_machine(monkeypatch):
    first = plan()
    monkeypatch.setenv("TABFEED_THREADS", "64")
    assert plan() == first == plan(threads=3, depth=9)


def test_the_same_global_batch_gives_the_same_order_on_1_2_and_4_ranks():
    plans = [
        plan(batch_size=4096 // world, global_size=world, global_rank=0) for world in (1, 2, 4)
    ]
    assert len({(p.batch, p.streams, p.chunk, p.block) for p in plans}) == 1


def test_in_order_a_stream_a_rank():
    assert plan(shuffle=False).streams == 1
    assert plan(shuffle=False, global_size=3, global_rank=0).streams == 3


def test_parts_per_chunk_mixes_more():
    assert plan(parts_per_chunk=8).streams == 8
    assert plan(parts_per_chunk=8, host_memory="4GB").chunk > plan().chunk


def test_budgets_shrink_streams_and_chunks():
    small = plan(host_memory="100MB")
    assert small.streams == 1
    assert small.chunk * small.batch * ROW.batch <= 100e6 / 3
    assert plan(buffer_size="10MB").chunk == 9
    assert plan(batch_size=10**6, host_memory="1MB").chunk == 1


def test_large_blocks_leave_room_for_smaller_chunks():
    """Lots of 168 MB: of two streams five may be there, beside ten chunks of eight threads."""
    large = plan(sizes=(2**20,) * 8, batch_size=2**13)
    assert large.streams == 2
    assert 5 * 2**20 * ROW.decoded + 10 * large.chunk * 2**13 * ROW.batch <= 2**30
    assert large.chunk == 10 < plan(batch_size=2**13).chunk == 16
    ordered = plan(sizes=(2**20,) * 8, batch_size=2**13, shuffle=False)  # in batches' dtypes
    assert 3 * 2**20 * ROW.batch + 10 * ordered.chunk * 2**13 * ROW.batch <= 2**30


def test_in_order_blocks_are_smaller():
    assert plan(shuffle=False).block == 2**14
    assert plan(shuffle=False, global_size=2, global_rank=0).block == 2**13


def test_many_small_files_need_not_wait_for_all_of_them():
    small = plan(sizes=(1000,) * 1000)
    assert small.chunk * 4096 == small.block * small.streams == 2**15


def test_never_more_streams_than_rows_in_a_batch():
    assert plan(batch_size=1).streams == 1
