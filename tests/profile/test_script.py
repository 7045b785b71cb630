"""Watching code that knows nothing of it, and leaving it as it was."""

import sys
import threading

import pytest

from tabfeed.loader.state import EpochIterator, LoaderState
from tabfeed.profile import Profiler
from tabfeed.profile.script import watching
from tests.profile import cases as c


def test_everything_is_put_back() -> None:
    before = (LoaderState.iterate, EpochIterator.__next__, list(sys.meta_path))
    prof = Profiler()
    with pytest.raises(KeyError), prof, watching(prof):
        assert LoaderState.iterate is not before[0]
        raise KeyError
    assert (LoaderState.iterate, EpochIterator.__next__, list(sys.meta_path)) == before


def test_only_the_main_thread_is_watched() -> None:
    prof = Profiler()
    feed = c.ours(batches=6)
    with prof, watching(prof):
        thread = threading.Thread(target=lambda: list(feed))
        thread.start()
        thread.join()
        assert len(list(feed)) == 6
    assert prof.run.steps.count == 6
    assert prof.run.steps.rows == 6000


def test_a_pass_begins_when_it_is_asked_for() -> None:
    prof = Profiler()
    with prof, watching(prof):
        batches = iter(c.ours(c.slow_transform, batches=6))
        list(batches)
    assert prof.run.times.startup >= c.SLOW / 2
