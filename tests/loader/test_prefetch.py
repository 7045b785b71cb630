"""Item, end and error all arrive; nothing waits for ever; no thread is left."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
import time
import weakref

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tabfeed.errors import FunctionError, LoaderError
from tabfeed.loader import prefetch
from tabfeed.loader.prefetch import Prefetch
from tests.waiting import HANG, wait_until


def ours():
    return [t for t in threading.enumerate() if t.name.startswith("tabfeed-loader")]


@pytest.mark.parametrize("workers", [1, 2, 5])
@pytest.mark.parametrize("depth", [1, 3])
def test_results_come_in_order_whoever_is_faster(workers, depth):
    def do(n):
        time.sleep(0.002 * (n % 3))
        return n

    assert list(Prefetch(do, range(3, 20), workers=workers, depth=depth)) == list(range(3, 20))
    wait_until(lambda: not ours())


def test_a_worker_without_a_core_keeps_no_result_alive():
    class Kept:
        pass

    begin, alive = threading.Event(), []

    def do(n):
        begin.wait(HANG)
        return Kept()

    work = Prefetch(do, range(1), workers=1)

    results, notify_all = work._work.results, work._work.ready.notify_all

    def look():  # the worker calls it before it gives the lock back
        if results:
            kept = weakref.ref(results[0])
            results[0] = Kept()
            alive.append(kept() is not None)
        notify_all()

    work._work.ready.notify_all = look
    begin.set()
    next(work)
    assert alive == [False]


def test_nothing_to_do_ends_at_once():
    assert list(Prefetch(lambda n: n, range(0))) == []


def test_no_more_than_depth_is_made_ahead():
    begun, looked = [], threading.Semaphore(0)

    def do(n):
        begun.append(n)
        return n

    def spare(wake):
        looked.release()  # a worker has found that it must not go further
        return False

    work = Prefetch(do, range(100), workers=3, depth=4, spare=spare)
    wait_until(lambda: len(begun) == 4)
    for _ in range(4):
        assert looked.acquire(timeout=HANG)
    assert len(begun) == 4
    next(work)
    wait_until(lambda: len(begun) == 5)
    work.close()
    assert not ours()


class Planned(Exception):
    pass


def test_an_error_arrives_at_its_place_with_its_type():
    def do(n):
        if n == 5:
            raise Planned("five")
        return n

    work = Prefetch(do, range(100), workers=3, depth=4)
    assert [next(work) for _ in range(5)] == [0, 1, 2, 3, 4]
    with pytest.raises(Planned, match="five"):
        next(work)
    assert not ours()
    with pytest.raises(StopIteration):
        next(work)


def test_even_a_system_exit_in_a_worker_arrives():
    def do(n):
        raise SystemExit(3)

    with pytest.raises(SystemExit):
        next(Prefetch(do, range(3)))


def test_close_while_workers_are_busy_and_again():
    going = threading.Event()
    work = Prefetch(lambda n: going.wait(0.3), range(10), workers=2)
    work.close()
    work.close()
    assert not ours()
    with pytest.raises(StopIteration):
        next(work)


def test_close_from_another_thread_ends_a_waiting_consumer():
    begun, stop = threading.Event(), threading.Event()
    work = Prefetch(
        lambda n: begun.set() or stop.wait(HANG), range(10), workers=1, on_stop=stop.set
    )
    closer = threading.Thread(target=lambda: begun.wait(HANG) and work.close())
    closer.start()
    with pytest.raises(StopIteration):
        next(work)
    closer.join()
    assert not closer.is_alive() and stop.is_set()


def test_dropping_the_iterator_ends_the_threads():
    work = Prefetch(lambda n: n, range(1000), workers=2)
    next(work)
    del work
    wait_until(lambda: not ours())


def test_garbage_in_a_cycle_ends_the_threads():
    class Holder:
        pass

    holder = Holder()
    holder.me, holder.work = holder, Prefetch(lambda n: n, range(1000))
    del holder
    gc.collect()
    wait_until(lambda: not ours())


def test_a_waiting_worker_keeps_no_result_alive():
    import weakref

    class Result:
        pass

    work = Prefetch(lambda n: Result(), range(1), workers=1)
    result = next(work)
    there = weakref.ref(result)
    del result
    wait_until(lambda: there() is None)


def test_a_consumer_notices_that_all_workers_are_gone(monkeypatch):
    monkeypatch.setattr(prefetch, "_TICK", 0.05)
    monkeypatch.setattr(prefetch._Work, "run", lambda self: None)
    work = Prefetch(lambda n: n, range(3))
    with pytest.raises(LoaderError, match="exited unexpectedly"):
        next(work)
    assert next(work, "the end") == "the end"


def test_a_forked_copy_knows_that_it_is_alone():
    work = Prefetch(lambda n: n, range(10), workers=1, depth=1)
    next(work)
    pid = os.fork()
    if pid == 0:
        try:
            refused = False
            try:
                next(work)
            except LoaderError:
                refused = True
            work.close()
            os._exit(0 if work.alone and refused else 1)
        finally:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert list(work) == list(range(1, 10))


EXIT = """
import time
from tabfeed.loader.prefetch import Prefetch
work = Prefetch(lambda n: time.sleep(0.01) or n, range(10**6), workers=3, depth=1000)
next(work)
print("leaving")
"""


def test_interpreter_exit_waits_for_the_threads_and_no_longer():
    """The work would take an hour."""
    done = subprocess.run([sys.executable, "-c", EXIT], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "leaving\n", "")


_LEAVES_EARLY = """
import sys
from tabfeed import Dataset
from tabfeed.loader.torch import Loader

