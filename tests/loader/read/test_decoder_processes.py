"""Desks: lent until nothing refers to them; whoever waits is woken, and not for ever."""

from __future__ import annotations

import gc
import threading
import time

import pytest

from tabfeed.errors import LoaderError
from tabfeed.loader.read import decoder_processes
from tabfeed.loader.read.decoder_processes import StagingBuffers
from tests.waiting import HANG


def test_who_waits_for_a_desk_is_woken_by_the_one_that_comes_free(monkeypatch):
    monkeypatch.setattr(time, "sleep", None)  # nobody looks again and again
    some = StagingBuffers(100, 1)
    held, got, waits = some.take(), [], threading.Event()
    real = some._wait

    def wait():
        waits.set()
        return real()

    monkeypatch.setattr(some, "_wait", wait)
    taker = threading.Thread(target=lambda: got.append(some.take().number))
    taker.start()
    assert waits.wait(HANG)
    del held
    taker.join()
    assert got == [0]


def test_a_desk_that_never_comes_free_is_an_error(monkeypatch):
    monkeypatch.setattr(decoder_processes, "_BUFFER_PATIENCE", 0.05)
    some = StagingBuffers(100, 1)
    held = some.take()
    with pytest.raises(LoaderError, match="no staging buffer became free"):
        some.take()
    assert held.number == 0


def test_desks_in_garbage_come_back_and_all_are_released():
    released = []
    some = StagingBuffers(100, 2, release=lambda memory: released.append(memory.size))

    class Holder:
        pass

    holder = Holder()
    holder.me, holder.staging_buffer = holder, some.take()
    del holder
    gc.collect()
    assert some.take().number == 0
    del some
    gc.collect()
    assert released == [100]


def test_what_is_still_copied_is_waited_for():
    class Event:
        waited = False

        def query(self):
            return False

        def synchronize(self):
            self.waited = True

    some, event = StagingBuffers(100, 1), Event()
    staging_buffer = some.take()
    staging_buffer.used = event
    del staging_buffer
    assert some.take().number == 0 and event.waited
