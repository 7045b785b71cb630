"""`check_loader` finds a loader that does the work of its threads itself."""

from __future__ import annotations

import pytest

from tabfeed.loader.options import Shard
from tabfeed.loader.pipeline import BlockWindow
from tabfeed.testing.loader import check_loader
from tests.testing.test_loader import Good, all_but, read


class WorksInTheForeground(Good):
    def __iter__(self):
        feed = self.loader.pipeline
        epoch = feed.plan.epoch(0)
        lots = BlockWindow(lambda n: feed.stages.reader.read(epoch, n), {})
        for number in range(feed.plan.chunks):
            yield from feed.stages.make(epoch, Shard(0, 1), lots, number)


def test_work_in_the_foreground_is_found():
    skip = all_but("check_work_is_in_the_background")
    with pytest.raises(AssertionError, match="on the caller's thread"):
        check_loader(WorksInTheForeground, read, skip=skip)
