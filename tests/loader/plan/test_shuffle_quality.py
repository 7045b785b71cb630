from __future__ import annotations

from tabfeed.loader.plan.order import Plan
from tabfeed.loader.plan.shuffle_quality import shuffle_quality


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