for number, batch in enumerate(Loader(Dataset(sys.argv[1]), 64, True)):
    if number == int(sys.argv[2]):
        break
print("left")
"""


def test_a_script_that_leaves_early_ends_well(tmp_path):
    """Threads of a dropped iterator are inside Arrow or torch when the interpreter goes."""
    random = np.random.default_rng(0)
    table = pa.table({f"x{i}": random.random(400_000, np.float32) for i in range(25)})
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=40_000)
    for steps in (600, 1250, 2400):
        done = subprocess.run(
            [sys.executable, "-c", _LEAVES_EARLY, str(tmp_path), str(steps)],
            capture_output=True,
            text=True,
        )
        assert (done.returncode, done.stdout) == (0, "left\n"), done.stderr


# -- who is woken by whom: where nobody looks up by himself ----------------------------------


@pytest.fixture
def patient(monkeypatch):
    """Nobody looks up before a test has timed out."""
    monkeypatch.setattr(prefetch, "_TICK", 1000.0)


def rest(work, count):
    """Wait until so many workers rest."""
    wait_until(lambda: len(work._work.room._waiters) == count)


def test_a_consumer_that_waits_wakes_a_worker(patient):
    work = Prefetch(lambda n: n, range(20), workers=1, depth=1)
    for number in range(20):
        assert next(work) == number
        if number < 19:
            rest(work, 1)
    with pytest.raises(StopIteration):
        next(work)


def test_go_on_wakes_one_worker_and_that_one_the_others(patient):
    together = threading.Barrier(3)

    def do(n):
        if n >= 3:
            together.wait(HANG)
        return n

    work = Prefetch(do, range(6), workers=3, depth=3)
    rest(work, 3)
    assert [next(work) for _ in range(3)] == [0, 1, 2]
    work.go_on()
    assert list(work) == [3, 4, 5]


def test_the_last_piece_ends_those_who_rest(patient):
    work = Prefetch(lambda n: n, range(4), workers=3, depth=1)
    assert next(work) == 0
    rest(work, 3)
    assert list(work) == [1, 2, 3]
    wait_until(lambda: not ours())


def test_close_ends_those_who_rest(patient):
    work = Prefetch(lambda n: n, range(9), workers=2, depth=1)
    next(work)
    rest(work, 2)
    work.close()
    assert not ours()


def test_a_worker_with_nothing_to_do_looks_once_and_rests(patient):
    asked = []

    def spare(wake):
        asked.append(None)
        return len(asked) < 4  # three times there is something to do

    work = Prefetch(lambda n: n, range(9), workers=1, depth=1, spare=spare)
    rest(work, 1)
    assert len(asked) == 4
    next(work)
    work.go_on()
    rest(work, 1)
    assert len(asked) == 6  # when it was woken, and after what it made then
    work.close()


def test_a_worker_that_reads_ahead_may_wake_another(patient):
    asked = threading.Semaphore(0)

    def spare(wake):
        asked.release()
        if threading.current_thread() is waker:
            rest(holder, 1)
            wake()
            return not rested.wait(HANG)  # until the other one has looked, and rests again
        return False

    work = prefetch._Work(lambda n: n, range(9), 0, spare, lambda: None)
    holder, rested = type("Holder", (), {"_work": work}), threading.Event()
    sleeper, waker = (
        threading.Thread(target=work.run, name=f"tabfeed-loader-{name}") for name in "sw"
    )
    sleeper.start()
    rest(holder, 1)
    assert asked.acquire(timeout=HANG)
    waker.start()
    assert asked.acquire(timeout=HANG) and asked.acquire(timeout=HANG)
    rested.set()
    work.stop()
    sleeper.join()
    waker.join()
    assert not ours()


def test_a_worker_that_hangs_is_not_waited_for_without_an_end(monkeypatch):
    monkeypatch.setattr(prefetch, "_JOIN", 0.05)
    begun, going = threading.Event(), threading.Event()
    work = Prefetch(lambda n: begun.set() or going.wait(HANG), range(1))
    assert begun.wait(HANG)
    work.close()
    assert ours() and all(thread.daemon for thread in ours())
    going.set()
    wait_until(lambda: not ours())


def test_as_many_threads_as_can_be_of_use():
    going = threading.Event()
    for workers, numbers, threads in ((3, range(9), 3), (5, range(2), 2), (0, range(9), 1)):
        work = Prefetch(lambda n: going.wait(HANG), numbers, workers=workers)
        assert len(work._threads) == threads
        going.set()
        work.close()
        going.clear()


def test_what_is_ready_is_told_without_waiting():
    going = threading.Event()

    def do(n):
        assert n == 0 or going.wait(HANG)
        if n == 2:
            raise Planned

    def result(n):
        do(n)
        return n + 1

    work = Prefetch(result, range(4), workers=1, depth=3)
    wait_until(lambda: work.ready)
    assert prefetch.queue_depths() == [(1, 3)]
    assert next(work) == 1
    assert not work.ready
    going.set()
    wait_until(lambda: len(work._work.results) == 2)
    assert work.ready and next(work) == 2
    assert not work.ready  # it failed
    with pytest.raises(Planned):
        next(work)
    assert prefetch.queue_depths() == []


def test_at_exit_every_iterator_is_closed_and_none_waited_for_without_an_end(monkeypatch):
    monkeypatch.setattr(prefetch, "_JOIN", 0.05)
    begun, going = threading.Event(), threading.Event()
    hangs = Prefetch(lambda n: begun.set() or going.wait(HANG), range(1))
    rests = Prefetch(lambda n: n, range(9), depth=1)
    assert begun.wait(HANG)
    prefetch._stop_all()
    assert hangs._work.stopped and rests._work.stopped
    going.set()
    wait_until(lambda: not ours())


def test_stop_iteration_in_any_work_done_ahead():
    def do(number):
        if number == 2:
            raise StopIteration
        return number

    work = Prefetch(do, range(5))
    assert [next(work), next(work)] == [0, 1]
    with pytest.raises(FunctionError, match="a function that makes batches"):
        next(work)
