"""The pause of the garbage collector, which is one for all threads."""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Iterator

import pytest

from tabfeed.loader.tensors.cut import collector_paused
from tests.waiting import HANG


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    before = gc.isenabled()
    yield
    (gc.enable if before else gc.disable)()


@pytest.mark.parametrize("on", [True, False])
def test_nested_pauses_leave_it_as_it_was(on: bool) -> None:
    (gc.enable if on else gc.disable)()
    with collector_paused:
        with collector_paused:
            assert not gc.isenabled()
        assert not gc.isenabled()
    assert gc.isenabled() == on


@pytest.mark.parametrize("on", [True, False])
def test_pauses_of_threads_that_overlap_leave_it_as_it_was(on: bool) -> None:
    (gc.enable if on else gc.disable)()
    began, go_on = threading.Event(), threading.Event()

    def other() -> None:
        with collector_paused:
            began.set()
            assert go_on.wait(HANG)

    thread = threading.Thread(target=other)
    with collector_paused:
        thread.start()
        assert began.wait(HANG)
    assert not gc.isenabled()  # the other thread is still at it
    go_on.set()
    thread.join()
    assert gc.isenabled() == on


def test_a_forked_child_has_its_collector() -> None:
    gc.enable()
    with collector_paused:
        pid = os.fork()
        if pid == 0:
            os._exit(0 if gc.isenabled() else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert gc.isenabled()
