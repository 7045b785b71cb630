"""How ranks share row groups."""

from tabfeed.doctor.rules import rank_load
from tabfeed.loader.plan import Plan


def test_ranks_that_share_a_row_group_both_read_it() -> None:
    # Two row groups for four ranks: each is read by two, so each rank reads twice its share.
    assert rank_load(Plan((400, 400), batch=8, streams=4, chunk=10, ranks=4)) == 2.0
    assert rank_load(Plan((100,) * 16, batch=8, streams=4, chunk=10, ranks=4)) == 1.0
